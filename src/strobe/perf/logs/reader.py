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
    chosen = (_RECORD, *(load_patterns() if patterns is None else patterns))
    run, counts, ranks = _run_of(path), Counter[str](), _Ranks()
    left_out: Collection[int] = () if run is None else run.left_out_lines
    size, position = path.stat().st_size if path.is_file() else 0, 0
    found: dict[tuple[str, Kind, str, int | None], list[Sample]] = {}
    similar: dict[str, list[Example]] = {}
    for count, (number, text, whole) in enumerate(read_lines(path, counts)):
        if progress is not None and count % EVERY == 0:
            progress(counts["done"], size, path.name)
        pattern, values = ("", []) if number in left_out else _decided(chosen, text, whole, ranks)
        for kind, name, rank, sample in values:
            found.setdefault((pattern, kind, name, rank), []).append(sample._replace(line=number, position=position))
            position += 1
            if len(found) > MAX_SERIES:
                raise DataError(
                    f"{path}: pattern {pattern!r} has found more than {MAX_SERIES} names and ranks, the last is "
                    f"{name[:40]!r}; its group `name` takes something that changes from line to line, narrow it"
                )
        counts["matched" if values else "similar" if pattern else "ignored"] += 1
        if pattern and not values and len(examples := similar.setdefault(pattern, [])) < MAX_EXAMPLES:
            examples.append(Example(number, text[:MAX_TEXT], pattern))
        if not pattern and number not in left_out:
            counts["progress"] += any(mark in text for mark in _PROGRESS)
    units = {each.name: each.unit for each in chosen}
    return Log(
        path=path,
        sha256=sha256_of(path),
        size_bytes=size,
        series=tuple(series_of(path, key, units[key[0]], samples) for key, samples in found.items()),
        counts=LineCounts(
            lines=counts["matched"] + counts["similar"] + counts["ignored"],
            **{name: counts[name] for name in ("matched", "ignored", "similar", "progress", "mended", "cut")},
            truncated=bool(counts["truncated"]),
        ),
        similar=tuple(example for examples in similar.values() for example in examples),
        damage=() if run is None else run.damage,
    )


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


def _decided(patterns: Patterns, text: str, whole: bool, ranks: _Ranks) -> tuple[str, list[_Found]]:
    """Return the first pattern that matches a line, with all values there; or the one that it resembles, without; or ""."""
    lowered = text.lower()
    candidates = [pattern for pattern in patterns if pattern.contains in lowered]
    if not whole and "%|" in text:
        candidates = []  # a bar is drawn again and again; its last state ends the line
    for pattern in candidates:
        if values := list(_record_values(text) if pattern is _RECORD else _text_values(pattern, text, ranks)):
            return pattern.name, values
    for pattern in candidates:
        if pattern.similar.search(text) or (pattern is _RECORD and text.startswith("{") and _record(text) is None):
            return pattern.name, []
    return "", []


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
