"""Schedules, presets, and configurations resolved for a model and a device."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, fields, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ring_frames import stored_bytes
from strobe.attention.dense.eight.api import IMPLS
from strobe.attention.impls import MISSING, GateRun
from strobe.core.device import Card, card_of
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.core.shapes import VaeStride
from strobe.engine import resolve as resolve_module
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, NoiseSchedule, replace_knobs
from strobe.engine.load import model_parts
from strobe.engine.memory import GIB, LARGEST, check, check_together, claim_of, free_bytes, predict
from strobe.engine.model import Model, latent_shape
from strobe.engine.parallel.rank import check_several
from strobe.engine.presets import PRESETS, diff, preset
from strobe.engine.prompts import Switch
from strobe.engine.resolve import check_device, idle_knobs, lacking, resolve, without_kernel
from strobe.engine.session import Session
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.wan.dit import CausalWan
from tiny_model import Make, latents


@pytest.mark.parametrize("shift", [1.0, 2.0, 5.0, 8.0])
def test_equals_the_official_table(shift: float) -> None:
    """A table in float32, read at whole timesteps; rounding the exact value would often give its neighbour."""
    s = torch.linspace(1, 0, 1001)[:-1]
    table = (shift * s / (1 + (shift - 1) * s)) * 1000
    schedule = NoiseSchedule(timesteps=tuple(range(1000, 0, -1)), shift=shift)
    assert schedule.warped == tuple(table.tolist())
    exact = [float(Fraction(int(shift) * t, 1000 + (int(shift) - 1) * t)) for t in range(1000, 0, -1)]
    assert schedule.sigmas == pytest.approx(exact, rel=1e-15)


def test_timesteps_between_the_whole_ones() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 333.25), shift=5.0)
    assert schedule.warped[1] == pytest.approx(1000 * schedule.sigmas[1], rel=2e-7)


@pytest.mark.parametrize("timesteps", [(), (999, 500), (1000, 500, 500), (1000, 500, 750), (0,), (1000, -5)])
def test_impossible_timesteps(timesteps: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="start at 1000"):
        NoiseSchedule(timesteps=timesteps, shift=5)
    with pytest.raises(ConfigError, match="shift"):
        NoiseSchedule(timesteps=(1000,), shift=0)


def test_a_last_step_is_told_0_and_takes_away_the_weakest_noise_of_the_table() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 500, 0), shift=5.0)
    assert schedule.warped[-1] == 0
    assert math.isclose(schedule.sigmas[-1], 0.005 / 1.004)
    assert schedule.sigmas[:2] == NoiseSchedule(timesteps=(1000, 500), shift=5.0).sigmas


DEFAULTS = ModelDefaults(
    frame_size=(32, 32), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0, 750.0, 500.0, 250.0), shift=5.0
)


def knobs_on(config: EngineConfig) -> set[str]:
    return {each.name for each in fields(Knobs) if getattr(config.knobs, each.name)}


def test_each_preset_keeps_the_knobs_that_the_one_before_turns_on() -> None:
    sets = [knobs_on(preset(name)) for name in ("baseline", "quality", "balanced", "turbo")]
    assert sets[0] == set() and sets[-1] == {each.name for each in fields(Knobs)}
    assert all(first < second for first, second in pairwise(sets))


@pytest.mark.parametrize(("name", "near"), [("turbo_fp8", "turbo"), ("ultra", "turbo"), ("balanced_int8", "balanced")])
def test_fp8_without_hardware_for_it_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, near: str) -> None:
    with pytest.raises(
        ImplUnavailableError,
        match=f"^preset '{name}' cannot run: it runs linear layers in FP8, and cpu has .* preset '{near}' .* --simulate",
    ):
        resolve(preset(name), DEFAULTS, torch.device("cpu"))
    nvidia = [(Card(vendor="nvidia", capability=capability), capability >= (8, 9)) for capability in ((8, 0), (8, 9), (9, 0))]
    for card, there in (*nvidia, (Card(vendor="amd", architecture="gfx942"), False)):
        monkeypatch.setattr(resolve_module, "card_of", lambda _, card=card: card)
        config = replace(preset(name), attention_format="native")
        assert bool(lacking(config, torch.device("cuda", 0))) == (not there)
        assert not lacking(replace(config, simulate=True), torch.device("cuda", 0))


def test_graphs_need_a_pass_that_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.broken", lambda module: "")
    monkeypatch.setattr("strobe.engine.resolve.shutil.which", lambda name: name)
    gpu = torch.device("cuda", 0)
    assert resolve(EngineConfig(), DEFAULTS, gpu).knobs.cuda_graphs
    config = EngineConfig(knobs=replace_knobs(Knobs(), rope_table=False))
    assert not resolve(config, DEFAULTS, gpu).knobs.cuda_graphs
    assert "knob rope_table is off" in idle_knobs(config, DEFAULTS, gpu)["cuda_graphs"]


def test_a_knob_that_does_nothing_here_is_off_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.OVERLAP_CORES", 4)
    balanced, cpu = preset("balanced"), torch.device("cpu")
    knobs, idle = resolve(balanced, DEFAULTS, cpu).knobs, idle_knobs(balanced, DEFAULTS, cpu)
    assert not knobs.compile and "CUDA" in idle["compile"]
    assert knobs.ring_cache and "ring_cache" not in idle
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not resolve(balanced, DEFAULTS, cpu).knobs.overlap_decode
    for cores in (2, 4):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        on, idle = resolve(balanced, DEFAULTS, cpu).knobs.overlap_decode, idle_knobs(balanced, DEFAULTS, cpu)
        assert on == ("overlap_decode" not in idle) == (cores == 4) and (on or "2 CPU core(s)" in idle["overlap_decode"])
    baseline = preset("baseline")
    assert not any(astuple(resolve(baseline, DEFAULTS, cpu).knobs)) and not idle_knobs(baseline, DEFAULTS, cpu)


def test_late_frames_need_something_to_run_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.OVERLAP_CORES", 4)
    late = EngineConfig(knobs=Knobs(late_frames=True))
    assert resolve(late, DEFAULTS, torch.device("cuda", 0)).knobs.late_frames
    for config, cores, device in (
        (replace(late, knobs=Knobs(late_frames=True, overlap_decode=False)), 64, torch.device("cuda", 0)),
        (late, 1, torch.device("cpu")),
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert not resolve(config, DEFAULTS, device).knobs.late_frames
        assert "overlap_decode, which is off here" in idle_knobs(config, DEFAULTS, device)["late_frames"]


@pytest.mark.parametrize(
    ("tools", "reason"),
    [({"triton", "clang"}, ""), ({"gcc"}, "needs Triton: triton is not installed"), ({"triton"}, "gcc nor clang")],
)
def test_a_gpu_takes_bfloat16_and_compiles_with_compilers(monkeypatch: pytest.MonkeyPatch, tools: set[str], reason: str) -> None:
    monkeypatch.setattr("strobe.engine.resolve.broken", lambda _: "" if "triton" in tools else "triton is not installed")
    monkeypatch.setattr("strobe.engine.resolve.shutil.which", lambda tool: tool if tool in tools else None)
    config = resolve(preset("balanced"), DEFAULTS, torch.device("cuda", 0))
    told = idle_knobs(config.asked, DEFAULTS, torch.device("cuda", 0)).get("compile", "")
    assert config.knobs.compile == (not told) == (not reason) and reason in told
    assert config.dtype == torch.bfloat16
    assert resolve(replace(preset("balanced"), dtype="float32"), DEFAULTS, torch.device("cuda", 0)).dtype == torch.float32


def test_timesteps_may_be_a_list() -> None:
    config = EngineConfig(timesteps=[1000, 250])  # type: ignore[arg-type]
    assert config == EngineConfig(timesteps=(1000, 250)) and hash(config)


def test_diff_has_a_row_for_every_setting() -> None:
    rows = diff([make() for make in PRESETS.values()])
    assert set(rows) == {each.name for kind in (EngineConfig, Knobs) for each in fields(kind)} - {"name", "knobs"}
    steps = dict(zip(PRESETS, rows["timesteps"], strict=True))
    assert {steps[name] for name in ("baseline", "quality", "balanced", "balanced_int8", "low_memory", "sparse")} == {"model"}
    assert steps["turbo"] == steps["turbo_fp8"] == steps["turbo_int8"] == "1000, 500, 250" and steps["ultra"] == "1000, 250"
    by_preset = {name: dict(zip(PRESETS, values, strict=True)) for name, values in rows.items()}
    assert {name for name, value in by_preset["sparsity"].items() if value != "0.0"} == {"sparse"}
    assert {name for name, value in by_preset["ring_cache"].items() if value == "off"} == {"baseline"}
    assert len(set(rows["positions"])) == 1
    late = {name for name, value in by_preset["late_frames"].items() if value == "on"}
    assert late == {"turbo", "turbo_fp8", "turbo_int8", "ultra"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_format": "int4"}, "unknown kv_format 'int4'"),
        ({"linear_format": "fp6"}, "unknown linear_format 'fp6'"),
        ({"kv_format": "int8", "sparsity": 0.5}, "does not go with sparsity 0.5"),
        ({"attention_format": "fp8"}, "unknown attention_format 'fp8'"),
        ({"attention_format": "int8", "kv_format": "int8"}, "'int8' does not go with kv_format 'int8'"),
        ({"attention_format": "int8", "knobs": replace_knobs(Knobs(), ring_cache=False)}, "does not go with knob ring_cache off"),
        ({"kv_format": "fp8", "knobs": replace_knobs(Knobs(), ring_cache=False)}, "does not go with knob ring_cache off"),
        ({"positions": "rebase"}, "did you mean 'rebased'"),
        ({"dtype": "float16"}, "allowed: auto, float32, bfloat16"),
        ({"sparsity": 1.0}, "sparsity 1.0 is not valid: give 0"),
        ({"sparsity": 0.5, "knobs": replace_knobs(Knobs(), ring_cache=False)}, "needs knob ring_cache"),
        ({"window": 5, "sink": 3}, "largest sink with window 5: 2"),
    ],
)
def test_wrong_settings_name_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(EngineConfig(**changes), DEFAULTS, torch.device("cpu"))


def test_replace_knobs_changes_only_what_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fused_qkv'"):
        replace_knobs(Knobs(), fused_kv=True)
    assert knobs_on(EngineConfig(knobs=replace_knobs(Knobs(), compile=False))) == knobs_on(EngineConfig()) - {"compile"}


# Predicted bytes against those of a stream that runs.


CPU = torch.device("cpu")


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of different storages."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None
    }
    return sum(storages.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("samples", [(0,), (0, 3)])
@pytest.mark.parametrize(
    "preset", ["baseline", "absolute", "quality", "balanced", "balanced_int8", "sparse", "low_memory", "ultra"]
)
def test_what_is_counted_is_what_is_held(make: Make, tiny: Model, preset: str, samples: Sequence[int], dtype: Any) -> None:
    config = replace(PRESETS["baseline" if preset == "absolute" else preset](), dtype=dtype, simulate=True)
    if preset == "absolute":  # no sink is turned
        config = replace(config, positions="absolute")
    if preset == "sparse":  # 6 x 12 tokens: two tiles with padding
        tiny = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))
    session = make(preset=config, samples=samples, model=tiny)
    [*session.stream(5 if preset in ("baseline", "absolute") else 3)]  # a sink is turned once the window has moved
    stream: Any = session._stream
    predicted = predict(tiny, session.config, len(samples))
    del predicted[LARGEST]
    rows = stream._dit._rows.values()
    assert predicted == {
        "transformer weights": held(stream._dit.dit.state_dict().values()),
        "keys and values": stored_bytes(stream._cache),
        "text keys and values": held(stream._text[1].kept.kv.tensors),
        "modulation tables": held(tensor for row in rows for tensor in (row.layers, row.head)),
        "autoencoder weights": held(stream._decoder._vae.state_dict().values()),
        "decoder memories": held(stream.state.decoder[1]),
        "inputs of graphs": 0,  # on a CPU there are none; see test_graphs.py
    }


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is None or storage._cdata in self._seen:
                continue
            self._seen.add(storage._cdata)
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
            self.most = max(self.most, self.bytes)
        return out

    def _gone(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self.bytes -= num_bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("overlap_decode", [False, True])
@pytest.mark.parametrize("block_decode", [False, True])
@pytest.mark.parametrize(("name", "frames"), [("wan-1.3b", 12), ("wan-5b", 8)])  # of the largest pass: a recache, or none
def test_what_the_wan_decoder_makes_on_the_way(name: str, frames: int, block_decode: bool, overlap_decode: bool) -> None:
    """Its largest call, new memories included, is predicted and a little more; frame by frame beside other work, where the stream
    keeps those from before the frame block too, with these."""
    parts = model_parts(name)
    wan, grid = parts.dit.config, latent_shape(parts.defaults, parts.dit.config)
    here = resolve(EngineConfig(dtype="bfloat16"), parts.defaults, CPU)
    knobs = replace_knobs(here.knobs, block_decode=block_decode, overlap_decode=overlap_decode)
    alone, late = (predict(parts, replace(here, knobs=replace_knobs(knobs, late_frames=late))) for late in (False, True))
    transformer = frames * grid.token_grid(wan.patch).tokens_per_frame * 2 * (wan.dim + wan.ffn_dim) * 2
    made = late[LARGEST] - transformer
    assert alone[LARGEST] == max(transformer, made)
    if overlap_decode and not block_decode:
        made -= late["decoder memories"]
    with torch.device("meta"):
        decoder = StreamingDecoder(
            WanVAE(WAN22 if name == "wan-5b" else WanVAEConfig()).bfloat16().requires_grad_(False).channels_last()
        )
    latents = torch.empty(1, grid.frames if block_decode else 1, grid.channels, grid.height, grid.width, device="meta")
    for piece in (latents[:, :1], latents):
        decoder.push(piece)
    with Live() as live:
        decoder.push(latents)
    assert live.most <= made <= 1.06 * live.most


def test_a_fused_transformer_holds_nothing_twice(make: Make) -> None:
    fused, plain = (make(preset=preset)._stream._dit.dit for preset in ("balanced", "quality"))
    own = [tensor for layer in fused.layers for tensor in layer.self_attn.fused.parameters()]
    assert len(own) == 4 and held([*fused.state_dict().values(), *own]) == held(plain.state_dict().values())


def test_memory_that_is_not_there() -> None:
    parts = {f"part {size}": size << 30 for size in (1, 2, 3, 4)}
    check(parts, 10 << 30, CPU)
    with pytest.raises(
        StrobeError, match=r"about 10.0 GiB, and cpu has 9.0 GiB free \(part 4 4.0, part 3 3.0, part 2 2.0 GiB\); lower"
    ):
        check(parts, 9 << 30, CPU)


def test_sessions_open_at_a_time_must_fit_together() -> None:
    """What each holds is added up; what only one needs at a time is counted once."""
    claims = {"a": (3 * GIB, 2 * GIB), "b": (4 * GIB, GIB)}
    check_together(claims, 9 * GIB, CPU)
    said = (
        r"2 sessions .* 9\.0 GiB, and cpu has 8\.9 GiB free \(a 3\.0, b 4\.0 GiB, and 2\.0 .*the first 1 would fit.*compare fewer"
    )
    with pytest.raises(StrobeError, match=said):
        check_together(claims, int(8.9 * GIB), CPU)
    with pytest.raises(StrobeError, match="not even the first would fit: .*lower the frame size"):
        check_together(claims, 4 * GIB, CPU)


@pytest.mark.parametrize("graphs", [False, True])
def test_what_a_session_holds_and_what_passes(graphs: bool) -> None:
    """Graphs keep what their passes work with."""
    parts = model_parts("wan-1.3b")
    here = resolve(EngineConfig(dtype="bfloat16"), parts.defaults, CPU)
    config = replace(here, knobs=replace_knobs(here.knobs, cuda_graphs=graphs))
    found = predict(parts, config)
    held, passing = claim_of(found, config)
    assert held == sum(found.values()) - (0 if graphs else found["largest pass"])
    kept = found["keys and values"]
    assert passing == (kept if graphs else max(kept, found["largest pass"]))


def test_a_session_that_does_not_fit_a_cpu_is_refused(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_bytes(CPU)
    assert free is None or 2**20 < free < 2**60
    monkeypatch.setattr("strobe.engine.memory.available_bytes", lambda: 1000)
    with pytest.raises(StrobeError, match=r"a stream would take about .* and cpu has 0\.0 GiB free .*; lower the frame size"):
        Session(model=tiny, device="cpu")
    monkeypatch.setattr("strobe.engine.memory.available_bytes", lambda: None)  # nobody knows
    Session(model=tiny, device="cpu").close()


# Self-attention in eight bits in the engine: near the native stream, the same in every run, refused in one line.


SWITCHES = (Switch(frame_block=2, prompt="green square"), Switch(frame_block=5, prompt="blue square"))
ERROR = 0.03
"""Root mean square of the difference of latents / of the latents: 0.003 to 0.007 on a CPU, with FP8 layers 0.011 to 0.014."""


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the gate of `gluon` had been run here: these tests stand for the engine, the gate for the kernel."""
    card = card_of(torch.device("cuda")) if torch.cuda.is_available() else None
    if card is not None:
        green = GateRun(
            operator="eightbit", impl="gluon", vendor=card.vendor, architecture=card.architecture, device=card.name, versions={},
            date="2026-01-31", tests=1, kernel=IMPLS[0].kernel,
        )  # fmt: skip
        monkeypatch.setattr("strobe.attention.impls.GATES", (green,))


def wide(tiny: Model) -> Model:
    """With heads as wide as the kernels take them."""
    torch.manual_seed(8)
    dit = CausalWan(replace(tiny.dit.config, dim=256))
    with torch.no_grad():
        for parameter in dit.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    return replace(tiny, dit=dit)


def play(session: Session, num_blocks: int = 7) -> Tensor:
    return latents(session.stream(num_blocks, switches=SWITCHES)).cpu()


def off(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().mean() / expected.square().mean()).sqrt().item()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "options", [{}, {"window": 6, "sink": 1}, {"window": 5, "sink": 0}, {"window": 7, "sink": 2, "first_block": 1}]
)
def test_a_stream_is_near_the_native_one(
    make: Callable[..., Session], tiny: Model, gated: None, options: dict[str, Any], device: str
) -> None:
    """While the window fills and after, over hard switches, with the sink turned; attention alone, and linear layers too."""
    options = options | {"dtype": "float32" if device == "cpu" else "bfloat16", "simulate": device == "cpu"}
    eight, attention = preset("balanced_int8"), {"linear_format": "native"}
    configs = (preset("balanced"), *[replace(eight, **attention)] * 2, eight)
    played = [play(make(preset=replace(each, **options), model=wide(tiny), device=device)) for each in configs]
    assert torch.equal(played[1], played[2])
    assert 1e-4 < off(played[1], played[0]) < off(played[3], played[0]) < ERROR


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    "options", [{"window": 6, "sink": 1, "keep_sink": False}, {"window": 8, "sink": 2}, {"window": 8, "sink": 2, "sparsity": 0.8}]
)
def test_graphs_are_the_passes(
    make: Callable[..., Session], tiny: Model, gated: None, options: dict[str, Any], kernels: bool
) -> None:
    """Bit by bit; the CPU twin is in test_graphs.py."""
    model = wide(tiny)
    if "sparsity" in options:
        model = replace(model, defaults=replace(model.defaults, frame_size=(192, 256)))
    played = []
    for on in (True, False):
        knobs = replace_knobs(Knobs(), compile=False, fused_kernels=kernels, cuda_graphs=on)
        config = EngineConfig(dtype="bfloat16", attention_format="int8", knobs=knobs, **options)
        played.append(play(make(preset=config, model=model, device="cuda")))
    assert torch.equal(*played)


def test_what_it_does_not_go_with_is_said_in_one_line(tiny: Model) -> None:
    config = replace(preset("balanced_int8"), linear_format="native")
    for past, told in (("recomputed", "is recomputed"), ("rolling", "is rolling"), ("shots", "comes in shots")):
        defaults: Any = replace(tiny.defaults, past=past, sink=1 if past == "recomputed" else 3, window=21, positions="absolute")
        with pytest.raises(
            ConfigError, match=f"is for models whose past is kept, and the past of this one {told}: use"
        ) as caught:
            resolve(config, defaults, CPU)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"attention in eight bits runs on one device; leave torchrun out"):
        check_several(resolve(config, tiny.defaults, CPU))
    assert lacking(config, CPU) == "" == without_kernel(CPU, torch.float32, 24)


def test_a_gpu_without_kernels_or_gate_is_told_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine there is no such GPU: its card has no name."""
    config, device = preset("balanced_int8"), torch.device("cuda")
    monkeypatch.setattr("strobe.engine.resolve.card_of", lambda _: replace(card_of(CPU), vendor="nvidia", capability=(8, 9)))
    with pytest.raises(
        ImplUnavailableError, match=r"preset 'balanced_int8' cannot run: it attends in eight bits, which does not"
    ) as caught:
        check_device(config, device)
    assert "compute capability 9.x, cuda has 8.9" in str(caught.value) and "\n" not in str(caught.value)
    hopper = replace(card_of(CPU), vendor="nvidia", architecture="sm_90", capability=(9, 0), name="some card")
    monkeypatch.setattr("strobe.engine.resolve.card_of", lambda _: hopper)
    monkeypatch.setattr("strobe.attention.impls.GATES", ())
    for name in ("gluon", "triton"):
        monkeypatch.setitem(MISSING.found, name, None)
    assert "strobe doctor --gate runs it" in lacking(config, device)
    assert "it takes bfloat16 and float16, not float32" in lacking(replace(config, dtype="float32"), device)
    assert "it has head_dim 128, not 64" in without_kernel(device, torch.bfloat16, 64)
