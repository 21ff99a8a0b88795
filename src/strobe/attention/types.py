"""The contract every attention implementation is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from strobe.core.device import NO_GPU, Card, card_of
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.spans import set_compiling

P = ParamSpec("P")
T = TypeVar("T")
set_compiling(torch.compiler.is_dynamo_compiling)
_DISABLE: Final[Any] = torch.compiler.disable  # as torch has it, whoever puts another in its place


def constant_when_traced(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that torch.compile runs while it traces, and whose result is a constant of the graph.

    `torch.compiler.assume_constant_result` sets the same mark, but imports the whole compiler: over a second in every process.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


def traced() -> bool:
    """Whether a compiler traces this call; `torch.compiler.is_compiling` is true of every thread while one of them compiles."""
    tracing: bool = torch.compiler.is_dynamo_compiling()
    return tracing or (torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0)


def outside_graphs(function: Callable[P, T], reason: str) -> Callable[P, T]:
    """Return a function that `torch.compile` runs uncompiled, between two graphs.

    `torch.compiler.disable` does the same, but imports the whole compiler at once; here it is called when something compiles.

    Args:
        reason: why it is not compiled, for torch's logs.
    """
    held = {"call": function}

    @constant_when_traced
    def leave() -> bool:
        held["call"] = _DISABLE(function, reason=reason)
        return True

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if traced():
            leave()
        return held["call"](*args, **kwargs)

    return called


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """One attention call, checked once at the api and then handed inward.

    Layout is `[B, S, H, D]`; `num_heads` is a multiple of `num_kv_heads` (grouped queries).
    `needs_grad`: a gradient may be asked for. `card`: what the device is.
    """

    batch: int
    q_len: int
    kv_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    softmax_scale: float
    return_lse: bool
    needs_grad: bool
    card: Card = NO_GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOutput:
    """Result of an attention call.

    Args:
        out: `[B, S_q, H, D]`, the dtype of q.
        lse: natural log of the softmax denominator, float32 `[B, H, S_q]`, `-inf` only for an empty row (whose output is 0);
            None unless it was asked for.
    """

    out: Tensor
    lse: Tensor | None


def expect(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise ConfigError, with the value that was given, unless an argument is of the wanted kind."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return
    given = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        given = f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    elif isinstance(value, (bool, int, float, str, type(None))):
        given = repr(value)
    raise ConfigError(f"{name}: got {given}, expected {wanted}")


def scale_of(softmax_scale: float) -> float:
    """Convert the softmax scale to a float.

    Raises:
        ConfigError: it is no number.
    """
    try:
        return float(softmax_scale)
    except (TypeError, ValueError, RuntimeError):
        expect("softmax_scale", softmax_scale, float, "a number")
        raise


class TensorMeta(NamedTuple):
    """The properties of a tensor that `check` looks at: hashable, so that results can be kept by it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorMeta:
        """Check that an argument is a tensor, and return its face."""
        expect(name, tensor, Tensor, "a tensor [B, S, H, D]")
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)


def check(
    q: Tensor | TensorMeta, k: Tensor | TensorMeta, v: Tensor | TensorMeta, softmax_scale: float | None, return_lse: bool
) -> AttentionSpec:
    """Check q, k, v `[B, S, H, D]` once and describe the call.

    Raises:
        ShapeError: names the argument, what was given and what is allowed.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        expect(name, tensor, (Tensor, TensorMeta), "a tensor [B, S, H, D]")
        if len(tensor.shape) != 4:
            raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}, expected [B, S, H, D]")
        if not tensor.dtype.is_floating_point:
            raise ShapeError(f"{name}: got {tensor.dtype}, expected a floating-point dtype")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ShapeError(f"{name}: got {tensor.dtype} on {tensor.device}, expected {q.dtype} on {q.device} like q")
    if k.shape != v.shape:
        raise ShapeError(f"v: got shape {tuple(v.shape)}, expected {tuple(k.shape)} like k")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(f"k: got shape {tuple(k.shape)}, expected batch {q.shape[0]} and head_dim {q.shape[3]} like q")
    for what, size in (("head", q.shape[2]), ("channel", q.shape[3])):
        if size == 0:
            raise ShapeError(f"q: got shape {tuple(q.shape)}, expected at least one {what}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ShapeError(f"k: got {k.shape[2]} heads, expected a divisor of q's {q.shape[2]}; the layout is [B, S, H, D]")
    return AttentionSpec(
        batch=q.shape[0],
        q_len=q.shape[1],
        kv_len=k.shape[1],
        num_heads=q.shape[2],
        num_kv_heads=k.shape[2],
        head_dim=q.shape[3],
        dtype=q.dtype,
        device=q.device,
        softmax_scale=q.shape[3] ** -0.5 if softmax_scale is None else scale_of(softmax_scale),
        return_lse=return_lse,
        needs_grad=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v)),
        card=_card(q.device),
    )


@constant_when_traced
def _card(device: torch.device) -> Card:
    return card_of(device)
