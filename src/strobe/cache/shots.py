"""A ring for streams in shots: the first frames of a shot stay, and positions leap where one begins."""

from __future__ import annotations

from dataclasses import replace

from strobe.cache.kv import CacheState, RingCache, RingStep, TiledStep
from strobe.cache.policy import ShotPolicy
from strobe.cache.quantized import QuantizedRing, QuantizedStep
from strobe.core.errors import SessionError, ShapeError


class ShotRing:
    """A ring at absolute positions in which `strobe.cache.policy.ShotPolicy` says which frame lies where.

    Args:
        ring: holds keys and values; without tiles, at absolute positions.
    """

    def __init__(self, ring: RingCache | QuantizedRing) -> None:
        self._ring = ring
        self._empty = ShotPolicy(window=ring.policy.window, sink=ring.policy.sink)
        self._before = self._now = self._empty
        self._first = 0  # of the frames opened last

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""
        return self._ring.end

    @property
    def num_bytes(self) -> int:
        """Memory of the ring, bytes."""
        return self._ring.num_bytes

    def at(self, first_frame: int, num_frames: int, *, cut: bool = False) -> RingStep | QuantizedStep:
        """Open the frames of the next frame block, or the last ones again, which may begin a shot then or no longer.

        Raises: see `strobe.cache.kv.RingCache.at`.
        """
        if first_frame == self.end:
            self._before, self._first = self._now, first_frame
        elif first_frame != self._first:
            raise SessionError(f"frames from {first_frame} on were not opened together; open those from {self._first} on")
        self._now = self._ring.policy = self._before.opened(first_frame, num_frames, cut=cut)
        step = self._ring.at(first_frame, num_frames)
        assert not isinstance(step, TiledStep)
        return replace(step, positions=tuple(frame + self._now.leap for frame in step.positions))

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> RingStep | QuantizedStep:
        """Refuse: what is kept is not the end of a stream, and models of shots were trained without it.

        Raises:
            SessionError: always.
        """
        raise SessionError("keys and values of shots are not derived again; go on under the new prompt, or open a session")

    def reset(self, *, erase: bool = False) -> None:
        """Forget every frame; see `strobe.cache.kv.KVCache.reset`."""
        self._ring.reset(erase=erase)
        self._before = self._now = self._empty
        self._first = 0

    def snapshot(self) -> CacheState:
        """Copy the whole cache."""
        return replace(self._ring.snapshot(), shots=self._now)

    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape; addresses stay.

        Raises:
            ShapeError: the snapshot has another shape, is of a cache without shots, or its shots contradict its frames.
        """
        shots, own = state.shots, (self._empty.window, self._empty.sink)
        if shots is None or (shots.window, shots.sink) != own:
            raise ShapeError("the snapshot does not say which frames of its shots lie where; take it again with this strobe")
        if fault := shots.fault(state.end):
            raise ShapeError(f"its shots have {fault}, and it ends before frame {state.end}")
        self._ring.restore(state)
        self._before = self._now = shots
        self._first = self.end
