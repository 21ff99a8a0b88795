"""The engine on a GPU: the frames of the CPU, whatever the knobs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.core.errors import StrobeError
from strobe.engine.arena import new_arena
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.graphs import CudaGraphs
from strobe.engine.load import Model
from strobe.engine.memory import plan_arena
from strobe.engine.presets import PRESETS, preset
from strobe.engine.prompts import Change, Mode, Switch
from strobe.engine.session import Session
from strobe.models.wan.dit import CausalWan

pytestmark = pytest.mark.gpu
SWITCHES = [Switch(frame_block=5, prompt="blue square")]


def play(session: Session) -> tuple[Tensor, Tensor]:
    blocks = list(session.stream(8, switches=SWITCHES))
    latents, frames = torch.cat([b.latents for b in blocks], dim=1), torch.cat([b.samples for b in blocks], dim=1)
    assert frames.device.type == "cpu" and frames.dtype == torch.uint8
    return latents.cpu(), frames.float()


def larger(tiny: Model, name: str) -> Model:
    """With frames that fill tiles, and heads as wide as the kernels for tiles take them, if it is for those."""
    if name != "sparse":
        return tiny
    torch.manual_seed(8)
    dit = CausalWan(replace(tiny.dit.config, dim=64))
    return replace(tiny, dit=dit, defaults=replace(tiny.defaults, frame_size=(128, 128)))


@pytest.mark.parametrize("name", PRESETS)
def test_gpu_equals_cpu(make: Callable[..., Session], tiny: Model, name: str) -> None:
    config, model = replace(preset(name), dtype="float32", simulate=True), larger(tiny, name)
    (cpu, cpu_frames), (gpu, gpu_frames) = (play(make(preset=config, device=each, model=model)) for each in ("cpu", "cuda"))
    if config.linear_format == "fp8":  # what lies half-way between two numbers of FP8 goes either way, and moves all after it
        native, _ = play(make(preset=replace(config, linear_format="native"), model=model))
        assert (gpu - cpu).abs().mean() < 0.5 * (native - cpu).abs().mean()
    else:
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=2e-3)
    assert (gpu_frames - cpu_frames).abs().mean() < 0.5


@pytest.mark.parametrize("knob", ["compile", "fused_kernels", "memory_pool", "overlap_decode", "late_frames", "ring_cache"])
def test_no_knob_changes_the_result(make: Callable[..., Session], knob: str) -> None:
    knobs = replace_knobs(Knobs(), compile=False, fused_kernels=knob != "compile")  # kernels leave no layers to compile
    (on, _), (off, _) = (
        play(make(preset=EngineConfig(dtype="float32", knobs=replace_knobs(knobs, **{knob: value})), device="cuda"))
        for value in (True, False)
    )
    torch.testing.assert_close(on, off, rtol=0, atol=2e-3)


def test_late_frames_are_those_that_come_at_once(make: Callable[..., Session]) -> None:
    """Bit by bit, snapshots amid a stream included."""
    results = []
    for late in (False, True):
        knobs = replace_knobs(Knobs(), compile=False, late_frames=late)
        session = make(preset=EngineConfig(dtype="float32", knobs=knobs), device="cuda")
        assert session.config.knobs.late_frames == late
        blocks = []
        for block in session.stream(8, switches=SWITCHES):
            blocks.append(block)
            session.restore(session.snapshot())
        results.append((torch.cat([b.latents for b in blocks], dim=1), torch.cat([b.samples for b in blocks], dim=1)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", ["balanced", "turbo"])
def test_forks_replay_bit_equal(make: Callable[..., Session], name: str) -> None:
    session = make(preset=name, device="cuda")
    list(session.stream(2))
    next(iter(session.stream()))
    fork = session.fork()
    results: list[Any] = [play(each) for each in (session, fork)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


# ------------------------------------------------------------------------------- CUDA graphs; the CPU twin is test_graphs.py

GRAPHS = {
    "plain": {"window": 8},
    "renewed sink": {"window": 6, "sink": 1, "keep_sink": False},
    "sparse": {"window": 8, "sink": 2, "sparsity": 0.5},
    "int8 cache": {"window": 8, "sink": 2, "kv_format": "int8"},
}


def graphs(on: bool, *, kernels: bool = False, **options: Any) -> EngineConfig:
    knobs = replace_knobs(Knobs(), compile=False, fused_kernels=kernels, cuda_graphs=on)
    return EngineConfig(**({"dtype": "float32", "knobs": knobs} | options))


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_the_passes(make: Callable[..., Session], tiny: Model, name: str, kernels: bool) -> None:
    """Bit by bit, while the window fills and after, over a hard switch."""
    sessions = [
        make(preset=graphs(on, kernels=kernels, **GRAPHS[name]), device="cuda", model=larger(tiny, name)) for on in (True, False)
    ]
    assert isinstance(sessions[0]._stream._dit.runner, CudaGraphs)
    (found, _), (expected, _) = (play(each) for each in sessions)
    assert torch.equal(found, expected)


def test_interleaved_sessions_and_forks_have_graphs_of_their_own(make: Callable[..., Session]) -> None:
    expected = [play(make(preset=graphs(False), device="cuda", seed=seed))[0] for seed in range(2)]
    sessions = [make(preset=graphs(True), device="cuda", seed=seed) for seed in range(2)]
    first = [next(iter(session.stream(1))).latents for session in sessions]
    everyone = [*sessions, *(session.fork() for session in sessions)]
    streams = [session.stream(7, switches=SWITCHES) for session in everyone]
    blocks = [[block.latents for block in some] for some in zip(*streams, strict=True)]
    for index, session in enumerate(everyone):
        rest = torch.cat([first[index % 2], *(some[index] for some in blocks)], dim=1)
        assert torch.equal(rest.cpu(), expected[index % 2])
        session.close()


def test_closing_gives_memory_back(make: Callable[..., Session]) -> None:
    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def stream() -> None:
        with make(preset=graphs(True), device="cuda") as session:
            play(session)

    stream()  # workspaces of libraries stay
    before = used()
    stream()
    assert used() == before


# ------------------------------------------------------------------------ the memory pool; the CPU twin is test_arena.py

POOLED: dict[str, dict[str, bool]] = {
    "graphs": {},
    "late frames": {"late_frames": True},
    "one stream": {"overlap_decode": False},
    "launched": {"cuda_graphs": False},
    "rolling": {"cuda_graphs": False, "ring_cache": False},
}


def pooled(on: bool = True, **knobs: bool) -> EngineConfig:
    return EngineConfig(
        dtype="float32", knobs=replace_knobs(Knobs(), compile=False, fused_kernels=False, memory_pool=on, **knobs)
    )


def segments(pool_id: Any) -> list[dict[str, Any]]:
    return torch.cuda.memory_snapshot(pool_id)


def lies_in(tensor: Tensor, pool_id: Any) -> bool:
    start = tensor.data_ptr()
    return any(each["address"] <= start < each["address"] + each["total_size"] for each in segments(pool_id))


@pytest.mark.parametrize("name", POOLED)
def test_a_pool_changes_no_bit(make: Callable[..., Session], name: str) -> None:
    """While the window fills and after, over a hard switch, in forks too."""
    results = []
    for on in (True, False):
        session = make(preset=pooled(on, **POOLED[name]), device="cuda")
        assert session.config.knobs.memory_pool == on and (session.arena is not None) == on
        list(session.stream(2))
        fork = session.fork()
        results += [play(fork), play(session)]
        for each in (fork, session):
            each.close()
    for latents, frames in results[1:]:
        assert torch.equal(latents, results[0][0]) and torch.equal(frames, results[0][1])


@pytest.mark.parametrize("name", POOLED)
def test_what_is_kept_lies_in_the_pool(make: Callable[..., Session], name: str) -> None:
    session = make(preset=pooled(**POOLED[name]), device="cuda")
    blocks = list(session.stream(4))
    stream: Any = session._stream
    pool_id = stream.arena.pool_id
    kept = [memory for memory in stream.state.decoder[1] if memory is not None]
    held = [stream._cache.keys, stream._cache.values] if session.config.knobs.ring_cache else []
    if session.config.knobs.cuda_graphs:
        held += [replay.out for replay in stream._dit.runner._replays.values() if replay.out is not None]
        held += [tensor for group in stream._dit.runner._inputs.values() for tensor in group.tensors]
        assert any(each["stream"] == stream._dit.runner._side.cuda_stream for each in segments(pool_id))
    assert kept and all(lies_in(tensor, pool_id) for tensor in (*kept, *held))
    snapshot = session.snapshot()
    outside = [snapshot.cache.keys, *(block.latents for block in blocks)]
    assert not any(lies_in(tensor, pool_id) for tensor in outside)
    assert not any(lies_in(memory, pool_id) for memory in snapshot.state.decoder[1] if memory is not None)
    use = session.arena
    assert use is not None and 0 < use.used_bytes <= use.reserved_bytes
    assert use.reserved_bytes == sum(each["total_size"] for each in segments(pool_id))
    session.close()


@pytest.mark.parametrize("name", POOLED)
def test_steady_frame_blocks_take_nothing_from_the_device(make: Callable[..., Session], name: str) -> None:
    """Nor does the pool shrink when torch gives back what it keeps elsewhere, as every capture makes it do."""
    session = make(preset=pooled(**POOLED[name]), device="cuda")
    stream = session.stream()
    for _ in range(12):
        next(stream)
    before, use = torch.cuda.memory_stats()["num_device_alloc"], session.arena
    for _ in range(8):
        next(stream)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    torch.cuda.empty_cache()
    next(stream)
    assert use is not None and session.arena is not None and session.arena.reserved_bytes == use.reserved_bytes
    session.close()


def test_a_pool_is_reserved_before_the_first_frame_block(make: Callable[..., Session], tiny: Model) -> None:
    """Each stream that works in it has a segment as large as planned."""
    session = make(preset=pooled(), device="cuda")
    stream: Any = session._stream
    plan, found = stream.arena.plan, segments(stream.arena.pool_id)
    assert plan == plan_arena(tiny.parts, session.config) and plan.total_bytes <= session.arena.reserved_bytes  # type: ignore[union-attr]
    for side, num_bytes in ((stream._dit.runner._side, plan.passes_bytes), (stream._decoder._side, plan.decoder_bytes)):
        assert max(each["total_size"] for each in found if each["stream"] == side.cuda_stream) >= num_bytes
    session.close()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", POOLED)
def test_a_pool_is_given_back(make: Callable[..., Session], name: str, fails: bool) -> None:
    """To the device, when the session closes; after a failure with its traceback, which holds what was at work."""

    def stream() -> Any:
        with make(preset=pooled(**POOLED[name]), device="cuda") as session:
            pool_id, step = session._stream.arena.pool_id, session._stream._dit.flow

            def flow(*args: Any) -> Tensor:
                if fails and session.next_block > 3:
                    raise ZeroDivisionError
                return step(*args)

            session._stream._dit.flow = flow  # type: ignore[method-assign]
            assert segments(pool_id)
            try:
                list(session.stream(6))
            except ZeroDivisionError:
                assert fails
        return pool_id

    pool_id = stream()
    if fails:
        gc.collect()
        torch.cuda.empty_cache()
    assert not segments(pool_id)


def test_a_failed_capture_gives_its_pool_back(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves torch able to go on: the next session captures, and closes."""
    commit, arenas = CausalWan.commit, []

    def waits(self: CausalWan, latents: Tensor, *rest: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            latents.sum().item()
        commit(self, latents, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(CausalWan, "commit", waits)
        patch.setattr("strobe.engine.session.new_arena", lambda *args: arenas.append(new_arena(*args)) or arenas[-1])
        with pytest.raises(StrobeError, match="cannot be captured"):
            make(preset=pooled(), device="cuda")
    pool_id = arenas[0].pool_id
    arenas.pop().close()
    gc.collect()
    torch.cuda.empty_cache()
    assert not segments(pool_id)
    with make(preset=pooled(), device="cuda") as session:
        play(session)


class NoDecoder:
    """Decodes nothing."""

    def start(self, latents: Tensor, state: Any) -> Any:
        return lambda: (torch.zeros(1, 1, 2, 2, 3, dtype=torch.uint8), state)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("mode", [None, "soft", "recache"])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("on", [False, True])
def test_nobody_waits_in_a_frame_block(make: Callable[..., Session], tiny: Model, on: bool, name: str, mode: Mode | None) -> None:
    """Of noise, rotations, rows, a turned sink, coarse keys and a prompt nothing makes the CPU wait; frames are not decoded."""
    session = make(preset=graphs(on, **GRAPHS[name]), device="cuda", model=larger(tiny, name))
    stream: Any = session._stream
    stream._decoder.close()
    stream._decoder = NoDecoder()
    for index in range(6):
        hard = Change(prompts=("green square",), mode="recache", over=1)
        stream.advance({0: session._pending, 4: hard}.get(index))
        stream.deliver()
    torch.cuda.synchronize()
    change = None if mode is None else Change(prompts=("blue circle",), mode=mode, over=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stream.advance(change)
        stream.deliver()
    finally:
        torch.cuda.set_sync_debug_mode("default")
