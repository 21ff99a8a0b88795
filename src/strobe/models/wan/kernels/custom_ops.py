"""The kernels as custom operators, for `torch.compile` and `opcheck`.

The impl is an argument. An eager call of plain tensors goes past the operators, straight to the impl: their dispatch costs more
host time than some of the kernels take.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor


class LayerKernels(Protocol):
    """The functions that each impl's module has."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def norm(
        self,
        x: Tensor,
        y: Tensor | None,
        gate: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        from_one: bool,
        eps: float,
        fp8: bool,
    ) -> list[Tensor]: ...

    def gelu_quantize(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def turn(
        self, packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, eps: float
    ) -> tuple[Tensor | None, Tensor]: ...

    def turn_and_write(
        self,
        packed: Tensor,
        weight_q: Tensor | None,
        weight_k: Tensor,
        rope: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        eps: float,
    ) -> Tensor | None: ...

    def text_attention(self, q: Tensor, k: Tensor, v: Tensor, distinct: Tensor) -> Tensor: ...

    def turn_keys(self, keys: Tensor, turns: Tensor, out: Tensor) -> None: ...


def home(impl: str) -> LayerKernels:
    """Import the module of an impl when it is first used."""
    return import_module(f"strobe.models.wan.kernels.impl.{impl}")


def seen(x: Tensor) -> bool:
    """Return whether a compiler, a dispatch mode or a tensor subclass sees the call, so that it has to be a custom operator."""
    return torch.compiler.is_compiling() or bool(torch._C._len_torch_dispatch_stack()) or type(x) is not Tensor


@torch.library.custom_op("strobe::wan_rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, impl: str) -> Tensor:
    """See `impl.reference.rms_norm`."""
    return home(impl).rms_norm(x, weight, eps)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, impl: str) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("strobe::wan_norm", mutates_args=())
def norm(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    from_one: bool,
    eps: float,
    fp8: bool,
    impl: str,
) -> list[Tensor]:
    """See `impl.reference.norm`."""
    return home(impl).norm(x, y, gate, scale, shift, from_one, eps, fp8)


@norm.register_fake
def _(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    from_one: bool,
    eps: float,
    fp8: bool,
    impl: str,
) -> list[Tensor]:
    total = [] if y is None else [x.new_empty(x.shape)]
    return [*total, *(_quantised(x) if fp8 else [x.new_empty(x.shape)])]


@torch.library.custom_op("strobe::wan_gelu_quantize", mutates_args=())
def gelu_quantize(x: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    """See `impl.reference.gelu_quantize`."""
    return home(impl).gelu_quantize(x)


@gelu_quantize.register_fake
def _(x: Tensor, impl: str) -> tuple[Tensor, Tensor]:
    values, scale = _quantised(x)
    return values, scale


def _quantised(x: Tensor) -> list[Tensor]:
    return [x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)]


@torch.library.custom_op("strobe::wan_turn", mutates_args=())
def turn(
    packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, eps: float, impl: str
) -> list[Tensor]:
    """See `impl.reference.turn`; returns queries only if there are any."""
    q, k = home(impl).turn(packed, weight_q, weight_k, rope, num_heads, eps)
    return [k] if q is None else [q, k]


@turn.register_fake
def _(packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, *_: object) -> list[Tensor]:
    shape = (*packed.shape[:2], num_heads, weight_k.shape[0] // num_heads)
    return [packed.new_empty(shape) for _ in range(1 if weight_q is None else 2)]


@torch.library.custom_op("strobe::wan_turn_and_write", mutates_args=("keys", "values"))
def turn_and_write(
    packed: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor,
    rope: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    eps: float,
    impl: str,
) -> Tensor:
    """See `impl.reference.turn_and_write`; without queries an empty tensor (an operator that writes cannot return a list)."""
    q = home(impl).turn_and_write(packed, weight_q, weight_k, rope, keys, values, rows, eps)
    return packed.new_empty(0) if q is None else q


@turn_and_write.register_fake
def _(packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, keys: Tensor, *_: object) -> Tensor:
    return packed.new_empty(0) if weight_q is None else packed.new_empty((*packed.shape[:2], *keys.shape[2:]))


@torch.library.custom_op("strobe::wan_text_attention", mutates_args=())
def text_attention(q: Tensor, k: Tensor, v: Tensor, distinct: Tensor, impl: str) -> Tensor:
    """See `impl.reference.text_attention`."""
    return home(impl).text_attention(q, k, v, distinct)


@text_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, distinct: Tensor, impl: str) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("strobe::wan_turn_keys", mutates_args=("out",))
def turn_keys(keys: Tensor, turns: Tensor, out: Tensor, impl: str) -> None:
    """See `impl.reference.turn_keys`."""
    home(impl).turn_keys(keys, turns, out)


@turn_keys.register_fake
def _(keys: Tensor, turns: Tensor, out: Tensor, impl: str) -> None:
    return None
