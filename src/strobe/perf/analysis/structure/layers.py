"""Repeated parts of one call: the layers of a model or the steps of a loop; the first against the later ones.

Layers are calls of equal name (numbers aside: `WanBlock_0` to `WanBlock_29`, `attention` 30 times) in one call of the same range
or module. Where no names repeat, they are what the kernels of a step repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from strobe.perf.analysis.device.device_work import EventView, events_by_device
from strobe.perf.analysis.device.distribution import Distribution, distributions
from strobe.perf.analysis.device.intervals import Ints, column, totals
from strobe.perf.analysis.structure.periods import repetitions
from strobe.perf.analysis.structure.scopes import (
    NOWHERE,
    ROOT,
    Cuts,
    Launched,
    Paths,
    before,
    launched_in,
    nest,
    ranges_and_modules,
    unnumbered,
)
from strobe.perf.analysis.structure.steps import Steps, device_steps
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import Trace

FEWEST: Final = 3
"""Fewest calls of one name in an enclosing call that count as layers."""
MOST_GROUPS: Final = 16
"""Most groups that are described: those with the most device time."""
MOST_PLACES: Final = 512
"""Most places that are described one by one; `later` counts all of them."""
_STEP: Final = "ProfilerStep"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """Times of some calls: on the device, from first to last event, on the host.

    Args:
        device: sum of the durations of the device events that each call launched.
        span: from the first start to the last end of these events.
        host: length of each call on the host; `None` where layers are found by kernels.
        kernels: kernels of a call, the median.
    """

    device: Distribution
    span: Distribution
    host: Distribution | None
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The calls at one place in the enclosing calls, counted from 0; `label` is their name if all have the same."""

    place: int
    label: str
    times: LayerTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGroup:
    """Layers of one kind.

    Args:
        name: common name: `WanBlock`, or the kernel that starts each.
        path: names of the enclosing calls, from the outermost on, without numbers.
        by_kernels: found in the order of kernels, not by name.
        enclosing: number of calls that enclose such layers; steps if found by kernels.
        sum_ns: sum of the durations of all device events in them.
        layers: by place.
        later: all calls that are not the first of their enclosing call.
        inside: they lie in the layers of another group.
    """

    name: str
    path: tuple[str, ...]
    by_kernels: bool
    enclosing: int
    sum_ns: int
    layers: tuple[Layer, ...]
    later: LayerTimes
    inside: bool


def layer_groups(trace: Trace, window: Window | None = None) -> tuple[tuple[int, tuple[LayerGroup, ...]], ...]:
    """Return number and layers of each device that has events, the group with the most device time first."""
    named = _Named(trace)
    found = []
    for device, work in events_by_device(trace):
        groups = tuple(named.groups(launched_in(trace, work, window, named.cuts), window is not None))
        if not len(trace.modules) and not any(group.path for group in groups):
            groups = (*groups, *_by_kernels(trace, device, work, window))
        found.append((device, groups))
    return tuple(found)


class _Calls(NamedTuple):
    """Calls of one group, by place in their enclosing call."""

    place: Ints
    device: Ints
    span: Ints
    host: Ints | None
    kernels: Ints

    def times(self, which: Ints, group: Ints, num: int) -> list[LayerTimes]:
        """Compute the times of the chosen calls of each group; every group has some."""
        device, span, kernels = (_described(values[which], group, num) for values in (self.device, self.span, self.kernels))
        host = None if self.host is None else _described(self.host[which], group, num)
        return [
            LayerTimes(device=device[i], span=span[i], host=None if host is None else host[i], kernels=kernels[i].p50_ns)
            for i in range(num)
        ]


def _described(values: Ints, group: Ints, num: int) -> list[Distribution]:
    return [found for found in distributions(values, group, num) if found is not None]


class _Named:
    """Calls whose names repeat in one enclosing call."""

    def __init__(self, trace: Trace) -> None:
        self.scopes = ranges_and_modules(trace)
        self.cuts = Cuts.around(self.scopes)
        nesting = nest(self.scopes)
        self.paths = Paths()
        bare = unnumbered(self.scopes)
        self.path = np.array(self.paths.of(bare, nesting), np.int64)
        top = -1 - column(self.scopes.thread)
        self.parent = np.where(nesting.parent == NOWHERE, top, nesting.parent)

    def groups(self, launched: Launched, only_launching: bool) -> Iterator[LayerGroup]:
        """Yield the layers of a device."""
        first, last = self.cuts.of(self.scopes)
        events, sums, kernels = (before(values) for values in (launched.events, launched.sum_ns, launched.kernels))
        taken = np.flatnonzero(events[last] > events[first]) if only_launching else np.arange(len(self.scopes))
        order = taken[np.lexsort((taken, self.parent[taken], self.path[taken]))]
        if not len(order):
            return
        path, parent = self.path[order], self.parent[order]
        heads = np.flatnonzero(np.append(True, (path[1:] != path[:-1]) | (parent[1:] != parent[:-1])))
        count = np.diff(heads, append=len(order))
        place = np.arange(len(order)) - np.repeat(heads, count)
        device = (sums[last] - sums[first])[order]
        host = (column(self.scopes.end_ns) - column(self.scopes.start_ns))[order]
        columns = (place, device, launched.spans(first, last)[order], host, (kernels[last] - kernels[first])[order])
        total = totals(device, path, len(self.paths.names))
        chosen = self._chosen(path[heads], count, total)
        for number in chosen:
            left, right = np.searchsorted(path, (number, number + 1)).tolist()
            own = _Calls(*(values[left:right] for values in columns))
            names = [self.scopes.names[name] for name in column(self.scopes.name)[order[left:right]].tolist()]
            spelled = self.paths.spelled(number)
            yield _group(own, names, spelled, self._inside(number, chosen))

    def _chosen(self, path: Ints, count: Ints, total: Ints) -> list[int]:
        """Return the paths that mostly have several calls in one enclosing call, those with the most device time first."""
        numbers, first = np.unique(path, return_index=True)
        repeats = [int(np.median(part)) for part in np.split(count, first[1:])]
        several = [
            number
            for number, repeat in zip(numbers.tolist(), repeats, strict=True)
            if repeat >= FEWEST and total[number] and self.paths.names[number] != _STEP
        ]
        return sorted(several, key=lambda number: (-int(total[number]), number))[:MOST_GROUPS]

    def _inside(self, number: int, chosen: Sequence[int]) -> bool:
        while number != ROOT:
            number = self.paths.above[number]
            if number in chosen:
                return True
        return False


def _group(calls: _Calls, names: Sequence[str], path: tuple[str, ...], inside: bool) -> LayerGroup:
    num = min(MOST_PLACES, int(calls.place.max()) + 1)
    shown = np.flatnonzero(calls.place < num)
    later = np.flatnonzero(calls.place > 0)
    labels: list[set[str]] = [set() for _ in range(num)]
    for call in shown.tolist():
        labels[int(calls.place[call])].add(names[call])
    times = calls.times(shown, calls.place[shown], num)
    return LayerGroup(
        name=path[-1],
        path=path[:-1],
        by_kernels=calls.host is None,
        enclosing=int(np.count_nonzero(calls.place == 0)),
        sum_ns=int(calls.device.sum()),
        layers=tuple(
            Layer(place=place, label=min(label) if len(label) == 1 else "", times=times[place])
            for place, label in enumerate(labels)
        ),
        later=calls.times(later, np.zeros(len(later), np.int64), 1)[0],
        inside=inside,
    )


def _by_kernels(trace: Trace, device: int, work: EventView, window: Window | None) -> Iterator[LayerGroup]:
    """Yield layers found in the order of kernels: the longest period that repeats three times inside a step."""
    place, periods = repeated = repetitions(work, trace.device_events.names)
    if not periods:
        return
    steps = device_steps(trace, device, work, repeated)
    bounds = np.array([step.start_ns for step in steps.steps] if isinstance(steps, Steps) else [], np.int64)
    start, end = work.at(place).start, work.at(place).end
    for period in periods:
        anchors = np.array(period.starts, np.int64)
        if window is not None:
            anchors = anchors[(start[anchors] >= window.start_ns) & (start[anchors] < window.end_ns)]
        step = np.searchsorted(bounds, start[anchors], side="right")
        heads = np.flatnonzero(np.diff(step, prepend=-1))
        count = np.diff(heads, append=len(anchors))
        if not len(heads) or np.median(count) < FEWEST:
            continue
        size = int(np.median(np.array(period.kernels, np.int64)))
        stop = np.minimum(np.append(anchors[1:], len(place)), anchors + size)
        edges = np.stack((anchors, stop), axis=1).ravel()
        reached = np.maximum.reduceat(np.append(end, 0), edges)[::2]
        sums = before(end - start)
        order = np.arange(len(anchors)) - np.repeat(heads, count)
        calls = _Calls(order, sums[stop] - sums[anchors], reached - start[anchors], None, stop - anchors)
        yield _group(calls, [""] * len(anchors), (period.anchor,), False)
        return
