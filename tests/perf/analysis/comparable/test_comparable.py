"""What may be compared: known and unknown facts, the axis that is varied, and what traces and records say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_records import header_of, machine_of
from made_traces import device_events, trace_of
from model_traces import write_model_trace
from strobe.core.errors import ConfigError
from strobe.perf.analysis.comparable import (
    ALLOWABLE,
    FACTS,
    SEVERAL,
    Facts,
    common_kernels,
    compare_facts,
    compare_variants,
    doubts,
    given_facts,
    obstacles,
    record_facts,
    refusal,
    trace_facts,
)
from strobe.perf.records.record import Clocks, Git, Model, Variant, Workload
from strobe.perf.trace import DeviceEvent, HostEvent, Trace, read_trace

_FACTS = st.dictionaries(st.sampled_from(sorted(set(FACTS) - set(SEVERAL))), st.sampled_from(["1", "2", "yes"]))


@given(_FACTS, _FACTS, st.sets(st.sampled_from(sorted(ALLOWABLE))))
def test_every_fact_has_one_verdict(baseline: dict[str, str], candidate: dict[str, str], allowed: set[str]) -> None:
    found = compare_facts(baseline, candidate, tuple(allowed))
    assert [check.name for check in found] == list(FACTS)
    for check in found:
        known = check.name in baseline and check.name in candidate
        equal = known and baseline[check.name] == candidate[check.name]
        expected = "unknown" if not known else "same" if equal else "allowed" if check.name in allowed else "differs"
        if check.name != "launch_blocking":
            assert check.verdict == expected
    serial = "yes" in (baseline.get("launch_blocking"), candidate.get("launch_blocking")) and "launch_blocking" not in allowed
    assert {check.name for check in obstacles(found)} - {"launch_blocking"} == {
        check.name for check in found if check.verdict == "differs" and check.weight == "must" and check.name != "launch_blocking"
    }
    assert any(check.name == "launch_blocking" for check in obstacles(found)) == serial
    back = compare_facts(candidate, baseline, tuple(allowed))
    assert [check.verdict for check in back] == [check.verdict for check in found]


@pytest.mark.parametrize(
    ("name", "candidate", "verdict", "weight"),
    [
        ("weights", {"8x8", "8x16"}, "same", "should"),
        ("weights", {"8x8", "8x24"}, "differs", "should"),
        ("weights", {"6x6"}, "differs", "must"),
        ("shapes", {"8x8", "8x24"}, "differs", "should"),
        ("shapes", {"6x6"}, "differs", "must"),
    ],
)
def test_several_values_are_an_obstacle_if_none_is_common(name: str, candidate: set[str], verdict: str, weight: str) -> None:
    kernel: Facts = {"kernel": frozenset({"flash"})}
    sides = {**kernel, name: frozenset({"8x8", "8x16"})}, {**kernel, name: frozenset(candidate)}
    found = compare_facts(*sides)
    (check,) = (check for check in found if check.name == name)
    assert (check.verdict, check.weight) == (verdict, weight)
    assert [each.name for each in obstacles(found)] == ([name] if weight == "must" else [])
    assert not obstacles(compare_facts(*sides, (name,)))


def test_another_kernel_may_take_its_inputs_in_another_layout() -> None:
    sides = [{"kernel": frozenset({name}), "shapes": frozenset({size})} for name, size in (("flash", "8x6"), ("sparse", "6x8"))]
    found = compare_facts(*sides)
    assert not obstacles(found) and [check.name for check in doubts(found)] == ["shapes"]


def test_a_refusal_says_why_and_what_to_do() -> None:
    found = compare_facts({"device": "A", "model": "Bert"}, {"device": "B", "model": "ViT"})
    assert refusal(found) == (
        "not comparable (model: Bert against ViT; device: A against B); if that is meant, say so: --allow-different model device"
    )
    assert not refusal(compare_facts({"device": "A"}, {"device": "A"}))


def test_stated_facts() -> None:
    assert given_facts(["frames=121", " sparsity = 0.7 ", "frames=121"]) == {"frames": "121", "sparsity": "0.7"}
    assert given_facts(["shapes=8x8; 8x6"]) == {"shapes": frozenset({"8x8", "8x6"})}
    for text, says in {"frames": "NAME=VALUE", "frames=": "NAME=VALUE", "frame=1": "did you mean 'frames'"}.items():
        with pytest.raises(ConfigError, match=says):
            given_facts([text])
    with pytest.raises(ConfigError, match="'1' and as '2'"):
        given_facts(["steps=1", "steps=2"])
    with pytest.raises(ConfigError, match="did you mean 'sparsity'.*allowed: commit, model, checkpoint"):
        compare_facts({}, {}, ("sparsities",))
    with pytest.raises(ConfigError, match="'date'"):
        compare_facts({}, {}, ("date",))


def make_trace(waits: bool, names: tuple[str, ...] = ("gemm",), launch: str = "cudaLaunchKernel") -> Trace:
    """30 kernels of 5 ns, launched by calls that return after them or before."""
    events = []
    for number in range(30):
        host = HostEvent(launch, 100 * number, 100 * number + (40 if waits else 4), 0)
        events.append(DeviceEvent(names[number % len(names)], "kernel", 100 * number + 20, 100 * number + 25, 1, 7, 0, host))
    return trace_of(
        events, base_ns=1_790_857_026_000_000_000, world_size=2, devices={0: "GPU A", 1: "GPU B"}, launched={launch: (30, 0)},
        metadata={"cuda_driver_version": "12080", "record_shapes": "1", "with_stack": "0"},
    )  # fmt: skip


def test_what_traces_say() -> None:
    assert trace_facts([make_trace(waits=False)]) == {
        "device": "GPU B", "devices": "1", "world": "2", "driver": "12.8", "capture": "record_shapes", "compiled": "none seen",
        "graphs": "none seen", "launch_blocking": "no", "date": "2026-10-01 12:17 UTC",
    }  # fmt: skip
    two = trace_facts(
        [make_trace(waits=True), make_trace(waits=False, names=("triton_poi_fused_add_0",), launch="cudaGraphLaunch")]
    )
    assert (two["devices"], two["launch_blocking"], two["compiled"], two["graphs"]) == ("2", "yes", "yes", "yes")
    plain = replace(make_trace(waits=False), metadata={"schemaVersion": "1"}, devices={}, base_ns=0, launched={}, world_size=None)
    assert trace_facts([plain]) == {"capture": "times alone", "compiled": "none seen", "launch_blocking": "no", "world": "1"}
    assert "world" not in trace_facts([plain, plain]), "two processes that do not say how many there are"
    assert trace_facts([]) == {}
    for said, version in (("60443483", "6.4.43483"), ("13000", "13.0"), ("12.8.93", "12.8.93"), ("550", "550")):
        assert trace_facts([replace(plain, metadata={"hip_runtime_version": said})])["cuda"] == version
    other_number = replace(make_trace(waits=False), devices={0: "GPU A"})
    assert trace_facts([other_number])["device"] == "GPU A", "AMD lists one device and numbers it otherwise"


def test_what_our_records_say() -> None:
    machine = machine_of(
        device="cuda:0", device_name="GPU A", gpu_count=1, driver="580", cuda="12.8", torch="2.9", launch_blocking=True,
        clocks=Clocks(source="nvml", sm_mhz=1980, memory_mhz=3201),
    )  # fmt: skip
    workload = Workload(
        prompts=(), seed=3, frame_blocks=4, latents_per_block=3, frames_first_block=9, frames_per_block=12, frames=45, height=128,
        width=256, fps=16,
    )  # fmt: skip
    model = Model(name="shapes", weights_sha256="f" * 64, num_params=1)
    header = header_of(("a", "b"), git=Git(commit="abc", dirty=False), machine=machine, workload=workload, model=model)
    variant = Variant(name="a", preset="a", attention_impl="triton", sparsity=0.0, steps=4, dtype="bfloat16", tokens_per_block=96)
    assert record_facts(header, variant) == {
        "date": "2026-01-01T00:00:00Z", "commit": "abc", "device": "GPU A", "devices": "1", "world": "1", "sharding": "1, 1",
        "torch": "2.9", "cuda": "12.8", "driver": "580", "launch_blocking": "yes", "clocks": "1980 MHz SM, 3201 MHz memory",
        "model": "shapes", "checkpoint": "f" * 16, "frames": "45", "resolution": "256x128", "batch": "1", "seed": "3",
        "backend": "triton", "sparsity": "0.0", "tokens": "96", "steps": "4", "dtype": "bfloat16",
    }  # fmt: skip
    bare = msgspec.structs.replace(header, model=None, workload=None, git=Git(commit=None, dirty=None))
    names = "date device devices world sharding torch cuda driver launch_blocking clocks"
    assert set(record_facts(bare, None)) == set(names.split())
    longer = msgspec.structs.replace(variant, name="b", attention_impl="cudnn", tokens_per_block=128)
    quiet = msgspec.structs.replace(header, machine=msgspec.structs.replace(machine, launch_blocking=False))
    assert [each.name for each in obstacles(compare_variants(quiet, variant, longer))] == ["tokens"]
    assert not obstacles(compare_variants(quiet, variant, longer, ("tokens",)))
    assert [each.name for each in obstacles(compare_variants(header, variant, variant))] == ["launch_blocking"]


def read(path: Path, model: str | tuple[str, ...], **more: Any) -> Trace:
    return read_trace(write_model_trace(path, model, **more), ops=False, shapes=True)


def test_model_dtype_weights_and_input_sizes_come_from_the_trace(tmp_path: Path) -> None:
    facts = trace_facts([read(tmp_path / "t.json", "Bert")], "flash")
    assert {name: facts[name] for name in ("model", "weights", "dtype", "kernel", "shapes", "device", "world")} == {
        "model": "Bert", "weights": frozenset({"64x64"}), "dtype": "bfloat16", "kernel": frozenset({"flash_fwd"}),
        "shapes": frozenset({"1x12x4x16, 1x12x4x16, 1x12x4x16"}), "device": "Example GPU", "world": "1",
    }  # fmt: skip
    wrapped = trace_facts([read(tmp_path / "w.json", ("OptimizedModule", "Bert"))])
    assert wrapped["model"] == "Bert", "what torch wraps around a model is not the model"
    assert "model" not in trace_facts([read(tmp_path / "c.json", ("OptimizedModule",))]), "its inside was compiled"
    assert not {"kernel", "shapes"} & wrapped.keys(), "nothing is focal"


def test_launch_geometry_is_not_an_input_size(tmp_path: Path) -> None:
    path = write_model_trace(tmp_path / "t.json", "Bert")
    assert "shapes" in trace_facts([read_trace(path, ops=False, shapes=True)], "flash")
    assert "shapes" not in trace_facts([read_trace(path, ops=False)], "flash"), "read without sizes, grid and block are left"


def test_kernels_of_both_sides(tmp_path: Path) -> None:
    bert, vit = read(tmp_path / "a.json", "Bert"), read(tmp_path / "b.json", "ViT", kernels=("flash_fwd", "conv"))
    found = common_kernels([bert], [vit])
    assert found is not None and found.names == ("flash_fwd",)
    spent = [Counter[str](), Counter[str]()]
    for side, trace in zip(spent, (bert, vit), strict=True):
        for each in trace.device_events:
            side[each.name] += each.end_ns - each.start_ns
    assert found.baseline_share == spent[0]["flash_fwd"] / spent[0].total()
    assert found.candidate_share == spent[1]["flash_fwd"] / spent[1].total()
    empty = replace(bert, device_events=device_events(()))
    assert common_kernels([bert], [empty]) is None
