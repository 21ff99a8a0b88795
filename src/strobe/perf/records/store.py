"""One run, one folder: `records.jsonl` written so that a kill at any moment loses no finished record, and read back."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from strobe.core.errors import ConfigError, DataError, RecordVersionError, StrobeError, unknown_choice
from strobe.core.notebook import html_table
from strobe.perf.records.record import (
    READABLE_VERSIONS,
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

T = TypeVar("T")

RECORDS: Final = "records.jsonl"
_TABLES: Final = ("spans", "clips", "variants", "traces", "videos", "quality", "gates", "excluded", "memory")

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


class _Probe(msgspec.Struct):
    v: int


_probe: Final = msgspec.json.Decoder(_Probe)


# -------------------------------------------------------------------------------------------------------------- writing


class RunWriter:
    """Appends records to `folder/records.jsonl`.

    Records are handed to the system in one write per call, so that the file holds whole lines however the process ends; `sync`
    makes them safe against a machine that dies too. After a failed write the file is cut back to its last whole line.

    Args:
        folder: made if absent; must be empty.

    Raises:
        ConfigError: the folder holds something already, or is not a folder.
        StrobeError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._length = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise ConfigError(f"run folder {folder} is not empty; a run is never overwritten, name another folder")
            self._fd = os.open(folder / RECORDS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"run folder {folder} cannot be used: {error.strerror}; name another folder") from error
        except OSError as error:
            raise StrobeError(f"run folder {folder} cannot be written: {error.strerror}") from error

    def append(self, *records: Record) -> None:
        """Write the records, one line each, all or none.

        Raises:
            StrobeError: no space, or the disk fails; everything appended before stays readable.
        """
        data = b"".join(_encoder.encode(record) + b"\n" for record in records)
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(0, "the disk took only a part of the record")
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise self._failed(error) from error
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

    def _failed(self, error: OSError) -> StrobeError:
        return StrobeError(
            f"cannot write {self.folder / RECORDS}: {error.strerror}; the {self._count} records written before are kept, "
            f"make room or run again with another output folder"
        )


def create_run(root: Path, slug: str) -> RunWriter:
    """Make `root/<utc>-<slug>-<6 hex>` and return its writer.

    Args:
        slug: what the run is about; anything but letters, digits and `-` becomes `-`.

    Raises:
        StrobeError: the folder cannot be written.
    """
    words = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-")[:48] or "run"
    return RunWriter(root / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{words}-{secrets.token_hex(3)}")


def rotate(folder: Path) -> Path | None:
    """Move a folder that holds something out of the way: `traces` becomes `traces.1`, or the first number that is free.

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


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """Every finished record of one run, by kind, in the order written.

    Args:
        truncated: the last line was cut short and is not among the records.
        bad_lines: numbers (from 1) of other lines that are not records.
        end: None: the run was killed.
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
            table: spans, clips, variants, traces, videos, quality, gates, excluded or memory; keys as in docs/records.md.

        Raises:
            ConfigError: there is no such table.
        """
        if table not in _TABLES:
            raise unknown_choice("table", table, _TABLES)
        return [msgspec.to_builtins(record) for record in getattr(self, table)]

    def _repr_html_(self) -> str:
        """What a notebook shows: the run, its clips and its scores."""
        head = self.header
        clips = [
            {"variant": clip.variant, "phase": clip.phase, "order": clip.order, "peak_bytes": clip.peak_bytes}
            for clip in self.clips
        ]
        scores = [{"variant": each.variant, "metric": each.metric, "value": each.value, "n": each.n} for each in self.quality]
        title = f"<h4>{escape(head.run)}, {escape(head.date)}, {escape(head.machine.device_name)}</h4>"
        return title + html_table("clips", clips) + html_table("quality", scores)


def read_run(path: str | Path) -> RunRecords:
    """Read a run folder (or its `records.jsonl`): every finished record, with what could not be read counted.

    ```python
    run = strobe.read_run("runs/20260101T120000Z-compare-1a2b3c")
    pandas.DataFrame(run.rows())  # one row per timed region
    ```

    Raises:
        RecordVersionError: a line was written with a schema this reader does not know.
        DataError: no such file, or no header.
    """
    path = Path(path)
    file = path / RECORDS if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"no records at {file}: {error.strerror}; give a run folder or its {RECORDS}") from error
    lines = data.split(b"\n")
    tail = lines.pop()
    records: list[Record] = []
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        record = _decode(line, file, number)
        if record is None:
            bad.append(number)
        else:
            records.append(record)
    return _sort(file.parent, records, truncated=bool(tail), bad=bad)


def _decode(line: bytes, file: Path, number: int) -> Record | None:
    """Return the record in a line, or None if there is none."""
    try:
        record = _decoder.decode(line)
        version = record.v
    except (msgspec.DecodeError, UnicodeDecodeError):
        record = None
        try:
            version = _probe.decode(line).v
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    if version not in READABLE_VERSIONS:
        known = ", ".join(map(str, READABLE_VERSIONS))
        raise RecordVersionError(
            f"{file}:{number} has record schema {version}; this strobe reads {known}; use the version that wrote it"
        )
    return record


def _of(records: Iterable[Record], kind: type[T]) -> tuple[T, ...]:
    return tuple(record for record in records if isinstance(record, kind))


def _sort(folder: Path, records: list[Record], *, truncated: bool, bad: list[int]) -> RunRecords:
    headers, ends = _of(records, Header), _of(records, End)
    if not headers:
        raise DataError(f"{folder / RECORDS} has no header; it was cut before the run began, or is not a record file")
    return RunRecords(
        folder=folder,
        header=headers[0],
        variants=_of(records, Variant),
        spans=_of(records, Span),
        clips=_of(records, Clip),
        traces=_of(records, Trace),
        videos=_of(records, Video),
        quality=_of(records, Quality),
        gates=_of(records, Gate),
        excluded=_of(records, Excluded),
        end=ends[-1] if ends else None,
        truncated=truncated,
        bad_lines=tuple(bad),
        memory=_of(records, Memory),
        regions=_of(records, Regions),
        passes=_of(records, LaunchedPasses),
    )
