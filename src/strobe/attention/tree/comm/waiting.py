"""Messages that are under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One message that is under way.

    Args:
        rank: with whom; None: with all.
        work: what to wait for.
        timed: the wait has a timeout.
        comes: the message comes; else it goes.
        begun: where it is still queued on the GPU after the wait, what says whether the GPU has come to it.
    """

    rank: int | None
    work: dist.Work
    timed: bool
    comes: bool = False
    begun: Callable[[], bool] | None = None


def silent(works: Sequence[Waiting]) -> list[int]:
    """The ranks whose message had not come either when the time was up."""
    found = []
    for each in works:
        if each.rank is None or not each.comes:
            continue
        try:
            each.work.wait(timedelta(milliseconds=1))
        except RuntimeError:
            found.append(each.rank)
    return found
