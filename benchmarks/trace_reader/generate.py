"""Writes a large trace: a tracked capture over and over in the layout of kineto, each copy later than the one before.

`dense` is a capture without operators and without the marks inside a step, so that almost everything is a kernel, its launch call
or the arrow between them; `marked` is the same with all its marks; `host` is one of a model that its host holds up, most of it
operators, six around each call. What a tracked capture was slimmed of is written again with made-up values: the operators, the
arrows, and the facts of a kernel that no page reads. Times are shifted as the decimal numbers they are, so the copies
are exact; the numbers that tie launches, operators and device events to each other are shifted too, so no two copies share one.
What a capture has once (names of threads, the end of the window) is written once, at the end. Nothing is held but one capture.

    python benchmarks/trace_reader/generate.py OUT.json[.gz] --kind dense --bytes 1e9

It prints the bytes of the plain text. Equal arguments give equal plain text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple


class Kind(NamedTuple):
    """A kind of trace: the capture that it is made of, below the folder of published results, how short its marks may be, and how
    many operators are around each call."""

    capture: str
    shortest_mark_ns: int
    operators: int = 0


KINDS: Final = {
    "dense": Kind("engine-h200/compare/traces/baseline.json.gz", 5_000_000),
    "marked": Kind("engine-h200/compare/traces/baseline.json.gz", 0),
    "host": Kind("presets-h200/traces/baseline.json.gz", 0, 6),
}
_NUMBER: Final = re.compile(rb'("(?:ts|correlation|External id|id)": )([0-9]+)(?:\.([0-9]{3}))?')
_GAP_NS: Final = 1_000_000
_KERNEL_FACTS: Final = {
    "registers per thread": 40, "shared memory": 1024, "blocks per SM": "1.363636", "warps per SM": "5.454545",
}  # fmt: skip
_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS: Final = ("cuda_runtime", "cuda_driver")
_OPERATORS: Final = ("aten::linear", "aten::addmm", "aten::reshape", "aten::view", "aten::to", "aten::copy_")


class Piece:
    """Text of events, cut at the numbers that differ from copy to copy."""

    def __init__(self, text: bytes) -> None:
        self._parts: list[bytes] = []
        self._numbers: list[tuple[bool, int]] = []  # whether it is a time, in nanoseconds, and the number
        at = 0
        for found in _NUMBER.finditer(text):
            self._parts.append(text[at : found.end(1)])
            at = found.end()
            is_time = found[1].startswith(b'"ts"')
            self._numbers.append((is_time, int(found[2] + (found[3] or b"000")) if is_time else int(found[2])))
        self._rest = text[at:]

    @property
    def highest_id(self) -> int:
        """The highest number that is no time."""
        return max(value for is_time, value in self._numbers if not is_time)

    def copy(self, later_ns: int, later_id: int) -> bytes:
        """The text, that much later."""
        pieces: list[bytes] = []
        for part, (is_time, value) in zip(self._parts, self._numbers, strict=True):
            pieces.append(part)
            pieces.append(b"%d.%03d" % divmod(value + later_ns, 1000) if is_time else b"%d" % (value + later_id))
        return b"".join((*pieces, self._rest))


def _ns(microseconds: str | int) -> int:
    whole, _, decimals = str(microseconds).partition(".")
    return int(whole + decimals.ljust(3, "0"))


def _time(microseconds: str | int) -> str:
    return _text(_ns(microseconds))


def _text(ns: int) -> str:
    return "{}.{:03d}".format(*divmod(ns, 1000))


def _args(event: dict[str, Any]) -> dict[str, Any]:
    """What kineto says of an event of that category, in its order."""
    given: dict[str, Any] = event.get("args", {})
    if event["cat"] == "kernel":
        place = {"External id": given["correlation"], "queued": 0, "device": given["device"], "context": 1}
        place |= {"stream": given["stream"], "correlation": given["correlation"]} | _KERNEL_FACTS
        return place | {"grid": given.get("grid"), "block": given.get("block"), "est. achieved occupancy %": 0}
    if event["cat"] in _DEVICE:
        return {"External id": given["correlation"], "context": 1} | given | {"memory bandwidth (GB/s)": "0.500000"}
    if event["cat"] in _CALLS:
        return {"External id": given["correlation"], "cbid": 211} | given
    return dict(given)


def _event_text(event: dict[str, Any]) -> str:
    """A complete event as kineto writes it."""
    head = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ph", "cat", "name", "pid", "tid"))
    text = f'  {{\n    {head},\n    "ts": {_time(event["ts"])}, "dur": {_time(event["dur"])}'
    items = [
        f'"{key}": {value if "per SM" in key or "GB/s" in key else json.dumps(value)}' for key, value in _args(event).items()
    ]
    if not items:
        return text + "\n  },\n"
    return text + ',\n    "args": {\n      ' + ",      ".join(items) + "\n    }\n  },\n"


def _arrow_text(event: dict[str, Any], phase: str, rest: str = "") -> str:
    """The arrow that leaves a call (phase s) or reaches what it launched (phase f)."""
    place = f'"id": {event["args"]["correlation"]}, "pid": {event["pid"]}, "tid": {event["tid"]}, "ts": {_time(event["ts"])}'
    return f'  {{\n    "ph": "{phase}", {place},\n    "cat": "ac2g", "name": "ac2g"{rest}\n  }},\n'


def _operators(events: list[dict[str, Any]], number: int) -> Iterator[dict[str, Any]]:
    """So many operators around each call, each inside the one before."""
    calls = [event for event in events if event["cat"] in _CALLS]
    for at, call in enumerate(calls):
        for depth in range(number):
            early = 200 * (number - depth)  # nanoseconds
            place = {"cat": "cpu_op", "name": _OPERATORS[depth % len(_OPERATORS)], "pid": call["pid"], "tid": call["tid"]}
            args = {"External id": at * number + depth + 1, "Record function id": 0, "Ev Idx": at * number + depth}
            start, length = _ns(call["ts"]) - early, _ns(call["dur"]) + 2 * early
            yield {"ph": "X", **place, "ts": _text(start), "dur": _text(length), "args": args}


def _in_order(events: list[dict[str, Any]]) -> Iterator[str]:
    """Operators and ranges by start, then each call with what it launched before it, as kineto has them."""
    calls, work, others = dict[int, dict[str, Any]](), dict[int, list[dict[str, Any]]](), list[dict[str, Any]]()
    for event in events:
        number = event.get("args", {}).get("correlation")
        if event["cat"] in _DEVICE:
            work.setdefault(number, []).append(event)
        elif event["cat"] in _CALLS and number not in calls:
            calls[number] = event
        else:
            others.append(event)
    for event in sorted(others, key=lambda one: _ns(one["ts"])):
        yield _event_text(event)
    for number, call in sorted(calls.items(), key=lambda one: _ns(one[1]["ts"])):
        for event in work.pop(number, ()):
            yield _event_text(event) + _arrow_text(event, "f", ', "bp": "e"')
        yield _event_text(call) + _arrow_text(call, "s")
    for rest in work.values():
        yield from map(_event_text, rest)


def generate(out: Path, size: int, kind: Kind) -> int:
    """Write a trace of at least `size` bytes, packed if its name ends in `.gz`.

    Returns:
        The bytes of its plain text.
    """
    source = Path(__file__).parents[1] / kind.capture
    capture = json.loads(gzip.decompress(source.read_bytes()), parse_float=str)
    events = capture.pop("traceEvents")
    spans = [event for event in events if event["ph"] == "X" and event.get("cat", "Trace") != "Trace"]
    spans = [event for event in spans if event["cat"] != "user_annotation" or _ns(event["dur"]) >= kind.shortest_mark_ns]
    spans += _operators(spans, kind.operators)
    once = ",\n".join("  " + json.dumps(event) for event in events if event["ph"] in ("M", "i") or event.get("cat") == "Trace")
    once = re.sub(r'"(ts|dur)": "?([0-9.]+)"?', lambda found: f'"{found[1]}": {_time(found[2])}', once)
    body, tail = Piece("".join(_in_order(spans)).encode()), Piece(once.encode())
    head = json.dumps(capture)[:-1].encode() + b',\n  "traceEvents": [\n'
    first, last = min(_ns(event["ts"]) for event in spans), max(_ns(event["ts"]) + _ns(event["dur"]) for event in spans)
    period_ns = last - first + _GAP_NS
    written = copies = 0
    with gzip.open(out, "wb", compresslevel=1) if out.suffix == ".gz" else out.open("wb") as file:
        written += file.write(head)
        while not copies or written < size:
            written += file.write(body.copy(copies * period_ns, copies * (body.highest_id + 1)))
            copies += 1
        written += file.write(tail.copy((copies - 1) * period_ns, 0) + b"\n  ]\n}\n")
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="dense")
    parser.add_argument("--bytes", type=float, default=1e9)
    given = parser.parse_args()
    sys.stdout.write(f"{generate(given.out, int(given.bytes), KINDS[given.kind])}\n")
