"""The optimisation log: its entries, the rule that keeps or drops them, and the page of recorded runs or of one `--vary`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.ledger.account import LEVEL_WORDS, Ledger, LedgerLine, part_of
from strobe.perf.analysis.parts import NAMELESS
from strobe.perf.analysis.runs.compare import NS, Comparison, Latencies, SwitchCost, compare_stage, latencies, timed_clips
from strobe.perf.measure.stats import FLOOR, P99_SAMPLES, p99, percentile
from strobe.perf.records.record import CELLS, Gate, Quality, Variant, Workload, read_plan
from strobe.perf.records.store import FILES, RunRecords, read_run, records_in, superseded
from strobe.perf.report.blocks.answer import change_sections
from strobe.perf.report.blocks.fields import page, section_of, verdict_cell
from strobe.perf.report.blocks.grid import BEST, front
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import load_study, or_reason
from strobe.perf.table.fields import Field, count, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Count,
    Fact,
    Figure,
    Missing,
    Notes,
    Number,
    Plane,
    PlotPoint,
    Ratio,
    Report,
    Section,
    Speedup,
    Table,
    Text,
    Tone,
    bytes_cell,
)
from strobe.perf.table.rows import columns, gathered

METRIC: Final = "psnr"
"""Quality metric that decides: measured wherever quality is, frame by frame against a named preset with the same noise."""
_FIELDS: Final = ("window", "sink", "positions", "steps", "timesteps", "shift", "dtype", "sparsity", "lora", "compile_mode",
                  "attention_impl")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """One variant of one run.

    Args:
        number: from 1, in order of date.
        latencies: of its timed clips, or why there are none.
        e2e: its end-to-end time against its reference's, or why there is no comparison.
        repeated: runs that measured the same reference again and have no entry of it.
    """

    number: int = 0
    run: RunRecords
    name: str
    settings: Variant | None
    latencies: Latencies | str
    e2e: Comparison | str
    repeated: int = 0

    @property
    def label(self) -> str:
        return f"{self.number} {self.name}"

    @property
    def reference(self) -> str:
        return self.run.header.baseline

    @property
    def is_reference(self) -> bool:
        return self.name == self.reference

    @property
    def work(self) -> Workload:
        assert self.run.header.workload is not None, "runs without one have no entry"
        return self.run.header.workload

    @property
    def group(self) -> tuple[object, ...]:
        """Reference, model, clip and device; only entries with equal groups are compared."""
        head = self.run.header
        return self.reference, head.model, head.workload, head.machine.device_name

    @property
    def gate(self) -> Gate | None:
        return next((gate for gate in self.run.gates if gate.variant == self.name), None)

    @property
    def exact(self) -> bool:
        """Whether its gate passed and demanded the values of the reference."""
        return self.gate is not None and self.gate.passed and self.gate.exact

    @property
    def error(self) -> str:
        """Reason why it has no numbers; empty if it has some, or if it was not reached."""
        if isinstance(self.latencies, Latencies):
            return ""
        gate, end = self.gate, self.run.end
        if gate is not None and not gate.passed:
            return f"red gate: {gate.rule}: {gate.detail}"
        return end.message if end is not None and end.status == "failed" and end.variant in ("", self.name) else ""

    @property
    def speed(self) -> float | None:
        """End-to-end time of the reference / own time if its interval proves a difference, otherwise 1; None if not measured."""
        if self.is_reference:
            return 1.0 if isinstance(self.latencies, Latencies) else None
        if isinstance(self.e2e, str):
            return None
        return self.e2e.ratio if self.e2e.verdict in ("faster", "slower") else 1.0

    @property
    def score(self) -> float | None:
        """Quality by `METRIC`, dB; the reference's own if its gate found equal values, infinite for equal pictures."""
        line = _line(self.run, self.reference if self.exact else self.name)
        if line is None or not line.n:
            return None
        return math.inf if line.value is None else line.value

    @property
    def peak_bytes(self) -> int | None:
        peaks = [clip.peak_bytes for clip in timed_clips(self.run) if clip.variant == self.name and clip.peak_bytes is not None]
        return max(peaks, default=None)

    @property
    def reference_settings(self) -> Variant | None:
        return next((each for each in self.run.variants if each.name == self.reference), None)


def run_folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the run folders at or under some folders; of cells that were measured again only the last."""
    found = {file.parent for path in paths if path.is_dir() for name in FILES for file in path.rglob(name)}
    kept = tuple(sorted(folder for folder in found if not superseded(folder)))
    if not kept:
        raise DataError(f"nothing was measured at {', '.join(map(str, paths))}; measure with `strobe compare`")
    return kept


def read_entries(folders: Sequence[Path]) -> tuple[LogEntry, ...]:
    """Read runs of a model as entries, ordered by date; a reference measured in several runs becomes one entry.

    Raises:
        DataError: a folder has no readable records, or none of them measured a model.
    """
    runs = sorted((read_run(folder) for folder in folders), key=lambda run: (run.header.date, str(run.folder)))
    of_models = (run for run in runs if run.header.workload is not None)
    found = (_entry(run, name) for run in of_models for name in dict.fromkeys(run.header.order))
    seen = gathered((each.group if each.is_reference else (str(each.run.folder), each.name), each) for each in found)
    if not seen:
        raise DataError("these runs measured no stream: the log is about streams of a model")
    chosen = ((next((each for each in same if not isinstance(each.latencies, str)), same[0]), same) for same in seen.values())
    return tuple(replace(entry, number=at, repeated=len(same) - 1) for at, (entry, same) in enumerate(chosen, start=1))


def _entry(run: RunRecords, name: str) -> LogEntry:
    settings = next((each for each in run.variants if each.name == name), None)
    found = or_reason(latencies, run, name) if settings is not None else "it never ran"
    e2e = "the reference itself" if name == run.header.baseline else or_reason(compare_stage, run, name, E2E)
    return LogEntry(run=run, name=name, settings=settings, latencies=found, e2e=e2e)


def _line(run: RunRecords, name: str) -> Quality | None:
    return next((line for line in run.quality if line.variant == name and line.metric == METRIC), None)


def _named(settings: Variant) -> dict[str, str]:
    fields = {field.replace("_", " "): _word(getattr(settings, field)) for field in _FIELDS}
    return fields | {knob.name: knob.value for knob in settings.knobs}


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{each:g}" for each in value)
    return "none" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)


# The rule that keeps or drops an entry; the page states it and measurements decide it.

Word = Literal["Keep", "Drop", "Open", "Reference"]
LIGHTER: Final = 0.05
"""Share of the reference's peak memory that an entry must save to be kept for its memory."""

RULE: Final = (
    "The first of these that fits decides.",
    "Drop: it failed, or its gate was red.",
    "Open: it has no finished pair of clips, or no interval (one round).",
    f"Keep: not proven faster, but on a GPU its peak memory is at least {100 * LIGHTER:g} % below its reference's, and its gate "
    "found the values of the reference or its quality was measured; Open if neither.",
    f"Drop: not proven faster: the 95 % interval of its speedup does not exclude 1, or it is below {100 * FLOOR:g} %.",
    "Keep: faster, and its gate found the values of the reference.",
    "Open: faster, other values, and their quality was not measured.",
    f"Drop: another entry of the same reference, model, clip and device is at least as fast and at least as good ({METRIC}), and "
    f"in one of them better.",
    "Keep: faster, and nothing measured is both as fast and as good.",
)
"""The rule in words, in the order in which `decide` checks it."""


def decide(entry: LogEntry, entries: Sequence[LogEntry]) -> tuple[Word, str]:
    """Apply the rule to an entry among all entries of a log; return the verdict and its reason."""
    if entry.error:
        return "Drop", entry.error
    if entry.is_reference:
        return "Reference", "what the others are held against"
    if isinstance(entry.e2e, str):
        return "Open", entry.e2e
    if entry.e2e.interval is None:
        return "Open", "one round has no interval; measure more rounds"
    if entry.e2e.verdict != "faster":
        return _not_faster(entry, entries)
    if entry.exact:
        return "Keep", "faster, and the values are those of the reference"
    if entry.score is None:
        return "Open", f"faster, but quality was not measured: {_reason(entry)}"
    above = next((other for other in entries if dominates(other, entry)), None)
    if above is not None:
        return "Drop", f"{above.label} is at least as fast and at least as good"
    return "Keep", "faster, and nothing measured is both as fast and as good"


def dominates(other: LogEntry, entry: LogEntry) -> bool:
    """Return whether another entry of the group is at least as fast and as good, and better in one of the two."""
    if other is entry or other.group != entry.group or other.error:
        return False
    fast, own_fast, good, own_good = other.speed, entry.speed, other.score, entry.score
    if fast is None or own_fast is None or good is None or own_good is None:
        return False
    return fast >= own_fast and good >= own_good and (fast > own_fast or good > own_good)


def _not_faster(entry: LogEntry, entries: Sequence[LogEntry]) -> tuple[Word, str]:
    assert not isinstance(entry.e2e, str)
    words = {"slower": "slower than its reference", "no difference": "no difference to its reference"}
    why = words.get(entry.e2e.verdict, "not proven faster: the interval includes 1")
    reference = next((each for each in entries if each.is_reference and each.group == entry.group), None)
    peaks = entry.peak_bytes, reference.peak_bytes if reference else None
    on_gpu = entry.run.header.machine.on_gpu
    if on_gpu and peaks[0] is not None and peaks[1] is not None and peaks[0] <= (1 - LIGHTER) * peaks[1]:
        lighter = f"{100 * (1 - peaks[0] / peaks[1]):.0f} % below its reference; {why}"
        if not entry.exact and entry.score is None:
            return "Open", f"memory {lighter}; but quality was not measured: {_reason(entry)}"
        return "Keep", f"for memory, {lighter}"
    return "Drop", why


def _reason(entry: LogEntry) -> str:
    line = _line(entry.run, entry.name)
    return "no line of quality in the records" if line is None else line.note or "no reason given"


_TONES: Final[dict[str, Tone]] = {"Keep": "good", "Drop": "bad", "Open": "muted", "Reference": "plain"}
_LABEL: Final[Field[LogEntry]] = Field("entry", lambda entry: entry.label)
_BATCH: Final[Field[LogEntry]] = count("batch", lambda entry: entry.work.batch)


def _decisions(rows: Sequence[tuple[LogEntry, Word, str]]) -> Table:
    fields: tuple[Field[tuple[LogEntry, Word, str]], ...] = (
        Field("entry", lambda row: row[0].label),
        Field("reference", lambda row: row[0].reference),
        numeric("speedup", lambda row: _speedup(row[0])),
        Field("decision", lambda row: Text(row[1], _TONES[row[1]])),
        Field("why", lambda row: row[2]),
    )
    note = "Speedup: end-to-end time of the reference / own, median over mirrored pairs of one run, with its 95 % interval."
    return table_of("Decisions.", fields, rows, notes=(note,))


def _speedup(entry: LogEntry) -> Cell:
    if isinstance(entry.e2e, str):
        return Missing("" if entry.is_reference else entry.e2e, "-")
    return entry.e2e.cell


def _configurations(entries: Sequence[LogEntry]) -> Table:
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
    """Return the settings that differ from its reference: `window: 6 instead of 12`."""
    if entry.settings is None:
        return Missing("its settings were never written", "not recorded")
    if entry.is_reference:
        again = f", measured in {entry.repeated + 1} runs" if entry.repeated else ""
        return Text(f"the reference itself{again}", "muted")
    after = _named(entry.settings)
    before = after if entry.reference_settings is None else _named(entry.reference_settings)
    values = ((name, after.get(name, "off"), before.get(name, "off")) for name in dict.fromkeys((*before, *after)))
    return Text("; ".join(f"{name}: {own} instead of {other}" for name, own, other in values if own != other) or "nothing")


def _clip(entry: LogEntry) -> Text:
    work = entry.work
    at = ", ".join(str(prompt.frame_block) for prompt in work.prompts[1:])
    return Text(f"{work.frame_blocks} frame blocks, batch {work.batch}, {f'switches at {at}' if at else 'no switch'}")


def _steady(entries: Sequence[LogEntry]) -> Table:
    """Build the table of steady frame blocks, decoding included, the frame rates they give, and the transformer alone."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        _BATCH,
        *_summary("SS", lambda found: found.blocks_ns),
        _rate("latent FPS", lambda found: found.latent_fps),
        _rate("pixel FPS", lambda found: found.pixel_fps),
        count("passes", lambda entry: entry.settings.steps + 1 if entry.settings and entry.settings.steps else None),
        time("DiT of a block", lambda entry: _known(entry, lambda found: found.dit_block_ns), missing=_why),
        numeric("DiT pixel FPS", _dit_fps, show=lambda value: Number(value, 2), missing=_why),
    )
    note = (
        "SS: a steady frame block, streamed, decoding included: delivered. FPS are frames of a block, of all streams of the "
        "batch, / SS mean. A p99 needs "
        f"{P99_SAMPLES} samples. DiT: denoise steps and the commit pass of a steady frame block, without decoding; FPS as if "
        "there were nothing else."
    )
    return table_of("Steady state, delivered with VAE.", fields, entries, notes=(note,))


def _dit_fps(entry: LogEntry) -> Any:
    frames = NS * entry.work.frames_per_block * entry.work.batch
    return _known(entry, lambda found: found.dit_block_ns and frames / found.dit_block_ns)


def _switching(entries: Sequence[LogEntry]) -> Iterator[Table]:
    """Yield the table of first frame blocks under a new prompt, and that of each switch with the block before it."""
    note = "PS: the first frame block under a new prompt, delivered, over all switches and timed clips."
    fields: tuple[Field[LogEntry], ...] = (_LABEL, *_summary("PS", lambda found: found.switches_ns))
    yield table_of("Prompt switches.", fields, entries, notes=(note,))
    rows = [
        (entry, switch) for entry in entries for switch in (() if isinstance(entry.latencies, str) else entry.latencies.switches)
    ]
    switches: tuple[Field[tuple[LogEntry, SwitchCost]], ...] = (
        Field("entry", lambda row: row[0].label),
        *(field.of(lambda row: row[1]) for field in columns(SwitchCost)),
    )
    if rows:
        note = "Medians over clips; extra is the median of the differences within a clip."
        yield table_of("When the prompt switches.", switches, rows, notes=(note,))


def _cost(entries: Sequence[LogEntry]) -> Table:
    """Build the table of peak memory, with and without the text encoder where that is known, and of cold starts."""
    fields: tuple[Field[LogEntry], ...] = (
        _LABEL,
        numeric("peak as measured", lambda entry: entry.peak_bytes or None, show=_gib, missing=_why),
        numeric("with text encoder", lambda entry: _peak(entry, encoder=True)),
        numeric("without text encoder", lambda entry: _peak(entry, encoder=False)),
        time("cold start", lambda entry: entry.settings and entry.settings.cold_start_ns, "s", missing="not taken"),
    )
    notes = (
        "GPU: bytes that torch allocated. CPU: the resident set of the whole process, all variants of a run in one process.",
        "The text encoder's own weights are added or taken away; where they lie outside the counted memory they are added.",
        "Cold start: opening the variant and a short clip of it, minus the same clip again. What an earlier variant "
        "of the process compiled or read is there already.",
    )
    return table_of("Memory and start.", fields, entries, notes=notes)


def _gib(num_bytes: float) -> Cell:
    return bytes_cell(num_bytes, "GiB", 3)


def _peak(entry: LogEntry, *, encoder: bool) -> Cell:
    text, held = (entry.settings.text_encoder_bytes, entry.settings.text_encoder_on_device) if entry.settings else (None, None)
    if entry.peak_bytes is None or text is None or held is None:
        return Missing("the records do not say", "not known")
    return _gib(entry.peak_bytes + (0 if held == encoder else text if encoder else -text))


def _quality_table(entries: Sequence[LogEntry]) -> Table | None:
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


def _why(entry: LogEntry) -> str:
    return entry.error or (entry.latencies if isinstance(entry.latencies, str) else "no steady frame blocks")


def _known(entry: LogEntry, get: Callable[[Latencies], Any]) -> Any:
    return (None if isinstance(entry.latencies, str) else get(entry.latencies)) or None


def _rate(head: str, get: Callable[[Latencies], float | None]) -> Field[LogEntry]:
    return numeric(head, lambda entry: _known(entry, get), show=lambda value: Number(value, 2), missing=_why)


def _summary(name: str, samples: Callable[[Latencies], Sequence[int]]) -> tuple[Field[LogEntry], ...]:

    def of(get: Callable[[Sequence[int]], Any]) -> Callable[[LogEntry], Any]:
        return lambda entry: _known(entry, lambda found: get(own) if (own := samples(found)) else Missing("there were none", "-"))

    figures: dict[str, Callable[[Sequence[int]], Any]] = {
        "mean": statistics.fmean,
        "p50": lambda own: percentile(own, 0.5),
        "p99": lambda own: Missing(f"{len(own)} samples", "-") if (end := p99(own)) is None else end,
        "max": max,
    }
    times = (time(f"{name} {figure}", of(get), missing=_why) for figure, get in figures.items())
    return (*times, count("samples", of(len), missing=_why))


def _quality(line: Quality | None, entry: LogEntry) -> Cell:
    if line is None:
        return Missing(_why(entry) if isinstance(entry.latencies, str) else "not in the records", "not measured")
    if line.value is None:
        return Missing(line.note or "no reason given", "equal" if line.n and line.reference else "not measured")
    return Number(line.value, 4 if abs(line.value) < 10 else 2)


def vary_report(folder: Path) -> Report:
    """Build the page of one preset with settings changed.

    Raises:
        DataError: the folder holds no plan, or nothing of it was measured.
    """
    plan, places, reasons, left = read_plan(folder), list[Path](), list[str](), 0
    notes = [f"{name} is asked for and does nothing here: {why}." for name, why in plan.idle.items()]
    for cell in plan.cells:
        place = folder / CELLS / cell.name
        if cell.refused:
            reasons.append(f"{cell.name}: {cell.refused}")
        elif records_in(place) is None:
            left += 1
        else:
            try:
                read_run(place)
                places.append(place)
            except DataError as error:
                reasons.append(f"{cell.name}: {error}")
    if not places:
        told = f": {'; '.join(reasons)}" if reasons else ""
        raise DataError(f"nothing was measured at {folder}{told}; run the same `strobe compare` again")
    title, missing = f"{plan.base} with settings changed", Fact("Not yet measured", Count(left))
    return log_report(places, folder, title=title, facts=(missing,), notes=[*(f"{each}." for each in reasons), *notes])


def log_report(
    folders: Sequence[Path], into: Path, *, title: str = "Optimisation log", facts: Sequence[Fact] = (), notes: Sequence[str] = ()
) -> Report:
    """Build the log of some run folders.

    Args:
        into: folder that it will lie in.
        notes: on what has no entry.

    Raises:
        DataError: nothing readable, or no stream among it.
    """
    entries = read_entries(folders)
    study = load_study(list(dict.fromkeys(entry.run.folder for entry in entries)), into)
    findings = find(study)
    first, others = change_sections(findings)
    decided = [(entry, *decide(entry, entries)) for entry in entries]
    words = {"Keep": "Kept", "Drop": "Dropped", "Open": "Open"}
    counts = (Fact(said, Count(sum(decision == word for _, decision, _ in decided))) for word, said in words.items())
    head = entries[0].run.header
    quality = _quality_table(entries) or Notes(("Not measured: these records hold no quality numbers.",))
    lead = "Every recorded run is an entry, the failed ones too. Words and numbers are computed from the records."
    references = dict.fromkeys(entry.reference for entry in entries)
    return page(
        speedups=[Speedup(each.label, each.reference, "e2e", each.e2e.cell) for each in entries if not isinstance(each.e2e, str)],
        title=title,
        subtitle=f"{len(entries)} entries of {len(folders)} runs, against {', '.join(references)}, on {head.machine.device_name}",
        facts=(Fact("Model", Text(head.model.name if head.model else "not named")), *counts, *facts),
        banners=banners(study, gather=True, any_clip=True),
        sections=(
            first,
            Section("decisions", "Decisions", lead, (_decisions(decided), Notes((*notes, *RULE)))),
            *_fronts(entries),
            Section("configurations", "Configurations", "", (_configurations(entries),)),
            Section("latency", "Latencies and rates", "", (_steady(entries), *_switching(entries))),
            Section("quality", "Quality", "", (quality,)),
            Section("cost", "Memory and start", "", (_cost(entries),)),
            _moved_section(entries, findings),
            settings_section(load_study([entries[0].run.folder], into)),
            others,
        ),
    )


# What moved: of each change the line of the account that changed most in the direction of the whole.

_Moved: TypeAlias = tuple[LogEntry, Finding, LedgerLine | str]
"""An entry, its account, and the line that moved most, or why there is none."""


def _moved_section(entries: Sequence[LogEntry], findings: Sequence[Finding]) -> Section | None:
    of = {(each.candidate.run.folder, each.candidate.name): each for each in findings}
    rows = [(entry, found, _moved_line(found)) for entry in entries if (found := of.get((entry.run.folder, entry.name)))]
    units = {each.candidate.label: each.ledger.num_units for each in findings if isinstance(each.ledger, Ledger)}
    fields: tuple[Field[_Moved], ...] = (
        Field("entry", lambda row: row[0].label),
        numeric("speedup", lambda row: row[1].e2e and row[1].e2e.cell),
        Field("verdict", lambda row: row[1].e2e and verdict_cell(row[1].e2e.verdict)),
        Field("ledger line it moved", lambda row: Missing(row[2], "-") if isinstance(row[2], str) else row[2].name),
        Field("its level", lambda row: "" if isinstance(row[2], str) else LEVEL_WORDS[row[2].level]),
        time(
            "saved per clip",
            lambda row: None if isinstance(row[2], str) else float(row[2].saved_ns / units[row[1].candidate.label]),
        ),
    )
    note = "The line of the account that saved most where the whole is faster, or cost most where it is slower, inside a clip."
    table = table_of("Lines that moved.", fields, rows, notes=(note,))
    return section_of("moved", "What each change moved", "", (table,) if rows else ())


def _moved_line(finding: Finding) -> LedgerLine | str:
    ledger = finding.ledger
    if isinstance(ledger, str):
        return ledger
    named = (line for line in ledger.lines if part_of(line.label) not in NAMELESS)
    same = [line for line in named if line.level != "e2e" and line.saved_ns * ledger.saved_ns > 0]
    return max(same, key=lambda line: abs(line.saved_ns)) if same else "no line of the traced frame blocks moved with the whole"


# Pareto front of speed and quality.

_Point: TypeAlias = tuple[LogEntry, float, float]
"""An entry, its speedup over the base as it counts, and its quality in dB; infinite: the frames equal the reference's."""


def _measured(entry: LogEntry) -> Ratio:
    return Ratio(1.0) if isinstance(entry.e2e, str) else entry.e2e.cell


def _fronts(entries: Sequence[LogEntry]) -> Iterator[Section]:
    found: list[tuple[LogEntry, tuple[Block, ...]]] = []
    for own in gathered((entry.group, entry) for entry in entries).values():
        points = [(entry, entry.speed, entry.score) for entry in own if entry.speed is not None and entry.score is not None]
        if len(points) > 1:
            notes = (
                "A difference in speed that its interval does not prove counts as none.",
                "On the front is what nothing measured beats in speed without losing quality, or in quality without losing "
                f"speed; dB count up to {BEST:g}.",
                "Quality is measured on this model and clip alone; it does not carry over to another.",
            )
            found.append((own[0], (_points(points), Notes(notes))))
    for number, (entry, shown) in enumerate(found, start=1):
        if len(found) == 1:
            yield Section("front", "Speed and quality", "", shown)
        else:
            title = f"Speed and quality {number}: {entry.reference}, the clip of {entry.label}"
            yield Section(f"front-{number}", title, "", shown)


def _mark(label: str, ratio: Ratio, speed: float, score: float, number: int) -> PlotPoint:
    equal, unproven = score == math.inf, speed != ratio.value
    ends = (ratio.low, ratio.high) if unproven else (None, None)
    return PlotPoint(ratio.value, 0.0 if equal else score, number, label, unproven, *ends, above=equal)


def _points(points: Sequence[_Point]) -> Block:
    best, equal = front(points, lambda point: point[1:]), Missing("the frames equal the reference's", "equal")
    fields: tuple[Field[_Point], ...] = (
        Field("setting", lambda point: point[0].label),
        numeric("measured", lambda point: _measured(point[0])),
        numeric("counts as", lambda point: Number(point[1], 3, "x")),
        numeric(f"{METRIC} (dB)", lambda point: equal if point[2] == math.inf else Number(point[2], 2)),
        Field("front", lambda point: Text("yes", "good") if point in best else ""),
    )
    table = table_of("The points.", fields, points)
    if all(score == math.inf for _, _, score in points):
        return table
    marks = (_mark(entry.label, _measured(entry), speed, score, number) for number, (entry, speed, score) in enumerate(points))
    plane = Plane(Axis("speedup over the base"), Axis(METRIC, "dB"), tuple(marks))
    title = (
        f"{METRIC} against the preset quality, over speedup. Faster is right, nearer to the reference is up. Hollow, with "
        "its interval: a difference that is not proven. An arrow at the upper edge: the frames equal the reference's."
    )
    return Figure(title, "One point per setting; the table says the same.", plane, table)
