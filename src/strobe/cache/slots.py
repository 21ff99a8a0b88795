"""The frames of a ring whose keys and values are kept in another form than they come: which are in it, and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, CacheState, CacheStep, Positions, Rotate, check_order, check_rewrite, sink_rotation
from strobe.cache.policy import RingPolicy
from strobe.cache.rows import TokenRows

Step = TypeVar("Step", bound=CacheStep)


class SlotRing(ABC, Generic[Step]):
    """A ring with the slots and positions of a `RingCache`; a subclass holds keys and values.

    Args:
        shape, policy, device, positions, rotate: see `strobe.cache.kv.RingCache`.

    Raises:
        ConfigError: "rebased" with a sink but without `rotate`.
    """

    def __init__(
        self, shape: CacheShape, policy: RingPolicy, device: torch.device, positions: Positions, rotate: Rotate | None
    ) -> None:
        self.shape = shape
        self.policy = policy
        self._rotate = sink_rotation(policy, positions, rotate)
        self._rows = TokenRows(shape.tokens_per_frame, device)
        self._origin = 0
        self._end = 0

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""
        return self._end

    def at(self, first_frame: int, num_frames: int) -> Step:
        """Open the frames of the next frame block, or the last frames again. Raises: see `strobe.cache.kv.RingCache.at`."""
        end = first_frame + num_frames
        check_order(self._end, first_frame, num_frames)
        self.policy.check_block(end - max(first_frame, self._origin + self.policy.sink))
        self._move_sink(end)
        self._end = end
        return self._step(first_frame, num_frames, skip=0)

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> Step:
        """Open the window that ends before `end`, to be derived again. See `strobe.cache.kv.RingCache.rewrite`."""
        end = self._end if end is None else end
        first_frame = check_rewrite(self._end, end, self.policy.window)
        self._move_sink(end)
        self._end = end
        if not keep_sink:
            self._origin = max(self._origin, first_frame)
        skip = self.policy.sink if first_frame > self._origin else 0
        return self._step(first_frame, end - first_frame, skip=skip)

    def reset(self, *, erase: bool = False) -> None:
        """Forget every frame; see `strobe.cache.kv.KVCache.reset`."""
        self._origin = self._end = 0
        for tensor in self._held() if erase else ():
            tensor.zero_()

    @abstractmethod
    def snapshot(self) -> CacheState:
        """Copy the whole cache."""

    @abstractmethod
    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape and format; addresses stay."""

    @abstractmethod
    def _held(self) -> tuple[Tensor, ...]:
        """Return all that frames left here."""

    @abstractmethod
    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> Step:
        """Return a pass over frames that were opened, of which the first `skip` are not kept."""

    @abstractmethod
    def _turn_sink(self, before: int, after: int) -> None:
        """Turn the sink keys by `after` frames from their own positions; they were turned by `before`."""

    def _move_sink(self, end: int) -> None:
        """Rotate the sink keys to the positions that belong to `end`. They are only written while they are not rotated."""
        before, after = (self.policy.sink_shift(frame - self._origin) for frame in (self._end, end))
        if self._rotate is not None and before != after:
            self._turn_sink(before, after)
