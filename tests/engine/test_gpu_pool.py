"""The memory pool on a GPU: what lies in it, that it is given back, several at a time; the CPU twin is `test_arena.py`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.bench.cases.stream import Script, StreamCase
from strobe.cache.kv import KVCache
from strobe.core.errors import StrobeError
from strobe.core.tolerances import tolerance
from strobe.engine.arena import new_arena
from strobe.engine.caches import prepare_cache
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.memory import plan_arena
from strobe.engine.model import Model
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.models.wan.dit import CausalWan

pytestmark = pytest.mark.gpu
SWITCHES = [Switch(frame_block=5, prompt="blue square")]
POOLED: dict[str, dict[str, bool]] = {
    "graphs": {},
    "late frames": {"late_frames": True},
    "one stream": {"overlap_decode": False},
    "launched": {"cuda_graphs": False},
    "rolling": {"cuda_graphs": False, "ring_cache": False},
}


def play(session: Session) -> tuple[Tensor, Tensor]:
    """Latents and frames of a stream with a hard switch once the window is full."""
    blocks = list(session.stream(8, switches=SWITCHES))
    return torch.cat([b.latents for b in blocks], dim=1).cpu(), torch.cat([b.samples for b in blocks], dim=1)


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
    assert plan == plan_arena(tiny, session.config) and plan.total_bytes <= session.arena.reserved_bytes  # type: ignore[union-attr]
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


def settled() -> tuple[int, int]:
    """Bytes allocated and reserved, without libraries' workspaces and what torch keeps unused."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def stream_once(make: Callable[..., Session], **options: Any) -> tuple[Tensor, Tensor]:
    with make(device="cuda", **options) as session:
        return play(session)


@pytest.mark.parametrize("on", [True, False])
def test_two_sessions_in_two_threads(make: Callable[..., Session], on: bool) -> None:
    """They open, capture, stream over a hard switch and close at a time, and make what one alone makes."""
    expected, start = stream_once(make, preset=pooled(on)), threading.Barrier(2)
    before = settled()

    def work() -> None:
        for _ in range(3):
            start.wait(60)
            found = stream_once(make, preset=pooled(on))
            assert all(map(torch.equal, found, expected))

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work) for _ in range(2)]:
            done.result()
    assert settled() == before


@pytest.mark.parametrize("name", [*POOLED, "no pool"])
def test_closing_leaves_what_was_there_before(make: Callable[..., Session], name: str) -> None:
    config = pooled(False) if name == "no pool" else pooled(**POOLED[name])
    stream_once(make, preset=config)  # what libraries keep for good
    before = settled()
    stream_once(make, preset=config)
    assert settled() == before


def fill(limit: int) -> None:
    """Have torch keep unused all it may reserve, but for less than the smallest piece that it takes from a device."""
    gone, piece = [], 2 << 20
    while (left := limit - torch.cuda.memory_reserved()) >= piece:
        size = 32 << 20 if left >= 64 << 20 else left // piece * piece
        gone.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def test_open_close_open_with_nearly_full_memory(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch keeps of something gone makes room for the pool, which takes the same again and again."""
    stream_once(make, preset=pooled())
    settled()
    torch.cuda.reset_peak_memory_stats()
    expected = stream_once(make, preset=pooled())
    limit, total = torch.cuda.max_memory_reserved() + (64 << 20), torch.cuda.get_device_properties(0).total_memory
    settled()

    def full(*args: Any) -> Callable[[], KVCache]:
        make_cache = prepare_cache(*args)
        fill(limit)
        return make_cache

    monkeypatch.setattr("strobe.engine.stream.prepare_cache", full)
    reserved = []
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        for _ in range(3):
            with make(preset=pooled(), device="cuda") as session:
                latents, samples = play(session)  # libraries take other kernels where they get less to work with
                torch.testing.assert_close(
                    latents,
                    expected[0],
                    atol=tolerance("stream of a pool", "float32"),
                    rtol=tolerance("stream of a pool", "float32"),
                )
                assert (samples.int() - expected[1].int()).abs().max() <= 1
                assert session.arena is not None
                reserved.append(session.arena.reserved_bytes)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(set(reserved)) == 1


@pytest.mark.parametrize("name", ["graphs", "one stream"])
def test_a_record_has_the_bytes_that_are_reserved(tiny: Model, name: str) -> None:
    """Those of the segments that torch has for the pool, which closing gives back."""
    config, script = pooled(**POOLED[name]), Script(prompt="red circle", num_blocks=6)
    with closing(StreamCase([config], script=script, model=tiny, device="cuda")) as case:
        case.prepare(config.name)
        list(case.blocks(config.name))
        session, found = case._sessions[config.name][0], case.settings(config.name)
        held = segments(session._stream.arena.pool_id)
        assert found.arena_reserved_bytes == sum(each["total_size"] for each in held) > 0
        assert found.arena_used_bytes == sum(each["allocated_size"] for each in held)
        del session
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
    settled()
    assert torch.cuda.memory_reserved() <= before - found.arena_reserved_bytes
