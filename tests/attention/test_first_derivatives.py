"""A second backward through first derivatives raises on every path; where nobody asks for one, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from strobe.attention.double_backward import first_derivatives_only
from strobe.core.errors import ImplUnavailableError

REFUSED = "double backward of 'sine' cannot run: its gradients have no gradients of their own; would run here: reference"


def slopes(saved: tuple[Tensor, ...], d_out: Tensor) -> tuple[Tensor, Tensor]:
    """Of `sin(q k)`, from sin and cos of it, and the values of q and k."""
    _, cosine, q, k = saved
    return d_out * cosine * k, d_out * cosine * q


class SavesOutputs(torch.autograd.Function):
    """Saves its outputs alone; what is saved of q and k leads nowhere."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        sine, cosine = (q * k).sin(), (q * k).cos()
        ctx.save_for_backward(sine, cosine, q.clone(), k.clone())
        return sine, cosine

    @staticmethod
    @first_derivatives_only("sine", alternatives=["reference"])
    def backward(ctx: Any, saved: tuple[Tensor, ...], *d_outputs: Tensor) -> tuple[Tensor, Tensor]:
        return slopes(saved, d_outputs[0])


class Cut(SavesOutputs):
    """What torch has for it."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, Tensor]:
        return slopes(ctx.saved_tensors, d_outputs[0])


@torch.library.custom_op("strobe_tests::sine", mutates_args=())
def sine(q: Tensor, k: Tensor) -> Tensor:
    return (q * k).sin()


@sine.register_fake
def _(q: Tensor, k: Tensor) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("strobe_tests::slopes_of_sine", mutates_args=())
def slopes_of_sine(d_out: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return slopes((q, (q * k).cos(), q, k), d_out)


@slopes_of_sine.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(q)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


@first_derivatives_only("sine", alternatives=["reference"])
def _differentiate(ctx: Any, saved: tuple[Tensor, ...], d_out: Tensor) -> tuple[Tensor, Tensor]:
    dq, dk = slopes_of_sine(d_out, *saved)
    return dq, dk


sine.register_autograd(_differentiate, setup_context=_keep)

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": lambda q, k: SavesOutputs.apply(q, k)[0],
    "operator": sine,
    "checkpoint": lambda q, k: checkpoint(lambda q, k: SavesOutputs.apply(q, k)[0], q, k, use_reentrant=False),
}


def drawn() -> Tensor:
    return torch.linspace(-2, 2, 7, dtype=torch.float64).requires_grad_()


def penalty(form: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """The square of a gradient, and another way from x to it."""
    (slope,) = torch.autograd.grad(form(2 * x, x + 1).sum(), x, create_graph=True)
    angle = 2 * x * (x + 1)
    torch.testing.assert_close(slope, angle.cos() * (4 * x + 2))
    return (slope**2).sum() + (x**3).sum()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_second_backward_raises_on_every_path(form: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = drawn()
    with pytest.raises(ImplUnavailableError, match=REFUSED):
        torch.autograd.grad(penalty(form, x), x)
    with pytest.raises(ImplUnavailableError, match=REFUSED):
        penalty(form, x).backward()


def test_torch_drops_the_path_through_the_function() -> None:
    """Why `once_differentiable` is not enough; should torch raise here some day, it is."""
    x = drawn()
    dropped = torch.autograd.grad(penalty(lambda q, k: Cut.apply(q, k)[0], x), x)[0]
    torch.testing.assert_close(dropped, 3 * x**2)


def test_a_gradient_of_what_comes_in_raises() -> None:
    q, d_out = drawn(), torch.ones(7, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(SavesOutputs.apply(q, q.detach())[0], q, d_out, create_graph=True)
    with pytest.raises(ImplUnavailableError, match=REFUSED):
        torch.autograd.grad(slope.sum(), d_out)


def test_a_compiled_operator_raises_too() -> None:
    x = drawn()
    compiled = torch.compile(lambda q, k: 1.0 * sine(q, k), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(penalty(compiled, x), x)


def test_first_derivatives_are_as_before() -> None:
    x = drawn()
    for form in FORMS.values():
        (plain,) = torch.autograd.grad(form(2 * x, x + 1).sum(), x)
        assert not plain.requires_grad
        torch.testing.assert_close(plain, (2 * x * (x + 1)).cos() * (4 * x + 2))
