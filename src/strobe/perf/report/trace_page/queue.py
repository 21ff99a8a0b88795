"""Queue length of each device over time: events that are launched and not started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strobe.perf.analysis.device.queue import LENGTHS, Queue
from strobe.perf.report.blocks.fields import Field, count, count_cell, exact_time, left_out, numeric, share_cell, table_of
from strobe.perf.report.model import Block, Code, Figure, Kind, KindStyle, Number, Section, Strip, StripLane, Table
from strobe.perf.report.trace_page.seen import Seen, seen_queues
from strobe.perf.report.trace_page.stretches import permille, stretches_table
from strobe.perf.report.trace_study import TraceStudy

MAX_LANES: Final = 8
"""Most queues that are drawn."""
_STYLES: Final[tuple[KindStyle, ...]] = ("gap1", "work4", "work3", "work1")


def queue_section(study: TraceStudy) -> Section | None:
    """Build the section with a table of the queues of all devices and streams, and pictures; `None` without device events."""
    found = seen_queues(study)
    if not found:
        return None
    lead = (
        "Device events whose launch call has started and that have not started themselves. A queue that is empty most of the "
        "time waits for the host; one that is long hides it. Nodes of a graph are launched together."
    )
    blocks: list[Block] = [_table(found, study.options.top), *_pictures(_drawn(found))]
    return Section("queue", "Queue length", lead, tuple(blocks), folded=True)


def _drawn(found: Sequence[tuple[Seen, Sequence[Queue]]]) -> list[tuple[Seen, Queue]]:
    """Return the queues to draw: of several devices their own; of a single device also the streams that waited longest."""
    if len(found) > 1:
        return [(one, device) for one, (device, *_) in found[:MAX_LANES]]
    ((one, (device, *streams)),) = found
    longest = sorted(streams, key=lambda queue: (-queue.total_ns, queue.stream or 0))[: MAX_LANES - 1]
    return [(one, queue) for queue in (device, *sorted(longest, key=lambda queue: queue.stream or 0))]


def _name(one: Seen, queue: Queue) -> str:
    return one.name if queue.stream is None else f"{one.name}, stream {queue.stream}"


def _table(found: Sequence[tuple[Seen, Sequence[Queue]]], top: int) -> Table:
    fields: tuple[Field[tuple[Seen, Queue]], ...] = (
        Field("queue", lambda row: _name(*row), Code),
        count("max", lambda row: row[1].longest, "largest length"),
        count("median", lambda row: row[1].median, "over time: it is no longer for half of the time"),
        numeric("mean", lambda row: Number(row[1].mean, 2), "over time"),
        exact_time("empty", lambda row: row[1].empty_ns, "time with a length of 0"),
        numeric("of span", lambda row: share_cell(row[1].empty_ns, row[1].span_ns)),
        count("waited", lambda row: row[1].queued, "events that were in it"),
        Field("wait of one", lambda row: _wait(row[1]), unit="µs", hint="mean, of the events that waited", missing="none waited"),
        numeric(
            "unlinked", lambda row: row[1].unlinked, "events whose launch the trace does not hold: not counted", show=count_cell
        ),
    )
    rows = [(one, queue) for one, queues in found for queue in queues]
    return table_of("Length of each queue.", fields, rows[:top], notes=left_out(rows, top), sortable=True)


def _wait(queue: Queue) -> Number | None:
    return Number(queue.total_ns / queue.queued / 1e3, 3) if queue.queued else None


def _pictures(drawn: Sequence[tuple[Seen, Queue]]) -> Iterator[Figure]:
    """Yield one picture for all queues over windows of the same length."""
    kinds = tuple(Kind(_label(low, high), style) for (low, high), style in zip(LENGTHS, _STYLES, strict=True))
    for length in dict.fromkeys(queue.span_ns for _, queue in drawn):
        lanes = [(one, queue) for one, queue in drawn if queue.span_ns == length]
        if not length:
            continue
        strip = Strip(
            length_ns=length,
            kinds=kinds,
            lanes=tuple(
                StripLane(_name(one, queue), tuple(permille(queue.edges_ns, own) for own in queue.lengths_ns))
                for one, queue in lanes
            ),
        )
        alt = "Shares of time by queue length, one lane per queue; the table gives the times of longer stretches."
        named = ((_name(one, queue), queue.edges_ns, queue.lengths_ns) for one, queue in lanes)
        caption = "Time by length in stretches of the picture."
        table = stretches_table(caption, "queue", (kind.label for kind in kinds), named)
        yield Figure("Length of the queues over time.", alt, strip, table)


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} and more"
    return "empty" if high == 0 else f"{low} to {high}"
