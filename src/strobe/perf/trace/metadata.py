"""Metadata beside the events of a trace: ranks, devices, the base of its times, versions."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from strobe.perf.trace.columns import LIMIT
from strobe.perf.trace.schema import UNREADABLE

MAX_METADATA_BYTES: Final = 16 << 20
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:"]', re.DOTALL)
_ARRAY: Final = re.compile(rb'"traceEvents"\s*+:\s*+\[')
BARE: Final = re.compile(b"(?:" + BYTE_ORDER_MARK + rb")?\s*+\[")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_MAX_TEXT: Final = 200
_MAX_FACTS: Final = 100
_KNOWN: Final = (
    "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "displayTimeUnit", "schemaVersion", "trace_id", "traceName",
    "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules",
    "cuda_driver_version", "cuda_runtime_version", "cupti_version",
    "hip_driver_version", "hip_runtime_version", "roctracer_version",
)  # fmt: skip
_NOT_FACTS: Final = ("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "traceEvents")

Metadata = dict[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(Metadata).decode
_scan_value: Final = json.JSONDecoder(strict=False).raw_decode


def events_start(text: bytes, desperate: bool) -> int | None:
    """Return the offset after the `[` of the events: of a bare list, or of `traceEvents` in the outermost object.

    Args:
        desperate: no more text will come, so that in a damaged head anything that looks like it will do.
    """
    if bare := BARE.match(text):
        return bare.end()
    depth, name, key = 0, b"", b""
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == b'"':  # the text ends inside a string
            break
        if word.startswith(b'"'):
            name = word
        elif word == b":":
            key = name
        elif word in b"{[":
            if depth == 1 and word == b"[" and key == b'"traceEvents"':
                return token.end()
            depth, key = depth + 1, b""
        else:
            depth -= 1
    found = _ARRAY.search(text) if desperate else None
    return found.end() if found else None


def object_end(text: bytes) -> int | None:
    """Return the offset behind the `}` that closes the object around the text; `None` without one."""
    depth = 1
    for token in _TOKEN.finditer(text):
        depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
        if not depth:
            return token.end()
    return None


def read_metadata(text: bytes) -> tuple[Metadata, bool]:
    """Parse a JSON object; return its values and whether it is intact. From a broken one, known keys are saved."""
    try:
        return _decode(text), True
    except UNREADABLE:
        pass
    mended = _CONTROL.sub(b" ", text).decode("utf-8", "replace")
    try:
        return _decode(mended.encode()), False
    except UNREADABLE:
        pass
    saved: Metadata = {}
    for key in _KNOWN:
        found = re.search(rf'"{key}"\s*+:\s*+', mended)
        try:
            value, _ = _scan_value(mended, found.end()) if found else (None, 0)
            if value is not None:
                saved[key] = msgspec.Raw(msgspec.json.encode(value))  # half of a surrogate pair cannot be encoded
        except (ValueError, RecursionError):
            continue
    return saved, False


def base_ns(metadata: Metadata) -> int:
    """Return the nanoseconds since the epoch that times are relative to; 0 in old traces."""
    return _count(_value(metadata, "baseTimeNanoseconds")) or 0


def job(metadata: Metadata) -> tuple[int | None, int | None]:
    """Return rank and number of processes; None where not recorded."""
    found = _value(metadata, "distributedInfo")
    return (_count(found.get("rank")), _count(found.get("world_size"))) if isinstance(found, dict) else (None, None)


def devices(metadata: Metadata) -> dict[int, str]:
    """Return the products of the listed accelerators by number."""
    found, devices = _value(metadata, "deviceProperties"), dict[int, str]()
    for number, one in enumerate([one for one in found if isinstance(one, dict)] if isinstance(found, list) else []):
        index, name = _count(one.get("id")), one.get("name")
        devices.setdefault(number if index is None else index, name if isinstance(name, str) else "")
    return devices


def facts(metadata: Metadata) -> dict[str, str]:
    """Return the other plain values as text; `a.b` is `b` inside `a`."""
    found: dict[str, str] = {}
    for key in metadata:
        value = _value(metadata, key) if key not in _NOT_FACTS or key == "distributedInfo" else None
        inside = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        for name, one in inside.items():
            if isinstance(one, str | int | float) and len(found) < _MAX_FACTS:
                found[name] = str(one)[:_MAX_TEXT]
    return found


def _value(metadata: Metadata, key: str) -> Any:
    try:
        return msgspec.json.decode(metadata[key]) if key in metadata else None
    except UNREADABLE:
        return None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        return None
    return int(value) if int(value) < LIMIT else None
