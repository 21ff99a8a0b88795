"""Selection of a window of a device's time: one call of a range or module, some steps, or a stretch in milliseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import numpy as np

from strobe.core.errors import ConfigError, DataError, nearest
from strobe.core.printable import first_of
from strobe.perf.analysis.device.activity import all_events
from strobe.perf.analysis.device.intervals import Window, column
from strobe.perf.analysis.structure.ranges import device_times
from strobe.perf.analysis.structure.steps import find_steps, names_step
from strobe.perf.trace.events import HostEvents, Trace

_UNITS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_STEP: Final = re.compile(r"[0-9]{1,9}")
_MOMENT: Final = re.compile(r"(?P<digits>[0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?P<unit>[a-zµμ]*)")
_CALL: Final = re.compile(r"(?P<name>.+?)(?:\[(?P<place>[0-9]{1,9})\]|#(?P<count>[0-9]{1,9}))", re.DOTALL)
_FORMS: Final = (
    "a range or module ('ProfilerStep#3', 'attention[2]'), two of them as 'FIRST..LAST', steps '3..7' or '100ms..200ms'"
)
_OFFERED: Final = 8
_COMPARED: Final = 2_000


def choose_window(trace: Trace, text: str, steps: str | None = None, zero_ns: int | None = None) -> Window:
    """Find the window that a text describes.

    docs/traces.md#window has the forms. A step, and a range that alone starts one, ends where the next step starts.

    Args:
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.
        zero_ns: origin of times; the first device event's start if not given.

    Raises:
        ConfigError: the text is none of these, or its end is not after its start.
        DataError: the trace does not have what the text asks for, or no events at all.
    """
    asked = str(text).strip()  # in Python, 3 may be a number
    if not any(len(one) for one in (trace.device_events, *_of_host(trace))):
        raise DataError(f"{trace.path}: no events, so there is no window {asked!r} to choose")
    if not asked:
        raise ConfigError(f"the window is empty; give {_FORMS}")
    found = _find_step(trace, asked, steps) or _find_call(trace, asked)
    if found is None and ".." in asked:
        found = _stretch(trace, asked, steps, zero_ns)
    elif found is None and _STEP.fullmatch(asked):
        found = _steps(trace, asked, asked, steps)
    if found is None:
        raise DataError(f"{trace.path}: no range or module {asked!r}{_offer(trace, asked)}")
    start, end = found
    if start >= end:
        raise ConfigError(f"window {asked!r} is empty: {start} ns to {end} ns; give an end after its start")
    return Window(start_ns=start, end_ns=end, label=asked)


def _stretch(trace: Trace, asked: str, steps: str | None, zero_ns: int | None) -> tuple[int, int]:
    first, _, last = (part.strip() for part in asked.partition(".."))
    if _STEP.fullmatch(first) and _STEP.fullmatch(last):
        return _steps(trace, first, last, steps)
    moments = [_MOMENT.fullmatch(part) for part in (first, last)]
    if any(moments) and all(found or not part for found, part in zip(moments, (first, last), strict=True)):
        columns = (trace.device_events,) if len(trace.device_events) else [one for one in _of_host(trace) if len(one)]
        first_ns, end = min(min(one.start_ns) for one in columns), max(max(one.end_ns) for one in columns)
        zero = first_ns if zero_ns is None else zero_ns
        start = zero + _nanoseconds(moments[0]) if moments[0] else zero
        if start >= end:
            last = "last device event" if len(trace.device_events) else "last event of the host"
            raise DataError(f"{trace.path}: window {asked!r} starts after the {last}, {(end - zero) / 1e6:.3f} ms in")
        return start, min(end, zero + _nanoseconds(moments[1])) if moments[1] else end
    sides = []
    for part in (first, last):
        found = _find_step(trace, part, steps) or _find_call(trace, part) if part else None
        if found is None:
            raise DataError(f"{trace.path}: no range or module {part!r} for the window {asked!r}{_offer(trace, part)}")
        sides.append(found)
    return sides[0][0], sides[1][1]


def _nanoseconds(moment: re.Match[str]) -> int:
    text, unit = moment[0], moment["unit"]
    if unit not in _UNITS:
        raise ConfigError(f"the time {text!r} of the window needs a unit; allowed: {', '.join(_UNITS)}")
    value = Decimal(moment["digits"]) * _UNITS[unit]
    if value != value.to_integral_value():
        raise ConfigError(f"the time {text!r} of the window is not a whole number of nanoseconds; give fewer digits")
    return int(value)


def _of_host(trace: Trace) -> tuple[HostEvents, HostEvents, HostEvents]:
    return trace.ops, trace.ranges, trace.modules


def _steps(trace: Trace, first: str, last: str, pattern: str | None) -> tuple[int, int]:
    """Return start and end of some steps over all devices; in a trace without device events those of their ranges."""
    if not len(trace.device_events):
        sides = [_find_call(trace, f"ProfilerStep#{int(number)}") for number in (first, last)]
        if sides[0] is None or sides[1] is None:
            missing = first if sides[0] is None else last
            raise DataError(f"{trace.path}: no range ProfilerStep#{int(missing)}{_offer(trace, f'ProfilerStep#{missing}')}")
        return sides[0][0], sides[1][1]
    tiled = find_steps(trace, pattern).values()
    steps = [step for found in tiled if not isinstance(found, str) for step in found.steps]
    numbers = {step.number for step in steps}
    if not numbers:
        why = "; ".join(found for found in tiled if isinstance(found, str))
        raise DataError(f"{trace.path}: step {first} cannot be found: {why}; choose a range or a time such as '100ms..200ms'")
    for number in (first, last):
        if int(number) not in numbers:
            raise DataError(f"{trace.path}: no step {number}; the trace has steps {min(numbers)} to {max(numbers)}")
    chosen = [step for step in steps if int(first) <= step.number <= int(last)]
    if not chosen:
        raise ConfigError(f"steps {first}..{last} are none; give the earlier one first")
    return min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)


def _find_step(trace: Trace, asked: str, pattern: str | None) -> tuple[int, int] | None:
    """Return the tile of the step that a range of this name starts, on all devices; `None` for none or several."""
    if asked not in trace.ranges.names or not names_step(asked, pattern):
        return None
    tiled = [found for found in find_steps(trace, pattern).values() if not isinstance(found, str) and found.source == "range"]
    own = [[step for step in found.steps if step.step == asked] for found in tiled]
    chosen = [step for steps in own for step in steps]
    if not chosen or max(map(len, own)) > 1:
        return None
    return min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)


def _find_call(trace: Trace, asked: str) -> tuple[int, int] | None:
    found = list(_calls_of(trace, asked))
    if len(found) > 1:
        raise DataError(f"{trace.path}: {asked!r} has {len(found)} calls; choose one of {asked}[0] to {asked}[{len(found) - 1}]")
    place = 0
    match = _CALL.fullmatch(asked)
    if not found and match:
        name, place = match["name"], int(match["place"] or match["count"])
        found = list(_calls_of(trace, name))
        if found and place >= len(found):
            raise DataError(f"{trace.path}: no call {place} of {name!r}; it has {len(found)}, counted from 0")
    if not found:
        return None
    if found[place] is None:
        raise DataError(f"{trace.path}: {asked!r} launched no device event on its thread; choose a range that did")
    return found[place]


def _calls_of(trace: Trace, name: str) -> Iterator[tuple[int, int] | None]:
    """Yield the device time of each call of a range or module, or of each launch of a graph's module path."""
    for scopes in (trace.ranges, trace.modules):
        for spelled in (name, f"strobe::{name}"):
            if spelled in scopes.names:
                chosen = np.flatnonzero(column(scopes.name) == scopes.names.index(spelled))
                if not len(trace.device_events):
                    yield from ((scopes.start_ns[place], scopes.end_ns[place]) for place in chosen.tolist())
                    return
                some, times = device_times(trace, all_events(trace), scopes, chosen)
                found = zip(times.start.tolist(), times.end.tolist(), strict=True)
                yield from (next(found) if launched else None for launched in some.tolist())
                return
    events = trace.device_events
    of_launch: dict[int, tuple[int, int]] = {}
    for event, path in trace.module_paths.items():
        if events.host[event] >= 0 and (path == name or path.startswith(f"{name}.")):
            start, end = of_launch.get(events.host[event], (events.start_ns[event], events.end_ns[event]))
            of_launch[events.host[event]] = min(start, events.start_ns[event]), max(end, events.end_ns[event])
    yield from sorted(of_launch.values())


def _offer(trace: Trace, asked: str) -> str:
    names = dict.fromkeys((*trace.ranges.names, *trace.modules.names, *sorted(set(trace.module_paths.values()))))
    if not names:
        return f"; the trace has no ranges or modules; give {_FORMS}"
    hint = nearest(asked, list(names)[:_COMPARED])
    return f"{hint}; the trace has {first_of([*map(repr, names)], _OFFERED)}"
