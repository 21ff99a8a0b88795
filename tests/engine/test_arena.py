"""What lies in a session's arena and what does not, on any device; `test_gpu_pool.py` has the pool itself."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from strobe.attention.sparse.layout import _kept as tables_of_tiles
from strobe.core.errors import StrobeError
from strobe.engine.arena import (
    POOLS,
    Arena,
    ArenaPlan,
    ArenaUse,
    CudaArena,
    capture_stream,
    end_capture,
    new_arena,
)
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.decode import FrameDecoder
from strobe.engine.graphs import WARM_UPS, CudaGraphs, Recorded
from strobe.engine.model import Model
from strobe.engine.parallel.rank import on_several
from strobe.engine.prompts import Switch
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from tiny_model import Make

PLAN = ArenaPlan(kept_bytes=3, passes_bytes=5, decoder_bytes=7)
SWITCHES = [Switch(frame_block=3, prompt="blue square")]


class Kept(TorchDispatchMode):
    """Keeps every storage that comes to be."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = ([each.untyped_storage() for each in tree_leaves(some) if isinstance(each, Tensor)] for some in (args, out))
        known = {storage.data_ptr() for storage in given}  # of views
        self.storages += [storage for storage in made if storage.data_ptr() not in known]
        return out


class Watched:
    """An arena anywhere that knows what was allocated in it."""

    plan = PLAN
    pool_id = None

    def __init__(self, all_of_them: list[Watched]) -> None:
        self.kept = Kept()
        self.reserved: list[int] = []
        self.events: list[str] = []
        self.inside = self.closed = False
        self.everyone = all_of_them
        all_of_them.append(self)

    @property
    def use(self) -> ArenaUse | None:
        return None if self.closed else ArenaUse(reserved_bytes=11, used_bytes=2)

    @contextmanager
    def open(self) -> Iterator[None]:
        assert not self.inside and not self.closed, "torch refuses a pool within itself"
        self.inside = True
        self.events.append("open")
        try:
            with self.kept:
                yield
        finally:
            self.inside = False

    def make_room(self) -> None:
        assert not self.inside, "within a pool torch leaves its caches alone"
        self.events.append("room")

    def reserve(self, num_bytes: int, stream: object) -> None:
        self.reserved.append(num_bytes)

    def fresh(self) -> Arena:
        return type(self)(self.everyone)

    def close(self) -> None:
        self.closed = True

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in {storage.data_ptr() for storage in self.kept.storages}


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Those of the sessions opened since, forks included."""
    found: list[Watched] = []
    monkeypatch.setattr("strobe.engine.session.new_arena", lambda config, plan: Watched(found))
    return found


def memories(session: Session) -> list[Tensor]:
    return [memory for memory in session._stream.state.decoder[1] if memory is not None]


@pytest.mark.parametrize("overlap", [True, False])
def test_what_a_session_keeps_lies_in_its_arena(make: Make, arenas: list[Watched], overlap: bool) -> None:
    """Keys, values, static inputs and decoder memories do; what is handed out and snapshots, which may outlive it, do not."""
    session = make(preset=EngineConfig(knobs=replace_knobs(Knobs(), overlap_decode=overlap)))
    stream: Any = session._stream
    (arena,) = arenas
    assert arena.reserved == [PLAN.decoder_bytes] and session.arena == ArenaUse(reserved_bytes=11, used_bytes=2)
    stream._dit = stream._dit.share(Recorded())
    stream._dit.runner.place(arena)
    blocks = list(session.stream(4, switches=SWITCHES))
    assert stream._cache.keys in arena and stream._cache.values in arena
    assert len(memories(session)) > 2 and all(memory in arena for memory in memories(session))
    static = [tensor for group in stream._dit.runner._inputs.values() for tensor in group.tensors]
    assert static and all(tensor in arena for tensor in static)
    assert not any(block.latents in arena for block in blocks)
    snapshot = session.snapshot()
    assert snapshot.cache.keys not in arena and len(memories(session)) == len(snapshot.state.decoder[1])
    assert not any(memory in arena for memory in snapshot.state.decoder[1] if memory is not None)
    opened = [index for index, event in enumerate(arena.events) if event == "open"]
    assert arena.events[opened[0] - 1] == "room"  # before the cache is made
    assert arena.events.count("room") == 1 + len(stream._dit.runner._inputs)  # and before static inputs are


def test_tables_that_outlive_a_session_lie_outside(make: Make, tiny: Model, arenas: list[Watched]) -> None:
    """Those of tiles are kept for every later session of the process."""
    tables_of_tiles.cache_clear()
    larger = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))
    with make(preset="sparse", model=larger) as session:
        stream: Any = session._stream
        tiles = stream._cache.at(0, 3).reach.tiles
        assert stream._cache.keys in arenas[0] and tiles.rows not in arenas[0] and tiles.sizes not in arenas[0]


def test_a_fork_has_an_arena_of_its_own(make: Make, arenas: list[Watched]) -> None:
    session = make()
    list(session.stream(2))
    fork = session.fork()
    stream: Any = fork._stream
    first, second = arenas
    assert stream._cache.keys in second and not any(memory in first for memory in memories(fork))
    session.close()
    list(fork.stream(2))
    assert first.closed and not second.closed and all(memory in second for memory in memories(fork))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_closing_lets_everything_in_it_go(make: Make, arenas: list[Watched], fails: bool, late: bool) -> None:
    session = make(preset=EngineConfig(knobs=Knobs(late_frames=late)))
    stream: Any = session._stream
    cache, step = weakref.ref(stream._cache), stream._dit.flow

    def fail(latents: Tensor, *rest: Any) -> Tensor:
        if fails and stream.state.next_block == 3:
            raise ZeroDivisionError
        return step(latents, *rest)

    stream._dit.flow = fail
    with pytest.raises(ZeroDivisionError) if fails else nullcontext() as error, session:
        assert len(list(session.stream(5))) == 5
    del error
    assert arenas[0].closed and session.arena is None
    assert cache() is None and not memories(session) and getattr(stream._decoding, "pieces", None) is None
    session.close()


def test_the_decoder_warms_up_outside(tiny: Model) -> None:
    """What libraries keep for good would else keep an arena from being given back."""
    config = resolve(EngineConfig(), tiny.defaults, torch.device("cpu"))
    config = replace(config, knobs=replace(config.knobs, memory_pool=True))
    decoder, decoded = FrameDecoder(tiny.vae, config), []
    start = decoder.start
    decoder.start = lambda latents, state: decoded.append(latents.shape) or start(latents, state)  # type: ignore[method-assign]
    pieces = [(1, 3, 4, 4, 4), (1, 3, 4, 4, 4)]
    decoder.warm_up(pieces)
    del decoder.start
    assert decoded == pieces
    arena = Watched([])
    decoder.place(arena)
    shared = decoder.share()
    for each in (shared, decoder):
        ((frames, _, (_, left), _),) = each.start(torch.zeros(pieces[0]), each.state())
        assert frames.any() and all((memory in arena) == (each is decoder) for memory in left if memory is not None)
        each.close()
    elsewhere = replace(config, decode_device=torch.device("meta"))
    FrameDecoder(tiny.vae, elsewhere).place(arena)
    assert arena.reserved == [PLAN.decoder_bytes]


def test_on_a_cpu_and_on_several_devices_there_is_none(tiny: Model) -> None:
    asked = EngineConfig(knobs=Knobs(memory_pool=True))
    config = resolve(asked, tiny.defaults, torch.device("cpu"))
    (state,) = (each for each in config.knob_states if each.name == "memory_pool")
    assert not state.on and state.reason == "used on CUDA only" and type(new_arena(config, PLAN)) is Arena
    config = resolve(asked, tiny.defaults, torch.device("cuda", 0))
    assert config.knobs.memory_pool
    shared = on_several(config)
    reasons = {state.name: state.reason for state in shared.knob_states if state.reason}
    assert "several devices" in reasons["memory_pool"]
    assert shared.knobs == replace_knobs(config.knobs, memory_pool=False)
    asked_off = resolve(EngineConfig(), tiny.defaults, torch.device("cuda", 0))
    assert not any(state.reason for state in on_several(asked_off).knob_states if state.name == "memory_pool")


class Allocator:
    """Counts uses of pools as torch does, and refuses what it refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uses: dict[Any, int] = {}
        self.underway: list[Any] = []
        self.calls: list[str] = []
        for name, function in (
            ("_cuda_beginAllocateCurrentThreadToPool", self.begin),
            ("_cuda_endAllocateToPool", self.end),
            ("_cuda_releasePool", self.release),
        ):
            monkeypatch.setattr(torch._C, name, function, raising=False)
        handles = iter(range(1, 9))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.alone(name))

    def alone(self, name: str) -> None:
        """What no thread may do while another has a pool open or captures: torch fails, or does nothing without a word."""
        assert not self.underway, name
        self.calls.append(name)

    def begin(self, device: int, pool_id: Any) -> None:
        if self.uses.setdefault(pool_id, 0) < 0 or pool_id in self.underway:
            raise RuntimeError("already recording to mempool_id")
        self.uses[pool_id] += 1
        self.underway.append(pool_id)

    def end(self, device: int, pool_id: Any) -> None:
        if pool_id not in self.underway:
            raise RuntimeError("not currently recording to mempool_id")
        self.underway.remove(pool_id)

    def release(self, device: int, pool_id: Any) -> None:
        self.uses[pool_id] = self.uses[pool_id] - 1 or -1  # gone for good


def test_a_pool_is_in_use_until_it_is_closed_or_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_has, device = Allocator(monkeypatch), torch.device("cpu", 0)
    arena, forgotten = (CudaArena(device, PLAN) for _ in range(2))
    other = arena.fresh()
    assert other.plan == PLAN and torch_has.uses == {(0, 1): 1, (0, 2): 1, (0, 3): 1} and not torch_has.underway
    with pytest.raises(ZeroDivisionError), arena.open():
        assert torch_has.underway == [arena.pool_id] and torch_has.uses[arena.pool_id] == 2
        raise ZeroDivisionError
    arena.reserve(0, None)
    assert not torch_has.underway and not torch_has.calls
    arena.reserve(64, None)
    assert torch_has.calls == ["empty_cache"] and torch_has.uses[arena.pool_id] == 1
    del forgotten
    gc.collect()
    for _ in range(2):
        arena.close()
        assert arena.use is None
    assert torch_has.uses == {(0, 1): -1, (0, 2): -1, (0, 3): 1}
    assert torch_has.calls == ["empty_cache", "synchronize", "empty_cache"]
    with pytest.raises(AssertionError, match="was closed"), arena.open():
        pass


def beside(*work: Callable[[], object]) -> None:
    """Run calls in threads of their own, and return when all are done."""
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result(timeout=10)


@pytest.mark.parametrize("what", ["reserve", "make_room", "close", "open"])
def test_threads_wait_for_each_others_pools(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever one does with its pool, and on whichever device, no other thread has one open meanwhile."""
    torch_has = Allocator(monkeypatch)
    one, other = (CudaArena(torch.device("cpu", index), PLAN) for index in range(2))
    opened, about_to = threading.Event(), threading.Event()

    def hold() -> None:
        with one.open():
            opened.set()
            about_to.wait(5)
            time.sleep(0.02)  # the other thread is at it
            assert torch_has.underway == [one.pool_id] and not torch_has.calls

    def work() -> None:
        opened.wait(5)
        about_to.set()
        if what == "open":
            with other.open():
                assert torch_has.underway == [other.pool_id]
        elif what == "reserve":
            other.reserve(64, None)
        else:
            {"make_room": other.make_room, "close": other.close}[what]()

    beside(hold, work)
    assert not torch_has.underway
    for each in (one, other):
        each.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_is_alone_too(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """From the warm-ups, on a stream that all share, until torch knows that it is over; so is the wait before one is let go."""
    torch_has, device = Allocator(monkeypatch), torch.device("cpu", 0)
    free: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        def ask() -> None:
            free.append((what, POOLS.acquire(blocking=False)))
            if free[-1][1]:
                POOLS.release()

        beside(ask)

    @contextmanager
    def graph(*_: object, pool: Any, **__: object) -> Iterator[None]:
        torch.cuda.empty_cache()
        torch_has.begin(0, pool)
        yield
        torch_has.end(0, pool)

    def call() -> None:
        note("capture" if torch_has.underway else "warm-up")
        if fails and torch_has.underway:
            raise RuntimeError("operation not permitted when stream is capturing")

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, value in {"Stream": lambda _: stream, "current_stream": lambda _: stream, "graph": graph}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: note("set back"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: note("wait"))
    capture_stream.cache_clear()
    runner = CudaGraphs(device)
    with pytest.raises(StrobeError, match="cannot be captured") if fails else nullcontext():
        runner._forget(runner._record(call))
    capture_stream.cache_clear()
    found = [*["warm-up"] * WARM_UPS, "wait", "capture", "set back" if fails else "wait"]
    assert free == [(what, False) for what in found] and not torch_has.underway


@pytest.mark.parametrize("left_in_use", [True, False])
def test_a_capture_that_failed_leaves_no_pool_in_use(monkeypatch: pytest.MonkeyPatch, left_in_use: bool) -> None:
    torch_has, device = Allocator(monkeypatch), torch.device("cpu", 0)
    arena = CudaArena(device, PLAN)
    if left_in_use:
        torch_has.begin(0, arena.pool_id)
    end_capture(device, arena.pool_id)
    assert not torch_has.underway and torch_has.uses == {arena.pool_id: 1}


def test_what_a_pool_holds_is_summed_over_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    Allocator(monkeypatch)
    segments = [{"total_size": 20 << 20, "allocated_size": 3}, {"total_size": 2 << 20, "allocated_size": 512}]
    arena = CudaArena(torch.device("cpu", 0), PLAN)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", {arena.pool_id: segments}.__getitem__)
    assert arena.use == ArenaUse(reserved_bytes=22 << 20, used_bytes=515) and PLAN.total_bytes == 15
