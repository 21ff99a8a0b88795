"""A ring with keys and values in eight bits; what a pass attends to is dequantised, one layer at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, CacheState, Positions, Rotate, Signature, SlotRing, check_state
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ShapeError
from strobe.core.spans import DEQUANTISE, QUANTISE, span
from strobe.eightbit.rows import DTYPES, EightBit, expand_rows, quantize_rows, store_rows
from strobe.eightbit.types import Quantized

SCALE_BYTES: Final = 4
"""Of a scale, float32."""
_LAYERS_TURNED: Final = 4
"""Layers whose sink keys are turned at a time: what is written out in full for it stays small."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedStep:
    """One pass over a `QuantizedRing`. Args: see `RingStep`."""

    cache: QuantizedRing
    positions: tuple[int, ...]
    rows: Tensor
    attended: int
    skipped: int
    reach: None = None

    @property
    def signature(self) -> Signature:
        """See `CacheStep.signature`."""
        return id(self.cache), len(self.positions), self.attended, self.skipped

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """Return eight-bit keys and values of a layer `[2, B, rows, H, D]` and their scales, float32 `[2, B, rows, H, 1]`."""
        return self.cache.values[:, layer], self.cache.scales[:, layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all attended keys and values [B, S, H, D], as the cache holds them.

        The result lives in a buffer that all layers share: it is good until the next `write` of any layer. Without gradients.
        """
        full = self.cache.full
        expected = (full.shape[1], self.rows.shape[0], *full.shape[3:])
        for new in (k, v):
            if tuple(new.shape) != expected:
                raise ShapeError(f"keys and values of this pass have shape {tuple(new.shape)}; the cache expects {expected}")
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

    def __init__(
        self,
        shape: CacheShape,
        policy: RingPolicy,
        *,
        device: torch.device,
        dtype: torch.dtype,
        to: EightBit,
        positions: Positions = "absolute",
        rotate: Rotate | None = None,
    ) -> None:
        super().__init__(shape, policy, device, positions, rotate)
        self.to: EightBit = to
        rows, sink = shape.buffer(policy.window), shape.buffer(policy.sink)
        self.values = torch.zeros((2, *rows), device=device, dtype=DTYPES[to])  # [2, L, B, R, H, D]: keys, then values
        self.scales = torch.zeros((*self.values.shape[:-1], 1), device=device, dtype=torch.float32)
        self._sink = Quantized(  # sink keys at their own positions
            values=torch.zeros(sink, device=device, dtype=DTYPES[to]),
            scale=torch.zeros((*sink[:-1], 1), device=device, dtype=torch.float32),
        )
        self.full = torch.zeros((2, *rows[1:]), device=device, dtype=dtype)  # [2, B, R, H, D], of the layer at work

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values, scales, the canonical sink keys and the buffer that all layers share, bytes."""
        return self.values.nbytes + self.scales.nbytes + self._sink.num_bytes + self.full.nbytes

    def snapshot(self) -> CacheState:
        """Copy the whole cache: int8 `[..., D + 4]`, the bytes of each row and then of its scale."""
        return CacheState(
            keys=_packed(Quantized(self.values[0], self.scales[0])),
            values=_packed(Quantized(self.values[1], self.scales[1])),
            sink_keys=_packed(self._sink),
            origin=self._origin,
            end=self._end,
        )

    def restore(self, state: CacheState) -> None:
        """Return to a snapshot of a cache of the same shape and format; addresses stay. Raises: see `RingCache.restore`."""
        shapes = (_packed_shape(held.shape) for held in (self.values[0], self._sink.values))
        expected, sink = (torch.empty(shape, device="meta", dtype=torch.int8) for shape in shapes)
        check_state(state, expected, sink)
        for index, packed in enumerate((state.keys, state.values)):
            _unpack(packed, Quantized(self.values[index], self.scales[index]))
        _unpack(state.sink_keys, self._sink)
        self._go_to(state.origin, state.end)

    def _step(self, first_frame: int, num_frames: int, *, skip: int) -> QuantizedStep:
        tokens = self.shape.tokens_per_frame
        return QuantizedStep(
            cache=self,
            positions=tuple(range(first_frame, first_frame + num_frames)),
            rows=self._rows.fill(self.policy, first_frame - self._origin, num_frames, skip),
            attended=self.policy.filled(self._end - self._origin) * tokens,
            skipped=skip * tokens,
        )

    def _held(self) -> tuple[Tensor, ...]:
        return self.values, self.scales, *self._sink

    def _turn_sink(self, before: int, after: int) -> None:
        """See `SlotRing`."""
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
    """Predict `QuantizedRing.num_bytes`, before anything is allocated."""
    token = shape.batch * shape.tokens_per_frame * shape.num_heads
    stored = shape.num_layers * (2 * policy.window + policy.sink) * token * (shape.head_dim + SCALE_BYTES)
    return stored + 2 * policy.window * token * shape.head_dim * dtype.itemsize


def _copy(source: Quantized, target: Quantized) -> None:
    target.values.copy_(source.values)
    target.scale.copy_(source.scale)


def _packed(rows: Quantized) -> Tensor:
    return torch.cat((rows.values.contiguous().view(torch.int8), rows.scale.contiguous().view(torch.int8)), dim=-1)


def _packed_shape(shape: torch.Size) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + SCALE_BYTES)


def _unpack(packed: Tensor, rows: Quantized) -> None:
    bits = packed.to(rows.values.device)
    rows.values.copy_(bits[..., :-SCALE_BYTES].contiguous().view(rows.values.dtype))
    rows.scale.copy_(bits[..., -SCALE_BYTES:].contiguous().view(torch.float32))
