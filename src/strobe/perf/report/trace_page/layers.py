"""Tables of layers: the first layer of each kind against the later ones, and each layer by its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strobe.perf.analysis.structure.layers import Layer, LayerGroup, LayerTimes
from strobe.perf.report.blocks.fields import Field, count, left_out, numeric, share_of, table_of, time
from strobe.perf.report.model import Block, Cell, Code, Table, Text

_BY_KERNELS: Final = "found by kernels"


def layer_blocks(name: str, groups: Sequence[LayerGroup], whole_ns: int, top: int) -> Iterator[Block]:
    """Yield the table of first against later layers of each kind, and that of each layer of the kind with the most time.

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
    device = "sum of the durations of the events of a call: p50 over the first calls"
    span, host = (
        "first start to last end of these events: p50 over the first calls",
        "length of the call: p50 over the first calls",
    )
    later, of_all = "p50 over all later calls", "sum of their events / sum of all of the device"
    fields: tuple[Field[LayerGroup], ...] = (
        Field("layers", lambda group: group.name, Code),
        Field("in", _where),
        count("places", lambda group: len(group.layers), "calls in one enclosing call, at most"),
        count("calls", lambda group: group.layers[0].times.device.n + group.later.device.n),
        numeric("of all", lambda group: group.sum_ns, of_all, show=share_of(whole_ns)),
        time("device, first", lambda group: group.layers[0].times.device.p50_ns, "µs", device),
        time("later", lambda group: group.later.device.p50_ns, "µs", later),
        time("span, first", lambda group: group.layers[0].times.span.p50_ns, "µs", span),
        time("later", lambda group: group.later.span.p50_ns, "µs", later),
        time("host, first", lambda group: _host_ns(group.layers[0].times), "µs", host, missing=_BY_KERNELS),
        time("later", lambda group: _host_ns(group.later), "µs", later, missing=_BY_KERNELS),
        count("kernels, first", lambda group: group.layers[0].times.kernels),
        count("later", lambda group: group.later.kernels),
    )
    notes = ["Layers inside layers are rows of their own: shares do not add up."]
    if any(group.by_kernels for group in groups):
        notes.append(
            "No names tell these layers: they are what the kernels repeat inside a step, named after their first kernel."
        )
    return table_of(f"The first layer against the later ones, {name}.", fields, groups, notes=notes)


def _where(group: LayerGroup) -> Cell:
    return Code(group.path[-1]) if group.path else Text("a step" if group.by_kernels else "no other call", "muted")


def _host_ns(times: LayerTimes) -> int | None:
    return None if times.host is None else times.host.p50_ns


def _by_place(name: str, group: LayerGroup, top: int) -> Table:
    unnamed = "differs from call to call, or there is none"
    fields: tuple[Field[Layer], ...] = (
        count("place", lambda layer: layer.place),
        Field("name", lambda layer: layer.label or None, Code, missing=unnamed),
        count("calls", lambda layer: layer.times.device.n),
        time("device p50", lambda layer: layer.times.device.p50_ns, "µs"),
        time("device max", lambda layer: layer.times.device.max_ns, "µs"),
        time("span p50", lambda layer: layer.times.span.p50_ns, "µs"),
        time("host p50", lambda layer: _host_ns(layer.times), "µs", missing=_BY_KERNELS),
        count("kernels", lambda layer: layer.times.kernels),
    )
    notes = left_out(group.layers, top, "places are left out")
    caption = f"Each place of {group.name}, {name}."
    return table_of(caption, fields, group.layers[:top], notes=notes, sortable=True, collapsed=True)
