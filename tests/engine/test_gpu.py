"""The engine on a GPU: the frames of the CPU, whatever the knobs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.core.errors import StrobeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.decode import Decoded, DecoderState, FrameDecoder
from strobe.engine.graphs import CudaGraphs
from strobe.engine.model import Model
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


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.endswith("_int8")])  # for those see test_resolve.py
def test_gpu_equals_cpu(make: Callable[..., Session], tiny: Model, name: str) -> None:
    config, model = replace(preset(name), dtype="float32", simulate=True), larger(tiny, name)
    (cpu, cpu_frames), (gpu, gpu_frames) = (play(make(preset=config, device=each, model=model)) for each in ("cpu", "cuda"))
    if config.linear_format == "fp8":  # what lies half-way between two numbers of FP8 goes either way, and moves all after it
        native, _ = play(make(preset=replace(config, linear_format="native"), model=model))
        assert (gpu - cpu).abs().mean() < 0.5 * (native - cpu).abs().mean()
    else:
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=tolerance("stream of a GPU", "float32"))
    assert (gpu_frames - cpu_frames).abs().mean() < 0.5


@pytest.mark.parametrize("name", ["balanced", "low_memory", "sparse", "turbo"])
def test_a_restarted_session_streams_what_a_new_one_does(make: Callable[..., Session], tiny: Model, name: str) -> None:
    """One recorded all its passes while it warmed up, the other records each when it first runs."""
    model = larger(tiny, name)
    used, new = (make(preset=preset(name), device="cuda", model=model, seed=seed) for seed in (1, 2))
    assert not len(used._stream._dit.runner)
    used.warm_up()
    recorded = len(used._stream._dit.runner)
    list(used.stream(6, switches=SWITCHES))
    used.restart("red circle", seed=2)
    (mine, my_frames), (expected, frames) = play(used), play(new)
    assert torch.equal(mine, expected) and torch.equal(my_frames, frames) and len(used._stream._dit.runner) == recorded


@pytest.mark.parametrize("knob", ["compile", "fused_kernels", "overlap_decode", "late_frames", "ring_cache"])
def test_no_knob_changes_the_result(make: Callable[..., Session], knob: str) -> None:
    knobs = replace_knobs(Knobs(), compile=False, fused_kernels=knob != "compile")  # kernels leave no layers to compile
    (on, _), (off, _) = (
        play(make(preset=EngineConfig(dtype="float32", knobs=replace_knobs(knobs, **{knob: value})), device="cuda"))
        for value in (True, False)
    )
    torch.testing.assert_close(on, off, rtol=0, atol=tolerance("stream of a GPU", "float32"))


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
    "fp8 cache": {"window": 8, "sink": 2, "kv_format": "fp8"},
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


def used() -> tuple[int, int]:
    """Bytes allocated and reserved, without libraries' workspaces and what torch keeps unused."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def stream_once(make: Callable[..., Session]) -> tuple[Tensor, Tensor]:
    with make(preset=graphs(True), device="cuda") as session:
        return play(session)


def test_two_sessions_in_two_threads(make: Callable[..., Session]) -> None:
    """They open, capture, stream over a hard switch and close at a time, make what one alone makes, and give memory back."""
    expected, start = stream_once(make), threading.Barrier(2)
    before = used()

    def work() -> None:
        for _ in range(3):
            start.wait(60)
            assert all(map(torch.equal, stream_once(make), expected))

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work) for _ in range(2)]:
            done.result()
    assert used() == before


def test_after_a_failed_capture_the_next_session_captures(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    commit = CausalWan.commit

    def waits(self: CausalWan, latents: Tensor, *rest: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            latents.sum().item()
        commit(self, latents, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(CausalWan, "commit", waits)
        with pytest.raises(StrobeError, match="cannot be captured"):
            stream_once(make)
    stream_once(make)


class NoDecoder(FrameDecoder):
    """Decodes nothing, at once."""

    def __init__(self) -> None:
        self._worker = None

    def start(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        yield Decoded(torch.zeros(1, 1, 2, 2, 3, dtype=torch.uint8), latents.shape[1], state, None)


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
        stream.advance({0: session._prompting.pending, 4: hard}.get(index))
        stream.deliver()
    torch.cuda.synchronize()
    change = None if mode is None else Change(prompts=("blue circle",), mode=mode, over=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stream.advance(change)
        stream.deliver()
    finally:
        torch.cuda.set_sync_debug_mode("default")
