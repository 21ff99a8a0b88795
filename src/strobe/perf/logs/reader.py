"""Reader of logs: lines of any framework into a frozen `Log`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Context, Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from strobe.core.errors import DataError
from strobe.core.files import refused
from strobe.perf.logs.patterns import NUMBER, UNIT, Kind, Pattern, Patterns, load_patterns, parse_patterns, read
from strobe.perf.logs.series import MAX_EXAMPLES, MAX_TEXT, LineCounts, Log, Sample, series_of
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
"""Number, text without its end, and whether it ends in a line feed; the parts of a progress line share a number."""


def read_lines(path: Path, counts: Counter[str]) -> Iterator[_Line]:
    """Yield the lines of a file without terminal codes; a damaged end is left out.

    Args:
        counts: lines `mended` and `cut`, whether the file is `truncated`, and the bytes `done` so far are counted there.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(unpacked(file), file, counts)
    except OSError as error:
        raise DataError(f"cannot read log {path}: {error.strerror or error}; name a text file or a .gz of one") from error


def unpacked(file: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    """Return a reader of the file's bytes, decompressed if the file is gzip."""
    if why := refused(file.peek(4)):
        raise DataError(f"{file.name}: {why}")
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


# A file that is one JSON object with the stages and denoising steps of a request, as a server of video models writes it.

LARGEST_DUMP: Final = 16 << 20
"""Bytes of the largest file that is read whole to see whether it is one."""


def dumped(path: Path) -> list[tuple[Kind, str, str, int | None]]:
    """Return kind, name, milliseconds as written and step number of each time in the file; none if it is no such object."""
    try:
        with path.open("rb") as file:
            data = file.read() if file.peek(1).startswith(b"{") else b""
    except OSError as error:
        raise DataError(f"cannot read log {path}: {error.strerror or error}; name a text file or a .gz of one") from error
    if not data.rstrip().endswith(b"}"):
        return []
    try:
        found = json.loads(data, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return []
    stages, steps = found.get("steps"), found.get("denoise_steps_ms")
    if not isinstance(stages, list) or not isinstance(steps, list | None):
        return []
    inside = [_time("step", one, "denoising step", place) for place, one in enumerate(steps or ()) if isinstance(one, dict)]
    times = [_time("stage", one, one.get("name"), None) for one in stages if isinstance(one, dict)]
    around = next((at for at, one in enumerate(times) if one and "denois" in one[1].lower()), len(times))
    times[around:around] = inside  # before the line of the stage that they are steps of, as in a text log
    total = found.get("total_duration_ms")
    times += [("e2e", "total", total, None)] if isinstance(total, str) else []
    return [time for time in times if time is not None]


def _time(kind: Kind, one: dict[str, Any], name: object, place: int | None) -> tuple[Kind, str, str, int | None] | None:
    value = one.get("duration_ms")
    return (kind, name, value, place) if isinstance(name, str) and isinstance(value, str) else None


# Ranks that the lines of a log name, in the prefixes of launchers and servers.

_RANK: Final = re.compile(r"\brank\s*[:=#]?\s*(\d{1,6})\b|^\[default(\d{1,6})\]", re.IGNORECASE)
_PARTS: Final = r"(?:(?:DP|PP|TP|SP|CP|EP)\d{1,6}[_ ]?)+"
_WORKER: Final = re.compile(
    rf"\((?P<role>[A-Za-z]\w*?)(?:[-_ ]?(?P<number>{_PARTS}|\d{{1,6}}))? pid=(?P<pid>\d{{1,9}})[^)]{{0,80}}\)"
)
_SERVER: Final = re.compile(rf"^(?:\[[^\]]{{0,40}}?)?\b(?P<number>{_PARTS})\]")
_PART: Final = re.compile(r"(DP|PP|TP|SP|CP|EP)(\d{1,6})")


_Workers = dict[tuple[str, ...], int]
"""Rank of each worker whose prefix has several coordinates, or a process number alone: they are counted as they come."""


def _rank_of(text: str, before: int, workers: _Workers) -> int | None:
    """Return the last rank that the text names before a position; None if there is none.

    `[rank 1]`, `RANK1` and `[default1]:` name a rank, and so do the prefixes of workers: `(Worker_TP1 pid=990)`,
    `(Worker-1 pid=990)` and `TP1]`.
    """
    if "ank" in text or "ANK" in text or text.startswith("[default"):
        found = list(_RANK.finditer(text, 0, before))
        if found:
            return int(found[-1][1] or found[-1][2])
    worker = _WORKER.search(text, 0, before) if "pid=" in text else None
    server = _SERVER.match(text, 0, before) if worker is None and "P" in text[:60] else None
    if (named := worker or server) is None:
        return None
    number, (role, pid) = named["number"], worker.group("role", "pid") if worker else ("", "")
    parts = _PART.findall(number or "")
    places = [part for part in parts if part[0] != "EP"] or parts  # experts lie on the processes of the other coordinates
    if len(places) == 1:
        return int(places[0][1])
    if number and not places:
        return int(number)
    key = (role, *(axis + place for axis, place in places)) if places else (role, pid)
    return workers.setdefault(key, sum(known[0] == role for known in workers))


# A pattern proposed for a line with a time or a rate that no pattern reads, tried before it is shown.

_SHOWN: Final = 120
_TIME: Final = re.compile(rf"(?P<before>[^\n]*?[A-Za-z][^\n]{{0,80}}?[\s:=(\[]){NUMBER}(?P<gap>\s*){UNIT}")
_RATE: Final = re.compile(rf"(?P<before>[^\n]*?[A-Za-z][^\n]{{0,80}}?[\s:=(\[]){NUMBER}(?P<gap>\s*)(?P<what>[a-z]{{2,12}})/s\b")
_KEYED: Final = re.compile(rf"(?P<before>[^\n]*?\b[A-Za-z]\w{{0,60}}_(?P<unit>ns|us|ms|s|sec|seconds)\b[\"']?\s*[:=]\s*){NUMBER}")
_KINDS: Final = {word: word for word in ("attention", "kernel", "step")}


def proposed(text: str) -> str:
    """Return a line of a patterns file that reads the first time or rate in a line of a log; empty if there is none."""
    for found, value, more in (
        (_KEYED.match(text), "{value}", 'unit = "{unit}", '),
        (_RATE.match(text), r"{rate}\s*WHAT/s", ""),
        (_TIME.match(text), r"{value}\s*{unit}", ""),
    ):
        if not found:
            continue
        groups = found.groupdict()
        before = groups["before"][-40:]
        words = re.search(r"[A-Za-z].*", before)
        before = words[0] if words else before
        regex = re.sub(r"\d+", r"\\d+", re.escape(before).replace(r"\ ", " ")).replace("'", ".")
        kind = next((kind for word, kind in _KINDS.items() if word in before.lower()), "stage")
        value = value.replace("WHAT", groups.get("what") or "")
        found = re.search(r"\w*(?:denois|diffusion)\w*", before, re.ASCII | re.IGNORECASE)  # what --stage looks for
        name, more = found[0] if found else "timing", more.format(unit=groups.get("unit"))
        line = f"{name} = {{ kind = \"{kind}\", {more}regex = '{regex}{value}' }}"
        (pattern,) = parse_patterns(tomllib.loads(line), "proposal")
        match = pattern.regex.search(text)
        if match and any(match[group] for group in ("value", "rate") if group in pattern.regex.groupindex):
            return line
    return ""


# Reader of logs: each line matches a pattern, is ignored, or resembles a pattern without matching it.
#
# The file is streamed; what is kept grows with the values in it, not with its size.

MAX_SERIES: Final = 4096
"""Most pairs of name and rank in one file; a pattern that finds more captures something other than a name."""
EVERY: Final = 1 << 16
"""Lines between two reports of progress."""
WRAP: Final = 40
"""Shortest line length at which a line break may be the terminal's, characters."""
PARTS: Final = 4
"""Most parts that a broken line is joined from."""
_HEAD: Final = 1 << 20
_DIGITS: Final = 6

_PROGRESS: Final = ("%|", "it/s]", "s/it]", "?it/s")
_TAIL: Final = re.compile(rf"\s*(?:{NUMBER})?\s*(?:{UNIT}|[a-z]{{1,11}})?[\s.,;:)\]]*(?:\(.*)?", re.IGNORECASE)

Progress = Callable[[int, int, str], None]


class _Found(NamedTuple):
    """One value in a text: from `start` to `end`, `value` and its unit at `value_start`."""

    start: int
    end: int
    value_start: int
    kind: Kind
    name: str
    rank: int | None
    sample: Sample


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
    dump = next((pattern for pattern in found.patterns if pattern.format == "dump"), None)
    if dump is not None and 0 < size <= LARGEST_DUMP and (stages := dumped(path)):
        found.take_dump(dump, stages)
        return found.log(size, reading, ())
    for count, line in enumerate(read_lines(path, reading)):
        found.pass_over() if line[0] in left_out else found.add(line)
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
    """Return the SHA-256 of a file, hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    def __init__(self, path: Path, patterns: Patterns) -> None:
        self._path, self.patterns = path, patterns
        self._series: dict[tuple[str, str, int | None], tuple[Pattern, Kind, list[Sample]]] = {}
        self._pending: list[tuple[_Line, str]] = []  # lines that may go on in the next one, and what they resemble
        self._similar: dict[str, list[Sample]] = {}
        self._workers: _Workers = {}
        self._proposal = ""
        self._longest = self._long_lines = self._position = 0
        self._counts = {"lines": 0, "matched": 0, "ignored": 0, "similar": 0, "progress": 0, "joined": 0}

    def add(self, line: _Line) -> None:
        """Match one line and keep its values, or keep it waiting if the next line may continue it."""
        self._counts["lines"] += 1
        number, text, whole = line
        candidates = self._candidates(text)
        if not whole and "%|" in text:
            candidates = []  # a bar is drawn again and again; its last state ends the line
        pattern, values, used = self._match_joined(text)
        if used:
            number = self._pending[-used][0][0]
            self._settle(keep=used)
            self._pending.clear()
            self._counts["joined"] += 1
            self._counts["matched"] += used
        else:
            pattern, values = _match(candidates, text, self._workers)
        if pattern is not None:
            self._settle()
            self._counts["matched"] += 1
            for value in values:
                self._keep(pattern, value, number)
        else:
            self._settle(keep=PARTS - 2 if self._pending and self._is_full(self._pending[-1][0]) else 0)
            self._pending.append((line, _similar(candidates, text)))
        if len(text) > self._longest:
            self._longest, self._long_lines = len(text), 0
        self._long_lines += len(text) == self._longest

    def take_dump(self, pattern: Pattern, stages: Sequence[tuple[Kind, str, str, int | None]]) -> None:
        """Keep the stages and steps of a file that is one JSON object; times are in ms."""
        self._counts["lines"] = self._counts["matched"] = 1
        for kind, name, value, step in stages:
            self._keep(pattern, _Found(0, 0, 0, kind, name, None, Sample(0, value, "ms", 0, step)), 1)

    def pass_over(self) -> None:
        """Count one line as ignored without matching it."""
        self._settle()
        self._counts["lines"] += 1
        self._counts["ignored"] += 1

    def log(self, size_bytes: int, reading: Counter[str], damage: tuple[str, ...]) -> Log:
        self._settle()
        return Log(
            path=self._path,
            sha256=sha256_of(self._path),
            size_bytes=size_bytes,
            series=tuple(
                series_of(self._path, pattern, (kind, name, rank), samples)
                for (_, name, rank), (pattern, kind, samples) in self._series.items()
            ),
            counts=LineCounts(**self._counts, mended=reading["mended"], cut=reading["cut"], truncated=bool(reading["truncated"])),
            similar=self._similar,
            damage=(*damage, *["the compressed file is cut short; what could be read counts"] * reading["truncated"]),
            proposal="" if self._series else self._proposal,
        )

    def _settle(self, keep: int = 0) -> None:
        """Count the lines that wait for a continuation as similar or ignored, except the last `keep`."""
        while len(self._pending) > keep:
            (number, text, _), similar = self._pending.pop(0)
            self._counts["similar" if similar else "ignored"] += 1
            progress = not similar and any(mark in text for mark in _PROGRESS)
            self._counts["progress"] += progress
            if not (progress or self._proposal or self._series) and (pattern := proposed(text)):
                line = text.strip()
                shown = repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")
                self._proposal = f"line {number} reads {shown}, which a patterns file with this takes: {pattern}"
            if similar and len(examples := self._similar.setdefault(similar, [])) < MAX_EXAMPLES:
                examples.append(Sample(number, text[:MAX_TEXT], "", 0))

    def _candidates(self, text: str) -> list[Pattern]:
        lowered = text.lower()
        return [pattern for pattern in self.patterns if pattern.contains in lowered]

    def _is_full(self, line: _Line) -> bool:
        """Return whether the line fills the terminal's width: it is as long as the longest so far, and not the only one."""
        _, text, whole = line
        return whole and len(text) >= WRAP and len(text) == self._longest and self._long_lines > 1

    def _match_joined(self, text: str) -> tuple[Pattern | None, list[_Found], int]:
        """Match the waiting lines and one more, if a terminal or logger may have broken one line into them.

        Either the waiting ones fill the width of the terminal, or the text is the rest of a value, with at most something in
        parentheses behind it. Returns how many of the waiting lines the match needs; 0 if there is none.
        """
        waiting = [line[1] for line, _ in self._pending]
        last, full = (waiting[-1], self._is_full(self._pending[-1][0])) if waiting else ("", False)
        if not last.strip() or not self._pending[-1][0][2] or not (full or _TAIL.fullmatch(text)):
            return None, [], 0
        for parts, rest in ((waiting, text), ([last.rstrip() + " "], text.lstrip())):
            head = "".join(parts)
            pattern, values = _match(self._candidates(head + rest), head + rest, self._workers)
            ended = [value for value in values if value.end > len(head)]
            if ended and ended[0].start < len(head) and (full or len(head) - ended[0].value_start >= -1):
                starts = accumulate(map(len, parts[:-1]))
                return pattern, ended, sum(ended[0].start < start for start in starts) + 1
        return None, [], 0

    def _keep(self, pattern: Pattern, value: _Found, number: int) -> None:
        key = (pattern.name, value.name, value.rank)
        if key not in self._series:
            if len(self._series) == MAX_SERIES:
                raise DataError(
                    f"{self._path}: pattern {pattern.name!r} has found more than {MAX_SERIES} names and ranks, the last is "
                    f"{value.name[:40]!r}; its group `name` takes something that changes from line to line, narrow it"
                )
            self._series[key] = pattern, value.kind, []
        self._series[key][2].append(value.sample._replace(line=number, position=self._position))
        self._position += 1


def _match(candidates: list[Pattern], text: str, workers: _Workers) -> tuple[Pattern | None, list[_Found]]:
    for pattern in candidates:
        values = list(_record_values(pattern, text) if pattern.format == "record" else _text_values(pattern, text, workers))
        if values:
            return pattern, values
    return None, []


def _similar(candidates: list[Pattern], text: str) -> str:
    for pattern in candidates:
        if pattern.similar.search(text) or (pattern.format == "record" and (text.startswith("{") and _record(text) is None)):
            return pattern.name
    return ""


def _text_values(pattern: Pattern, text: str, workers: _Workers) -> Iterator[_Found]:
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
        rank = _rank_of(text, match.start(group), workers) if groups.get("rank") is None else _integer(groups["rank"])
        name = groups.get("name") or pattern.label
        yield _Found(match.start(), match.end(), match.start(group), pattern.kind, name, rank, sample)


def _seconds_of_one(rate: str) -> str:
    """Return what one of so many a second takes, in seconds with six digits: infinitely long at a rate of 0."""
    number = read(rate, ".")
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


def _record_values(pattern: Pattern, text: str) -> Iterator[_Found]:
    record = _record(text) if text.startswith("{") else None
    if isinstance(record, Span):
        kind = pattern.kinds.get(record.name, "region")
        name = f"{record.variant}/{record.label}"
        cause = "warm-up" if record.warmup else ""
        sample = Sample(0, str(record.value_ns), "ns", 0, None, record.index, record.clip, cause)
        yield _Found(0, len(text), 0, kind, name, record.rank, sample)
