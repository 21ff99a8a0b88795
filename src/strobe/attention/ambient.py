"""What an operator runs in: its tensors' device is the current one, and autocast does not change the dtypes it was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor

_AS_IT_IS: Final[AbstractContextManager[None]] = nullcontext()


def ambient(tensor: Tensor) -> AbstractContextManager[None]:
    """Make it so; nothing to do in most calls, and under a compiler, which sees to the device itself."""
    if torch.compiler.is_compiling():
        return _AS_IT_IS
    elsewhere = tensor.is_cuda and torch.cuda.current_device() != tensor.device.index
    return _changed(tensor.device) if elsewhere or torch.is_autocast_enabled(tensor.device.type) else _AS_IT_IS


@contextmanager
def _changed(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False), torch.cuda.device(device if device.type == "cuda" else -1):
        yield
