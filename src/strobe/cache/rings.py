"""Rings beside the plain one: for streams that denoise several frame blocks in a pass, for shots, and the official code's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from strobe.cache.kv import (
    CacheShape,
    CacheState,
    RingCache,
    RingStep,
    Rotate,
    Signature,
    SlotRing,
    StepAround,
    TokenRows,
    check_state,
)
from strobe.cache.policy import RingPolicy, ShotPolicy
from strobe.cache.quantized import QuantizedRing, QuantizedStep
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.core.spans import KV_CLONE, KV_ROLL, KV_SINK, KV_UPDATE, span


@dataclass(frozen=True, kw_only=True, slots=True)
class _RollingStep:
    """One pass over a `RollingCache`; `keep_sink` protects the sink slots from the pass. It reads indices back from the device,
    so that it has no signature and cannot be recorded."""

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


class RollingCache(SlotRing[_RollingStep]):
    """Keys and values in the order of time: a full window shifts left, behind the sink, to make room for the next frame block.

    As in the official code each layer of each pass reads its two end indices back from the device, works on full clones of
    keys and values, concatenates sink and window, and repeats the update on the stored tensors. Attention sees the same
    frames as with `RingCache`. With `positions="rebased"`, which the official code does not have, every layer turns the sink keys
    once per frame block, and each pass copies them to their place.

    Args, Raises: see `RingCache`.
    """

    def _allocate(self, device: torch.device, dtype: torch.dtype) -> None:
        self.keys = torch.zeros(self.shape.buffer(self.policy.window), device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self._turned: dict[int, tuple[int, Tensor]] = {}  # by layer: the shift, and the sink keys turned by it
        self._global_end = torch.zeros(self.shape.num_layers, dtype=torch.int64, device=device)
        self._local_end = torch.zeros_like(self._global_end)

    def write(self, layer: int, k: Tensor, v: Tensor, *, end: int, keep_sink: bool) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values that end before frame `end`; return the attended ones."""
        tokens = self.shape.tokens_per_frame
        global_end, filled = int(self._global_end[layer].item()), int(self._local_end[layer].item())
        grown = filled + end * tokens - global_end
        evicted = max(0, grown - self.policy.window * tokens)
        sink, start, stop = self.policy.sink * tokens, grown - evicted - k.shape[1], grown - evicted

        def move(buffer: Tensor, new: Tensor) -> None:
            """Move tokens `[sink + evicted, filled)` to `[sink, ...)`, and new ones to `[start, stop)`."""
            if evicted:
                kept = buffer[:, sink + evicted : filled].clone()
                buffer[:, sink : sink + kept.shape[1]] = kept
            first = max(start, sink) if keep_sink else start
            buffer[:, first:stop] = new[:, first - start :]

        def attended(buffer: Tensor, new: Tensor, turned: Tensor | None) -> Tensor:
            """Copy the keys or values to attend to; the sink is replaced by `turned` if given."""
            with span(KV_CLONE):
                temporary = buffer.clone()
            with span(KV_ROLL):
                move(temporary, new)
            head = min(sink, stop)
            with span(KV_CLONE):
                return torch.cat([temporary[:, :head] if turned is None else turned, temporary[:, head:stop]], dim=1)

        shift = self.policy.sink_shift(end - self._origin)
        turned = self._turned_sink(layer, shift) if self._rotate is not None and shift else None
        found = attended(self.keys[layer], k, turned), attended(self.values[layer], v, None)
        with span(KV_UPDATE):
            for buffer, new in ((self.keys[layer], k), (self.values[layer], v)):
                move(buffer, new)
        self._global_end[layer] = end * tokens
        self._local_end[layer] = stop
        return found

    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.keys.clone(), self.values.clone(), self.keys[:, :, :0].clone()

    def _take(self, state: CacheState) -> None:
        check_state(state, self.keys, self.keys[:, :, :0])
        self.keys.copy_(state.keys)
        self.values.copy_(state.values)

    def _forget(self, first: int) -> None:
        self._global_end.fill_(self._end * self.shape.tokens_per_frame)
        self._local_end.fill_(self.policy.filled(self._end - self._origin) * self.shape.tokens_per_frame)
        self._turned.clear()

    def _held(self) -> tuple[Tensor, ...]:
        return self.keys, self.values

    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> _RollingStep:
        return _RollingStep(cache=self, positions=tuple(range(first_frame, first_frame + num_frames)), keep_sink=skip > 0)

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _AheadStep:
    """A pass over frames that are not finished: they see some of the cache and each other, and nothing is stored.

    The keys of the `sink` `[L, B, S, H, D]` are turned to their place for this pass; `rows` are the rows of the ring behind it
    that are seen, int64 on its device; for `positions` see `strobe.cache.kv.CacheStep`.
    """

    cache: RingCache
    positions: tuple[int, ...]
    sink: Tensor
    rows: Tensor
    reach: None = None

    @property
    def signature(self) -> Signature:
        return id(self.cache), len(self.positions), self.sink.shape[2], len(self.rows)

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        return self.cache.keys[layer], self.cache.values[layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that are seen, those of this pass last; the cache stays as it is."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        sink = self.sink[layer]
        return (
            torch.cat((sink, keys.index_select(1, self.rows), k), dim=1),
            torch.cat((values[:, : sink.shape[1]], values.index_select(1, self.rows), v), dim=1),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _LocalStep(StepAround):
    """A pass of a ring that stores its frames and does not see the sink."""

    step: RingStep
    skipped: int

    @property
    def signature(self) -> Signature:
        return *self.step.signature, self.skipped

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v; return what is attended, the first `skipped` rows of the cache left out."""
        keys, values = self.step.write(layer, k, v)
        return keys[:, self.skipped :], values[:, self.skipped :]


class AheadRing(RingCache):
    """A ring at absolute positions for streams that denoise several frame blocks in one pass.

    Finished frames are stored by `finish`. What is not finished yet looks back by `look`: to the sink, whose keys are turned so
    that it stands right before the window, and to the last frames.

    Args: as of `RingCache`, but for `tiles`.

    Raises:
        ConfigError: there is a sink and no `rotate`.

    Source: Rolling Forcing (Liu et al. 2025, arXiv 2509.25161); `wan/modules/causal_model.py` as in winbeau/RollingForcing-fork
    at d8d4693.
    """

    def __init__(self, shape: CacheShape, policy: RingPolicy, *, rotate: Rotate | None = None, **form: Any) -> None:
        super().__init__(shape, policy, **(form | {"positions": "absolute"}))
        if policy.sink and rotate is None:
            raise ConfigError("a sink that moves along needs `rotate`, the temporal RoPE rotation of the model")
        self._turn = rotate
        self._seen = TokenRows(shape.tokens_per_frame, self.keys.device)

    def finish(self, first_frame: int, num_frames: int) -> RingStep | _LocalStep:
        """Open the next finished frames: they see the frames that fit behind the sink, itself only where it is one of those."""
        step = self.at(first_frame, num_frames)
        return step if self.end <= self.policy.local else _LocalStep(step=step, skipped=self._sink_rows)

    def take_back(self, end: int) -> None:
        """Forget the frames from `end` on, which a frame block that was given up has written."""
        self._go_to(self._origin, end)

    def look(self, num_frames: int, window: int) -> _AheadStep:
        """Open the frames behind the last finished one for a look back within `window` latent frames, themselves included.

        Raises:
            ConfigError: they and the sink do not fit into the window.
        """
        first, end = self.end, self.end - self._origin + num_frames  # the latter counted from the sink's first frame
        sink = min(self.policy.sink, end - num_frames)
        recent = range(max(sink, end - window + sink), end - num_frames)
        if sink + len(recent) + num_frames > window:
            raise ConfigError(f"{num_frames} latent frames and a sink of {sink} do not fit into a window of {window}")
        turned = self._sink_keys[:, :, : sink * self.shape.tokens_per_frame]
        if sink:
            kept = self.keys[:, :, : turned.shape[2]]
            turned.copy_(kept)
            if (shift := max(0, end - window)) and self._turn is not None:
                self._turn(kept, shift, turned)
        rows = self._seen.fill(self.policy, recent.start if recent else 0, len(recent))  # which is empty
        return _AheadStep(cache=self, positions=tuple(range(first, first + num_frames)), sink=turned, rows=rows)


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

    def at(self, first_frame: int, num_frames: int, *, cut: bool = False) -> RingStep | QuantizedStep:
        """Open the frames of the next frame block, or the last ones again, which may begin a shot then or no longer.

        Raises: see `strobe.cache.kv.RingCache.at`.
        """
        if first_frame == self.end:
            self._before, self._first = self._now, first_frame
        elif first_frame != self._first:
            raise SessionError(f"frames from {first_frame} on were not opened together; open those from {self._first} on")
        self._now = self._ring.policy = self._before.opened(first_frame, num_frames, cut=cut)
        step, leap = self._ring.at(first_frame, num_frames), self._now.cuts * self._now.sink
        return replace(step, positions=tuple(frame + leap for frame in step.positions))

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
