"""Streams of recorded passes are eager streams, bit by bit: between two replays only static tensors change."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.attention.tree import CollectiveError
from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core import spans
from strobe.core.errors import SessionError, StrobeError
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.graphs import CAPTURES, WARM_UPS, CudaGraphs, PassInputs, Recorded, Replay, Replaying, Runner, capture_stream
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.models.wan.layers import Modulation, TextKV
from tiny_model import Make, latents, lora

SWITCHES = (
    Switch(frame_block=2, prompt="green square"),  # while the window fills
    Switch(frame_block=6, prompt="blue square"),
    Switch(frame_block=8, prompt="red moving", mode="soft"),
    Switch(frame_block=9, prompt="blue circle", mode="interpolate", over=2),
    Switch(frame_block=12, prompt="green circle moving"),
)
BLOCKS = 14
LATE = EngineConfig(timesteps=(1000, 250), window=6, sink=1, knobs=Knobs(late_frames=True))
CONFIGS = {
    "balanced": EngineConfig(),
    "absolute": EngineConfig(positions="absolute", window=8, sink=3),
    "renewed sink": EngineConfig(window=6, sink=1, keep_sink=False),
    "no sink": EngineConfig(window=5, sink=0),
    "uneven": EngineConfig(window=7, sink=2, first_block=1),
    "full commit": EngineConfig(knobs=replace_knobs(Knobs(), commit_kv_only=False, fused_qkv=False)),
    "late": LATE,
    "int8": EngineConfig(window=8, sink=2, linear_format="int8", kv_format="int8"),
    "fp8": EngineConfig(window=8, sink=3, keep_sink=False, linear_format="fp8", kv_format="fp8", simulate=True),
    "attention": EngineConfig(window=8, sink=2, attention_format="int8"),
    "renewed attention": EngineConfig(window=6, sink=2, first_block=1, keep_sink=False, attention_format="int8"),
    "sparse": EngineConfig(window=8, sink=2, sparsity=0.5),
    "sparse attention": EngineConfig(window=8, sink=2, sparsity=0.8, attention_format="int8"),
}


def recorded(session: Session, limit: int = 16) -> Session:
    """The session with its passes recorded."""
    stream = session._stream
    stream._dit = stream._dit.share(Recorded(limit))
    return session


def play(session: Session, num_blocks: int = BLOCKS, switches: Sequence[Switch] = SWITCHES) -> Tensor:
    return latents(session.stream(num_blocks, switches=switches))


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [*CONFIGS, "fused", "fused int8", "fused attention"])
def test_a_recorded_stream_is_the_eager_one(make: Make, tiny: Model, name: str) -> None:
    """While the window fills and after, over every kind of switch, with the sink turned, kept and renewed."""
    if name.startswith("sparse"):  # 6 x 8 tokens in tiles with padding; 12 x 16 in blocks of 128
        tiny = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 128) if name == "sparse" else (192, 256)))
    samples = (0, 4) if name == "balanced" else (0,)
    config = CONFIGS[{"fused": "uneven", "fused int8": "int8", "fused attention": "attention"}.get(name, name)]
    eager, session = (make(preset=config, samples=samples, model=tiny) for _ in range(2))
    for each in (eager, session):
        if name.startswith("fused"):
            each._stream._dit.dit.use_kernels("reference")
    script = (9, SWITCHES[1:3]) if name.startswith("sparse") else (BLOCKS, SWITCHES)
    assert torch.equal(play(recorded(session), *script), play(eager, *script))


def test_warming_up_records_all_of_a_steady_stream(make: Make) -> None:
    session = recorded(make())
    session.warm_up()  # this configuration records no passes
    runner: Any = session._stream._dit.runner
    assert not len(runner)
    session._stream.warm_up()
    known = list(runner._replays)
    switches = [Switch(frame_block=6, prompt="blue square")]
    assert torch.equal(play(session, 9, switches), play(make(), 9, switches))
    assert sorted(map(str, runner._replays)) == sorted(map(str, known))
    with pytest.raises(SessionError, match="frame block 9 comes next: warm up before the first one"):
        session.warm_up()


def test_forks_and_snapshots_go_on(make: Make) -> None:
    eager, session = make(preset=LATE), recorded(make(preset=LATE))
    for each in (eager, session):
        play(each, 4, ())
    fork, snapshot = session.fork(), session.snapshot()
    assert isinstance(fork._stream._dit.runner, Recorded) and fork._stream._dit.runner is not session._stream._dit.runner
    later = [Switch(frame_block=6, prompt="blue square")]
    expected = play(eager, 6, later)
    assert torch.equal(play(session, 6, later), expected)
    assert torch.equal(play(fork, 6, later), expected)
    session.restore(snapshot)
    assert torch.equal(play(session, 6, later), expected)


@pytest.mark.parametrize(
    ("merge", "formats"), [(True, {}), (False, {}), (True, {"linear_format": "int8"})], ids=["merged", "beside", "int8"]
)
def test_another_lora_on_the_way(make: Make, tiny: Model, merge: bool, formats: dict[str, Any]) -> None:
    """Merged weights keep their addresses, so what was recorded goes on; with a LoRA beside them it is recorded again."""
    config = EngineConfig(window=8, knobs=replace_knobs(Knobs(), merge_lora=merge, fused_qkv=merge), **formats)
    found = []
    for record in (True, False):
        session = make(preset=config, model=replace(tiny, defaults=replace(tiny.defaults, lora=True)))
        session = recorded(session) if record else session
        runner, parts = session._stream._dit.runner, [play(session, 4, ())]
        known = len(runner) if isinstance(runner, Recorded) else 0
        session.use_lora(lora(tiny))
        assert not isinstance(runner, Recorded) or len(runner) == (known if merge else 0)
        found.append(torch.cat([*parts, play(session, 3, ())], dim=1))
    assert torch.equal(*found) and not torch.equal(found[0][:, 12:], play(make(preset=config), 7, ())[:, 12:])


def test_noise_drawn_ahead_is_the_noise(make: Make) -> None:
    """As on a GPU: each frame block's is drawn during the one before, and once; a restored stream draws its own."""
    session, expected = make(), play(make(), 8, ())
    stream, drawn = session._stream, []
    draw = stream._draw
    stream._draws_ahead = True
    stream._draw = lambda index: drawn.append(index) or draw(index)  # type: ignore[method-assign]
    first = play(session, 3, ())
    snapshot = session.snapshot()
    assert torch.equal(torch.cat([first, play(session, 5, ())], dim=1), expected) and drawn == list(range(9))
    session.restore(snapshot)
    assert torch.equal(play(session, 5, ()), expected[:, 9:])


def test_what_was_replayed_last_is_kept(ring: RingCache) -> None:
    """Of three passes and room for two, the one that was used less recently goes, recorded first or not."""
    made: list[str] = []

    class Noted(Recorded):
        def _record(self, call: Callable[[], Tensor | None], replaying: Replaying) -> Replay:
            made.append(name)
            return super()._record(call, replaying)

    runner, sizes = Noted(limit=2), {"one": 1, "two": 2, "three": 3}
    for name in ("one", "two", "one", "three", "one", "three", "two"):
        ring.reset()
        latents = torch.ones(1, sizes[name], 1, 1, 1)
        runner.run("flow", lambda latents, *rest: latents + 1, (latents, *inputs()[1:]), ring.at(0, sizes[name]))
    assert made == ["one", "two", "three", "two"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_closing_frees_what_a_stream_held(make: Make, fails: bool, late: bool) -> None:
    session = recorded(make(preset=EngineConfig(knobs=Knobs(late_frames=late))))
    stream: Any = session._stream
    runner, step = stream._dit.runner, stream._dit.flow
    held = [weakref.ref(stream._cache)]

    def flow(latents: Tensor, *rest: Any) -> Tensor:
        if fails and stream.state.next_block == 3:
            held.extend(weakref.ref(replay.out) for replay in runner._replays.values() if replay.out is not None)
            raise ZeroDivisionError
        return step(latents, *rest)

    stream._dit.flow = flow
    with pytest.raises(ZeroDivisionError) if fails else nullcontext() as error, session:
        play(session, 5, ())
        assert not fails and runner.num_bytes > 0
    del error
    gc.collect()
    assert runner.num_bytes == len(runner) == 0 and not any(each() is not None for each in held)
    assert not any(stream.state.decoder[1]) and getattr(stream._decoding, "pieces", None) is None


def test_static_inputs_are_predicted(make: Make, tiny: Model) -> None:
    for samples, first in (((0,), None), ((0, 4), 1)):
        session = recorded(make(preset=EngineConfig(first_block=first), samples=samples))
        session._stream.warm_up()
        config = replace(session.config, knobs=replace_knobs(session.config.knobs, cuda_graphs=True))
        assert predict(tiny, config, len(samples))["inputs of graphs"] == session._stream._dit.runner.num_bytes


# ----------------------------------------------------------------------------------------------- passes that may not be recorded

RING = CacheShape(num_layers=1, batch=1, tokens_per_frame=2, num_heads=1, head_dim=2)


def inputs(value: float = 1.0) -> PassInputs:
    one = torch.full((1, 3, 1, 1, 1), value)
    text = TextKV(layers=((one, one),), distinct=torch.ones(1, dtype=torch.int32))
    return one, Modulation(layers=one, head=one), text, one


@pytest.fixture
def ring() -> RingCache:
    return RingCache(RING, RingPolicy(window=6, sink=1), device=torch.device("cpu"), dtype=torch.float32)


def flows(ring: RingCache, runner: Any, body: Any, mode: Any = "flow") -> list[float | None]:
    found = []
    for block in range(4):
        out = runner.run(mode, body, inputs(block + 1.0), ring.at(3 * block, 3))
        found.append(None if out is None else out.sum().item())
    return found


def test_a_pass_that_counts_in_python_is_refused(ring: RingCache) -> None:
    runs = []

    def counting(latents: Tensor, *rest: object) -> Tensor:
        runs.append(latents)
        return latents * len(runs)

    with pytest.raises(StrobeError, match=r"\[1, 3, 1, 1, 1\] differs from the eager one; turn knob cuda_graphs off"):
        flows(ring, Recorded(), counting)
    assert len(flows(ring, Runner(), counting)) == 4


def test_a_replay_sees_the_positions_of_its_recording(ring: RingCache) -> None:
    """Why a pass may not read them: the twin of a graph shows what a graph would do."""

    def peeking(latents: Tensor, modulation: object, text: object, rope: object, step: Any) -> Tensor:
        return latents * 0 + step.positions[0]

    def frame(runner: Any) -> list[float | None]:
        ring.reset()
        return flows(ring, runner, peeking)

    assert frame(Runner()) == [0.0, 9.0, 18.0, 27.0]
    assert frame(Recorded()) == [0.0, 9.0, 9.0, 9.0]  # the first block attends to fewer frames and is a pass of its own


def test_recording_marks_no_regions(ring: RingCache) -> None:
    seen = []

    class Marks(spans.Recorder):
        def __call__(self, name: str, index: int | None) -> AbstractContextManager[object]:
            seen.append(name)
            return spans._NULL

    def body(latents: Tensor, *rest: object) -> Tensor:
        with spans.span(spans.FFN):
            return latents + 1

    with spans.recording(Marks()):
        flows(ring, Recorded(), body)
    assert seen == [spans.FFN] * 4  # a replay each


# ------------------------------------------------------------------------------------------------------------------- captures


REFUSED = RuntimeError("operation not permitted when stream is capturing")
GONE = CollectiveError("a rank did not answer")  # a RuntimeError too


@pytest.mark.parametrize(
    ("before", "inside", "told"),
    [(None, None, None), (None, REFUSED, "cannot be captured"), (None, GONE, "a rank did not"), (GONE, None, "a rank did not")],
)
def test_a_capture_is_alone(
    monkeypatch: pytest.MonkeyPatch, before: Exception | None, inside: Exception | None, told: str | None
) -> None:
    """From the warm-ups, on a stream that all share, until torch knows that it is over; so is the wait before one is let go."""
    device, underway = torch.device("cpu", 0), list[int]()
    free: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        def ask() -> None:
            free.append((what, CAPTURES.acquire(blocking=False)))
            if free[-1][1]:
                CAPTURES.release()

        with ThreadPoolExecutor(1) as other:
            other.submit(ask).result(timeout=10)

    @contextmanager
    def graph(*_: object, pool: int, **__: object) -> Iterator[None]:
        underway.append(pool)
        yield  # torch before 2.12 leaves the pool in use if this raises
        underway.remove(pool)

    def call() -> None:
        note("capture" if underway else "warm-up")
        if inside and underway:
            raise inside

    @contextmanager
    def replaying() -> Iterator[None]:
        if before:
            raise before
        yield

    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes: dict[str, Any] = {"Stream": lambda _: stream, "current_stream": lambda _: stream, "graph": graph}
    fakes |= {"graph_pool_handle": lambda: 7, "stream": lambda _: nullcontext(), "synchronize": lambda _: note("wait")}
    fakes |= {"CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "set_stream": lambda _: note("set back")}
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda _, pool: underway.remove(pool), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *_: note("release"), raising=False)
    capture_stream.cache_clear()
    runner = CudaGraphs(device)
    with pytest.raises(StrobeError, match=f"^.*{told}") if told else nullcontext() as raised:
        runner._forget(runner._record(call, replaying))
    assert GONE not in (before, inside) or (raised is not None and raised.value is GONE)
    capture_stream.cache_clear()
    after = [] if before else ["capture", *(["set back", "release"] if inside else ["wait"])]
    found = [*["warm-up"] * WARM_UPS, "wait", *after]
    assert free == [(what, False) for what in found] and not underway
