"""One pool for what a session keeps on its GPU: sized when it opens, given back when it closes.

All of it is one pool of torch's caching allocator, but the allocator never hands a freed block of one stream to another. So
every stream that takes from an arena has its own part of it reserved: recorded passes where they are captured, the decoder
where it decodes. That also keeps what is captured apart: nothing but a capture allocates on a capture's stream, so no tensor
can come to lie where a replay writes.

Whatever outlives a session must not lie in its arena, or the arena cannot be given back: a library's workspace for a stream,
constants made once. So passes and decoder run once outside of it, before they run in it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from strobe.engine.config import ResolvedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaPlan:
    """Bytes of an arena, predicted.

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
        """All of it."""
        return self.kept_bytes + self.passes_bytes + self.decoder_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaUse:
    """Bytes that an arena holds on its GPU, and those of them that tensors and recorded passes have now."""

    reserved_bytes: int
    used_bytes: int


class Arena(Protocol):
    """Where a session allocates what it keeps."""

    @property
    def plan(self) -> ArenaPlan:
        """What it was sized for."""
        ...

    @property
    def pool_id(self) -> Any:
        """What `torch.cuda.graph` takes as its pool; None: one of its own."""
        ...

    @property
    def use(self) -> ArenaUse | None:
        """What it holds now; None: there is no arena."""
        ...

    def open(self) -> AbstractContextManager[None]:
        """Within it, this thread allocates from the arena. Not to be entered twice at a time, nor around a capture."""
        ...

    def reserve(self, num_bytes: int, stream: torch.cuda.Stream | None) -> None:
        """Take so many bytes from the device now, for allocations on a stream; None: the current one.

        Raises:
            torch.OutOfMemoryError: the device has not so many.
        """
        ...

    def fresh(self) -> Self:
        """Return an empty one of the same kind and plan."""
        ...

    def close(self) -> None:
        """Give everything back that no tensor holds any more. Closing twice does nothing."""
        ...


class Anywhere:
    """No arena: torch allocates where it likes."""

    plan = ArenaPlan()
    pool_id = None
    use = None

    def open(self) -> AbstractContextManager[None]:
        """See `Arena.open`."""
        return nullcontext()

    def reserve(self, num_bytes: int, stream: torch.cuda.Stream | None) -> None:
        """Nothing is reserved."""

    def fresh(self) -> Self:
        """See `Arena.fresh`."""
        return self

    def close(self) -> None:
        """Nothing is held."""


class CudaArena:
    """A `torch.cuda.MemPool`.

    Args:
        device: a GPU.
        plan: what to size it for.
    """

    def __init__(self, device: torch.device, plan: ArenaPlan) -> None:
        self.plan = plan
        self._device = device
        with torch.cuda.device(device):
            self._pool: torch.cuda.MemPool | None = torch.cuda.MemPool()

    @property
    def pool_id(self) -> Any:
        """See `Arena.pool_id`."""
        return self._held.id

    @property
    def use(self) -> ArenaUse | None:
        """See `Arena.use`. None once it is closed."""
        if self._pool is None:
            return None
        segments: list[dict[str, Any]] = self._pool.snapshot()
        reserved, used = (sum(each[key] for each in segments) for key in ("total_size", "allocated_size"))
        return ArenaUse(reserved_bytes=reserved, used_bytes=used)

    def open(self) -> AbstractContextManager[None]:
        """See `Arena.open`."""
        return torch.cuda.use_mem_pool(self._held, self._device)

    def reserve(self, num_bytes: int, stream: torch.cuda.Stream | None) -> None:
        """See `Arena.reserve`: a block taken and let go, which a pool in use keeps for the stream it was taken on."""
        if not num_bytes:
            return
        torch.cuda.empty_cache()  # within a pool, torch does not look for memory that it keeps elsewhere
        with torch.cuda.stream(stream), self.open():
            torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def fresh(self) -> Self:
        """See `Arena.fresh`."""
        return type(self)(self._device, self.plan)

    def close(self) -> None:
        """See `Arena.close`. What a tensor still holds goes back with `torch.cuda.empty_cache()` after the tensor."""
        if self._pool is not None:
            torch.cuda.synchronize(self._device)
            self._pool = None

    @property
    def _held(self) -> torch.cuda.MemPool:
        assert self._pool is not None, "this arena was closed"
        return self._pool


def new_arena(config: ResolvedConfig, plan: ArenaPlan) -> Arena:
    """The arena that a configuration asks for."""
    return CudaArena(config.device, plan) if config.knobs.memory_pool else Anywhere()
