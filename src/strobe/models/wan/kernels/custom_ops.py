"""The kernels as custom operators, for `torch.compile` and `opcheck`.

The impl is the last argument. An eager call of plain tensors goes past the operators, straight to the impl: their dispatch costs
more host time than some of the kernels take.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor


def call(name: str, impl: str, x: Tensor, *arguments: Any) -> Any:
    """Call a kernel by its name in `impl.reference`: as a custom operator where something sees the call, else the impl itself.

    That is a compiler, a dispatch mode or a tensor subclass.
    """
    if torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack() or type(x) is not Tensor:
        return OPERATORS[name](x, *arguments, impl)
    return getattr(home(impl), name)(x, *arguments)


def home(impl: str) -> Any:
    """Return the module of an impl."""
    return import_module(f"strobe.models.wan.kernels.impl.{impl}")


def _like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _quantised(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _normed(x: Tensor, y: Tensor | None, *rest: Any) -> list[Tensor]:
    *_, fp8, _ = rest
    return [*([] if y is None else [_like(x)]), *(_quantised(x) if fp8 else [_like(x)])]


def _turned(packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, *_: Any) -> list[Tensor]:
    shape = (*packed.shape[:2], num_heads, weight_k.shape[0] // num_heads)
    return [packed.new_empty(shape) for _ in range(1 if weight_q is None else 2)]


def _written(packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, keys: Tensor, *_: Any) -> Tensor:
    return packed.new_empty(0) if weight_q is None else packed.new_empty((*packed.shape[:2], *keys.shape[2:]))


def _defined(name: str, taken: str, returned: str, fake: Callable[..., Any]) -> Any:
    def run(*arguments: Any) -> Any:  # no None in a list, and an empty tensor for none at all
        *given, impl = arguments
        found = getattr(home(impl), name)(*given)
        if name == "turn":
            return [each for each in found if each is not None]
        return given[0].new_empty(0) if name == "turn_and_write" and found is None else found

    schema, changed = f"({taken}, str impl) -> {returned}", re.findall(r"!\) (\w+)", taken)
    operator = torch.library.custom_op(f"strobe::wan_{name}", run, mutates_args=changed, schema=schema)
    operator.register_fake(fake)
    return operator


_NORM: Final = "Tensor x, Tensor? y, Tensor? gate, Tensor scale, Tensor shift, bool from_one, float eps, bool fp8"
_TURN: Final = "Tensor packed, Tensor? weight_q, Tensor weight_k, Tensor rope"
OPERATORS: Final = {
    name: _defined(name, taken, returned, fake)
    for name, taken, returned, fake in (
        ("rms_norm", "Tensor x, Tensor weight, float eps", "Tensor", _like),
        ("norm", _NORM, "Tensor[]", _normed),
        ("gelu_quantize", "Tensor x", "(Tensor, Tensor)", _quantised),
        ("turn", f"{_TURN}, SymInt num_heads, float eps", "Tensor[]", _turned),
        ("turn_and_write", f"{_TURN}, Tensor(a!) keys, Tensor(b!) values, Tensor rows, float eps", "Tensor", _written),
        ("text_attention", "Tensor q, Tensor k, Tensor v, Tensor distinct", "Tensor", _like),
        ("turn_keys", "Tensor keys, Tensor turns, Tensor(a!) out", "()", lambda *_: None),
    )
}
"""By name."""
