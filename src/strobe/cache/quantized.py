"""Rings of keys and values in eight bits: dequantised one layer at a time, or as attention in eight bits reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, CacheState, Positions, Signature, SlotRing, SlotStep, check_new, check_state
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ShapeError
from strobe.core.spans import DEQUANTISE, QUANTISE, span
from strobe.eightbit.rounded import BLOCK, Arriving, BlockBudget, RoundedKeys, RoundedQueries, constants, measured, padded
from strobe.eightbit.rounding import round_queries, store
from strobe.eightbit.rows import DTYPES, EightBit, expand_rows, quantize_rows, store_rows
from strobe.eightbit.types import Quantized

SCALE_BYTES: Final = 4
"""Of a scale, float32."""
_LAYERS_TURNED: Final = 4
"""Layers whose sink keys are turned at a time: what is written out in full for it stays small."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedStep(SlotStep["QuantizedRing"]):
    """One pass over a `QuantizedRing`."""

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """Return eight-bit keys and values of a layer `[2, B, rows, H, D]` and their scales, float32 `[2, B, rows, H, 1]`."""
        return self.cache.values[:, layer], self.cache.scales[:, layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all attended keys and values [B, S, H, D], as the cache holds them.

        The result lives in a buffer that all layers share: it is good until the next `write` of any layer. Without gradients.
        """
        full = self.cache.full
        expected = (full.shape[1], self.rows.shape[0], *full.shape[3:])
        check_new(expected, k, v)
        kept = Quantized(*self.buffers(layer))
        with span(QUANTISE):
            store_rows((k.detach(), v.detach()), self.rows, kept)
        with span(DEQUANTISE):
            expand_rows(kept, full[:, :, : self.attended])
        return full[0, :, : self.attended], full[1, :, : self.attended]


class QuantizedRing(SlotRing[QuantizedStep]):
    """A `RingCache` with keys and values in eight bits, one float32 scale per token and head; slots and positions are the same.

    With head size D a token and head takes ``D + 4`` bytes. A pass attends to what is stored, its own keys and values included,
    so every later pass sees the same numbers. "int8" is off by half a step of ``max |x| / 127`` at most, "fp8" by ``|x| / 16``.

    Sink keys that moved were quantised twice: as they came, and after the turn. They are turned from the first, however often
    they were turned before, so nothing adds up.

    Args:
        shape, policy, device, positions, rotate: see `RingCache`.
        dtype: of what `write` returns.
        to: "int8" or "fp8".

    Raises:
        ConfigError: "rebased" with a sink but without `rotate`.
    """

    def _allocate(self, device: torch.device, dtype: torch.dtype, to: EightBit) -> None:
        rows, sink, self.to = self.shape.buffer(self.policy.window), self.shape.buffer(self.policy.sink), to
        self.values = torch.zeros((2, *rows), device=device, dtype=DTYPES[to])  # [2, L, B, R, H, D]: keys, then values
        self.scales = torch.zeros((*self.values.shape[:-1], 1), device=device, dtype=torch.float32)
        self._sink = Quantized(  # sink keys at their own positions
            values=torch.zeros(sink, device=device, dtype=DTYPES[to]),
            scale=torch.zeros((*sink[:-1], 1), device=device, dtype=torch.float32),
        )
        self.full = torch.zeros((2, *rows[1:]), device=device, dtype=dtype)  # [2, B, R, H, D], of the layer at work

    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copy as int8 `[..., D + 4]`, the bytes of each row and then of its scale."""
        keys, values = (_packed(Quantized(self.values[index], self.scales[index])) for index in range(2))
        return keys, values, _packed(self._sink)

    def _take(self, state: CacheState) -> None:
        shapes = ((*held.shape[:-1], held.shape[-1] + SCALE_BYTES) for held in (self.values[0], self._sink.values))
        expected, sink = (torch.empty(shape, device="meta", dtype=torch.int8) for shape in shapes)
        check_state(state, expected, sink)
        for index, packed in enumerate((state.keys, state.values)):
            _unpack(packed, Quantized(self.values[index], self.scales[index]))
        _unpack(state.sink_keys, self._sink)

    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> QuantizedStep:
        return QuantizedStep(**self._opened(first_frame, num_frames, skip))

    def _held(self) -> tuple[Tensor, ...]:
        return self.values, self.scales, *self._sink

    def _turn_sink(self, before: int, after: int) -> None:
        assert self._rotate is not None
        number = self._sink.values.shape[2]
        sink = Quantized(values=self.values[0, :, :, :number], scale=self.scales[0, :, :, :number])
        if before == 0:
            _copy(sink, self._sink)
        for first in range(0, self.shape.num_layers, _LAYERS_TURNED):
            some, held = (Quantized(*(each[first : first + _LAYERS_TURNED] for each in pair)) for pair in (self._sink, sink))
            keys = some.dequantized(torch.float32)
            self._rotate(keys, after, keys)
            _copy(quantize_rows(keys, self.to), held)


def ring_bytes(shape: CacheShape, policy: RingPolicy, dtype: torch.dtype) -> int:
    """Return the bytes of a `QuantizedRing`: keys, values, scales, the sink keys' own copy and the buffer that layers share."""
    token = shape.batch * shape.tokens_per_frame * shape.num_heads
    stored = shape.num_layers * (2 * policy.window + policy.sink) * token * (shape.head_dim + SCALE_BYTES)
    return stored + 2 * policy.window * token * shape.head_dim * dtype.itemsize


def _copy(source: Quantized, target: Quantized) -> None:
    target.values.copy_(source.values)
    target.scale.copy_(source.scale)


def _packed(rows: Quantized) -> Tensor:
    return torch.cat((rows.values.contiguous().view(torch.int8), rows.scale.contiguous().view(torch.int8)), dim=-1)


def _unpack(packed: Tensor, rows: Quantized) -> None:
    bits = packed.to(rows.values.device)
    rows.values.copy_(bits[..., :-SCALE_BYTES].contiguous().view(rows.values.dtype))
    rows.scale.copy_(bits[..., -SCALE_BYTES:].contiguous().view(torch.float32))


ROOM: Final = 1.25
"""How many times larger than the measured ones later keys and values may be."""
_CONSTANTS: Final = 4
"""Means and scales of keys and of values, float32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EightBitStep(SlotStep["EightBitRing"]):
    """One pass over an `EightBitRing`.

    Args:
        sink_from: the first row of the sink that the pass writes; -1: it writes none.
        budget: of the blocks of keys that are attended; None: all. The ring's, as `rows` are.
    """

    sink_from: int
    budget: BlockBudget | None

    @property
    def signature(self) -> Signature:
        number = 0 if self.budget is None else self.budget.number
        return id(self.cache), len(self.positions), self.attended, self.skipped, self.sink_from, number

    @property
    def measures(self) -> bool:
        """Whether means and scales are measured on this pass: it writes everything that it attends to."""
        return not self.skipped and self.attended == self.rows.shape[0]

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """Return all rows of a layer in eight bits, keys `[B, H, rows, D]` and values `[B, H, D, W]`, means and scales."""
        kept = self.cache.layer(layer)
        return kept.keys, kept.values, *constants(kept)

    def write(self, layer: int, k: Tensor, v: Tensor) -> RoundedKeys:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all that is attended. Without gradients."""
        kept, new = self._opened(layer, k, v)
        with span(QUANTISE):
            store(kept, new)
        return self._attended(kept)

    def write_beside(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[RoundedQueries, RoundedKeys]:
        """Round queries [B, F*N, H, D] to attend with, and store k and v as `write` does: one launch on a GPU."""
        kept, new = self._opened(layer, k, v)
        with span(QUANTISE):
            queries = round_queries(q, kept, q.shape[3] ** -0.5, new=new)
        return queries, self._attended(kept)

    def _opened(self, layer: int, k: Tensor, v: Tensor) -> tuple[RoundedKeys, Arriving]:
        """Measure and keep what is needed of keys and values before they are rounded."""
        kept, shape = self.cache.layer(layer), self.cache.shape
        expected = (shape.batch, self.rows.shape[0], shape.num_heads, shape.head_dim)
        check_new(expected, k, v)
        k, v = k.detach(), v.detach()
        if self.measures:
            for held, found in zip(constants(kept), measured(k, v, ROOM), strict=True):
                held.copy_(found)
        if self.sink_from >= 0:
            sink = self.cache.sink_keys[layer, :, self.sink_from :]
            number = min(sink.shape[1], k.shape[1])
            sink[:, :number].copy_(k[:, :number])
        return kept, Arriving(k=k, v=v, rows=self.rows, run=shape.tokens_per_frame)

    def _attended(self, kept: RoundedKeys) -> RoundedKeys:
        return replace(kept, keys=kept.keys[:, :, : self.attended])


class EightBitRing(SlotRing[EightBitStep]):
    """A `RingCache` with int8 keys and FP8 values as attention in eight bits takes them; slots and positions are the same.

    Means and scales are measured by passes that write all that they attend to, with room for larger numbers: those of a stream's
    first frame block, the clean one last, and a rewrite of everything that is kept. All other passes round with those, so what is
    kept never has to be rounded again, and every pass sees the same numbers of a frame.

    Sink keys that move are turned from a copy that was not rounded, then rounded: nothing adds up.

    With `sparsity` a pass attends to all blocks of rows that hold a frame of the sink or of its own, and to some of the others.
    How many they are follows from how many frames there are, not from where they lie, so that a recorded pass stays good.

    Args:
        shape, policy, device, positions, rotate: see `strobe.cache.kv.RingCache`.
        dtype: of the copy of the sink keys.
        sparsity: share of the blocks of earlier frames, behind the sink, that is left out.

    Raises:
        ConfigError: "rebased" with a sink but without `rotate`.
    """

    def _allocate(self, device: torch.device, dtype: torch.dtype, sparsity: float = 0.0) -> None:
        shape, policy, self.sparsity = self.shape, self.policy, sparsity
        self._budgets: dict[tuple[int, int], BlockBudget] = {}
        rows, heads = policy.window * shape.tokens_per_frame, (shape.num_layers, shape.batch, shape.num_heads)
        channels = (*heads, shape.head_dim)
        self._kept = RoundedKeys(
            keys=torch.zeros((*heads, rows, shape.head_dim), dtype=torch.int8, device=device),
            values=torch.zeros((*channels, padded(rows)), dtype=torch.int8, device=device).view(torch.float8_e4m3fn),
            key_mean=torch.zeros(channels, dtype=torch.float32, device=device),
            key_scale=torch.ones(heads, dtype=torch.float32, device=device),
            value_mean=torch.zeros(channels, dtype=torch.float32, device=device),
            value_scale=torch.ones(channels, dtype=torch.float32, device=device),
        )
        turns = 0 if self._rotate is None else policy.sink
        self.sink_keys = torch.zeros(shape.buffer(turns), device=device, dtype=dtype)  # at their own positions

    def layer(self, layer: int) -> RoundedKeys:
        """Return all rows of a layer."""
        return _each(self._kept, lambda tensor: tensor[layer])

    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copy as int8 keys `[L, B, rows, H, D]`, and values with the bytes of means and scales behind them."""
        values = torch.cat((self._kept.values.view(torch.int8), *map(self._packed, constants(self._kept))), dim=-1)
        return self._kept.keys.transpose(2, 3).contiguous(), values, self.sink_keys.clone()

    def _take(self, state: CacheState) -> None:
        kept, size = self._kept, torch.float32.itemsize
        keys = kept.keys.transpose(2, 3)
        width = kept.values.shape[-1]
        if state.values.shape != (*kept.values.shape[:-1], width + _CONSTANTS * size) or state.values.dtype != torch.int8:
            raise ShapeError(
                f"snapshot values have shape {tuple(state.values.shape)}; this cache holds {tuple(kept.values.shape)}"
            )
        check_state(replace(state, values=state.keys), keys, self.sink_keys)
        keys.copy_(state.keys)
        values, *packed = state.values.to(keys.device).split((width, *[size] * _CONSTANTS), dim=-1)
        kept.values.view(torch.int8).copy_(values)
        for held, found in zip(constants(kept), packed, strict=True):
            numbers = found.contiguous().view(torch.float32)[..., 0]
            held.copy_(numbers if held.dim() == numbers.dim() else numbers[..., 0])
        self.sink_keys.copy_(state.sink_keys)

    def _packed(self, numbers: Tensor) -> Tensor:
        """Return numbers per head, or per head and channel, as bytes per head and channel."""
        wide = numbers if numbers.dim() == 4 else numbers[..., None].expand(self._kept.key_mean.shape)
        return wide.contiguous()[..., None].view(torch.int8)

    def _held(self) -> tuple[Tensor, ...]:
        return self._kept.keys, self._kept.values.view(torch.int8), *constants(self._kept), self.sink_keys

    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> EightBitStep:
        first = first_frame - self._origin
        into_sink = skip == 0 and self._rotate is not None and first < self.policy.sink
        sink_from = first * self.shape.tokens_per_frame if into_sink else -1
        budget = self._budget(first, first + num_frames) if self.sparsity else None
        return EightBitStep(**self._opened(first_frame, num_frames, skip), sink_from=sink_from, budget=budget)

    def _budget(self, first: int, end: int) -> BlockBudget | None:
        """Fill in the blocks that a pass over frames always takes; None: there are no others, or all are taken."""
        policy, tokens = self.policy, self.shape.tokens_per_frame
        filled, past = policy.filled(end), policy.history(first, end)
        number, blocks = block_number(tokens, filled, len(past), self.sparsity), -(-filled * tokens // BLOCK)
        if not past or number >= blocks:
            return None
        budget = self._budgets.get((number, blocks))
        if budget is None:
            with torch.inference_mode(False):  # later passes fill it again, in whatever mode
                always = torch.ones(blocks, dtype=torch.bool, device=self.sink_keys.device)
            budget = self._budgets[number, blocks] = BlockBudget(number=number, always=always)
        budget.always.fill_(True)
        for begin, stop in _runs(sorted(map(policy.slot, past))):
            last = blocks if stop == filled else stop * tokens // BLOCK
            budget.always[-(-begin * tokens // BLOCK) : last] = False
        return budget

    def _turn_sink(self, before: int, after: int) -> None:
        assert self._rotate is not None
        number = self.sink_keys.shape[2]
        rows = torch.arange(number, device=self.sink_keys.device)
        for first in range(0, self.shape.num_layers, _LAYERS_TURNED):
            keys = self.sink_keys[first : first + _LAYERS_TURNED].clone()
            self._rotate(keys, after, keys)
            some = _each(self._kept, partial(_samples, first=first))
            store(some, Arriving(k=keys.flatten(0, 1), v=None, rows=rows, run=number))


def block_number(tokens_per_frame: int, filled: int, past: int, sparsity: float) -> int:
    """Return how many blocks of rows a pass over an `EightBitRing` attends to: those that it always takes, and some of the past.

    Args:
        filled: frames in the ring.
        past: how many of them are history.
    """
    taken, others = -(-(filled - past) * tokens_per_frame // BLOCK), past * tokens_per_frame / BLOCK
    # what is always taken lies in two runs of frames at most, of which one begins within a block
    return taken + 2 + max(1, math.ceil(round((1 - sparsity) * others, 9)))


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """List begin and end of the runs of slots that follow each other."""
    for _, run in groupby(enumerate(slots), lambda pair: pair[1] - pair[0]):
        held = [slot for _, slot in run]
        yield held[0], held[-1] + 1


def eightbit_ring_bytes(shape: CacheShape, policy: RingPolicy, dtype: torch.dtype, positions: Positions) -> int:
    """Return the bytes of an `EightBitRing`: keys, values, means, scales and the sink keys' own copy."""
    heads, rows = shape.num_layers * shape.batch * shape.num_heads, policy.window * shape.tokens_per_frame
    turned = policy.sink * shape.tokens_per_frame if positions == "rebased" else 0
    held = shape.head_dim * (rows + padded(rows) + 3 * torch.float32.itemsize + turned * dtype.itemsize) + torch.float32.itemsize
    return heads * held


def _samples(tensor: Tensor, first: int) -> Tensor:
    """Return some layers as if they were samples of one."""
    return tensor[first : first + _LAYERS_TURNED].flatten(0, 1)


def _each(kept: RoundedKeys, change: Callable[[Tensor], Tensor]) -> RoundedKeys:
    return RoundedKeys(**{each.name: change(getattr(kept, each.name)) for each in fields(RoundedKeys)})
