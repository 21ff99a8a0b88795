"""The page of a loaded server: by load, what viewers waited for, what came late, and who was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strobe.perf.analysis.runs.compare import HELD, LoadFigures, figures_of
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Served, Viewer
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.blocks.fields import end_banners, page, run_facts, section_of
from strobe.perf.table.fields import Field, count, exact_time, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Fact,
    Figure,
    Notes,
    Number,
    Plane,
    PlotPoint,
    Report,
    Section,
    Share,
    Table,
    Text,
    Time,
    bytes_cell,
)

_FEW: Final = 20
"""Values below which no 95th percentile is told apart from the largest."""


def serve_report(folder: Path) -> Report:
    """Build the page of a run that loaded a server."""
    run = read_run(folder)
    found, server, head = figures_of(run), run.server, run.header
    assert server is not None
    held = [each.load for each in found if each.held]
    answer = (
        f"{max(held):g} viewers at once had at least {HELD:.0%} of their pictures on time, and none was refused."
        if held
        else f"At no load did every viewer get in and have {HELD:.0%} of the pictures on time."
    )
    where = f"{server.device} of {head.machine.device_name}" if server.own else "a server that was there already"
    poisson = run.viewers[0].arrivals == "poisson"
    arrivals = "Poisson: viewers come and go at random" if poisson else "all come at once and stay"
    codecs = ", ".join(sorted({each.codec for each in run.viewers}))
    return page(
        title=f"Viewers on one server: {server.model}, {head.baseline}",
        subtitle=answer,
        facts=(
            *run_facts(head),
            Fact("Server", Text(f"{server.url}, {where}")),
            Fact("Pictures", Text(f"{server.width}x{server.height}, {server.fps} a second, {codecs}")),
            Fact("Arrivals", Text(arrivals)),
            Fact("Start buffer", Time(server.start_buffer_ns)),
            Fact("Viewers ran on", Text(f"{head.machine.cpu_name}, {head.machine.cores} cores")),
        ),
        banners=end_banners(run, "The run did not come to its end", "viewers who had left count"),
        sections=(_loads(found), _prompts(found), _server(found), _viewers(run)),
    )


def load_table(found: Sequence[LoadFigures]) -> Table:
    """One row per load."""
    on_time = "of those due; late by at most one frame time; those due during a stall are missing"
    fields: tuple[Field[LoadFigures], ...] = (
        numeric("viewers asked for", lambda each: Number(each.load, 1), "at once, on average"),
        numeric("at once", lambda each: Number(each.at_once, 1), "who were let in and watched, on average"),
        count("came", lambda each: each.came),
        count("refused", lambda each: each.refused),
        numeric("pictures on time", lambda each: each.on_time, on_time, show=Share, missing="no picture was due"),
        time("first picture p50", lambda each: _at(each.first_picture_ns, 0.5), missing="none"),
        time("p95", lambda each: _p95(each.first_picture_ns), missing=f"fewer than {_FEW}"),
        time("prompt to pixel p50", lambda each: _at(each.prompt_to_pixel_ns, 0.5), missing="no prompt"),
        time("p95", lambda each: _p95(each.prompt_to_pixel_ns), missing=f"fewer than {_FEW}"),
        time("block gap p50", lambda each: _at(each.block_gaps_ns, 0.5), missing="none"),
        time("p95", lambda each: _p95(each.block_gaps_ns), missing=f"fewer than {_FEW}"),
        time("max", lambda each: max(each.block_gaps_ns, default=None), missing="none"),
        count("stalls", lambda each: each.stalls),
        time("stalled", lambda each: each.stall_ns),
        numeric("played", lambda each: each.play_ratio, "of playing and stalled", show=Share, missing="nothing"),
        Field("held", lambda each: Text("yes", "good") if each.held else Text("no", "bad")),
    )  # fmt: skip
    notes = (
        "First picture: from connecting until it is painted, start buffer included. Prompt to pixel: from sending a prompt until "
        "its first picture is painted. Block gap: between the arrivals of two frame blocks of a viewer; a viewer that is ahead "
        "waits for its next one on purpose.",
    )
    return table_of("By load.", fields, found, notes=notes)


def _at(values: Sequence[int], part: float) -> float | None:
    return percentile(sorted(values), part) if values else None


def _p95(values: Sequence[int]) -> float | None:
    return _at(values, 0.95) if len(values) >= _FEW else None


def _loads(found: Sequence[LoadFigures]) -> Section:
    table = load_table(found)
    marks = tuple(PlotPoint(each.load, 100 * each.on_time, 0) for each in found if each.on_time is not None)
    lead = "Each viewer plays with a start buffer and a clock, and says what it painted: nothing is made for one that is ahead."
    if len(marks) < 2:
        return Section("load", "What viewers saw", lead, (table,))
    plane = Plane(Axis("viewers asked for at once"), Axis("pictures on time, %"), marks, series=("pictures on time",))
    return Section("load", "What viewers saw", lead, (table, Figure("Pictures on time by load.", "", plane, table)))


_PARTS: Final = {
    "wait": "for the device: frame blocks under way, of this stream or another",
    "text": "the prompt encoded",
    "block": "the frame block: keys and values of the window again, denoising, decoding",
    "picture": "its first frame encoded as a picture and sent",
    "paint": "the picture waits for its turn in the player",
    "rest": "messages under way: the prompt to the server, frames to the encoder",
}


def _prompts(found: Sequence[LoadFigures]) -> Section | None:
    fields: tuple[Field[tuple[str, tuple[int, ...]]], ...] = (
        Field("part", lambda part: Text(part[0])),
        Field("what", lambda part: Text(_PARTS.get(part[0], ""))),
        exact_time("in all", lambda part: sum(part[1]), "the parts add up to the nanosecond"),
        time("mean", lambda part: sum(part[1]) / len(part[1])),
        time("p50", lambda part: _at(part[1], 0.5)),
        time("p95", lambda part: _p95(part[1]), missing=f"fewer than {_FEW}"),
    )
    parted = ((each, each.prompt_to_pixel_ns) for each in found if each.prompt_parts_ns)
    tables = (
        table_of(
            f"{each.load:g} viewers, {len(whole)} prompts.", fields, [*each.prompt_parts_ns.items(), ("prompt to pixel", whole)]
        )
        for each, whole in parted
    )
    return section_of("prompts", "Where the time from prompt to pixel goes", "", tables)


def _server(found: Sequence[LoadFigures]) -> Section | None:
    lines = [each.served for each in found if each.served is not None]
    fields: tuple[Field[Served], ...] = (
        numeric("viewers asked for", lambda each: Number(each.load, 1)),
        count("frame blocks", lambda each: each.blocks),
        time("device held for one", lambda each: each.busy_ns / each.blocks if each.blocks else None, missing="none was made"),
        numeric("device busy", lambda each: each.busy_ns / each.wall_ns, "share of the load's time", show=Share),
        time("a picture encoded in", lambda each: each.encode_ns / each.pictures if each.pictures else None, missing="none"),
        numeric("encoding threads busy", lambda each: Number(each.encode_ns / each.wall_ns, 2), "on average"),
        time("suspend", lambda each: each.suspend_ns, missing="not measured"),
        time("wake", lambda each: each.wake_ns, missing="not measured"),
        numeric(
            "one more stream", lambda each: each.stream_bytes, "of device memory",
            show=lambda value: bytes_cell(value, "GiB", 2), missing="not on a GPU",
        ),
    )  # fmt: skip
    notes = ("Suspend and wake: how long the device is held to move a stream to main memory, and to bring it back.",)
    table = table_of("By load.", fields, lines, notes=notes)
    return section_of("server", "What the server did", "", (table,) if lines else ())


def _viewers(run: RunRecords) -> Section:
    viewers = sorted(run.viewers, key=lambda each: (each.load, each.viewer))
    fields: tuple[Field[Viewer], ...] = (
        numeric("load", lambda each: Number(each.load, 1)),
        count("viewer", lambda each: each.viewer),
        time("came after", lambda each: each.arrived_ns, "s"),
        time("watched", lambda each: each.watched_ns, "s"),
        count("painted", lambda each: each.painted),
        time("late p50", lambda each: _at(each.late_ns, 0.5), missing="none painted"),
        count("stalls", lambda each: each.stalls),
        count("prompts seen", lambda each: len(each.prompt_to_pixel_ns)),
        count("lost", lambda each: each.lost, "pictures inside a prompt that never came"),
        Field("answer", lambda each: Text("let in") if not each.refusal else Text(each.refusal, "bad", each.cause)),
    )
    table = table_of("Every viewer.", fields, viewers)
    causes = Counter(each.cause for each in viewers if each.refusal)
    notes = tuple(f"{number} times: {cause}" for cause, number in causes.most_common(5))
    return Section("viewers", "Viewers", "", (table, Notes(notes)) if notes else (table,))
