"""Entries of the optimisation log: every variant of every recorded run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.runs.compare import Comparison, compare_stage, timed_clips
from strobe.perf.analysis.runs.latency import NS, Latencies, latencies
from strobe.perf.records.packed import FILES
from strobe.perf.records.record import Gate, Quality, Variant, Workload
from strobe.perf.records.store import RunRecords, read_run, superseded

METRIC: Final = "psnr"
"""Quality metric that decides: measured wherever quality is, frame by frame against a named preset with the same noise."""
_FIELDS: Final = ("window", "sink", "positions", "steps", "timesteps", "shift", "dtype", "sparsity", "lora", "compile_mode",
                  "attention_impl")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting that differs between an entry and its reference; empty text: not there."""

    setting: str
    reference: str
    own: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """One variant of one run. A text in place of a result says why there is none.

    Args:
        number: from 1, in order of date.
        repeated: runs that measured the same reference again and have no entry of it.
    """

    number: int
    run: RunRecords
    name: str
    settings: Variant | None
    found: Latencies | str
    e2e: Comparison | str
    repeated: int = 0

    @property
    def label(self) -> str:
        """Number and name of the entry."""
        return f"{self.number} {self.name}"

    @property
    def reference(self) -> str:
        """Name of the variant that it is compared with."""
        return self.run.header.baseline

    @property
    def is_reference(self) -> bool:
        """Whether the other variants of its run are compared with it."""
        return self.name == self.reference

    @property
    def latencies(self) -> Latencies | None:
        """Latencies of its timed clips; None if there are none."""
        return None if isinstance(self.found, str) else self.found

    @property
    def gate(self) -> Gate | None:
        """Gate record of the entry; None if it has none."""
        return next((gate for gate in self.run.gates if gate.variant == self.name), None)

    @property
    def exact(self) -> bool:
        """Whether its gate passed and demanded the values of the reference."""
        return self.gate is not None and self.gate.passed and self.gate.exact

    @property
    def group(self) -> tuple[object, ...]:
        """Reference, model, clip and device; only entries with equal groups are compared."""
        head = self.run.header
        return self.reference, head.model, head.workload, head.machine.device_name

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Settings that differ from its reference."""
        reference = next((each for each in self.run.variants if each.name == self.reference), None)
        if self.settings is None or reference is None:
            return ()
        return tuple(_differences(reference, self.settings))

    @property
    def error(self) -> str:
        """Reason why it has no numbers; empty if it has some, or if it was not reached."""
        if isinstance(self.found, Latencies):
            return ""
        gate, end = self.gate, self.run.end
        if gate is not None and not gate.passed:
            return f"red gate: {gate.rule}: {gate.detail}"
        if end is not None and end.status == "failed" and end.variant in ("", self.name):
            return end.message
        return ""

    @property
    def ratio(self) -> float | None:
        """End-to-end time of the reference / own time; 1 for a reference."""
        if self.is_reference:
            return 1.0 if isinstance(self.found, Latencies) else None
        return None if isinstance(self.e2e, str) else self.e2e.ratio

    @property
    def speed(self) -> float | None:
        """Speedup if its interval proves a difference, otherwise 1."""
        if isinstance(self.e2e, str) or self.e2e.verdict in ("faster", "slower"):
            return self.ratio
        return 1.0

    @property
    def quality(self) -> Quality | None:
        """Its record of `METRIC`; None if not measured."""
        return _line(self.run, self.name)

    @property
    def score(self) -> float | None:
        """Quality by `METRIC`, dB; the reference's own if its gate found equal values, infinite for equal pictures."""
        line = _line(self.run, self.reference if self.exact else self.name)
        if line is None or not line.n:
            return None
        return math.inf if line.value is None else line.value

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory over its timed clips, bytes."""
        peaks = [clip.peak_bytes for clip in timed_clips(self.run) if clip.variant == self.name and clip.peak_bytes is not None]
        return max(peaks, default=None)

    @property
    def work(self) -> Workload | None:
        """Workload of the clip."""
        return self.run.header.workload

    @property
    def dit_fps(self) -> float | None:
        """Pixel frames per second of the transformer alone, without decoding."""
        if isinstance(self.found, str) or not self.found.dit_block_ns or self.work is None:
            return None
        return NS * self.work.frames_per_block * self.work.batch / self.found.dit_block_ns

    @property
    def break_even(self) -> float | None:
        """Frame blocks after which a slower cold start is made up for; 0: it is not slower; None: never, or unknown."""
        reference = next((each for each in self.run.variants if each.name == self.reference), None)
        if self.is_reference or self.settings is None or reference is None or isinstance(self.found, str):
            return None
        own, other = self.settings.cold_start_ns, reference.cold_start_ns
        if own is None or other is None or self.found.block is None:
            return None
        if own <= other:
            return 0.0
        base = latencies(self.run, self.reference).block
        saved = 0.0 if base is None else base.mean_ns - self.found.block.mean_ns
        return (own - other) / saved if saved > 0 else None


def run_folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the run folders at or under some folders; of cells that were measured again only the last.

    Raises:
        DataError: there is no run.
    """
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
    seen: dict[tuple[object, ...], list[LogEntry]] = {}
    for run in runs:
        if run.header.workload is None:
            continue
        for name in dict.fromkeys(run.header.order):
            entry = _entry(run, name)
            key = (*entry.group, name) if entry.is_reference else (str(run.folder), name)
            seen.setdefault(key, []).append(entry)
    if not seen:
        raise DataError("these runs measured no stream: the log is about streams of a model")
    chosen = [
        (next((each for each in same if not isinstance(each.found, str)), same[0]), len(same) - 1) for same in seen.values()
    ]
    return tuple(
        LogEntry(
            number=number,
            run=entry.run,
            name=entry.name,
            settings=entry.settings,
            found=entry.found,
            e2e=entry.e2e,
            repeated=repeated,
        )
        for number, (entry, repeated) in enumerate(chosen, start=1)
    )


def _entry(run: RunRecords, name: str) -> LogEntry:
    settings = next((each for each in run.variants if each.name == name), None)
    found: Latencies | str
    e2e: Comparison | str
    try:
        found = latencies(run, name) if settings is not None else "it never ran"
    except DataError as error:
        found = str(error)
    try:
        e2e = "the reference itself" if name == run.header.baseline else compare_stage(run, name, E2E)
    except DataError as error:
        e2e = str(error)
    return LogEntry(number=0, run=run, name=name, settings=settings, found=found, e2e=e2e)


def _line(run: RunRecords, name: str) -> Quality | None:
    return next((line for line in run.quality if line.variant == name and line.metric == METRIC), None)


def _differences(reference: Variant, own: Variant) -> Iterator[Difference]:
    for field in _FIELDS:
        pair = _word(getattr(reference, field)), _word(getattr(own, field))
        if pair[0] != pair[1]:
            yield Difference(setting=field.replace("_", " "), reference=pair[0], own=pair[1])
    knobs = [{knob.name: knob.value for knob in variant.knobs} for variant in (reference, own)]
    for name in dict.fromkeys((*knobs[0], *knobs[1])):
        pair = knobs[0].get(name, "off"), knobs[1].get(name, "off")
        if pair[0] != pair[1]:
            yield Difference(setting=name, reference=pair[0], own=pair[1])


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{each:g}" for each in value)
    return "none" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)
