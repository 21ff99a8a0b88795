"""Tables of the optimisation log: one topic each, one row per entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from strobe.perf.analysis.runs.latency import Summary
from strobe.perf.measure.stats import P99_SAMPLES
from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.blocks.log.decide import Decision
from strobe.perf.report.blocks.log.entries import LogEntry
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.model import Cell, Missing, Number, Table, Text, Tone
from strobe.perf.report.text import bytes_cell

_TONES: Final[dict[str, Tone]] = {"Keep": "good", "Drop": "bad", "Open": "muted", "Reference": "plain"}
_LABEL: Final[Field[LogEntry]] = Field("entry", lambda entry: entry.label)
_BATCH: Final[Field[LogEntry]] = count("batch", lambda entry: None if entry.work is None else entry.work.batch)


def decisions(rows: Sequence[tuple[LogEntry, Decision]]) -> Table:
    """Build the table of every entry's speedup, verdict and reason."""
    fields: tuple[Field[tuple[LogEntry, Decision]], ...] = (
        Field("entry", lambda row: row[0].label),
        Field("reference", lambda row: row[0].reference),
        numeric("speedup", lambda row: _speedup(row[0])),
        Field("decision", lambda row: Text(row[1].word, _TONES[row[1].word])),
        Field("why", lambda row: row[1].why),
    )
    note = "Speedup: end-to-end time of the reference / own, median over mirrored pairs of one run, with its 95 % interval."
    return table_of("Decisions.", fields, rows, notes=(note,))


def _speedup(entry: LogEntry) -> Cell:
    if isinstance(entry.e2e, str):
        return Missing("" if entry.is_reference else entry.e2e, "-")
    return ratio_cell(entry.e2e.ratio, entry.e2e.interval)


def configurations(entries: Sequence[LogEntry]) -> Table:
    """Build the table of the settings in which each entry differs from its reference."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        Field("differences to the reference", _changed),
        Field("clip", _clip),
        Field("run", lambda entry: entry.run.header.run),
        Field("date", lambda entry: entry.run.header.date),
        Field("command", lambda entry: " ".join(entry.run.header.argv[1:])),
    )
    return table_of("Configurations, as they were resolved.", fields, entries)


def _changed(entry: LogEntry) -> Cell:
    if entry.settings is None:
        return Missing("its settings were never written", "not recorded")
    if entry.is_reference:
        again = f", measured in {entry.repeated + 1} runs" if entry.repeated else ""
        return Text(f"the reference itself{again}", "muted")
    words = [f"{each.setting}: {each.own} instead of {each.reference}" for each in entry.differences]
    return Text("; ".join(words) or "nothing")


def _clip(entry: LogEntry) -> Cell:
    work = entry.work
    if work is None:
        return Missing("", "-")
    at = ", ".join(str(prompt.frame_block) for prompt in work.prompts[1:])
    return Text(f"{work.frame_blocks} frame blocks, batch {work.batch}, {f'switches at {at}' if at else 'no switch'}")


def steady(entries: Sequence[LogEntry]) -> Table:
    """Build the table of steady frame blocks, decoding included, and the frame rates they give."""
    fields = (_LABEL, _BATCH, *_summary("SS", "block"), _fps("latent"), _fps("pixel"))
    note = (
        "SS: a steady frame block, streamed, decoding included: delivered. FPS are frames of a block, of all streams of the "
        "batch, / SS mean. A p99 needs "
        f"{P99_SAMPLES} samples."
    )
    return table_of("Steady state, delivered with VAE.", fields, entries, notes=(note,))


def switching(entries: Sequence[LogEntry]) -> Table:
    """Build the table of first frame blocks under a new prompt."""
    note = "PS: the first frame block under a new prompt, delivered, over all switches and timed clips."
    return table_of("Prompt switches.", (_LABEL, *_summary("PS", "switch_block")), entries, notes=(note,))


def transformer(entries: Sequence[LogEntry]) -> Table:
    """Build the table of denoise steps and the commit pass alone."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        _BATCH,
        count("passes", lambda entry: entry.settings.steps + 1 if entry.settings and entry.settings.steps else None),
        time("DiT of a block", lambda entry: (entry.latencies and entry.latencies.dit_block_ns) or _none(entry)),
        numeric("DiT pixel FPS", lambda entry: _none(entry) if entry.dit_fps is None else Number(entry.dit_fps, 2)),
    )
    note = "Denoise steps and the commit pass of a steady frame block, without decoding; FPS as if there were nothing else."
    return table_of("The transformer alone.", fields, entries, notes=(note,))


def memory(entries: Sequence[LogEntry]) -> Table:
    """Build the table of peak memory, with and without the text encoder where that is known."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        numeric("peak as measured", lambda entry: _none(entry) if entry.peak_bytes is None else _gib(entry.peak_bytes)),
        numeric("with text encoder", lambda entry: _peak(entry, encoder=True)),
        numeric("without text encoder", lambda entry: _peak(entry, encoder=False)),
    )
    notes = (
        "GPU: bytes that torch allocated. CPU: the resident set of the whole process, all variants of a run in one process.",
        "The text encoder's own weights are added or taken away; where they lie outside the counted memory they are added.",
    )
    return table_of("Peak memory.", fields, entries, notes=notes)


def _gib(num_bytes: float) -> Cell:
    return bytes_cell(num_bytes, "GiB", 3)


def _peak(entry: LogEntry, *, encoder: bool) -> Cell:
    """Return the cell of the peak with or without the text encoder, whose weights lie on the device or outside of it."""
    text, held = (entry.settings.text_encoder_bytes, entry.settings.text_encoder_on_device) if entry.settings else (None, None)
    if entry.peak_bytes is None or text is None or held is None:
        return Missing("the records do not say", "not known")
    return _gib(entry.peak_bytes + (0 if held == encoder else text if encoder else -text))


def quality(entries: Sequence[LogEntry]) -> Table | None:
    """Build the table of every recorded metric, with its reference; None if no quality was measured."""
    lines = {(entry.number, line.metric): line for entry in entries for line in entry.run.quality if line.variant == entry.name}
    metrics = list(dict.fromkeys(metric for _, metric in lines))
    if not metrics:
        return None
    first = {metric: next(line for (_, name), line in lines.items() if name == metric) for metric in metrics}

    def references(entry: LogEntry) -> Cell:
        mine = (lines.get((entry.number, metric)) for metric in metrics)
        names = dict.fromkeys(line.reference for line in mine if line is not None and line.reference)
        return Text(", ".join(names) or "none", "plain" if names else "muted")

    def scores(metric: str) -> Field[LogEntry]:
        head = f"{metric}{f' ({first[metric].unit})' if first[metric].unit else ''}"
        return numeric(head, lambda entry: _quality(lines.get((entry.number, metric)), entry))

    fields = (_LABEL, Field("reference for quality", references), *map(scores, metrics))
    notes = tuple(f"{metric} ({line.better} is better): {line.definition}" for metric, line in first.items())
    return table_of("Quality against the named reference.", fields, entries, notes=notes)


def cold(entries: Sequence[LogEntry]) -> Table:
    """Build the table of cold starts, and of the frame blocks after which each is made up for."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        time("cold start", _cold_ns, "s"),
        numeric("break-even, frame blocks", _break_even),
    )
    notes = (
        "Cold start: opening the variant and a short clip of it, minus the same clip again. What an earlier variant "
        "of the process compiled or read is there already.",
        "Break-even: (own cold start - the reference's) / (the reference's SS mean - own), in frame blocks.",
    )
    return table_of("Cold start and break-even.", fields, entries, notes=notes)


def _cold_ns(entry: LogEntry) -> int | Missing:
    known = None if entry.settings is None else entry.settings.cold_start_ns
    return Missing("not taken", "-") if known is None else known


def _break_even(entry: LogEntry) -> Cell:
    if entry.is_reference or isinstance(_cold_ns(entry), Missing) or isinstance(entry.found, str):
        return Missing("", "-")
    blocks = entry.break_even
    if blocks is None:
        return Text("never: its blocks are not shorter", "muted")
    return Text("0: starts no colder") if blocks == 0 else Number(blocks, 1)


def _none(entry: LogEntry) -> Missing:
    return Missing(_why(entry), "-")


def _why(entry: LogEntry) -> str:
    return entry.error or (entry.found if isinstance(entry.found, str) else "no steady frame blocks")


def _summary(name: str, part: Literal["block", "switch_block"]) -> tuple[Field[LogEntry], ...]:
    """Return the columns mean, p50, p99 (if there are enough samples), max, and number of samples."""

    def of(get: Callable[[Summary], Any]) -> Callable[[LogEntry], Any]:
        def value(entry: LogEntry) -> Any:
            if entry.latencies is None:
                return _none(entry)
            found = entry.latencies.block if part == "block" else entry.latencies.switch_block
            return Missing("there were none", "-") if found is None else get(found)

        return value

    return (
        time(f"{name} mean", of(lambda found: found.mean_ns)),
        time(f"{name} p50", of(lambda found: found.p50_ns)),
        time(
            f"{name} p99",
            of(lambda found: found.tail.value if found.tail.label == "p99" else Missing(f"{found.n} samples", "-")),
        ),
        time(f"{name} max", of(lambda found: found.max_ns)),
        count("samples", of(lambda found: found.n)),
    )


def _fps(kind: Literal["latent", "pixel"]) -> Field[LogEntry]:
    def rate(entry: LogEntry) -> Cell:
        value = None if entry.latencies is None else getattr(entry.latencies, f"{kind}_fps")
        return _none(entry) if value is None else Number(value, 2)

    return numeric(f"{kind} FPS", rate)


def _quality(line: Quality | None, entry: LogEntry) -> Cell:
    if line is None:
        return Missing(_why(entry) if isinstance(entry.found, str) else "not in the records", "not measured")
    if line.value is None:
        return Missing(line.note or "no reason given", "equal" if line.n and line.reference else "not measured")
    return Number(line.value, 4 if abs(line.value) < 10 else 2)
