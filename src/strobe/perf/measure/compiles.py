"""Count of torch.compile's compilations, to exclude clips that compilation interrupted."""

from __future__ import annotations

import sys


def num_compiles() -> int:
    """Return how many graphs torch.compile has compiled in this process so far; 0 if it was never used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0
