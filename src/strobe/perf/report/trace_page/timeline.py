"""Timeline of one step of each device on a common axis: work, and gaps by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from strobe.perf.analysis.device.device_work import BUSY, DeviceView
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.kernel_table import kernel_table
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.structure.steps import Step, Steps
from strobe.perf.analysis.window import Window
from strobe.perf.report.blocks.lanes import LaneSlices, Piece, class_table, draw_lanes, merged
from strobe.perf.report.model import Figure, Kind, Section
from strobe.perf.report.trace_page.devices import CLASS_KINDS, during
from strobe.perf.report.trace_page.seen import seen_devices, seen_steps
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace.events import DEVICE_KINDS

MAX_LANES: Final = 8
"""Devices in the picture; further ones are counted in a note."""
MAX_SLICES: Final = 50_000
"""Most slices of a lane."""
_KINDS: Final = {**CLASS_KINDS, "kernel": Kind("other kernels", "work1")}


class _Stretch(NamedTuple):
    """Part of a device's time that one lane shows."""

    label: str
    what: str
    view: DeviceView


def timeline_section(study: TraceStudy) -> Section | None:
    """Build the section with the timeline and its table; `None` without device events."""
    stretches = list(_stretches(study))
    if not stretches:
        return None
    shown = stretches[:MAX_LANES]
    top = _top_group(shown)
    focal = Kind(f"top kernel: {top}", "focal")
    kinds = (focal, *_KINDS.values())
    lanes = [
        LaneSlices(label=f"{one.label}, {one.what}", series=n, pieces=merged(_pieces(one.view, focal, top)))
        for n, one in enumerate(shown)
    ]
    picture = draw_lanes(lanes, kinds, focal, by_class=True)
    table = class_table(lanes, picture, "Time by class", "in all", drawn=True)
    title = "What ran (solid) and where nothing did (hatched), by what the device waited for."
    alt = "Timeline of one step per device; the table gives the sums."
    lead = (
        "The step of median length of each device, or the chosen window; where no steps were found, the whole trace; of a long "
        "one the middle."
    )
    if len(stretches) > len(shown):
        lead += f" {len(stretches) - len(shown)} more devices are not drawn."
    return Section("timeline", "One step", lead, (Figure(title, alt, picture, table),))


def _stretches(study: TraceStudy) -> Iterator[_Stretch]:
    tiled = {
        (id(trace), found.device): found
        for trace, window, tiles in zip(study.traces, study.windows, seen_steps(study), strict=True)
        for found in (() if window else tiles)
    }
    for name, view, *_ in seen_devices(study):
        found = tiled.get((id(view.trace), view.device))
        if isinstance(found, Steps):
            step = _median(found.kept() or found.steps)
            chosen = Window(start_ns=step.start_ns, end_ns=step.end_ns, label=step.label)
            stretch = _middle(name, step.label, view.within(chosen))
        else:
            stretch = _middle(name, during(view), view)
        if stretch.view.span_ns:
            yield stretch


def _middle(name: str, what: str, view: DeviceView) -> _Stretch:
    """Return the whole view, or only as many slices around its middle as can be drawn."""
    rest = sum(len(slices.start) for slices in view.stretches()) - MAX_SLICES
    if rest <= 0:
        return _Stretch(name, what, view)
    first, last = _bounds(view, rest // 2, rest // 2 + MAX_SLICES - 1)
    label = f"{(first - view.begin_ns) / 1e6:.3f} to {(last - view.begin_ns) / 1e6:.3f} ms of {what}"
    return _Stretch(name, label, view.within(Window(start_ns=first, end_ns=last, label=label)))


def _bounds(view: DeviceView, first: int, last: int) -> tuple[int, int]:
    """Return the start of the slice `first` and the end of the slice `last`, ns."""
    at, edges = 0, list[int]()
    for slices in view.stretches():
        inside = range(at, at + len(slices.start))
        edges += [slices.start[first - at].item()] if first in inside else []
        edges += [slices.end[last - at].item()] if last in inside else []
        at = inside.stop
    return edges[0], edges[1]


def _median(steps: Sequence[Step]) -> Step:
    ranked = sorted(steps, key=lambda step: (step.length_ns, step.start_ns))
    return ranked[(len(ranked) - 1) // 2]


def _top_group(stretches: Sequence[_Stretch]) -> str:
    """Return the group of kernels with the most exclusive time over all lanes; empty without kernels."""
    owned: Counter[str] = Counter()
    for one in stretches:
        owned.update({row.group: row.exclusive_ns for row in kernel_table(one.view).rows if row.kind == "kernel"})
    return max(owned, key=lambda group: (owned[group], group)) if owned else ""


def _pieces(view: DeviceView, focal: Kind, group: str) -> Iterator[Piece]:
    slices, work = view.slices, view.work
    groups = [kernel_name(name).group for name in view.trace.device_events.names]
    columns = (slices.start.tolist(), slices.end.tolist(), slices.event.tolist(), slices.cause.tolist())
    names, kinds = work.name, work.kind
    for start, end, event, cause in zip(*columns, strict=True):
        if cause != BUSY:
            kind = _KINDS[CAUSES[cause]]
            yield Piece(start - view.begin_ns, end - view.begin_ns, kind.label, kind)
            continue
        name, what = groups[names[event]], DEVICE_KINDS[kinds[event]]
        is_top = what == "kernel" and name == group
        yield Piece(start - view.begin_ns, end - view.begin_ns, name, focal if is_top else _KINDS[what])
