"""What may be compared: known and unknown facts, the axis that is varied, and what traces and records say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError
from strobe.perf.analysis.ledger.comparable import FACTS, compare_facts, given_facts, record_facts, trace_facts
from strobe.perf.records.record import Clocks, Git, Header, Machine, Model, Variant, Workload
from strobe.perf.trace import Device, DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace

_FACTS = st.dictionaries(st.sampled_from(sorted(FACTS)), st.sampled_from(["1", "2"]))


@given(_FACTS, _FACTS, st.sets(st.sampled_from(sorted(FACTS))))
def test_every_fact_has_one_verdict(baseline: dict[str, str], candidate: dict[str, str], vary: set[str]) -> None:
    found = compare_facts(baseline, candidate, tuple(vary))
    assert [check.name for check in found.checks] == list(FACTS)
    for check in found.checks:
        known = check.name in baseline and check.name in candidate
        equal = known and baseline[check.name] == candidate[check.name]
        expected = "unknown" if not known else "same" if equal else "varied" if check.name in vary else "differs"
        assert check.verdict == expected
    serial = "yes" in (baseline.get("launch_blocking"), candidate.get("launch_blocking"))
    assert {check.name for check in found.obstacles} - {"launch_blocking"} == {
        check.name
        for check in found.checks
        if check.verdict == "differs" and check.weight == "must" and check.name != "launch_blocking"
    }
    assert any(check.name == "launch_blocking" for check in found.obstacles) == serial
    back = compare_facts(candidate, baseline, tuple(vary))
    assert [check.verdict for check in back.checks] == [check.verdict for check in found.checks]


def test_serialised_launches_are_compared_with_nothing() -> None:
    found = compare_facts({"launch_blocking": "yes"}, {"launch_blocking": "yes"})
    assert [check.name for check in found.obstacles] == ["launch_blocking"]
    assert not compare_facts({"launch_blocking": "no"}, {"launch_blocking": "no"}).obstacles


def test_stated_facts() -> None:
    assert given_facts(["frames=121", " sparsity = 0.7 ", "frames=121"]) == {"frames": "121", "sparsity": "0.7"}
    for text, says in {"frames": "NAME=VALUE", "frames=": "NAME=VALUE", "frame=1": "did you mean 'frames'"}.items():
        with pytest.raises(ConfigError, match=says):
            given_facts([text])
    with pytest.raises(ConfigError, match="'1' and as '2'"):
        given_facts(["steps=1", "steps=2"])
    with pytest.raises(ConfigError, match="did you mean 'sparsity'"):
        compare_facts({}, {}, ("sparsities",))


def make_trace(waits: bool, names: tuple[str, ...] = ("gemm",), launch: str = "cudaLaunchKernel") -> Trace:
    """30 kernels of 5 ns, launched by calls that return after them or before."""
    events = []
    for number in range(30):
        host = HostEvent(launch, 100 * number, 100 * number + (40 if waits else 4), 0)
        events.append(DeviceEvent(names[number % len(names)], "kernel", 100 * number + 20, 100 * number + 25, 1, 7, 0, host))
    return Trace(
        path=Path("t.json"),
        base_ns=1_790_857_026_000_000_000,
        world_size=2,
        devices=(Device(index=0, name="GPU A"), Device(index=1, name="GPU B")),
        metadata={"cuda_driver_version": "12080", "record_shapes": "1", "with_stack": "0"},
        threads=("1/1",),
        ops=HostEvents.empty(),
        regions=(),
        device_events=DeviceEvents.from_rows(events),
        launched={launch: (30, 0)},
    )


def test_what_traces_say() -> None:
    assert trace_facts([make_trace(waits=False)]) == {
        "gpu": "GPU B", "gpus": "1", "world": "2", "driver": "12080", "capture": "record_shapes", "compiled": "none seen",
        "graphs": "none seen", "launch_blocking": "no", "date": "2026-10-01 12:17 UTC",
    }  # fmt: skip
    two = trace_facts(
        [make_trace(waits=True), make_trace(waits=False, names=("triton_poi_fused_add_0",), launch="cudaGraphLaunch")]
    )
    assert (two["gpus"], two["launch_blocking"], two["compiled"], two["graphs"]) == ("2", "yes", "yes", "yes")
    plain = replace(make_trace(waits=False), metadata={"schemaVersion": "1"}, devices=(), base_ns=0, launched={}, world_size=None)
    assert trace_facts([plain]) == {"capture": "times alone", "compiled": "none seen", "launch_blocking": "no"}
    assert trace_facts([]) == {}
    other_number = replace(make_trace(waits=False), devices=(Device(index=0, name="GPU A"),))
    assert trace_facts([other_number])["gpu"] == "GPU A", "AMD lists one device and numbers it otherwise"


def test_what_our_records_say() -> None:
    machine = Machine(
        device="cuda:0", device_name="GPU A", gpu_count=1, gpu_memory_bytes=None, driver="580", cuda="12.8", torch="2.9",
        python="3.11", os="Linux", cpu_name="a CPU", cores=2, threads=2, memory_bytes=None, launch_blocking=True,
        clocks=Clocks(source="nvml", sm_mhz=1980, memory_mhz=3201),
    )  # fmt: skip
    workload = Workload(
        prompts=(), seed=3, frame_blocks=4, latents_per_block=3, frames_first_block=9, frames_per_block=12, frames=45, height=128,
        width=256, fps=16,
    )  # fmt: skip
    header = Header(
        run="r", date="2026-01-01T00:00:00Z", strobe="0", git=Git(commit="abc", dirty=False), argv=(), machine=machine,
        baseline="a", order=("a", "b"), palindromes=1, workload=workload,
        model=Model(name="shapes", weights_sha256="f" * 64, num_params=1),
    )  # fmt: skip
    variant = Variant(name="a", preset="a", attention_impl="triton", sparsity=0.0, steps=4, dtype="bfloat16", tokens_per_block=96)
    assert record_facts(header, variant) == {
        "date": "2026-01-01T00:00:00Z", "commit": "abc", "gpu": "GPU A", "gpus": "1", "world": "1, 1, 1", "torch": "2.9",
        "cuda": "12.8", "driver": "580", "launch_blocking": "yes", "clocks": "1980 MHz SM, 3201 MHz memory", "model": "shapes",
        "checkpoint": "f" * 16, "frames": "45", "resolution": "256x128", "batch": "1", "seed": "3", "backend": "triton",
        "sparsity": "0.0", "tokens": "96", "steps": "4", "dtype": "bfloat16",
    }  # fmt: skip
    bare = msgspec.structs.replace(header, model=None, workload=None, git=Git(commit=None, dirty=None))
    assert set(record_facts(bare, None)) == {
        "date",
        "gpu",
        "gpus",
        "world",
        "torch",
        "cuda",
        "driver",
        "launch_blocking",
        "clocks",
    }
