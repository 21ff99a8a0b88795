"""Metadata beside the events of a trace: ranks, devices, the base of its times, versions."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from strobe.perf.trace.columns import LIMIT
from strobe.perf.trace.events import Device
from strobe.perf.trace.schema import UNREADABLE

MAX_METADATA_BYTES: Final = 16 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:"]', re.DOTALL)
_ARRAY: Final = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_BARE: Final = re.compile(rb"\s*+\[")
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


class Head:
    """Finder of the start of the events in text that grows at its end.

    Args of the instance: `text` is what is there so far, `is_bare` says that the events are a list without metadata.
    """

    def __init__(self) -> None:
        self.text = b""
        self.is_bare = False
        self._at = self._depth = 0
        self._name = self._key = b""

    def array_start(self, desperate: bool) -> int | None:
        """Return the offset after the `[` of the events: of a bare list, or of `traceEvents` in the outermost object.

        Args:
            desperate: no more text will come, so that in a damaged head anything that looks like it will do.
        """
        if self._at == 0:
            self.text = self.text.removeprefix(_BYTE_ORDER_MARK)
            bare = _BARE.match(self.text)
            if bare:
                self.is_bare = True
                return bare.end()
        for token in _TOKEN.finditer(self.text, self._at):
            word = token[0]
            if word == b'"':  # the text ends inside a string
                break
            self._at = token.end()
            if self._step(word):
                return self._at
        if not desperate:
            return None
        found = _ARRAY.search(self.text)
        return found.end() if found else None

    def _step(self, word: bytes) -> bool:
        """Follow the structure by one token; return whether it opens the events."""
        if word.startswith(b'"'):
            self._name = word
            return False
        if word == b":":
            self._key = self._name
        elif word in b"{[":
            if self._depth == 1 and word == b"[" and self._key == b'"traceEvents"':
                return True
            self._depth += 1
            self._key = b""
        else:
            self._depth -= 1
        return False


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


def devices(metadata: Metadata) -> tuple[Device, ...]:
    """Return the listed accelerators."""
    found, devices = _value(metadata, "deviceProperties"), []
    for number, one in enumerate([one for one in found if isinstance(one, dict)] if isinstance(found, list) else []):
        index, name = _count(one.get("id")), one.get("name")
        devices.append(Device(index=number if index is None else index, name=name if isinstance(name, str) else ""))
    return tuple(devices)


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
    """Parse a natural number, written as such or as text."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        return None
    return int(value) if int(value) < LIMIT else None
