"""Labels of attention kernels inside passes compiled by torch.compile, by those of the same pass uncompiled.

No region lies inside what a compiler generated. But attention operators are not fused with anything: a compiled pass launches the
same attention kernels as the pass uncompiled. It may reorder those that do not depend on each other, such as attention of video
and audio. So the n-th launch of a kernel over one grid is the n-th of that launch uncompiled, if the pass holds all of them as
often. What an operator does besides, such as copies to another layout, may be fused with its neighbours; where it is launched as
often as uncompiled it is labelled in the same way. An operator that marks its regions while it runs says itself what its kernels
are. All other kernels are labelled by the kind of work in their names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from strobe.core.spans import ATTENTION_OPERATOR, DIT_FORWARD
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.names import comparable
from strobe.perf.analysis.runs.replays import ATTENTION_KERNELS, Pass, Passes, launches_of, names_of, without_layers
from strobe.perf.analysis.runs.timeline import DeviceTimeline, Path

KINDS: Final[dict[KernelKind, str]] = {
    KernelKind.ATTENTION: "attention kernels", KernelKind.MATRIX: "matrix products", KernelKind.OTHER: "other kernels",
}  # fmt: skip
"""Innermost name of the other kernels of a compiled pass."""


class _Kernel(NamedTuple):
    """A kernel of a pass.

    Args:
        row: in the timeline of the compiled run; -1 in the uncompiled pass.
        path: regions it was launched in.
        name: normalised.
        launch: full name with grid and block, without what a compiler may change.
        marked: the attention operator's region that a compiled run marked around it; empty for none.
    """

    row: int
    path: Path
    name: str
    launch: str
    marked: str


def named(timeline: DeviceTimeline, passes: Passes) -> DeviceTimeline:
    """Label the kernels of attention operators in compiled passes with the regions of the uncompiled pass.

    A pass that does not launch exactly the attention kernels of an uncompiled one is labelled by kernel names alone.

    Args:
        timeline: timeline of the compiled run.
        passes: the same passes uncompiled, launched kernel by kernel.
    """
    told, path, numbers = _told_apart(passes), timeline.path.copy(), {text: number for number, text in enumerate(timeline.paths)}
    texts, names_at = timeline.trace.device_events.names, timeline.work.name
    for kernels in _by_pass(timeline):
        marked = {(each.name, each.marked) for each in kernels if each.marked}
        found = _by_region(kernels, passes)
        own = [each for each in kernels if not each.marked and (each.name in told or _is_attention(each.name))]
        for one in passes:
            key = [each for each in _key(one, told) if (each.name, each.path[-1]) not in marked]
            if matched := _by_launch(own, key):
                found |= matched
                break
        for each in kernels:
            kind, around = KINDS[kernel_kind(texts[names_at[each.row]])], timeline.paths[path[each.row]]
            text = found.get(each.row, around)
            at = text.index(DIT_FORWARD) + 1  # so that a side whose passes are told apart by name alone can be met there
            path[each.row] = numbers.setdefault((*text[:at], kind, *text[at:]), len(numbers))
    return replace(timeline, paths=tuple(numbers), path=path)


def _told_apart(passes: Iterable[Pass]) -> frozenset[str]:
    """Return the names of kernels that only attention operators launch."""
    stood: defaultdict[str, set[str]] = defaultdict(set)
    for one in passes:
        for name, path in zip(one.names, one.paths, strict=True):
            stood[name].add(path[-1])
    return frozenset(name for name, regions in stood.items() if regions <= ATTENTION_KERNELS)


def _key(one: Pass, names: frozenset[str]) -> list[_Kernel]:
    """Return the attention kernels of an uncompiled pass in order of launch."""
    launches = one.launches or ("",) * len(one.names)
    kernels = zip(one.names, one.paths, launches, strict=True)
    found = [_Kernel(-1, without_layers(path), name, comparable(launch), "") for name, path, launch in kernels]
    return [each for each in found if each.name in names or _is_attention(each.name)]


def _is_attention(name: str) -> bool:
    """Say whether a kernel computes attention, by its name."""
    return kernel_kind(name) is KernelKind.ATTENTION


def _by_launch(own: Sequence[_Kernel], key: Sequence[_Kernel]) -> dict[int, Path]:
    """Match kernels launch by launch; empty unless each launch of a kernel that computes attention is there as often.

    If the uncompiled pass has no such kernel, each launch of any kernel must be there as often.
    """
    if not all(each.launch for each in key):
        return {}
    rows, paths = defaultdict[str, list[int]](list), defaultdict[str, list[Path]](list)
    for each in own:
        rows[each.launch].append(each.row)
    for each in key:
        paths[each.launch].append(each.path)
    needed = {each.launch for each in (*own, *key) if _is_attention(each.name)} or {*rows, *paths}
    if any(len(rows[text]) != len(paths[text]) for text in needed):
        return {}
    alike = {text: found for text, found in rows.items() if len(found) == len(paths[text])}
    return {row: path for text, found in alike.items() for row, path in zip(found, paths[text], strict=True)}


def _by_region(kernels: Sequence[_Kernel], passes: Passes) -> dict[int, Path]:
    """Return the path of the uncompiled pass for each kernel that an operator marked itself."""
    whole = {path[-1]: without_layers(path) for one in passes for path in one.paths if path[-1] in ATTENTION_OPERATOR}
    return {each.row: whole[each.marked] for each in kernels if each.marked in whole}


def _by_pass(timeline: DeviceTimeline) -> list[list[_Kernel]]:
    """Return the kernels of each pass in the order in which they ran, frame block by frame block."""
    starts = [window.start_ns for window in timeline.windows]
    whole = np.array([DIT_FORWARD in text for text in timeline.paths])
    rows = np.flatnonzero(whole[timeline.path])
    rows = rows[np.argsort(timeline.work.start[rows], kind="stable")].tolist()
    found: list[list[_Kernel]] = [[] for _ in starts]
    for row, name, launch in zip(rows, names_of(timeline, rows), launches_of(timeline, rows), strict=True):
        at, path = bisect_right(starts, int(timeline.work.start[row])) - 1, timeline.paths[timeline.path[row]]
        if at >= 0:
            found[at].append(_Kernel(row, path, name, comparable(launch), path[-1] if path[-1] in ATTENTION_OPERATOR else ""))
    return found
