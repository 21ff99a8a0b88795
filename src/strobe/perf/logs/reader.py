"""Reader of logs: lines of any framework into a frozen `Log`."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.perf.logs.patterns import Kind, Pattern, Patterns, load_patterns, read
from strobe.perf.logs.series import MAX_EXAMPLES, MAX_TEXT, Example, LineCounts, Log, Sample, series_of
from strobe.perf.records.record import SCHEMA_VERSION, Header, Record, Span
from strobe.perf.records.store import RunRecords, number_of, read_run

# Lines of a log file, one at a time: gzip, encodings, `\r` progress lines, terminal colours, very long lines.

LONGEST: Final = 16 * 1024
"""Longest part of a line that is read, characters; the rest is skipped."""
_TERMINAL: Final = re.compile(
    "\\[[0-9]{1,3}(?:;[0-9]{1,3}){0,4}m"  # colours whose escape character is lost
    "|\x1b\\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    "|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # titles, links
    "|\x1b[ -/]*[0-~]"
    "|[\x00-\x08\x0a-\x1f\x7f-\x9f]"  # control characters but the tab
)
_TOLD: Final = 1 << 10
_BYTE_ORDER: Final = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


_Line: TypeAlias = tuple[int, str, bool]
"""Number of a line (the parts of a progress line share one), its text, and whether it ends in a line feed."""


def read_lines(path: Path, counts: Counter[str]) -> Iterator[_Line]:
    """Yield the lines of a file without terminal codes; a damaged end is left out.

    Args:
        counts: lines `mended` and `cut`, whether the file is `truncated`, and the bytes `done` so far are counted there.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(unpacked(file), file, counts)
    except OSError as error:
        raise DataError(f"cannot read log {path}: {error.strerror or error}; name a text file or a .gz of one") from error


def unpacked(file: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    """Return a reader of the file's bytes, decompressed if the file is gzip."""
    return gzip.GzipFile(fileobj=file) if file.peek(2).startswith(b"\x1f\x8b") else file


def _lines(stream: io.BufferedReader | gzip.GzipFile, file: io.BufferedReader, counts: Counter[str]) -> Iterator[_Line]:
    number = 1
    try:
        head = stream.peek(3)
        encoding = next((name for mark, name in _BYTE_ORDER.items() if head.startswith(mark)), "utf-8")
        text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline="")
        while line := text.readline(LONGEST):
            end = line
            if len(line) == LONGEST and line[-1] not in "\r\n":
                counts["cut"] += 1
                while end and end[-1] not in "\r\n":
                    end = text.readline(LONGEST)
            counts["mended"] += "\ufffd" in line
            whole = end.endswith("\n")
            yield number, _TERMINAL.sub("", line), whole
            number += whole
            if number % _TOLD == 0:
                counts["done"] = file.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        counts["truncated"] = 1


# Ranks that the lines of a log name, in the prefixes of launchers and servers.

_RANK: Final = re.compile(r"\brank\s*[:=#]?\s*(\d{1,6})\b|^\[default(\d{1,6})\]", re.IGNORECASE)
_PARTS: Final = r"(?:(?:DP|PP|TP|SP|CP|EP)\d{1,6}[_ ]?)+"
_WORKER: Final = re.compile(
    rf"\((?P<role>[A-Za-z]\w*?)(?:[-_ ]?(?P<number>{_PARTS}|\d{{1,6}}))? pid=(?P<pid>\d{{1,9}})[^)]{{0,80}}\)"
)
_SERVER: Final = re.compile(rf"^(?:\[[^\]]{{0,40}}?)?\b(?P<number>{_PARTS})\]")
_PART: Final = re.compile(r"(DP|PP|TP|SP|CP|EP)(\d{1,6})")


class _Ranks:
    """Finder of ranks in the lines of one log.

    `[rank 1]`, `RANK1` and `[default1]:` name a rank, and so do the prefixes of workers: `(Worker_TP1 pid=990)`,
    `(Worker-1 pid=990)` and `TP1]`. Where a prefix has several coordinates, or a process number alone, ranks are counted as they
    come.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], int] = {}

    def of(self, text: str, before: int) -> int | None:
        """Return the last rank that the text names before a position; None if there is none."""
        if "ank" in text or "ANK" in text or text.startswith("[default"):
            found = list(_RANK.finditer(text, 0, before))
            if found:
                return int(found[-1][1] or found[-1][2])
        if "pid=" in text and (worker := _WORKER.search(text, 0, before)):
            return self._number(worker["role"], worker["number"], worker["pid"])
        server = _SERVER.match(text, 0, before) if "P" in text[:60] else None
        return self._number("", server["number"], "") if server else None

    def _number(self, role: str, number: str | None, pid: str) -> int:
        parts = _PART.findall(number or "")
        places = [part for part in parts if part[0] != "EP"] or parts  # experts lie on the processes of the other coordinates
        if len(places) == 1:
            return int(places[0][1])
        if number and not places:
            return int(number)
        key = (role, *(axis + place for axis, place in places)) if places else (role, pid)
        return self._seen.setdefault(key, sum(known[0] == role for known in self._seen))


# Reader of logs: each line matches a pattern, is ignored, or resembles a pattern without matching it.
#
# The file is streamed; what is kept grows with the values in it, not with its size.

MAX_SERIES: Final = 4096
"""Most pairs of name and rank in one file; a pattern that finds more captures something other than a name."""
EVERY: Final = 1 << 16
"""Lines between two reports of progress."""
_HEAD: Final = 1 << 20
_DIGITS: Final = 6

_PROGRESS: Final = ("%|", "it/s]", "s/it]", "?it/s")

_NEVER: Final = re.compile(r"(?!)")
_RECORD: Final = Pattern(
    name="strobe-record", kind="region", regex=_NEVER, similar=_NEVER, contains='"record"', unit="ns", label=""
)
"""Lines of our own `records.jsonl`, whose spans are taken."""
_RECORD_KINDS: Final[dict[str, Kind]] = {
    spans.E2E: "e2e", spans.FRAME_BLOCK: "frame_block", spans.DENOISE_STEP: "step", spans.ATTENTION: "attention",
    spans.ATTENTION_KERNEL: "kernel",
}  # fmt: skip

Progress = Callable[[int, int, str], None]


_Found: TypeAlias = tuple[Kind, str, int | None, Sample]
"""One value of a line: kind, name and rank of its series, and the value."""


def read_log(path: Path, patterns: Patterns | None = None, *, progress: Progress | None = None) -> Log:
    """Read a log file, plain or gzip; from our own records only clips without damage are read.

    Args:
        patterns: what to look for; by default the shipped patterns.
        progress: told now and then how many bytes of the file have been read, how many it has, and its name.

    Raises:
        DataError: the file cannot be opened, or its lines carry too many different names.
    """
    reading, found, run = Counter[str](), _Reader(path, load_patterns() if patterns is None else patterns), _run_of(path)
    left_out: Collection[int] = () if run is None else run.left_out_lines
    size = path.stat().st_size if path.is_file() else 0
    for count, (number, text, whole) in enumerate(read_lines(path, reading)):
        found.pass_over() if number in left_out else found.add(number, text, whole=whole)
        if progress is not None and count % EVERY == 0:
            progress(reading["done"], size, path.name)
    return found.log(size, reading, () if run is None else run.damage)


def _run_of(path: Path) -> RunRecords | None:
    """Read the file as a run, or return None if it does not begin with the header of one."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        try:
            head = unpacked(file).readline(_HEAD).decode("utf-8", "replace")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return None  # what damages its first line makes it no run; read_lines says what is wrong
    return read_run(path) if head.startswith("{") and isinstance(_record(head), Header) else None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    def __init__(self, path: Path, patterns: Patterns) -> None:
        self._path, self._patterns = path, (_RECORD, *patterns)
        self._series: dict[tuple[str, str, int | None], tuple[Pattern, Kind, list[Sample]]] = {}
        self._similar: dict[str, list[Example]] = {}
        self._ranks = _Ranks()
        self._position = 0
        self._counts = {"lines": 0, "matched": 0, "ignored": 0, "similar": 0, "progress": 0}

    def add(self, number: int, text: str, *, whole: bool) -> None:
        """Match one line, and keep its values or count it as similar or ignored."""
        self._counts["lines"] += 1
        lowered = text.lower()
        candidates = [pattern for pattern in self._patterns if pattern.contains in lowered]
        if not whole and "%|" in text:
            candidates = []  # a bar is drawn again and again; its last state ends the line
        pattern, values = _match(candidates, text, self._ranks)
        if pattern is not None:
            self._counts["matched"] += 1
            for value in values:
                self._keep(pattern, value, number)
        elif similar := _similar(candidates, text):
            self._counts["similar"] += 1
            examples = self._similar.setdefault(similar, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(Example(number, text[:MAX_TEXT], similar))
        else:
            self._counts["ignored"] += 1
            self._counts["progress"] += any(mark in text for mark in _PROGRESS)

    def pass_over(self) -> None:
        """Count one line as ignored without matching it."""
        self._counts["lines"] += 1
        self._counts["ignored"] += 1

    def log(self, size_bytes: int, reading: Counter[str], damage: tuple[str, ...]) -> Log:
        """Return the finished log with all series, counts and damage."""
        return Log(
            path=self._path,
            sha256=sha256_of(self._path),
            size_bytes=size_bytes,
            series=tuple(
                series_of(self._path, pattern, (kind, name, rank), samples)
                for (_, name, rank), (pattern, kind, samples) in self._series.items()
            ),
            counts=LineCounts(**self._counts, mended=reading["mended"], cut=reading["cut"], truncated=bool(reading["truncated"])),
            similar=tuple(example for examples in self._similar.values() for example in examples),
            damage=damage,
        )

    def _keep(self, pattern: Pattern, value: _Found, number: int) -> None:
        kind, name, rank, sample = value
        key = (pattern.name, name, rank)
        if key not in self._series:
            if len(self._series) == MAX_SERIES:
                raise DataError(
                    f"{self._path}: pattern {pattern.name!r} has found more than {MAX_SERIES} names and ranks, the last is "
                    f"{name[:40]!r}; its group `name` takes something that changes from line to line, narrow it"
                )
            self._series[key] = pattern, kind, []
        self._series[key][2].append(sample._replace(line=number, position=self._position))
        self._position += 1


def _match(candidates: list[Pattern], text: str, ranks: _Ranks) -> tuple[Pattern | None, list[_Found]]:
    """Return the first pattern that matches the text, and all its values there."""
    for pattern in candidates:
        values = list(_record_values(text) if pattern is _RECORD else _text_values(pattern, text, ranks))
        if values:
            return pattern, values
    return None, []


def _similar(candidates: list[Pattern], text: str) -> str:
    """Return the name of the first pattern that the text resembles; empty if there is none."""
    for pattern in candidates:
        if pattern.similar.search(text) or (pattern is _RECORD and text.startswith("{") and _record(text) is None):
            return pattern.name
    return ""


def _text_values(pattern: Pattern, text: str, ranks: _Ranks) -> Iterator[_Found]:
    for match in pattern.regex.finditer(text):
        groups = match.groupdict()
        group = "value" if groups.get("value") is not None else "rate"
        if groups.get(group) is None:
            continue
        written, unit = groups[group], groups.get("unit") or ""
        if group == "rate":
            written, unit = _seconds_of_one(written), "s"
        step, block, order = (_integer(groups.get(place)) for place in ("step", "block", "round"))
        sample = Sample(0, written, unit, 0, step, block, order)
        rank = ranks.of(text, match.start(group)) if groups.get("rank") is None else _integer(groups["rank"])
        name = groups.get("name") or pattern.label
        yield pattern.kind, name, rank, sample


def _seconds_of_one(rate: str) -> str:
    """Return what one of so many a second takes, in seconds with six digits: infinitely long at a rate of 0."""
    number = read(rate)
    if not isinstance(number, Decimal):
        return "nan"
    if not number:
        return "inf"
    seconds = Context(prec=_DIGITS).divide(Decimal(1), number)
    return f"{seconds.normalize():f}"


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def _record(text: str) -> Record | None:
    if number_of(text.strip().encode()) == 0:
        return None  # not as it was written
    try:
        record = msgspec.json.decode(text, type=Record)
    except (msgspec.DecodeError, RecursionError):
        return None
    return record if record.v == SCHEMA_VERSION else None


def _record_values(text: str) -> Iterator[_Found]:
    record = _record(text) if text.startswith("{") else None
    if isinstance(record, Span):
        name = f"{record.variant}/{record.label}"
        cause = "warm-up" if record.warmup else ""
        sample = Sample(0, str(record.value_ns), "ns", 0, None, record.index, record.clip, cause)
        yield _RECORD_KINDS.get(record.name, "region"), name, record.rank, sample
