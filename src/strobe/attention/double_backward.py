"""An error for double backward: differentiating an operator's gradients again raises, whatever path leads there.

A kernel's backward computes first derivatives only. `torch.autograd.function.once_differentiable` refuses a second backward, but
it cuts the gradients off from q, k and v: `torch.autograd.grad(penalty, x)` then leaves out what reaches x through the gradients,
without a word, wherever x reaches the penalty in another way too. Here the gradients stay connected to what they depend on, by a
step whose own backward raises. What `torch.library.CustomOp.register_autograd` takes is decorated like a function's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.core.errors import ImplUnavailableError

Gradients = Sequence[Tensor | None]


def first_derivatives_only(
    operator: str, alternatives: Iterable[str] = ()
) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Make a backward refuse to be differentiated, instead of `once_differentiable`; it costs nothing without `create_graph`.

    What is decorated takes `(ctx, saved, *d_outputs)`, where `saved` are the saved tensors; it runs without a graph. Inputs or
    outputs that its gradients depend on must be among those given to `save_for_backward`; the outputs alone are enough, because
    they lead to all inputs.

    Args:
        operator: the name that the error gives.
        alternatives: implementations of it that can be differentiated twice.
    """

    def decorate(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @wraps(backward)
        def differentiate(ctx: Any, *d_outputs: Tensor | None) -> Gradients:
            saved = ctx.saved_tensors  # once: a checkpoint gives them out only once
            with torch.no_grad(), ambient(next(each for each in (*saved, *d_outputs) if each is not None)):
                found = backward(ctx, saved, *d_outputs)
            if not torch.is_grad_enabled():
                return found
            sources = [each for each in (*d_outputs, *saved) if each is not None and each.requires_grad]
            cut = tuple(None if each is None else each.detach() for each in found)
            refused: Gradients = _Refused.apply(operator, tuple(alternatives), cut, *sources)  # type: ignore[no-untyped-call]
            return refused

        return differentiate

    return decorate


class _Refused(torch.autograd.Function):
    """An autograd identity over gradients whose own backward raises `ImplUnavailableError`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        ctx.operator, ctx.alternatives, gradients, *_ = inputs
        return gradients

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        reason = "its gradients have no gradients of their own"
        raise ImplUnavailableError(ctx.operator, reason, ctx.alternatives, what="double backward of")
