"""Tables of layers: the first one of each kind against the later ones, and each by its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.structure.layers import Layer, LayerGroup, LayerTimes
from strobe.perf.report.model import Block, Cell, Code, Column, Count, Missing, Row, Table, Text, Time
from strobe.perf.report.trace_page.devices import share_cell


def layer_blocks(name: str, groups: Sequence[LayerGroup], whole_ns: int, top: int) -> Iterator[Block]:
    """The first against the later layers of each kind, and the layers of the kind with the most time one by one.

    Args:
        name: of the device.
        groups: its layers.
        whole_ns: sum of the durations of its events.
        top: rows of a long table.
    """
    if groups:
        yield _first_and_later(name, groups, whole_ns)
        yield _by_place(name, next((group for group in groups if not group.inside), groups[0]), top)


def _first_and_later(name: str, groups: Sequence[LayerGroup], whole_ns: int) -> Table:
    columns = (
        Column("layers"), Column("in"), Column("places", numeric=True, hint="calls in one enclosing call, at most"),
        Column("calls", numeric=True), Column("of all", numeric=True, hint="sum of their events / sum of all of the device"),
        Column("device, first", "µs", True, "sum of the durations of the events of a call: p50 over the first calls"),
        Column("later", "µs", True, "p50 over all later calls"),
        Column("span, first", "µs", True, "first start to last end of these events: p50 over the first calls"),
        Column("later", "µs", True, "p50 over all later calls"),
        Column("host, first", "µs", True, "length of the call: p50 over the first calls"),
        Column("later", "µs", True, "p50 over all later calls"),
        Column("kernels, first", numeric=True), Column("later", numeric=True),
    )  # fmt: skip
    rows = []
    for group in groups:
        first, later = group.layers[0].times, group.later
        where: Cell = Code(group.path[-1]) if group.path else Text("a step" if group.by_kernels else "no other call", "muted")
        calls = first.device.n + later.device.n
        head = (Code(group.name), where, Count(len(group.layers)), Count(calls), share_cell(group.sum_ns, whole_ns))
        pairs = [cell for pair in zip(_cells(first), _cells(later), strict=True) for cell in pair]
        rows.append(Row((*head, *pairs)))
    notes = ["Layers inside layers are rows of their own: shares do not add up."]
    if any(group.by_kernels for group in groups):
        notes.append(
            "No names tell these layers: they are what the kernels repeat inside a step, named after their first kernel."
        )
    return Table(f"The first layer against the later ones, {name}.", columns, tuple(rows), tuple(notes))


def _cells(times: LayerTimes) -> tuple[Cell, ...]:
    return Time(times.device.p50_ns), Time(times.span.p50_ns), _host(times.host), Count(times.kernels)


def _host(host: Distribution | None) -> Cell:
    return Missing("found by kernels", "-") if host is None else Time(host.p50_ns)


def _by_place(name: str, group: LayerGroup, top: int) -> Table:
    columns = (
        Column("place", numeric=True), Column("name"), Column("calls", numeric=True), Column("device p50", "µs", True),
        Column("device max", "µs", True), Column("span p50", "µs", True), Column("host p50", "µs", True),
        Column("kernels", numeric=True),
    )  # fmt: skip
    rows = [_place(layer) for layer in group.layers[:top]]
    rest = len(group.layers) - len(rows)
    notes = (f"{rest} more places are left out.",) if rest else ()
    return Table(f"Each place of {group.name}, {name}.", columns, tuple(rows), notes, sortable=True, collapsed=True)


def _place(layer: Layer) -> Row:
    times = layer.times
    label: Cell = Code(layer.label) if layer.label else Missing("differs from call to call, or there is none", "-")
    device = Count(times.device.n), Time(times.device.p50_ns), Time(times.device.max_ns)
    return Row((Count(layer.place), label, *device, Time(times.span.p50_ns), _host(times.host), Count(times.kernels)))
