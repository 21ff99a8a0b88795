"""Tables of the optimisation log: one topic each, one row per entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from strobe.perf.measure.stats import P99_SAMPLES
from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.log.decide import Decision
from strobe.perf.report.blocks.log.entries import LogEntry
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.model import Cell, Column, Count, Missing, Number, Row, Table, Text, Time, Tone
from strobe.perf.report.text import bytes_cell

_TONES: Final[dict[str, Tone]] = {"Keep": "good", "Drop": "bad", "Open": "muted", "Reference": "plain"}
_HEAD: Final = (Column("entry"),)
_BATCH: Final = Column("batch", numeric=True)


def decisions(rows: Sequence[tuple[LogEntry, Decision]]) -> Table:
    """Build the table of every entry's speedup, verdict and reason."""
    columns = (*_HEAD, Column("reference"), Column("speedup", numeric=True), Column("decision"), Column("why"))
    cells = []
    for entry, decision in rows:
        speed: Cell = Missing("", "-") if entry.is_reference else Missing(str(entry.e2e), "-")
        if not isinstance(entry.e2e, str):
            speed = ratio_cell(entry.e2e.ratio, entry.e2e.interval)
        word = Text(decision.word, _TONES[decision.word])
        cells.append(Row((Text(entry.label), Text(entry.reference), speed, word, Text(decision.why))))
    note = "Speedup: end-to-end time of the reference / own, median over mirrored pairs of one run, with its 95 % interval."
    return Table("Decisions.", columns, tuple(cells), (note,))


def configurations(entries: Sequence[LogEntry]) -> Table:
    """Build the table of the settings in which each entry differs from its reference."""
    rows = []
    for entry in entries:
        if entry.settings is None:
            changed: Cell = Missing("its settings were never written", "not recorded")
        elif entry.is_reference:
            again = f", measured in {entry.repeated + 1} runs" if entry.repeated else ""
            changed = Text(f"the reference itself{again}", "muted")
        else:
            words = [f"{each.setting}: {each.own} instead of {each.reference}" for each in entry.differences]
            changed = Text("; ".join(words) or "nothing")
        command = " ".join(entry.run.header.argv[1:])
        where = Text(entry.run.header.run), Text(entry.run.header.date), Text(command)
        rows.append(Row((Text(entry.label), changed, _clip(entry), *where)))
    columns = (*_HEAD, Column("differences to the reference"), Column("clip"), Column("run"), Column("date"), Column("command"))
    return Table("Configurations, as they were resolved.", columns, tuple(rows))


def _clip(entry: LogEntry) -> Cell:
    work = entry.work
    if work is None:
        return Missing("", "-")
    at = ", ".join(str(prompt.frame_block) for prompt in work.prompts[1:])
    return Text(f"{work.frame_blocks} frame blocks, batch {work.batch}, {f'switches at {at}' if at else 'no switch'}")


def steady(entries: Sequence[LogEntry]) -> Table:
    """Build the table of steady frame blocks, decoding included, and the frame rates they give."""
    columns = (
        *_HEAD,
        _BATCH,
        Column("SS mean", "ms", True),
        Column("SS p50", "ms", True),
        Column("SS p99", "ms", True),
        Column("SS max", "ms", True),
        Column("samples", numeric=True),
        Column("latent FPS", numeric=True),
        Column("pixel FPS", numeric=True),
    )
    note = (
        "SS: a steady frame block, streamed, decoding included: delivered. FPS are frames of a block, of all streams of the "
        "batch, / SS mean. A p99 needs "
        f"{P99_SAMPLES} samples."
    )
    rows = [
        Row((Text(entry.label), _batch(entry), *_summary(entry, "block"), _fps(entry, "latent"), _fps(entry, "pixel")))
        for entry in entries
    ]
    return Table("Steady state, delivered with VAE.", columns, tuple(rows), (note,))


def switching(entries: Sequence[LogEntry]) -> Table:
    """Build the table of first frame blocks under a new prompt."""
    columns = (
        *_HEAD,
        Column("PS mean", "ms", True),
        Column("PS p50", "ms", True),
        Column("PS p99", "ms", True),
        Column("PS max", "ms", True),
        Column("samples", numeric=True),
    )
    rows = [Row((Text(entry.label), *_summary(entry, "switch_block"))) for entry in entries]
    note = "PS: the first frame block under a new prompt, delivered, over all switches and timed clips."
    return Table("Prompt switches.", columns, tuple(rows), (note,))


def transformer(entries: Sequence[LogEntry]) -> Table:
    """Build the table of denoise steps and the commit pass alone."""
    columns = (
        *_HEAD,
        _BATCH,
        Column("passes", numeric=True),
        Column("DiT of a block", "ms", True),
        Column("DiT pixel FPS", numeric=True),
    )
    rows = []
    for entry in entries:
        passes: Cell = Missing("", "-")
        if entry.settings is not None and entry.settings.steps:
            passes = Count(entry.settings.steps + 1)
        found, fps = entry.found, entry.dit_fps
        time = Missing(_why(entry), "-") if isinstance(found, str) or not found.dit_block_ns else Time(found.dit_block_ns)
        rate = Missing(_why(entry), "-") if fps is None else Number(fps, 2)
        rows.append(Row((Text(entry.label), _batch(entry), passes, time, rate)))
    note = "Denoise steps and the commit pass of a steady frame block, without decoding; FPS as if there were nothing else."
    return Table("The transformer alone.", columns, tuple(rows), (note,))


def memory(entries: Sequence[LogEntry]) -> Table:
    """Build the table of peak memory, with and without the text encoder where that is known."""
    columns = (
        *_HEAD,
        Column("peak as measured", numeric=True),
        Column("with text encoder", numeric=True),
        Column("without text encoder", numeric=True),
    )
    rows = []
    for entry in entries:
        peak, variant = entry.peak_bytes, entry.settings
        text, held = (variant.text_encoder_bytes, variant.text_encoder_on_device) if variant else (None, None)
        both: tuple[Cell, Cell] = (Missing("the records do not say", "not known"), Missing("the records do not say", "not known"))
        if peak is not None and text is not None and held is not None:
            both = (bytes_cell(peak if held else peak + text, "GiB", 3), bytes_cell(peak - text if held else peak, "GiB", 3))
        rows.append(Row((Text(entry.label), Missing(_why(entry), "-") if peak is None else bytes_cell(peak, "GiB", 3), *both)))
    notes = (
        "GPU: bytes that torch allocated. CPU: the resident set of the whole process, all variants of a run in one process.",
        "The text encoder's own weights are added or taken away; where they lie outside the counted memory they are added.",
    )
    return Table("Peak memory.", columns, tuple(rows), notes)


def quality(entries: Sequence[LogEntry]) -> Table | None:
    """Build the table of every recorded metric, with its reference; None if no quality was measured."""
    lines = {(entry.number, line.metric): line for entry in entries for line in entry.run.quality if line.variant == entry.name}
    metrics = list(dict.fromkeys(metric for _, metric in lines))
    if not metrics:
        return None
    rows = []
    for entry in entries:
        mine = [lines.get((entry.number, metric)) for metric in metrics]
        names = dict.fromkeys(line.reference for line in mine if line is not None and line.reference)
        cells = [_quality(line, entry) for line in mine]
        rows.append(Row((Text(entry.label), Text(", ".join(names) or "none", "plain" if names else "muted"), *cells)))
    first = {metric: next(line for (_, name), line in lines.items() if name == metric) for metric in metrics}
    columns = (
        *_HEAD,
        Column("reference for quality"),
        *(Column(f"{metric}{f' ({first[metric].unit})' if first[metric].unit else ''}", numeric=True) for metric in metrics),
    )
    notes = tuple(f"{metric} ({line.better} is better): {line.definition}" for metric, line in first.items())
    return Table("Quality against the named reference.", columns, tuple(rows), notes)


def cold(entries: Sequence[LogEntry]) -> Table:
    """Build the table of cold starts, and of the frame blocks after which each is made up for."""
    columns = (*_HEAD, Column("cold start", "s", True), Column("break-even, frame blocks", numeric=True))
    rows = []
    for entry in entries:
        variant = entry.settings
        known = variant is not None and variant.cold_start_ns is not None
        start: Cell = Time(variant.cold_start_ns or 0) if variant is not None and known else Missing("not taken", "-")
        rows.append(Row((Text(entry.label), start, _break_even(entry, known))))
    notes = (
        "Cold start: opening the variant and a short clip of it, minus the same clip again. What an earlier variant "
        "of the process compiled or read is there already.",
        "Break-even: (own cold start - the reference's) / (the reference's SS mean - own), in frame blocks.",
    )
    return Table("Cold start and break-even.", columns, tuple(rows), notes)


def _break_even(entry: LogEntry, known: bool) -> Cell:
    if entry.is_reference or not known or isinstance(entry.found, str):
        return Missing("", "-")
    blocks = entry.break_even
    if blocks is None:
        return Text("never: its blocks are not shorter", "muted")
    return Text("0: starts no colder") if blocks == 0 else Number(blocks, 1)


def _why(entry: LogEntry) -> str:
    return entry.error or (entry.found if isinstance(entry.found, str) else "no steady frame blocks")


def _summary(entry: LogEntry, part: Literal["block", "switch_block"]) -> tuple[Cell, ...]:
    """Return the cells mean, p50, p99 (if there are enough samples), max, and number of samples."""
    if isinstance(entry.found, str):
        return tuple(Missing(_why(entry), "-") for _ in range(5))
    found = entry.found.block if part == "block" else entry.found.switch_block
    if found is None:
        return tuple(Missing("there were none", "-") for _ in range(5))
    p99 = Time(found.tail.value) if found.tail.label == "p99" else Missing(f"{found.n} samples", "-")
    return Time(found.mean_ns), Time(found.p50_ns), p99, Time(found.max_ns), Count(found.n)


def _batch(entry: LogEntry) -> Cell:
    return Missing("", "-") if entry.work is None else Count(entry.work.batch)


def _fps(entry: LogEntry, kind: Literal["latent", "pixel"]) -> Cell:
    found = entry.found
    value = None if isinstance(found, str) else (found.latent_fps if kind == "latent" else found.pixel_fps)
    return Missing(_why(entry), "-") if value is None else Number(value, 2)


def _quality(line: Quality | None, entry: LogEntry) -> Cell:
    if line is None:
        return Missing(_why(entry) if isinstance(entry.found, str) else "not in the records", "not measured")
    if line.value is None:
        return Missing(line.note or "no reason given", "equal" if line.n and line.reference else "not measured")
    return Number(line.value, 4 if abs(line.value) < 10 else 2)
