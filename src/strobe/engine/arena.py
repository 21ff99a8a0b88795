"""One memory pool for what a session keeps on its GPU: sized when the session opens, given back when it closes.

All of it is one pool of torch's caching allocator, but the allocator never hands a freed block of one stream to another. So
every stream that takes from an arena has its own part of it reserved: recorded passes where they are captured, the decoder
where it decodes. What a sparse pass has beside its dense call, some tens of MB, is small enough to be taken when it is captured.
That also keeps what is captured apart: nothing but a capture allocates on a capture's streams, so no tensor
can come to lie where a replay writes.

Whatever outlives a session must not lie in its arena, or the arena cannot be given back: a library's workspace for a stream,
constants made once. So passes and decoder run once outside of it, before they run in it.

Which pools are open and which captures are under way torch keeps in one list per device, for all threads. Allocations go by
thread or by captured stream, so those of other threads go where they would anyway. But while the list is not empty,
`torch.cuda.empty_cache` leaves the common pool alone without a word (before torch 2.8 it failed an assertion), an allocation that
finds no memory fails where it would else have had torch give back what it keeps, and a device must not be waited for as a whole
while one of its streams is captured. `empty_cache` goes over all devices. Hence one lock, `POOLS`, for all of them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from strobe.engine.resolve import ResolvedConfig

POOLS: Final = threading.RLock()
"""Held by the thread that has a pool open, captures, waits for a whole device, or has torch give memory back."""


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for captures of all sessions of a device: libraries keep a workspace for every stream that calls them."""
    return torch.cuda.Stream(device)


def decode_stream(device: torch.device) -> torch.cuda.Stream:
    """Create a stream for a decoder, before others: frames are there sooner, and the passes beside them end at the same time."""
    return torch.cuda.Stream(device, priority=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaPlan:
    """Predicted sizes of an arena, bytes.

    Args:
        kept_bytes: keys and values, and what recorded passes read; allocated at once, for good.
        passes_bytes: reserved for recorded passes.
        decoder_bytes: reserved for the decoder: its memories twice, for new ones are made beside the old, and its largest call.
    """

    kept_bytes: int = 0
    passes_bytes: int = 0
    decoder_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Size of the whole arena, bytes."""
        return self.kept_bytes + self.passes_bytes + self.decoder_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaUse:
    """Bytes that an arena holds on its GPU, and those of them that tensors and recorded passes use now."""

    reserved_bytes: int
    used_bytes: int


class Arena:
    """The allocator of what a session keeps. This one is no arena: torch's caching allocator is used as it is.

    Args:
        plan: predicted sizes that it is made for.
    """

    def __init__(self, plan: ArenaPlan = ArenaPlan()) -> None:
        self.plan = plan

    @property
    def pool_id(self) -> Any:
        """Pool for `torch.cuda.graph`; None: each graph has its own."""
        return None

    @property
    def use(self) -> ArenaUse | None:
        """Bytes that it holds now; None: there is no arena, or it is closed."""
        return None

    def open(self) -> AbstractContextManager[None]:
        """Return a context in which this thread allocates from the arena; not to be nested, nor entered around a capture.

        One thread at a time is in any arena; others wait.
        """
        return nullcontext()

    def make_room(self) -> None:
        """Make torch release unused cached memory, which an arena does not trigger. Not to be called inside `open`."""

    def reserve(self, num_bytes: int, stream: torch.cuda.Stream | None) -> None:
        """Reserve `num_bytes` of the device for allocations on a stream; None: the current one.

        Raises:
            torch.OutOfMemoryError: the device has not so many.
        """

    def fresh(self) -> Arena:
        """Return an empty one of the same kind and plan."""
        return self

    def close(self) -> None:
        """Give everything back that no tensor holds any more. Closing twice does nothing."""


class CudaArena(Arena):
    """A private pool of torch's caching allocator, in use from its creation until it is closed or garbage.

    No `torch.cuda.MemPool`: one that is collected as garbage while any thread captures a graph or has a pool open ends the
    process (an assertion in its destructor). Here the use is counted down, which is always allowed.

    Args:
        device: a GPU, with its number.
        plan: what to size it for.
    """

    def __init__(self, device: torch.device, plan: ArenaPlan) -> None:
        super().__init__(plan)
        self._device = device
        self._key = device.index, torch.cuda.graph_pool_handle()
        with POOLS:
            torch._C._cuda_beginAllocateCurrentThreadToPool(*self._key)  # counts a use
            torch._C._cuda_endAllocateToPool(*self._key)  # does not count it down
        self._release = weakref.finalize(self, torch._C._cuda_releasePool, *self._key)
        self._release.atexit = False

    @property
    def pool_id(self) -> Any:
        return self._key[1]

    @property
    def use(self) -> ArenaUse | None:
        """None once it is closed."""
        if not self._release.alive:
            return None
        segments = torch.cuda.memory_snapshot(self.pool_id)
        reserved, used = (sum(each[size] for each in segments) for size in ("total_size", "allocated_size"))
        return ArenaUse(reserved_bytes=reserved, used_bytes=used)

    @contextmanager
    def open(self) -> Iterator[None]:
        with POOLS:
            assert self._release.alive, "this arena was closed"
            torch._C._cuda_beginAllocateCurrentThreadToPool(*self._key)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(*self._key)
                torch._C._cuda_releasePool(*self._key)

    def make_room(self) -> None:
        with POOLS:
            torch.cuda.empty_cache()

    def reserve(self, num_bytes: int, stream: torch.cuda.Stream | None) -> None:
        """Reserve as `Arena.reserve`, by a block allocated and freed at once, which the pool keeps for the stream."""
        if not num_bytes:
            return
        with POOLS, torch.cuda.stream(stream):
            self.make_room()
            with self.open():
                torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def fresh(self) -> CudaArena:
        return CudaArena(self._device, self.plan)

    def close(self) -> None:
        """Close as `Arena.close`; memory of living tensors returns with `torch.cuda.empty_cache()` after they are gone."""
        with POOLS:
            if self._release.alive:
                torch.cuda.synchronize(self._device)
                self._release()
                self.make_room()


def end_capture(device: torch.device, pool_id: Any) -> None:
    """Release a pool after a failed capture; torch before 2.12 leaves it in use, with all later allocations of the thread.

    Under the same `POOLS` as the capture: until then torch takes it to be under way.
    """
    with suppress(RuntimeError):  # later ones did it
        torch._C._cuda_endAllocateToPool(device.index, pool_id)
        torch._C._cuda_releasePool(device.index, pool_id)


def new_arena(config: ResolvedConfig, plan: ArenaPlan) -> Arena:
    """Create the arena that a configuration asks for."""
    return CudaArena(config.device, plan) if config.knobs.memory_pool else Arena()
