"""Keys and values in a ring: every frame is written once into its slot and never moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from strobe.cache.policy import RingPolicy, ShotPolicy
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.eightbit.rounded import RoundedKeys

Signature = tuple[int, ...]
"""Every Python value that a pass depends on besides its positions, and the identity of the cache whose tensors it uses."""


class TokenRows:
    """Cache rows of the tokens of a pass. A tensor per shape of pass is made once and filled again for every pass.

    Args:
        tokens_per_frame: rows of a slot.
        device: where the rows live.
        tiled: slots behind the sink begin at such a row and have so many rows each, in which a frame's tokens lie as this tensor
            `[N]` says.
    """

    def __init__(self, tokens_per_frame: int, device: torch.device, tiled: tuple[int, int, Tensor] | None = None) -> None:
        self._tokens, self._device = tokens_per_frame, device
        self._tiled = tiled
        self._kept: dict[tuple[int, int], Tensor] = {}

    def fill(self, policy: RingPolicy, first: int, num_frames: int, skip: int = 0, *, staged: bool = False) -> Tensor:
        """Fill in the rows of the frames from `first` on, counted from the sink's first: int64 `[F * N]`; -1 for `skip` frames.

        `policy` says which slot a frame has. `staged` frames lie one after the other behind those of the sink that come before
        them. Worked out on the device: plain ints go in, nothing is copied or waited for.
        """
        rows, tokens, sink = self._kept.get((num_frames, skip)), self._tokens, policy.sink
        if rows is None:
            with torch.inference_mode(False):  # later passes fill it again, in whatever mode
                rows = torch.full((num_frames * tokens,), -1, device=self._device)
            self._kept[num_frames, skip] = rows
        if staged:
            start = min(first, sink) * tokens
            return torch.arange(start, start + num_frames * tokens, out=rows)
        for source in range(skip, num_frames):
            slot, frame = policy.slot(first + source), rows[source * tokens : (source + 1) * tokens]
            if self._tiled is None or slot < sink:
                torch.arange(slot * tokens, (slot + 1) * tokens, out=frame)
            else:
                start, size, order = self._tiled
                torch.add(order, start + (slot - sink) * size, out=frame)
        return rows


def check_new(expected: tuple[int, ...], *tensors: Tensor) -> None:
    """Check keys or values of a pass.

    Raises:
        ShapeError: they are not as many, or not as wide, as the cache expects.
    """
    for new in tensors:
        if tuple(new.shape) != expected:
            raise ShapeError(f"keys and values of this pass have shape {tuple(new.shape)}; the cache expects {expected}")


def store(buffer: Tensor, rows: Tensor, new: Tensor, skipped: int) -> None:
    """Write the tokens of a pass, except the first `skipped`, into their rows of a buffer `[B, rows, H, D]`; see `check_new`."""
    check_new((buffer.shape[0], rows.shape[0], *buffer.shape[2:]), new)
    buffer.index_copy_(1, rows[skipped:], new[:, skipped:])


def graded(buffer: Tensor, rows: Tensor, new: Tensor, skipped: int) -> Tensor:
    """Return the buffer into which `new` was stored; if `new` wants gradients, a copy through which it gets them."""
    if not (torch.is_grad_enabled() and new.requires_grad):
        return buffer
    return buffer.index_copy(1, rows[skipped:].clone(), new[:, skipped:])


_WIDE: Final = (torch.complex128, torch.complex64)
"""Wider than the elements of most caches. On an H200 three frames of 30 layers take 230 us as complex128 and 706 as bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HistoryTiles:
    """The tile layout of one latent frame in a ring, and the share of past tiles that a pass skips.

    Args:
        grid: tokens of a frame, height and width.
        rows: row of each token in tile order, int64 `[N]`.
        sizes: tokens of each tile, int32 `[T]`.
        block: rows of a tile; those past its size are padding and stay 0.
        whole: no tile has padding.
        staged: frames behind the sink that a pass may stage; those of one with more go to their tiles at once.
        sparsity: share of the history tiles that is left out.
        pool: coarse keys of one frame, one per tile: `[B, T * block, H, D]` to float32 `[B, H, T, D]`.
    """

    grid: tuple[int, int]
    rows: Tensor
    sizes: Tensor
    block: int
    whole: bool
    staged: int
    sparsity: float
    pool: Callable[[Tensor], Tensor]

    @property
    def num_tiles(self) -> int:
        """Number of tiles of a frame."""
        return self.sizes.shape[0]

    @property
    def num_rows(self) -> int:
        """Number of rows of a frame, padding included."""
        return self.num_tiles * self.block


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reach:
    """The part of the tensors of `RingStep.write` that a pass attends to, and whether its own keys are in it.

    Args:
        tiles: how frames behind the sink lie.
        whole_rows: leading rows that are seen whole, in raster order: frames of the sink that were there before this pass, and
            those of the pass if they are staged.
        covered: leading tokens of the pass that these rows stand for, so that their own keys are not attended apart: all if they
            are staged, else those in whose place the sink stays.
        tiled_from: first row of the frames in tiles.
        sizes: tokens of each tile from there on if it is history, else 0, int32 `[local * T]`; the cache's, as `rows` are.
        num_tiles: how many are history.
        means: their coarse keys, float32 `[L, B, H, local * T, D]`.
    """

    tiles: HistoryTiles
    whole_rows: int
    covered: int
    tiled_from: int
    sizes: Tensor
    num_tiles: int
    means: Tensor


class TiledFrames:
    """The frames behind the sink of one ring, in tiles. Frames are counted from the sink's first.

    Args:
        tiles: how they lie.
        policy: which slot a frame has.
        tokens_per_frame: rows of a frame in raster order.
        keys: of the ring, `[L, B, rows, H, D]`; the tiles are its last rows.
        values: same.
    """

    def __init__(self, tiles: HistoryTiles, policy: RingPolicy, tokens_per_frame: int, keys: Tensor, values: Tensor) -> None:
        self._tiles, self._policy, self._tokens = tiles, policy, tokens_per_frame
        self._buffers = keys, values
        self._tiled_from = keys.shape[2] - policy.local * tiles.num_rows
        layers, batch, _, heads, width = keys.shape
        number, wide = policy.local * tiles.num_tiles, torch.promote_types(keys.dtype, torch.float32)
        self.means = torch.zeros(layers, batch, heads, number, width, device=keys.device, dtype=wide)
        self._sizes = torch.zeros(number, device=keys.device, dtype=torch.int32)
        self._staged = range(0)  # frames that are not in their tiles, the first of them first in the staging rows
        self._pooled = 0  # frames before it have their coarse keys, as far as they are kept

    def forget(self, first: int = 0) -> None:
        """Forget staged frames, and pool frames from `first` on again later."""
        self._staged, self._pooled = range(0), min(self._pooled, first)

    def open(self, first: int, end: int, *, again: bool) -> bool:
        """Open frames, which were written before if `again`; all before them become history. Return whether they are staged."""
        behind = range(max(first, self._policy.sink), end)
        fits = len(behind) <= self._tiles.staged
        opened = behind if fits else range(0)
        if opened != self._staged:
            for buffer in self._buffers:
                self.settle(buffer, buffer[:, :, self._tiled_from :], end)
            self._staged = opened
            if again:
                self._stage()
        self._pool(first, end)
        return fits

    def settle(self, buffer: Tensor, tiled: Tensor, end: int) -> None:
        """Copy staged frames of a buffer into their tiles, if they are kept once frames up to `end` are written.

        Args:
            tiled: takes it, `[L, B, local * T * block, H, D]`: the frames in tiles of the same buffer, or of a copy.
        """
        for frame in range(max(self._staged.start, end - self._policy.local), self._staged.stop):
            _wide(self._slot(tiled, frame)).index_copy_(2, self._tiles.rows, _wide(self._staging(buffer, frame)))

    def reach(self, first: int, end: int, *, skip: int, staged: bool) -> Reach:
        """Return the reach of a pass over frames `first` to `end`, of which the first `skip` are not kept."""
        tiles, sink = self._tiles, self._policy.sink
        held, covered = self._policy.history(first, end), end - first if staged else skip
        open_slots = self._sizes.zero_().view(self._policy.local, tiles.num_tiles)
        for frame in held:
            open_slots[self._policy.slot(frame) - sink].copy_(tiles.sizes)
        return Reach(
            tiles=tiles,
            whole_rows=(min(sink, first) + covered if staged else min(sink, first + skip)) * self._tokens,
            covered=covered * self._tokens,
            tiled_from=self._tiled_from,
            sizes=self._sizes,
            num_tiles=len(held) * tiles.num_tiles,
            means=self.means,
        )

    def _stage(self) -> None:
        """Copy the opened frames from their tiles to the staging rows, because a pass need not write them anew."""
        for buffer in self._buffers:
            for frame in self._staged:
                slot = self._slot(buffer[:, :, self._tiled_from :], frame)
                _wide(self._staging(buffer, frame)).copy_(_wide(slot).index_select(2, self._tiles.rows))

    def _pool(self, first: int, end: int) -> None:
        """Pool the coarse keys of the frames that became history: kept, behind the sink, before `first`."""
        held, number, keys = self._policy.history(first, end), self._tiles.num_tiles, self._buffers[0]
        for frame in range(max(held.start, self._pooled), held.stop):
            tiled = self._slot(keys[:, :, self._tiled_from :], frame)
            slot = self._policy.slot(frame) - self._policy.sink
            means = self._tiles.pool(tiled.flatten(0, 1)).unflatten(0, tiled.shape[:2])
            self.means[:, :, :, slot * number : (slot + 1) * number] = means
        self._pooled = first

    def _staging(self, buffer: Tensor, frame: int) -> Tensor:
        start = (self._policy.sink + frame - self._staged.start) * self._tokens
        return buffer[:, :, start : start + self._tokens]

    def _slot(self, tiled: Tensor, frame: int) -> Tensor:
        slot, rows = self._policy.slot(frame) - self._policy.sink, self._tiles.num_rows
        return tiled[:, :, slot * rows : (slot + 1) * rows]


def _wide(tensor: Tensor) -> Tensor:
    """View memory in the widest elements that the last dimension allows, because torch copies rows element by element."""
    num_bytes = tensor.shape[-1] * tensor.element_size()
    return tensor.view(next((dtype for dtype in _WIDE if num_bytes % dtype.itemsize == 0), tensor.dtype))


Positions = Literal["absolute", "rebased"]
Rotate = Callable[[Tensor, int, Tensor], None]
"""`rotate(keys, frames, out)`: keys `[L, B, S, H, D]` after RoPE, moved by that many temporal positions, into `out`. That has the
same keys at whatever position, or is `keys` itself: what does not turn in time is there already and need not be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheShape:
    """Size of a cache: `num_layers` x `batch` x (window * `tokens_per_frame`) x `num_heads` x `head_dim`."""

    num_layers: int
    batch: int
    tokens_per_frame: int
    num_heads: int
    head_dim: int

    def buffer(self, slots: int) -> tuple[int, int, int, int, int]:
        """Return the shape of the keys (or values) of `slots` latent frames: [L, B, slots * N, H, D]."""
        return self.rows(slots * self.tokens_per_frame)

    def rows(self, number: int) -> tuple[int, int, int, int, int]:
        """Return the shape of the keys (or values) of `number` rows."""
        return (self.num_layers, self.batch, number, self.num_heads, self.head_dim)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheState:
    """A deep copy of a cache.

    Args:
        keys: [L, B, window * N, H, D], the cache's dtype; of a ring with tiles the frames behind the sink lie in them, with the
            rows of their padding, and nothing is staged.
        values: same.
        sink_keys: sink keys at their own positions [L, B, sink * N, H, D].
        origin: frame number of the first sink frame.
        end: frame number after the last frame.
        shots: what a cache of shots has in its slots; None: its frames take turns.
    """

    keys: Tensor
    values: Tensor
    sink_keys: Tensor
    origin: int
    end: int
    shots: ShotPolicy | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> CacheState:
        """Return the same with each tensor changed."""
        return replace(self, keys=change(self.keys), values=change(self.values), sink_keys=change(self.sink_keys))


class CacheStep(Protocol):
    """The cache as one transformer pass uses it: places for its frames, and keys and values to attend to."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Temporal RoPE index of each frame of the pass."""

    @property
    def reach(self) -> Reach | None:
        """Part of what `write` returns that is attended; None: everything."""

    @property
    def signature(self) -> Signature | None:
        """All Python values that a pass depends on, `positions` excepted, and the owner of its tensors.

        None: a pass reads the device back or makes tensors of its own, so that it cannot be recorded.
        """

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """Return all that a layer keeps of keys and values, in the form it keeps them, at fixed addresses."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | RoundedKeys:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all attended keys and values [B, S, H, D], or both in eight bits."""


class KVCache(Protocol):
    """The cache as a stream uses it: `RingCache`, `RollingCache`, or a ring of eight bits (`quantized`)."""

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""

    def at(self, first_frame: int, num_frames: int) -> CacheStep:
        """Open the frames of the next frame block, or the last frames again (they are rewritten)."""

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> CacheStep:
        """Open the window that ends before frame `end` (default: all frames), to be derived again under a new prompt."""

    def reset(self, *, erase: bool = False) -> None:
        """Forget every frame; `erase`: and set keys and values to zero, so that no snapshot shows what was there."""

    def snapshot(self) -> CacheState:
        """Copy the whole cache."""

    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepAround:
    """A pass over a cache that changes what another one writes or returns; all else is that one's."""

    step: CacheStep

    @property
    def positions(self) -> tuple[int, ...]:
        """Temporal RoPE index of each frame of the pass."""
        return self.step.positions

    @property
    def reach(self) -> Reach | None:
        return self.step.reach

    @property
    def signature(self) -> Signature | None:
        return self.step.signature

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        return self.step.buffers(layer)


Ring = TypeVar("Ring", bound="SlotRing[Any]")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SlotStep(Generic[Ring]):
    """One pass over a ring. Passes of the same `signature` differ only in the contents of their tensors.

    Args:
        cache: the ring.
        positions: see `CacheStep`; a pass sees them only in its rotations.
        rows: row of the cache that each token goes to, int64 `[F * N]` on its device; -1: not kept, because the sink stays. The
            tensor is the cache's and follows the frames that it opened last.
        attended: so many first rows are attended.
        skipped: leading tokens that are not kept.
        reach: part of these rows that is attended, in a ring with tiles; None: all.
    """

    cache: Ring
    positions: tuple[int, ...]
    rows: Tensor
    attended: int
    skipped: int
    reach: Reach | None = None

    @property
    def signature(self) -> Signature:
        return id(self.cache), len(self.positions), self.attended, self.skipped


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RingStep(SlotStep["RingCache"]):
    """One pass over a `RingCache`."""

    @property
    def signature(self) -> Signature:
        reach = self.reach
        facts = (self.attended, self.skipped) if reach is None else (reach.whole_rows, reach.covered, reach.num_tiles)
        return id(self.cache), len(self.positions), *facts

    @property
    def staged(self) -> bool:
        """Whether all keys and values of the pass are attended where they are kept: as they are without tiles, or staged."""
        return self.reach is None or self.reach.covered == self.rows.shape[0]

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer as they are kept, `[B, rows, H, D]`."""
        return self.cache.keys[layer], self.cache.values[layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write as `CacheStep.write`; returns a view, or with gradients on a copy through which k and v get gradients."""
        keys, values = self.buffers(layer)
        return self._write(keys, k), self._write(values, v)

    def _write(self, buffer: Tensor, new: Tensor) -> Tensor:
        store(buffer, self.rows, new.detach(), self.skipped)
        return graded(buffer[:, : self.attended], self.rows, new, self.skipped)


Step = TypeVar("Step", bound=CacheStep)


class SlotRing(ABC, Generic[Step]):
    """The frames of a ring: which are in it, and where. A subclass holds keys and values.

    Args:
        shape, policy, device, dtype, positions, rotate: see `RingCache`.
        form: of the tensors, in words of the subclass.

    Raises:
        ConfigError: "rebased" with a sink but without `rotate`.
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
        **form: Any,
    ) -> None:
        turns = positions == "rebased" and policy.sink > 0
        if turns and rotate is None:
            raise ConfigError('positions="rebased" with a sink needs `rotate`, the temporal RoPE rotation of the model')
        self.shape, self.policy, self._rotate = shape, policy, rotate if turns else None
        self._rows = TokenRows(shape.tokens_per_frame, device)
        self._origin = self._end = 0
        self._allocate(device, dtype, **form)

    @abstractmethod
    def _allocate(self, *args: Any, **form: Any) -> None:
        """Make the tensors."""

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""
        return self._end

    def at(self, first_frame: int, num_frames: int) -> Step:
        """Open the frames of the next frame block, or the last frames again: later passes rewrite the same slots.

        Raises:
            SessionError: the frames are neither the next ones nor the last ones.
            ConfigError: more frames than the window holds beside the sink.
        """
        self._open(first_frame, first_frame + num_frames)
        return self._step(first_frame, num_frames, skip=0)

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> Step:
        """Open the last ``min(window, end)`` frames before `end` (default: all), to be derived again under a new prompt.

        Before anything was evicted these are all frames, sink included. Afterwards:

        * `keep_sink=True`: sinks stay as they are; frames of the pass that only fit into sink slots attend but are not stored.
        * `keep_sink=False`: the whole window is written anew and its first frames become the sink.

        Frames written from `end` on, e.g. by a frame block that was given up, are forgotten.

        Raises:
            SessionError: nothing was written before `end`.
        """
        end = self._end if end is None else end
        if not 0 < end <= self._end:
            raise SessionError(f"frames before {end} cannot be derived again: frames 0..{self._end} (exclusive) were written")
        first_frame = max(0, end - self.policy.window)
        self._move_sink(end)
        self._end = end
        if not keep_sink:
            self._origin = max(self._origin, first_frame)
        self._forget(first_frame - self._origin)
        skip = self.policy.sink if first_frame > self._origin else 0
        return self._step(first_frame, end - first_frame, skip=skip)

    def reset(self, *, erase: bool = False) -> None:
        """Forget every frame; see `KVCache.reset`."""
        self._go_to(0, 0)
        for tensor in self._held() if erase else ():
            tensor.zero_()

    def snapshot(self) -> CacheState:
        """Copy the whole cache."""
        keys, values, sink_keys = self._copies()
        return CacheState(keys=keys, values=values, sink_keys=sink_keys, origin=self._origin, end=self._end)

    @abstractmethod
    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copy keys, values and sink keys, as a `CacheState` has them."""

    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape and format; addresses stay.

        Raises:
            ShapeError: the snapshot has another shape, or is of another kind of cache.
        """
        self._take(state)
        self._go_to(state.origin, state.end)

    @abstractmethod
    def _take(self, state: CacheState) -> None:
        """Check the tensors of a snapshot, and copy them."""

    def _open(self, first_frame: int, end: int) -> None:
        if first_frame >= end or (first_frame != self._end and end != self._end):
            raise SessionError(
                f"frames {first_frame}..{end - 1} cannot be written: the cache ends before frame {self._end}; "
                f"write from frame {self._end} on, or the last frames again"
            )
        self.policy.check_block(end - max(first_frame, self._origin + self.policy.sink))
        self._move_sink(end)
        self._end = end

    def _go_to(self, origin: int, end: int) -> None:
        self._origin, self._end = origin, end
        self._forget(0)

    def _forget(self, first: int) -> None:
        """Forget what follows from the frames from `first` on, counted from the sink's first: here nothing does."""

    @abstractmethod
    def _held(self) -> tuple[Tensor, ...]:
        """Return all that frames left here."""

    @abstractmethod
    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> Step:
        """Return a pass over frames that were opened, of which the first `skip` are not kept."""

    def _opened(self, first_frame: int, num_frames: int, skip: int, *, staged: bool = False) -> dict[str, Any]:
        """Return the fields of a `SlotStep` over frames that were opened."""
        tokens = self.shape.tokens_per_frame
        return {
            "cache": self,
            "positions": tuple(range(first_frame, first_frame + num_frames)),
            "rows": self._rows.fill(self.policy, first_frame - self._origin, num_frames, skip, staged=staged),
            "attended": self.policy.filled(self._end - self._origin) * tokens,
            "skipped": skip * tokens,
        }

    @abstractmethod
    def _turn_sink(self, before: int, after: int) -> None:
        """Turn the sink keys by `after` frames from their own positions; they were turned by `before`."""

    def _move_sink(self, end: int) -> None:
        """Rotate the sink keys to the positions that belong to `end`. They are only written while they are not rotated."""
        before, after = (self.policy.sink_shift(frame - self._origin) for frame in (self._end, end))
        if self._rotate is not None and before != after:
            self._turn_sink(before, after)


class RingCache(SlotRing[RingStep]):
    """Keys and values of all layers in two tensors of fixed size and address; frames are neither moved nor copied twice.

    Keys are stored after RoPE, so attention does not depend on the order of slots.

    * `positions="absolute"`: the temporal index of a frame is its number, for ever.
    * `positions="rebased"`: the same for the frames of the window, but once frames were evicted the sink keys are turned, once
      per frame block and from a canonical copy, so that the sink sits right before the window: sink frame i has index
      ``i + max(0, end - window)``. Distances then never exceed the window and a stream may be endless.

    With `tiles` the frames behind the sink lie in tile order, with a coarse key per tile, pooled once, when the frames after it
    are opened; until then those of the last pass are staged (see `strobe.cache.kv`). Coarse keys follow from the keys: a frame
    derived again is pooled again, a snapshot does not hold them, and none of them ever turns, because only the sink does and its
    frames are attended whole. (A turn in time is the same linear map for all keys of a frame, so the mean of turned keys would be
    the turned mean.) A step writes where its frames lay when they were opened: after other frames, a rewrite or a restored
    snapshot it is void.

    Args:
        shape: layers, batch, tokens per latent frame, heads, head size.
        policy: window and sink.
        device: where the tensors live.
        dtype: element type of keys and values.
        positions: see above.
        rotate: turns keys along time; needed for "rebased" with a sink.
        tiles: how frames behind the sink lie; None: in raster order, and all that is kept is attended.

    Raises:
        ConfigError: "rebased" with a sink but without `rotate`.
    """

    def _allocate(self, device: torch.device, dtype: torch.dtype, tiles: HistoryTiles | None = None) -> None:
        shape, policy, tokens = self.shape, self.policy, self.shape.tokens_per_frame
        rows, staged = (tokens, 0) if tiles is None else (tiles.num_rows, tiles.staged * tokens)
        self._sink_rows, self._tiled_from = policy.sink * tokens, policy.sink * tokens + staged
        self.keys = torch.zeros(shape.rows(self._tiled_from + policy.local * rows), device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self._sink_keys = torch.zeros(shape.buffer(policy.sink), device=device, dtype=dtype)  # at their own positions
        self._tiled = None if tiles is None else TiledFrames(tiles, policy, tokens, self.keys, self.values)
        if tiles is not None:
            self._rows = TokenRows(tokens, device, (self._tiled_from, rows, tiles.rows))

    def at(self, first_frame: int, num_frames: int) -> RingStep:
        again = first_frame < self._end
        self._open(first_frame, first_frame + num_frames)
        staged = self._tiled is not None and self._tiled.open(first_frame - self._origin, self._end - self._origin, again=again)
        return self._step(first_frame, num_frames, skip=0, staged=staged)

    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._copied(self.keys), self._copied(self.values), self._sink_keys.clone()

    def _take(self, state: CacheState) -> None:
        check_state(state, self.keys[:, :, self._tiled_from - self._sink_rows :], self._sink_keys)
        for buffer, kept in ((self.keys, state.keys), (self.values, state.values)):
            buffer[:, :, : self._sink_rows].copy_(kept[:, :, : self._sink_rows])
            buffer[:, :, self._tiled_from :].copy_(kept[:, :, self._sink_rows :])
        self._sink_keys.copy_(state.sink_keys)

    def _forget(self, first: int) -> None:
        if self._tiled is not None:
            self._tiled.forget(first)

    def _held(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self._sink_keys

    def _copied(self, buffer: Tensor) -> Tensor:
        """Copy a buffer, with staged frames put into their tiles."""
        copy = torch.cat((buffer[:, :, : self._sink_rows], buffer[:, :, self._tiled_from :]), dim=2)
        if self._tiled is not None:
            self._tiled.settle(buffer, copy[:, :, self._sink_rows :], self._end - self._origin)
        return copy

    def _step(self, first_frame: int, num_frames: int, *, skip: int, staged: bool = False) -> RingStep:
        facts = self._opened(first_frame, num_frames, skip, staged=staged)
        if self._tiled is not None:
            reach = self._tiled.reach(first_frame - self._origin, self._end - self._origin, skip=skip, staged=staged)
            facts |= {"reach": reach, "attended": self.keys.shape[2]}
        return RingStep(**facts)

    def _turn_sink(self, before: int, after: int) -> None:
        """As long as they are rotated, the sink and its copy at their own positions are the same keys."""
        assert self._rotate is not None
        sink = self.keys[:, :, : self._sink_rows]
        if before == 0:
            self._sink_keys.copy_(sink)
        self._rotate(self._sink_keys, after, sink)


def check_state(state: CacheState, keys: Tensor, sink_keys: Tensor) -> None:
    """Check that a snapshot fits.

    Raises:
        ShapeError: it belongs to a cache of another shape, or of another kind of numbers.
    """
    for name, given, own in (("keys", state.keys, keys), ("values", state.values, keys), ("sink", state.sink_keys, sink_keys)):
        if given.shape != own.shape:
            raise ShapeError(f"snapshot {name} have shape {tuple(given.shape)}; this cache holds {tuple(own.shape)}")
        if given.is_floating_point() != own.is_floating_point():
            raise ShapeError(f"snapshot {name} are {given.dtype}; this cache holds {own.dtype}")
