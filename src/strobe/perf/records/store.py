"""Writer and reader of run folders: `records.jsonl` keeps every finished record even if the process is killed."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from strobe.core.errors import ConfigError, DataError, StrobeError, unknown_choice
from strobe.core.files import not_written
from strobe.core.notebook import html_table
from strobe.core.printable import first_of
from strobe.perf.records.base import Line
from strobe.perf.records.checks import Check
from strobe.perf.records.grids import AttentionCell, Links, Prediction, Surroundings
from strobe.perf.records.lines import read_lines, seal
from strobe.perf.records.packed import RECORDS, read_bytes, records_file
from strobe.perf.records.record import (
    Clip,
    End,
    Excluded,
    Gate,
    Header,
    LaunchedPasses,
    Memory,
    Quality,
    Record,
    Regions,
    Span,
    Trace,
    Variant,
    Video,
)
from strobe.perf.records.viewers import Served, Server, Viewer

T = TypeVar("T")
_LISTED: Final = 8
"""Most line numbers that a damage sentence lists."""

_TABLES: Final = (
    "spans", "clips", "variants", "traces", "videos", "quality", "gates", "excluded", "memory", "predictions", "served",
    "viewers", "checks",
)  # fmt: skip

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


# -------------------------------------------------------------------------------------------------------------- writing


class RunWriter:
    """Appends records to `folder/records.jsonl`, or to another file of the folder.

    Records are handed to the system in one write per call, so that the file holds whole lines however the process ends; after
    `sync` they also survive a crash of the machine. After a failed write the file is cut back to its last whole line.

    Args:
        folder: made if absent; must be empty.
        name: of the file.

    Raises:
        ConfigError: the folder holds something already, or is not a folder.
        StrobeError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: str = RECORDS) -> None:
        self.folder = folder
        self._file = folder / name
        self._count = 0
        self._length = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise ConfigError(f"run folder {folder} is not empty; a run is never overwritten, name another folder")
            self._fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"run folder {folder} cannot be used: {error.strerror}; name another folder") from error
        except OSError as error:
            raise not_written(folder, error) from error

    def append(self, *records: Line) -> None:
        """Write the records, one line each, all or none.

        Raises:
            StrobeError: no space, or the disk fails; everything appended before stays readable.
        """
        lines = (seal(_encoder.encode(record), number) for number, record in enumerate(records, start=self._count + 1))
        data = b"".join(line + b"\n" for line in lines)
        try:
            rest = memoryview(data)
            while rest:  # a disk that is nearly full takes a part, and says at the next that it is
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise self._failed(error, len(data)) from error
        self._length += len(data)
        self._count += len(records)

    def sync(self) -> None:
        """Wait until everything appended is on the disk.

        Raises:
            StrobeError: the disk fails.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _failed(self, error: OSError, size_bytes: int = 0) -> StrobeError:
        return not_written(self._file, error, size_bytes, f"the {self._count} records written before are kept; ")


def create_run(root: Path, slug: str) -> RunWriter:
    """Create `root/<utc>-<slug>-<6 hex>` and return its writer.

    Args:
        slug: what the run is about; anything but letters, digits and `-` becomes `-`.

    Raises:
        StrobeError: the folder cannot be written.
    """
    words = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-")[:48] or "run"
    return RunWriter(root / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{words}-{secrets.token_hex(3)}")


def rotate(folder: Path) -> Path | None:
    """Rename a folder that is not empty: `traces` becomes `traces.1`, or the first number that is free.

    Returns:
        the new name; None if there is nothing to move.

    Raises:
        ConfigError: the folder is not a folder, or the one this process works in lies in it.
        StrobeError: it cannot be renamed.
    """
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        if not folder.is_dir() or Path.cwd().is_relative_to(folder.resolve()):
            raise ConfigError(f"{folder} cannot be moved out of the way; name a folder of its own")
        number = next(number for number in itertools.count(1) if not folder.with_name(f"{folder.name}.{number}").exists())
        return folder.rename(folder.with_name(f"{folder.name}.{number}"))
    except OSError as error:
        raise StrobeError(f"cannot move {folder} out of the way: {error.strerror}; name another folder") from error


def superseded(folder: Path) -> bool:
    """Return whether `rotate` moved the folder out of the way of a later run, which is there."""
    stem, dot, number = folder.name.rpartition(".")
    return bool(dot) and number.isdecimal() and folder.with_name(stem).is_dir()


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """Every finished record of one run, by kind, in the order written; clips with a damaged line are left out.

    Args:
        truncated: the last line was cut short and is not among the records.
        bad_lines: numbers (from 1) of other lines that are not records, or not as they were written.
        end: None: the run was killed.
        missing_lines: lines that were written and are gone.
        damaged_clips: clips that are left out, one line for each, which `excluded` has too.
        left_out_lines: numbers of the lines that do not count: those that are bad, and the others of damaged clips.
        broken: what is damaged in the gzip of packed records; empty if nothing is.
    """

    folder: Path
    header: Header
    variants: tuple[Variant, ...]
    spans: tuple[Span, ...]
    clips: tuple[Clip, ...]
    traces: tuple[Trace, ...]
    videos: tuple[Video, ...]
    quality: tuple[Quality, ...]
    gates: tuple[Gate, ...]
    excluded: tuple[Excluded, ...]
    end: End | None
    truncated: bool
    bad_lines: tuple[int, ...]
    memory: tuple[Memory, ...] = ()
    regions: tuple[Regions, ...] = ()
    passes: tuple[LaunchedPasses, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    cell: AttentionCell | None = None
    surroundings: Surroundings | None = None
    links: Links | None = None
    server: Server | None = None
    served: tuple[Served, ...] = ()
    viewers: tuple[Viewer, ...] = ()
    checks: tuple[Check, ...] = ()
    missing_lines: int = 0
    damaged_clips: tuple[Excluded, ...] = ()
    left_out_lines: frozenset[int] = frozenset()
    broken: str = ""

    def __str__(self) -> str:
        """Return a few lines: what was measured where, how it ended, and how many records of each kind there are."""
        head = self.header
        kinds = ("variants", "clips", "spans", "traces", "quality", "gates", "excluded", "memory", "viewers")
        counts = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in kinds if getattr(self, kind))
        ended = "killed: it has no end" if self.end is None else " ".join((self.end.status, self.end.message)).strip()
        return "\n".join(
            (f"{head.kind} run {head.run}, {head.date}, on {head.machine.device_name}: {ended}", counts, *self.damage)
        )

    __repr__ = __str__

    @property
    def made(self) -> str:
        """Return the finished share of a run in words: `25 of 50 timed clips`."""
        timed = sum(clip.phase == "timed" for clip in self.clips)
        each = {"calls": "samples", "programs": "runs of programs"}.get(self.header.kind, "timed clips")
        planned = self.header.palindromes * len(self.header.order)
        return f"{timed} of {planned} {each}" if timed <= planned else f"{timed} {each}"

    @property
    def damage(self) -> tuple[str, ...]:
        """Sentences, one for each kind of damage and each clip left out for it; empty if every line is as it was written."""
        found = [self.broken] if self.broken else []
        if self.bad_lines:
            numbers = first_of([*map(str, self.bad_lines)], _LISTED)
            which = f"lines {numbers} are" if len(self.bad_lines) > 1 else f"line {numbers} is"
            found.append(f"{which} damaged in {RECORDS} and not read")
        if self.missing_lines:
            found.append(f"{RECORDS} lacks {self.missing_lines} of its lines")
        found += [f"clip {line.indices[0]} of {line.variant} is left out: {line.cause}" for line in self.damaged_clips]
        return tuple(found)

    def variant(self, name: str) -> Variant:
        """Return the settings of a variant.

        Raises:
            DataError: the run has no such variant.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise DataError(f"run {self.header.run} has no variant {name!r}; it has: {', '.join(v.name for v in self.variants)}")

    def rows(self, table: str = "spans") -> list[dict[str, Any]]:
        """Return the records of one kind as one dictionary each: `pandas.DataFrame(run.rows())`.

        Args:
            table: spans, clips, variants, traces, videos, quality, gates, excluded, memory, predictions, served, viewers
                or checks; docs/records.md has their keys.

        Raises:
            ConfigError: there is no such table.
        """
        if table not in _TABLES:
            raise unknown_choice("table", table, _TABLES)
        return [msgspec.to_builtins(record) for record in getattr(self, table)]

    def _repr_html_(self) -> str:
        """Return HTML tables of the run's clips and scores for a notebook."""
        head = self.header
        clips = [
            {"variant": clip.variant, "phase": clip.phase, "order": clip.order, "peak_bytes": clip.peak_bytes}
            for clip in self.clips
        ]
        scores = [{"variant": each.variant, "metric": each.metric, "value": each.value, "n": each.n} for each in self.quality]
        title = f"<h4>{escape(head.run)}, {escape(head.date)}, {escape(head.machine.device_name)}</h4>"
        return title + html_table("clips", clips) + html_table("quality", scores)


def read_run(path: str | Path) -> RunRecords:
    """Read the undamaged records of a run folder, or of its `records.jsonl` or `records.jsonl.gz`.

    A line counts if its checksum is right and its number is the next; in a file older than checksums, if it is a record. A clip
    counts if all of its lines do.

    ```python
    run = strobe.read_run("runs/20260101T120000Z-compare-1a2b3c")
    pandas.DataFrame(run.rows())  # one row per timed region
    ```

    Raises:
        RecordVersionError: a line was written with a schema this reader does not know.
        DataError: no such file, plain and packed records side by side, or no header.
    """
    path = Path(path)
    file = path / RECORDS if path.is_dir() else path
    try:
        file = records_file(path)
        data, broken = read_bytes(file)
    except OSError as error:
        raise DataError(f"no records at {file}: {error.strerror}; give a run folder or its {RECORDS}") from error
    lines = read_lines(file, data, _decoder)
    run = _sort(file, lines.found, lines.bad, missing=lines.missing, truncated=lines.truncated)
    return replace(run, broken=broken) if broken else run


def _damaged_clips(records: Mapping[int, Record], *, lossy: bool) -> dict[tuple[str, int], str]:
    """Return the clips that lack lines, each with the reason why it is left out.

    Args:
        lossy: some line of the file is damaged, so that spans without a clip line are no clip that was never finished.
    """
    spans = Counter((record.variant, record.clip) for record in records.values() if isinstance(record, Span))
    clips = {(record.variant, record.clip): record for record in records.values() if isinstance(record, Clip)}
    found = {
        name: f"damaged records, {spans[name]} of {clip.num_spans} spans are sound"
        for name, clip in clips.items()
        if spans[name] != clip.num_spans
    }
    if lossy:
        found |= {name: "damaged records, its own line is not there" for name in spans if name not in clips}
    return found


def _of(records: Iterable[Record], kind: type[T]) -> tuple[T, ...]:
    return tuple(record for record in records if isinstance(record, kind))


def _sort(file: Path, found: Mapping[int, Record], bad: tuple[int, ...], *, missing: int, truncated: bool) -> RunRecords:
    damaged = _damaged_clips(found, lossy=bool(bad or missing))
    own = {
        number for number, record in found.items() if isinstance(record, Span | Clip) and (record.variant, record.clip) in damaged
    }
    records = [record for number, record in found.items() if number not in own]
    headers, ends = _of(records, Header), _of(records, End)
    if not headers:
        raise DataError(
            f"{file} has no header: it was cut before the run began, the header's line is damaged, or it is no record file"
        )
    left_out = tuple(
        Excluded(variant=variant, span="clip", clip=None, indices=(clip,), kind="damaged", cause=cause)
        for (variant, clip), cause in damaged.items()
    )
    return RunRecords(
        folder=file.parent,
        header=headers[0],
        variants=_of(records, Variant),
        spans=_of(records, Span),
        clips=_of(records, Clip),
        traces=_of(records, Trace),
        videos=_of(records, Video),
        quality=_of(records, Quality),
        gates=_of(records, Gate),
        excluded=(*_of(records, Excluded), *left_out),
        end=ends[-1] if ends else None,
        truncated=truncated,
        bad_lines=bad,
        memory=_of(records, Memory),
        regions=_of(records, Regions),
        passes=_of(records, LaunchedPasses),
        predictions=_of(records, Prediction),
        cell=next(iter(_of(records, AttentionCell)), None),
        surroundings=next(iter(_of(records, Surroundings)), None),
        links=next(iter(_of(records, Links)), None),
        server=next(iter(_of(records, Server)), None),
        served=_of(records, Served),
        viewers=_of(records, Viewer),
        checks=_of(records, Check),
        missing_lines=missing,
        damaged_clips=left_out,
        left_out_lines=frozenset((*bad, *own)),
    )
