"""Work beside the fine stage: a second stream that leaves the current one and comes back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

_PAIRS: Final = 64
"""Streams that have a second one beside them; PyTorch hands out 32 for each priority and device."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Aside:
    """What runs beside the stream it left.

    Args:
        join: makes the current stream wait for it; does not stop the host.
        held: tensors that it reads and writes. They belong to the first stream, so they must live until after `join`.
    """

    join: Callable[[], None]
    held: tuple[Tensor, ...]


@lru_cache(maxsize=_PAIRS)
def _beside(device: int, _stream: int) -> tuple[torch.cuda.Stream, torch.cuda.Event, torch.cuda.Event]:
    """The stream beside a stream, the event at which it leaves and the one at which it is back. A stream that a graph is being
    recorded on has its own, as nothing but the recording may use that then."""
    return torch.cuda.Stream(device), torch.cuda.Event(), torch.cuda.Event()


@contextmanager
def beside(*held: Tensor) -> Iterator[Aside]:
    """What is launched inside runs on the second stream, after what the current one was given so far.

    On CUDA alone. Of a recording of a graph it becomes part, as long as `join` is called before it ends.
    """
    current = torch.cuda.current_stream(held[0].device)
    second, left, back = _beside(held[0].get_device(), current.cuda_stream)
    left.record(current)
    second.wait_event(left)
    with torch.cuda.stream(second):
        yield Aside(join=lambda: torch.cuda.current_stream(held[0].device).wait_event(back), held=held)
        back.record(second)
