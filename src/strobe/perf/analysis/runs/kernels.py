"""Kernel table of a run (operators on a CPU): calls by span and name, with the time they own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strobe.perf.analysis.device.distribution import distribution
from strobe.perf.analysis.device.kernel_table import KernelTableRow
from strobe.perf.analysis.runs.partition import Partition


def region_kernels(partition: Partition, word: Callable[[str], str] = str) -> tuple[KernelTableRow, ...]:
    """Tabulate the calls of the partition's frame blocks by span and name, descending by exclusive time.

    Only `exclusive_ns` adds up over rows: to the busy time of the frame blocks.

    Args:
        word: what a span is called in the rows.
    """
    durations: dict[tuple[str, str], list[int]] = {}
    exclusive: dict[tuple[str, str], int] = {}
    for call in partition.calls:
        key = (call.label.region, call.name)
        durations.setdefault(key, []).append(call.duration_ns)
        exclusive[key] = exclusive.get(key, 0) + call.exclusive_ns
    return tuple(
        KernelTableRow(group=name, calls=found, exclusive_ns=exclusive[region, name], region=word(region))
        for region, name in sorted(durations, key=lambda key: (-exclusive[key], *key))
        if (found := distribution(np.array(durations[region, name], np.int64))) is not None
    )
