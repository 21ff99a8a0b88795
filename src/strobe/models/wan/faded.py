"""Attention in which the past counts for less than the first frame and the frame block itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.cache.kv import CacheStep, Reach, Signature
from strobe.core.errors import ShapeError
from strobe.core.spans import ATTENTION_KERNEL, KV_WRITE, span
from strobe.models.wan.layers import Attend


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FadedStep:
    """A pass over a cache that returns its frames in their order, with faded scores: ``softmax(q k^T / sqrt(d) + b) v``.

    ``b`` is ``log(weight)`` for keys behind the `first` frames and before this pass, and 0 for all others. A constant added to
    the scores of some keys is the same constant added to the log-sum-exp of attention to them alone, so the three parts are
    attended one by one and merged.

    Args:
        step: of the cache.
        weight: in (0, 1].
        first: frames at the start that do not fade.

    Source: Scope, `krea_realtime_video/modules/causal_model.py` (0b33dbc, kv_cache_attention_bias).
    """

    step: CacheStep
    weight: float
    first: int

    @property
    def positions(self) -> tuple[int, ...]:
        """See `CacheStep`."""
        return self.step.positions

    @property
    def reach(self) -> Reach | None:
        """See `CacheStep`."""
        return self.step.reach

    @property
    def signature(self) -> Signature | None:
        """See `CacheStep`."""
        own = self.step.signature
        return None if own is None else (*own, self.first)

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """See `CacheStep`."""
        return self.step.buffers(layer)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `CacheStep`."""
        written = self.step.write(layer, k, v)
        assert isinstance(written, tuple), "the configuration was checked"
        return written

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Store k and v `[B, S, H, D]`, and attend: `[B, S, H, D]`.

        Raises:
            ShapeError: there is no past between the first frames and this pass.
        """
        with span(KV_WRITE):
            keys, values = self.write(layer, k, v)
        begin, end = self.first * k.shape[1] // len(self.positions), keys.shape[1] - k.shape[1]
        if end <= begin:
            raise ShapeError(f"a faded past: {end} rows before this pass, of which the first {begin} do not fade; none is left")
        with span(ATTENTION_KERNEL):
            parts = []
            for low, high in ((0, begin), (begin, end), (end, keys.shape[1])):
                part = dense_attention(q, keys[:, low:high], values[:, low:high], return_lse=True)
                assert part.lse is not None
                faded = part.lse + math.log(self.weight) if low == begin else part.lse
                parts.append(AttentionOutput(out=part.out, lse=faded))
            return merge(parts, return_lse=False).out
