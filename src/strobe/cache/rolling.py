"""The cache of the official code, with all of its copies, for the preset `baseline`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, CacheState, Positions, Rotate, SlotRing, check_state
from strobe.cache.policy import RingPolicy
from strobe.core.spans import KV_CLONE, KV_ROLL, KV_SINK, KV_UPDATE, span


@dataclass(frozen=True, kw_only=True, slots=True)
class RollingStep:
    """One pass over a `RollingCache`; `keep_sink` protects the sink slots from the pass.

    It reads indices back from the device, so that it has no signature and cannot be recorded.
    """

    cache: RollingCache
    positions: tuple[int, ...]
    keep_sink: bool = False
    reach: None = None
    signature: None = None

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer `[B, window * N, H, D]`."""
        return self.cache.keys[layer], self.cache.values[layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write as `CacheStep.write`; the result is always a fresh copy."""
        return self.cache.write(layer, k, v, end=self.positions[-1] + 1, keep_sink=self.keep_sink)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Move:
    """Token ranges of one update: `[sink + evicted, filled)` moves to `[sink, ...)`, new tokens go to `[start, stop)`."""

    sink: int
    evicted: int
    filled: int
    start: int
    stop: int
    keep_sink: bool

    def apply(self, buffer: Tensor, new: Tensor) -> None:
        if self.evicted:
            kept = buffer[:, self.sink + self.evicted : self.filled].clone()
            buffer[:, self.sink : self.sink + kept.shape[1]] = kept
        first = max(self.start, self.sink) if self.keep_sink else self.start
        buffer[:, first : self.stop] = new[:, first - self.start :]


class RollingCache(SlotRing[RollingStep]):
    """Keys and values in the order of time: a full window shifts left, behind the sink, to make room for the next frame block.

    As in the official code each layer of each pass reads its two end indices back from the device, works on full clones of
    keys and values, concatenates sink and window, and repeats the update on the stored tensors. Attention sees the same
    frames as with `RingCache`. With `positions="rebased"`, which the official code does not have, every layer turns the sink keys
    once per frame block, and each pass copies them to their place.

    Args, Raises: see `RingCache`.
    """

    def __init__(
        self,
        shape: CacheShape,
        policy: RingPolicy,
        *,
        device: torch.device,
        dtype: torch.dtype,
        positions: Positions = "absolute",
        rotate: Rotate | None = None,
    ) -> None:
        super().__init__(shape, policy, device, positions, rotate)
        self.keys = torch.zeros(shape.buffer(policy.window), device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self._turned: dict[int, tuple[int, Tensor]] = {}  # by layer: the shift, and the sink keys turned by it
        self._global_end = torch.zeros(shape.num_layers, dtype=torch.int64, device=device)
        self._local_end = torch.zeros_like(self._global_end)

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values, and of rotated sink keys if there are any, without the clones of a pass, bytes."""
        return self.keys.nbytes + self.values.nbytes + sum(turned.nbytes for _, turned in self._turned.values())

    def write(self, layer: int, k: Tensor, v: Tensor, *, end: int, keep_sink: bool) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values that end before frame `end`; return the attended ones."""
        tokens = self.shape.tokens_per_frame
        global_end, local_end = int(self._global_end[layer].item()), int(self._local_end[layer].item())
        grown = local_end + end * tokens - global_end
        evicted = max(0, grown - self.policy.window * tokens)
        move = _Move(
            sink=self.policy.sink * tokens,
            evicted=evicted,
            filled=local_end,
            start=grown - evicted - k.shape[1],
            stop=grown - evicted,
            keep_sink=keep_sink,
        )
        shift = self.policy.sink_shift(end - self._origin)
        sink = self._turned_sink(layer, shift) if self._rotate is not None and shift else None
        attended = self._attended(self.keys[layer], k, move, sink), self._attended(self.values[layer], v, move, None)
        with span(KV_UPDATE):
            for buffer, new in ((self.keys[layer], k), (self.values[layer], v)):
                move.apply(buffer, new)
        self._global_end[layer] = end * tokens
        self._local_end[layer] = move.stop
        return attended

    def snapshot(self) -> CacheState:
        """Copy the whole cache."""
        return CacheState(
            keys=self.keys.clone(),
            values=self.values.clone(),
            sink_keys=self.keys[:, :, :0].clone(),
            origin=self._origin,
            end=self._end,
        )

    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape. Raises: see `RingCache.restore`."""
        check_state(state, self.keys, self.keys[:, :, :0])
        self.keys.copy_(state.keys)
        self.values.copy_(state.values)
        self._go_to(state.origin, state.end)

    def _forget(self, first: int) -> None:
        self._global_end.fill_(self._end * self.shape.tokens_per_frame)
        self._local_end.fill_(self.policy.filled(self._end - self._origin) * self.shape.tokens_per_frame)
        self._turned.clear()

    def _held(self) -> tuple[Tensor, ...]:
        return self.keys, self.values

    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> RollingStep:
        return RollingStep(cache=self, positions=tuple(range(first_frame, first_frame + num_frames)), keep_sink=skip > 0)

    def _turn_sink(self, before: int, after: int) -> None:
        """Do nothing: every layer turns them in its next pass."""

    def _turned_sink(self, layer: int, shift: int) -> Tensor:
        """Return the sink keys rotated for a shift of `shift` frames, cached until the shift changes."""
        assert self._rotate is not None
        kept = self._turned.get(layer)
        if kept is None or kept[0] != shift:
            with span(KV_SINK):
                keys = self.keys[layer : layer + 1, :, : self.policy.sink * self.shape.tokens_per_frame].clone()
                self._rotate(keys, shift, keys)
            self._turned[layer] = kept = shift, keys[0]
        return kept[1]

    @staticmethod
    def _attended(buffer: Tensor, new: Tensor, move: _Move, turned: Tensor | None) -> Tensor:
        """Copy the keys or values to attend to; the sink is replaced by `turned` if given."""
        with span(KV_CLONE):
            temporary = buffer.clone()
        with span(KV_ROLL):
            move.apply(temporary, new)
        sink = min(move.sink, move.stop)
        with span(KV_CLONE):
            return torch.cat([temporary[:, :sink] if turned is None else turned, temporary[:, sink : move.stop]], dim=1)
