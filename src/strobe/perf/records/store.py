"""Run folders: records written, packed and read."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import secrets
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from strobe.core.errors import ConfigError, DataError, StrobeError, Terminated, unknown_choice
from strobe.core.files import file_inside, found_inside, not_written, write_whole
from strobe.core.notebook import html_table
from strobe.core.printable import first_of
from strobe.perf.records.record import (
    SCHEMA_VERSION,
    AttentionCell,
    Check,
    Clip,
    ClipTrace,
    End,
    Excluded,
    Gate,
    Header,
    LaunchedPasses,
    Line,
    Links,
    Memory,
    Prediction,
    Quality,
    Record,
    Regions,
    Served,
    Server,
    Span,
    Surroundings,
    Variant,
    Video,
    Viewer,
)

# Lines of `records.jsonl`: each is sealed with its number and a checksum, so that changed, lost and repeated ones are found.
#
# A sealed line is `{...,"line":12,"crc":"89abcdef"}`: `line` counts from 1, `crc` is the CRC-32 of all bytes before `,"crc"`.

_SEAL: Final = re.compile(rb',"line":([1-9][0-9]{0,11}),"crc":"([0-9a-f]{8})"\}')
_LENGTH: Final = len(b',"line":123456789012,"crc":"89abcdef"}')


def seal(line: bytes, number: int) -> bytes:
    """Add number and checksum to a JSON object on one line."""
    body = b'%s,"line":%d' % (line[:-1], number)
    return b'%s,"crc":"%08x"}' % (body, zlib.crc32(body))


def number_of(line: bytes) -> int | None:
    """Return the number in the seal of a line; 0 if the checksum does not fit the line, None if the line has no seal."""
    found = _SEAL.fullmatch(line, max(0, line.rfind(b',"line":', -_LENGTH)))
    if found is None:
        return None
    return int(found[1]) if zlib.crc32(line[: found.start(2) - len(b',"crc":"')]) == int(found[2], 16) else 0


def check(lines: Sequence[bytes]) -> tuple[frozenset[int], int]:
    """Check the numbers and checksums of all whole lines of a file; one without any was written before there were some.

    Returns:
        Positions, from 0, of lines that are not as they were written or stand where they do not belong, and how many are gone.
    """
    numbers = [number_of(line) for line in lines]
    if not any(numbers):
        return frozenset(at for at, number in enumerate(numbers) if number == 0), 0
    bad, last = set(), 0
    for at, number in enumerate(numbers):
        if number is None or number <= last:
            bad.add(at)
        else:
            last = number
    return frozenset(bad), max(0, last - len(lines))


def _decode(line: bytes, file: Path, number: int) -> Record | None:
    """Return the record in a line, or None if there is none; raises DataError for a schema that this reader does not know."""
    record: Record | None = None
    try:
        record = _decoder.decode(line)
        version = record.v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            version = msgspec.json.decode(line)["v"]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
            return None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise DataError(
            f"{file}:{number} has record schema {version}; this strobe reads {SCHEMA_VERSION}; use the version that wrote it"
        )
    return record


# The file that holds a run's records: `records.jsonl` as it is written, or `records.jsonl.gz` as it is published.

RECORDS: Final = "records.jsonl"
PACKED: Final = "records.jsonl.gz"
FILES: Final = (RECORDS, PACKED)
MAX_BYTES: Final = 1 << 31
"""Largest size that packed records may unpack to, bytes."""

_GZIP: Final = b"\x1f\x8b"


def records_in(folder: Path) -> Path | None:
    """Return the file with the records of a run folder; None if it has none that can be opened.

    Raises:
        DataError: the folder holds plain and packed records.
    """
    there = [file for name in FILES if (file := found_inside(folder, name)) is not None]
    if len(there) > 1:
        raise DataError(f"{folder} holds both {RECORDS} and {PACKED}; remove one of them")
    return there[0] if there else None


def records_file(path: Path) -> Path:
    """Return the file with the records of a run folder, or the file itself.

    Raises:
        DataError: the folder holds plain and packed records, or the file leads out of it or is no plain file.
        OSError: there is none.
    """
    if path.is_dir():
        return records_in(path) or file_inside(path, PACKED if (path / PACKED).is_symlink() else RECORDS)
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a plain file, and is not opened")
    return path


def read_bytes(file: Path) -> bytes:
    """Return the lines of a record file, unpacked if they are gzip.

    Raises:
        DataError: the gzip is damaged, or unpacks to more than `MAX_BYTES`.
        OSError: the file cannot be read.
    """
    data = file.read_bytes()
    if not data.startswith(_GZIP):
        return data
    reader = zlib.decompressobj(wbits=31)
    try:
        found = reader.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise DataError(f"{file} is damaged as gzip, and is not read ({error}); get it again") from error
    if len(found) > MAX_BYTES:
        raise DataError(f"{file} unpacks to more than {MAX_BYTES:,} bytes, and is not read; give the records of one run")
    if not reader.eof or reader.unused_data.strip(b"\0"):
        what = f"has {len(reader.unused_data):,} bytes after its gzip" if reader.eof else "is cut short as gzip"
        raise DataError(f"{file} {what}, and is not read; get it again")
    return found


def pack(folder: Path) -> Path:
    """Replace `records.jsonl` of a run folder by `records.jsonl.gz`; equal bytes for equal records.

    Raises:
        DataError: the folder has no plain records, or packed ones beside them.
        StrobeError: the packed file cannot be written; then the plain one stands.
    """
    plain = records_in(folder)
    if plain is None or plain.name != RECORDS:
        raise DataError(f"{folder} has no {RECORDS} to pack; name a run folder with plain records")
    packed = write_whole(folder / PACKED, gzip.compress(plain.read_bytes(), 9, mtime=0))
    plain.unlink()
    return packed


# Writer and reader of run folders: `records.jsonl` keeps every finished record even if the process is killed.

_LISTED: Final = 8
"""Most line numbers that a damage sentence lists."""

_TABLES: Final[dict[str, type[Record]]] = {
    "spans": Span, "clips": Clip, "variants": Variant, "traces": ClipTrace, "videos": Video, "quality": Quality, "gates": Gate,
    "excluded": Excluded, "memory": Memory, "predictions": Prediction, "served": Served, "viewers": Viewer, "checks": Check,
    "regions": Regions, "passes": LaunchedPasses,
}  # fmt: skip
"""Kinds of lines that a run may have many of, by the field that holds them."""
_ALONE: Final[dict[str, type[Record]]] = {
    "cell": AttentionCell, "surroundings": Surroundings, "links": Links, "server": Server,
}  # fmt: skip

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


# -------------------------------------------------------------------------------------------------------------- writing


class RunWriter:
    """Appends records to `folder/records.jsonl`.

    Records are handed to the system in one write per call, so that the file holds whole lines however the process ends; after
    `sync` they also survive a crash of the machine. After a write that failed or was interrupted the file is cut back to its last
    whole line.

    Args:
        folder: made if absent; must be empty.

    Raises:
        ConfigError: the folder holds something already, or is not a folder.
        StrobeError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / RECORDS
        self._end = (0, 0)  # bytes and records that are written whole
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
        length, count = before = self._end
        lines = (seal(_encoder.encode(record), number) for number, record in enumerate(records, start=count + 1))
        data = b"".join(line + b"\n" for line in lines)
        after = length + len(data), count + len(records)
        try:
            rest = memoryview(data)
            while rest:  # a disk that is nearly full takes a part, and says at the next that it is
                rest = rest[os.write(self._fd, rest) :]
            self._end = after
        except (OSError, KeyboardInterrupt, Terminated) as error:  # the latter two may come once all is written
            self._end = after if os.fstat(self._fd).st_size == after[0] else before
            os.ftruncate(self._fd, self._end[0])
            if isinstance(error, OSError):
                raise self._failed(error, len(data)) from error
            raise

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
        return not_written(self._file, error, size_bytes, f"the {self._end[1]} records written before are kept; ")


def create_run(root: Path, slug: str) -> RunWriter:
    """Create `root/<utc>-<slug>-<6 hex>` and return its writer.

    Args:
        slug: what the run is about; anything but letters, digits and `-` becomes `-`.
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
    """

    folder: Path
    header: Header
    variants: tuple[Variant, ...]
    spans: tuple[Span, ...]
    clips: tuple[Clip, ...]
    traces: tuple[ClipTrace, ...]
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
        found = list[str]()
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
            table: spans, clips, variants, traces, videos, quality, gates, excluded, memory, predictions, served, viewers, checks,
                regions or passes; docs/records.md has their keys.

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
        DataError: no such file, plain and packed records side by side, no header, or a line with a schema this reader does not
            know.
    """
    path = Path(path)
    file = path / RECORDS if path.is_dir() else path
    try:
        file = records_file(path)
        data = read_bytes(file)
    except OSError as error:
        raise DataError(f"no records at {file}: {error.strerror}; give a run folder or its {RECORDS}") from error
    lines = data.split(b"\n")
    tail = lines.pop()
    damaged, missing = check(lines)
    found = {
        number: record
        for number, line in enumerate(lines, start=1)
        if number - 1 not in damaged and (record := _decode(line, file, number)) is not None
    }
    bad = tuple(number for number in range(1, len(lines) + 1) if number not in found)
    return _sort(file, found, {"truncated": bool(tail), "bad_lines": bad, "missing_lines": missing})


def _damaged_clips(records: Mapping[int, Record], *, lossy: bool) -> dict[tuple[str, int], str]:
    """Return the clips that lack lines, each with the reason why it is left out. `lossy`: some line of the file is damaged, so
    that spans without a clip line are no clip that was never finished."""
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


def _sort(file: Path, found: Mapping[int, Record], damage: Mapping[str, Any]) -> RunRecords:
    """Return the records by kind; `damage` are the fields of what is damaged in the file."""
    damaged = _damaged_clips(found, lossy=bool(damage["bad_lines"] or damage["missing_lines"]))
    own = {
        number for number, record in found.items() if isinstance(record, Span | Clip) and (record.variant, record.clip) in damaged
    }
    of_kind: dict[type[Record], list[Any]] = defaultdict(list)
    for number, record in found.items():
        if number not in own:
            of_kind[type(record)].append(record)
    if not of_kind[Header]:
        raise DataError(
            f"{file} has no header: it was cut before the run began, the header's line is damaged, or it is no record file"
        )
    left_out = tuple(
        Excluded(variant=variant, span="clip", clip=None, indices=(clip,), kind="damaged", cause=cause)
        for (variant, clip), cause in damaged.items()
    )
    of_kind[Excluded] += left_out
    kinds: dict[str, Any] = {name: tuple(of_kind[kind]) for name, kind in _TABLES.items()}
    kinds |= {name: next(iter(of_kind[kind]), None) for name, kind in _ALONE.items()}
    return RunRecords(
        folder=file.parent,
        header=of_kind[Header][0],
        end=of_kind[End][-1] if of_kind[End] else None,
        damaged_clips=left_out,
        left_out_lines=frozenset((*damage["bad_lines"], *own)),
        **kinds,
        **damage,
    )
