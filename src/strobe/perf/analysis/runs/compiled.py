"""Labels of attention kernels inside passes compiled by torch.compile, by their order in the same pass uncompiled.

No region lies inside a compiled function. But attention operators are not fused with anything: a compiled pass launches the same
attention kernels, in the same order, as the pass uncompiled. So the n-th attention kernel of one is the n-th of the other, as
long as all their names agree. All other kernels of the pass are labelled by the kind of work in their names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from strobe.core.spans import (
    ATTENTION_FINISH,
    ATTENTION_KERNEL,
    ATTENTION_SELECT,
    ATTENTION_TILE,
    CROSS_ATTENTION_KERNEL,
    DIT_FORWARD,
)
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.runs.replays import Pass, Passes, names_of, without_layers
from strobe.perf.analysis.runs.timeline import DeviceTimeline, Path

OPERATOR: Final = frozenset({ATTENTION_TILE, ATTENTION_SELECT, ATTENTION_KERNEL, ATTENTION_FINISH})
"""Regions of an attention operator."""
KINDS: Final[dict[KernelKind, str]] = {
    KernelKind.ATTENTION: "attention kernels", KernelKind.MATRIX: "matrix products", KernelKind.OTHER: "other kernels",
}  # fmt: skip
"""Innermost name of the other kernels of a compiled pass."""
_APART: Final = OPERATOR | {CROSS_ATTENTION_KERNEL}
"""Regions whose kernels torch.compile does not fuse."""


def named(timeline: DeviceTimeline, passes: Passes) -> DeviceTimeline:
    """Label the kernels of attention operators in compiled passes with the regions of the uncompiled pass.

    A pass that does not launch exactly the attention kernels of an uncompiled one, in order, is labelled by kernel names alone.

    Args:
        timeline: timeline of the compiled run.
        passes: the same passes uncompiled, launched kernel by kernel.
    """
    keys = [_key(one, _told_apart(passes)) for one in passes]
    path, numbers = timeline.path.copy(), {text: number for number, text in enumerate(timeline.paths)}
    texts, names_at = timeline.trace.device_events.names, timeline.work.name
    for events in _by_pass(timeline):
        for row, _ in events:
            kind = kernel_kind(texts[names_at[row]])
            path[row] = numbers.setdefault((*timeline.paths[timeline.path[row]], KINDS[kind]), len(numbers))
        for key in keys:
            names = {name for name, _ in key}
            own = [(row, name) for row, name in events if name in names]
            if key and [name for _, name in own] == [name for name, _ in key]:
                for (row, _), (_, text) in zip(own, key, strict=True):
                    at = text.index(DIT_FORWARD) + 1  # so that a side whose passes are told apart by name alone can be met there
                    kind_text = KINDS[kernel_kind(texts[names_at[row]])]
                    path[row] = numbers.setdefault((*text[:at], kind_text, *text[at:]), len(numbers))
                break
    return replace(timeline, paths=tuple(numbers), path=path)


def _told_apart(passes: Iterable[Pass]) -> frozenset[str]:
    """Return the names of kernels that only attention operators launch."""
    stood: defaultdict[str, set[str]] = defaultdict(set)
    for one in passes:
        for name, path in zip(one.names, one.paths, strict=True):
            stood[name].add(path[-1])
    return frozenset(name for name, regions in stood.items() if regions <= _APART)


def _key(one: Pass, names: frozenset[str]) -> list[tuple[str, Path]]:
    """Return the attention kernels of a pass in order of launch, with their regions."""
    return [(name, without_layers(path)) for name, path in zip(one.names, one.paths, strict=True) if name in names]


def _by_pass(timeline: DeviceTimeline) -> list[list[tuple[int, str]]]:
    """Return the kernels of each pass in the order in which they ran, frame block by frame block."""
    starts = [window.start_ns for window in timeline.windows]
    whole = np.array([bool(text) and text[-1] == DIT_FORWARD for text in timeline.paths])
    rows = np.flatnonzero(whole[timeline.path])
    rows = rows[np.argsort(timeline.work.start[rows], kind="stable")]
    found: list[list[tuple[int, str]]] = [[] for _ in starts]
    for row, name in zip(rows.tolist(), names_of(timeline, rows.tolist()), strict=True):
        at = bisect_right(starts, int(timeline.work.start[row])) - 1
        if at >= 0:
            found[at].append((row, name))
    return found
