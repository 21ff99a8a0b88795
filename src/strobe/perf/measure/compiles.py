"""Whether torch.compile has been at work: a clip it interrupted is no sample."""

from __future__ import annotations

import sys


def num_compiles() -> int:
    """Return the graphs that torch.compile has compiled in this process so far; 0 if it was never used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0
