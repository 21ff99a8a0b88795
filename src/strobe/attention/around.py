"""What is around every call of an implementation: its device, autocast, and what torch.func asks of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor

from strobe.attention.types import traced
from strobe.core.errors import ImplUnavailableError, StrobeError

_AS_IT_IS: Final[AbstractContextManager[None]] = nullcontext()


def ambient(tensor: Tensor, impl: str = "") -> AbstractContextManager[None]:
    """Return a context with the tensor's device current and autocast off; under torch.compile it does nothing.

    Args:
        impl: that runs inside; what it cannot do inside of torch.func and forward-mode differentiation is then said in one line.
    """
    if traced():
        return _AS_IT_IS
    elsewhere = tensor.is_cuda and torch.cuda.current_device() != tensor.device.index
    cast = not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)  # torch has no autocast there
    around = _changed(tensor.device) if elsewhere or cast else _AS_IT_IS
    if impl in ("", "reference"):
        return around
    return _ruled(impl, around) if transformed() else around


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation looks at the operations of a call."""
    return torch.autograd.forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def as_it_is(tensor: Tensor) -> bool:
    """Whether `ambient` has nothing to change or to look at around a call, asked of torch in as few steps as can be."""
    return not (
        (tensor.is_cuda and torch._C._cuda_getDevice() != tensor.get_device())
        or torch.is_autocast_enabled(tensor.device.type)
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


@contextmanager
def _ruled(impl: str, around: AbstractContextManager[None]) -> Iterator[None]:
    """Refuse an impl without a rule for torch.func or forward-mode derivatives: addresses would drop the tangents of inputs."""
    if torch.autograd.forward_ad._current_level >= 0 and impl not in ("sdpa", "cpu"):
        raise _no_rule(impl, "it has no forward-mode derivative")
    try:
        with around:
            yield
    except RuntimeError as error:
        if isinstance(error, StrobeError):
            raise
        raise _no_rule(impl, textwrap.shorten(str(error), 100, placeholder=" ...")) from error


def _no_rule(impl: str, why: str) -> ImplUnavailableError:
    return ImplUnavailableError(
        impl, f'it has no rule for torch.func.grad, jvp or vmap or forward-mode derivatives here ({why}); give impl="reference"'
    )


@contextmanager
def _changed(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False), torch.cuda.device(device if device.type == "cuda" else -1):
        yield
