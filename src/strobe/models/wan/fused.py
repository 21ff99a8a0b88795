"""A pass through the layers with fused kernels: the same modules and the same arithmetic as `WanLayer`, cut at other places.

What ends one section and what begins the next is one kernel: gate, residual, and the norm of what comes after. Spans of time
therefore hold the norm of the section behind them, and the first norm of a pass lies before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strobe.cache.kv import CacheStep, RingStep
from strobe.core.spans import (
    ATTENTION,
    CROSS_ATTENTION,
    CROSS_ATTENTION_KERNEL,
    CROSS_NORM,
    CROSS_PROJECTION,
    CROSS_RESIDUAL,
    FFN,
    FFN_ACTIVATION,
    FFN_DOWN,
    FFN_UP,
    GATED_RESIDUAL,
    MODULATED_NORM,
    OUTPUT_PROJECTION,
    QK_NORM_ROPE,
    QKV_PROJECTION,
    span,
)
from strobe.eightbit.types import Quantized
from strobe.models.wan.kernels.api import (
    Affine,
    CacheRows,
    KernelImpl,
    Turn,
    add_gated_norm,
    gelu_quantize,
    norm_modulate,
    qk_norm_rope,
    qk_norm_rope_write,
    rms_norm,
    text_attention,
)
from strobe.models.wan.layers import SelfAttention, TextKV, WanLayer
from strobe.models.wan.linears import Fp8Linear


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FusedPass:
    """One pass of a transformer with fused kernels.

    Args:
        layers: all of them.
        impl: of the kernels.
        mods: `[num_layers, B or 1, F or 1, 6, dim]`, as `Modulation.layers`.
        head: `[B or 1, F or 1, 2, dim]`, as `Modulation.head`.
        text: the prompt's keys and values.
        rope: rotations of the pass, in any form that `CausalWan.rope` gives.
        kv: where keys and values go; None attends to this pass's own tokens. Into a ring the kernel writes itself.
    """

    layers: Sequence[WanLayer]
    impl: KernelImpl
    mods: Tensor
    head: Tensor
    text: TextKV
    rope: Tensor
    kv: CacheStep | None

    def run(self, x: Tensor) -> Tensor:
        """Run tokens `[B, S, dim]` through all layers and the modulated norm of the head."""
        normed = self._through(x, len(self.layers))
        assert isinstance(normed, Tensor)
        return normed

    def commit(self, x: Tensor) -> None:
        """Write keys and values of all layers into the cache; the last layer computes nothing else."""
        last = len(self.layers) - 1
        normed = self._through(x, last)
        attention = self.layers[last].self_attn
        assert self.kv is not None
        with span(ATTENTION):
            fused = attention.fused_kv
            packed = torch.cat((attention.k(normed), attention.v(normed)), -1) if fused is None else fused(normed)
            turn = Turn(weight_q=None, weight_k=attention.norm_k.weight, rope=self._angles(), eps=attention.norm_k.eps)
            if isinstance(self.kv, RingStep):
                qk_norm_rope_write(packed, turn, self._place(self.kv, last), impl=self.impl)
            else:
                _, k, v = qk_norm_rope(packed, turn, attention.num_heads, impl=self.impl)
                self.kv.write(last, k, v)

    def _through(self, x: Tensor, number: int) -> Tensor | Quantized:
        """Run tokens through the first `number` layers; return the input of what follows them."""
        impl, rope = self.impl, self._angles()
        with span(MODULATED_NORM):
            normed = norm_modulate(x, self._norm1(0), self.layers[0].eps, impl=impl, fp8=self._fp8(0))
        for index, layer in enumerate(self.layers[:number]):
            mod, eps = self.mods[index], layer.eps
            with span(ATTENTION):
                out, fp8 = self._attend(layer, normed, rope, index).flatten(2), isinstance(layer.cross_attn.q, Fp8Linear)
                with span(OUTPUT_PROJECTION):
                    y = layer.self_attn.o(out)
                with span(GATED_RESIDUAL):
                    x, normed = add_gated_norm(x, y, mod[..., 2, :], _weights(layer.norm3), eps, impl=impl, fp8=fp8)
            with span(CROSS_ATTENTION):
                y = self._cross(layer, normed, *self.text.layers[index])
                norm2, fp8 = Affine(shift=mod[..., 3, :], scale=mod[..., 4, :]), isinstance(layer.ffn[0], Fp8Linear)
                with span(CROSS_RESIDUAL):
                    x, normed = add_gated_norm(x, y, None, norm2, eps, impl=impl, fp8=fp8)
            with span(FFN):
                y, fp8 = self._feed_forward(layer, normed), self._fp8(index + 1)
                with span(GATED_RESIDUAL):
                    x, normed = add_gated_norm(x, y, mod[..., 5, :], self._norm1(index + 1), eps, impl=impl, fp8=fp8)
        return normed

    def _norm1(self, index: int) -> Affine:
        """Return the modulation of the norm before layer `index`, or of the head's norm after the last layer."""
        mod = self.mods[index] if index < len(self.layers) else self.head
        return Affine(shift=mod[..., 0, :], scale=mod[..., 1, :])

    def _fp8(self, index: int) -> bool:
        """Return whether layer `index` takes its normed input in FP8."""
        if index == len(self.layers):
            return False
        attention = self.layers[index].self_attn
        return isinstance(attention.k if attention.fused is None else attention.fused, Fp8Linear)

    def _angles(self) -> Tensor:
        return torch.view_as_real(self.rope).float() if self.rope.is_complex() else self.rope

    def _attend(self, layer: WanLayer, normed: Tensor | Quantized, rope: Tensor, index: int) -> Tensor:
        """Run self-attention over the cache, up to the output projection: `[B, S, H, D]`."""
        attention = layer.self_attn
        turn = Turn(weight_q=attention.norm_q.weight, weight_k=attention.norm_k.weight, rope=rope, eps=attention.norm_q.eps)
        with span(QKV_PROJECTION):
            packed = _packed(attention, normed)
        if isinstance(self.kv, RingStep) and self.kv.staged:
            place = self._place(self.kv, index)
            with span(QK_NORM_ROPE):
                q = qk_norm_rope_write(packed, turn, place, impl=self.impl)
            assert q is not None
            if self.kv.reach is None:
                return layer.attend(q, place.keys[:, : self.kv.attended], place.values[:, : self.kv.attended], None)
            return layer.attend_kept(q, None, (place.keys, place.values), self.kv.reach, index)
        with span(QK_NORM_ROPE):
            q, k, v = qk_norm_rope(packed, turn, attention.num_heads, impl=self.impl)
        assert q is not None
        return layer.attend(q, k, v, None) if self.kv is None else layer.attend_new(q, k, v, index, self.kv)

    def _place(self, kv: RingStep, index: int) -> CacheRows:
        keys, values = kv.buffers(index)
        return CacheRows(keys=keys, values=values, rows=kv.rows)

    def _cross(self, layer: WanLayer, normed: Tensor | Quantized, k: Tensor, v: Tensor) -> Tensor:
        cross = layer.cross_attn
        with span(CROSS_PROJECTION):
            q = cross.q(normed)
        with span(CROSS_NORM):
            q = rms_norm(q, cross.norm_q.weight, cross.norm_q.eps, impl=self.impl)
        with span(CROSS_ATTENTION_KERNEL):
            per_text = q.reshape(k.shape[0], -1, cross.num_heads, k.shape[-1])
            out = text_attention(per_text, k, v, self.text.distinct, impl=self.impl).reshape(q.shape)
        with span(CROSS_PROJECTION):
            y: Tensor = cross.o(out)
        return y

    def _feed_forward(self, layer: WanLayer, normed: Tensor | Quantized) -> Tensor:
        up, gelu, down = layer.ffn
        hidden: Tensor | Quantized
        fuses = type(up) is nn.Linear and not isinstance(down, Fp8Linear)  # on CUDA, which has GELU by tanh; a CPU has erf
        if isinstance(normed, Tensor) and fuses and normed.is_cuda and normed.dtype == up.weight.dtype:
            with span(FFN_UP):
                hidden = _up_and_gelu(up, normed)
        else:
            with span(FFN_UP):
                wide = up(normed)
            with span(FFN_ACTIVATION):
                hidden = gelu_quantize(wide, impl=self.impl) if isinstance(down, Fp8Linear) else gelu(wide)
        with span(FFN_DOWN):
            y: Tensor = down(hidden)
        return y


def _packed(attention: SelfAttention, normed: Tensor | Quantized) -> Tensor:
    if attention.fused is None:
        return torch.cat((attention.q(normed), attention.k(normed), attention.v(normed)), -1)
    packed: Tensor = attention.fused(normed)
    return packed


def _weights(norm: nn.LayerNorm) -> Affine:
    return Affine(scale=norm.weight.view(1, 1, -1), shift=norm.bias.view(1, 1, -1), from_one=False)


def _up_and_gelu(up: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(up, nn.Linear)
    out: Tensor = torch.ops.aten._addmm_activation(up.bias, x.flatten(0, -2), up.weight.t(), use_gelu=True)
    return out.view(*x.shape[:-1], -1)
