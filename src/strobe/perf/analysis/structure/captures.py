"""Names of kernels inside graph replays: by the trace of the graph's capture, joined by the order of its kernels.

While a graph is captured the host launches its kernels one by one, inside the ranges, modules and operators that name them, and
none of them runs. A replay runs them all from one call. Both hold the same kernels in the same order, each stream's in its own.
Calls of HIP say which kernel they launch; of those of CUDA only the kind of work is known, so that nothing less than equal
counts and kinds on one stream is taken for the same graph there.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from strobe.core.printable import first_of
from strobe.perf.analysis.device.intervals import Ints, column, marked
from strobe.perf.analysis.device.kernels import full_name
from strobe.perf.analysis.device.launch import captured_calls, graph_calls
from strobe.perf.analysis.structure.ranges import NOWHERE, Paths, base_of, nest, ranges_and_modules
from strobe.perf.trace.events import DEVICE_KINDS, OF_KERNEL, Trace

_LEAST: Final = 0.9
"""Least share of a replay's kernels that stand in a capture, in order, for the two to be the same graph."""
_LARGEST: Final = 36_000_000
"""Most pairs of a kernel of a replay and one of a capture that are compared where the two differ."""
_LEAST_TOLD: Final = 0.01
"""Least share of the device's time in graphs that is worth a word."""
_UNKNOWN: Final = ""
_MEMORY: Final = ("memcpy", "memset")
_COPIES: Final = re.compile(r"memcpy|copybuffer|(memset|fillbuffer)", re.IGNORECASE)
_GRAPH: Final = re.compile(r"GraphLaunch")
_AROUND: Final = re.compile(r"ProfilerStep#?\d*|capture_\d+\w*")
"""Ranges that servers and the profiler put around a whole capture."""
_INDUCTOR: Final = re.compile(r"triton_(?:poi|per|red|for|tem)_fused_")
_NAMED: Final = 3


class _Capture(NamedTuple):
    """Launches in order: what each launched (`_UNKNOWN`: a kernel that the trace does not name), and under which path. `whole`
    says that a replay holds all of them, and not some."""

    file: str
    order: tuple[str, ...]
    paths: tuple[str, ...]
    whole: bool

    @property
    def told(self) -> bool:
        return _UNKNOWN not in self.order


_Match: TypeAlias = tuple[Sequence[str], tuple[str, ...], str]
"""The path of each kernel of a replay (empty: not known), the captures that gave them, and why some have none."""
_Key: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]
"""Kernels of a replay in order of start: what they are, and their streams, numbered as they come."""
_Replay: TypeAlias = tuple[Ints, _Key, bool]
"""Device events of one graph launch, in order of start, their key, and whether some carry no label."""


def holds_captures(trace: Trace) -> bool:
    """Return whether a trace shows graphs being captured and none being replayed: it is the key to another one."""
    return any(True for _ in captured_calls(trace)) and not any(map(_GRAPH.search, trace.device_events.hosts.names))


def name_replays(trace: Trace, captures: Iterable[Trace] = ()) -> tuple[Trace, str]:
    """Name the kernels of graph replays; return the trace with their paths, and a sentence on it, empty without replays.

    Args:
        trace: a trace that may hold replays; kernels that carry a label keep it.
        captures: traces of the captures, asked for one by one until every replay is explained.
    """
    replays = tuple(_replays(trace))
    if not replays:
        return trace, ""
    keys = {key for _, key, bare in replays if bare}
    given, found = list[_Capture](), dict[_Key, _Match]()
    for source in chain((trace,), captures):
        if keys <= found.keys():
            break
        given += _captured(source, own=source is trace)
        found |= {key: match for key in keys - found.keys() if (match := _exact(key, given)) is not None}
    found |= {key: _nearest(key, given) for key in keys - found.keys()}
    paths = dict(trace.module_paths)
    for rows, key, bare in replays:
        for row, path in zip(rows.tolist(), found[key][0], strict=True) if bare else ():
            if path:
                paths.setdefault(row, path)
    return replace(trace, module_paths=paths), _sentence(trace, replays, paths, found)


def _replays(trace: Trace) -> Iterator[_Replay]:
    events, host = trace.device_events, column(trace.device_events.host)
    rows = np.flatnonzero(host >= 0)
    rows = rows[marked(events.hosts, _GRAPH.search)[host[rows]]]
    rows = rows[np.argsort(host[rows], kind="stable")]
    labelled = np.zeros(len(events), np.bool_)
    labelled[list(trace.module_paths)] = True
    name, stream, keys = np.asarray(events.name), np.asarray(events.stream), dict[tuple[bytes, bytes], _Key]()
    for own in np.split(rows, np.flatnonzero(np.diff(host[rows])) + 1) if len(rows) else ():
        written = name[own].tobytes(), stream[own].tobytes()
        if written not in keys:
            order = tuple(_ran(trace, row) for row in own.tolist())
            numbers: dict[int, int] = {}
            keys[written] = order, tuple(numbers.setdefault(each, len(numbers)) for each in stream[own].tolist())
        yield own, keys[written], bool(not labelled[own].all())


def _ran(trace: Trace, row: int) -> str:
    events = trace.device_events
    return _what(events.names[events.name[row]], DEVICE_KINDS[events.kind[row]])


def _what(name: str, kind: str) -> str:
    """Return a copy or memset by its kind, however it was done, and a kernel by its full name."""
    if kind in _MEMORY:
        return kind
    found = _COPIES.search(name) if name.startswith(("Mem", "__amd_rocclr")) else None
    if found is not None:
        return _MEMORY[found[1] is not None]
    return full_name(name)


def _captured(trace: Trace, *, own: bool) -> Iterator[_Capture]:
    """Yield what a trace says was captured: between two calls that begin and end it, else all that was launched. What the trace
    whose replays are to be named (`own`) ran eagerly is no capture."""
    calls, file = trace.unanswered, "its own capture" if own else f"{trace.path.parent.name}/{trace.path.name}"
    start, thread = column(calls.start_ns), column(calls.thread)
    named = [calls.names[number] for number in calls.name]
    parts = list(captured_calls(trace))
    if own and not parts:
        return
    path_of = _paths_of(trace)
    if not parts:
        parts = [np.flatnonzero(~marked(calls, _GRAPH.search))]
    for rows in filter(len, parts):
        paths = path_of(thread[rows], start[rows])
        yield _Capture(file, tuple(map(_said, (named[one] for one in rows), paths)), paths, whole=True)
    events, host = trace.device_events, column(trace.device_events.host)
    ran = np.flatnonzero(host >= 0)
    ran = ran[~graph_calls(trace)[host[ran]]]
    if len(ran) and not own:
        begun, on = column(events.hosts.start_ns)[host[ran]], column(events.hosts.thread)[host[ran]]
        by_launch = np.argsort(begun, kind="stable")
        ran, begun, on = ran[by_launch], begun[by_launch], on[by_launch]
        yield _Capture(file, tuple(_ran(trace, row) for row in ran.tolist()), path_of(on, begun), whole=False)


def _said(text: str, path: str) -> str:
    """Return what a launch call launches: what it says, or the operator that is called like the kernel, as those of Inductor."""
    call, _, kernel = text.partition(OF_KERNEL)
    lower = call.lower()
    for kind in _MEMORY:
        if kind in lower:
            return kind
    if not kernel and _INDUCTOR.match(operator := path.rpartition(".")[2]):
        return operator
    return _what(kernel, DEVICE_KINDS[0]) if kernel else _UNKNOWN


def _paths_of(trace: Trace) -> Callable[[Ints, Ints], tuple[str, ...]]:
    """Return a function that names moments of host threads: ranges and modules from the outermost on, the innermost operator."""
    ops, scopes, paths = trace.ops, ranges_and_modules(trace), Paths()
    nesting, of_op = nest(scopes), nest(ops)
    texts = [tuple(name for name in paths.spelled(each) if not _AROUND.fullmatch(name)) for each in paths.of(scopes, nesting)]

    def find(thread: Ints, start: Ints) -> tuple[str, ...]:
        scope, operator = nesting.at(thread, start), of_op.at(thread, start)
        found = []
        for above, inner in zip(scope.tolist(), operator.tolist(), strict=True):
            names = texts[above] if above != NOWHERE else ()
            own = (ops.names[ops.name[inner]],) if inner != NOWHERE else ()
            found.append(".".join((*names, *own) if names[-1:] != own else names))
        return tuple(found)

    return find


def _exact(key: _Key, given: Sequence[_Capture]) -> _Match | None:
    """Return the paths by the captures that hold exactly these kernels; what they do not agree on is left out."""
    fits = [(one.file, paths) for one in given for paths in _placed(key, one)]
    if not fits:
        return None
    paths = fits[0][1]
    for _, other in fits[1:]:
        paths = tuple(map(_common, paths, other)) if other != paths else paths
    differs = "" if all(paths) else "the captures that hold these kernels name them differently"
    return paths, tuple(dict.fromkeys(file for file, _ in fits)), differs


def _placed(key: _Key, one: _Capture) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a replay's kernels in a capture that holds all of them."""
    order, streams = key
    if not one.told:
        if len(set(streams)) == 1 and len(order) == len(one.order) and all(map(_fits, order, one.order)):
            yield one.paths
    elif one.whole and len(order) == len(one.order):
        ways = [_walked(key, one.order, back) for back in (False, True)] if len(set(streams)) > 1 else []
        yield from (tuple(one.paths[place] for place in way) for way in ways if way is not None)
        if order == one.order and not any(ways):
            yield one.paths
    elif not one.whole:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(one.order))}
        wanted = b"".join(numbers.get(text, len(numbers)).to_bytes(4) for text in order)
        whole, at = b"".join(numbers[text].to_bytes(4) for text in one.order), -1
        while (at := whole.find(wanted, at + 1)) >= 0:
            if at % 4 == 0:
                yield one.paths[at // 4 : at // 4 + len(order)]


def _fits(ran: str, captured: str) -> bool:
    return captured == ran or (captured == _UNKNOWN and ran not in _MEMORY)


def _walked(key: _Key, captured: Sequence[str], back: bool) -> list[int] | None:
    """Return the place in a capture of each kernel of a replay on several streams, whose kernels run in order on each.

    Of streams that could go on with the same kernel, the one whose kernels stand in the capture farthest is taken; of equal ones
    the first, or with `back` the last: where these differ nothing tells which is which.
    """
    order, streams = key
    queues = [deque(row for row, stream in enumerate(streams) if stream == own) for own in dict.fromkeys(streams)]
    places = [0] * len(order)
    for place, wanted in enumerate(captured):
        ready = [queue for queue in queues[:: -1 if back else 1] if queue and order[queue[0]] == wanted]
        if not ready:
            return None
        queue = max(ready, key=lambda queue: _run(order, queue, islice(captured, place, None))) if len(ready) > 1 else ready[0]
        places[queue.popleft()] = place
    return places


def _run(order: Sequence[str], queue: Iterable[int], captured: Iterable[str]) -> int:
    same = (order[row] == wanted for row, wanted in zip(queue, captured, strict=False))
    return sum(takewhile(bool, same))


def _nearest(key: _Key, given: Sequence[_Capture]) -> _Match:
    """Return the paths by the capture that holds most of the kernels; without one that holds enough, none and why."""
    (order, streams), none = key, ("",) * len(key[0])
    told = [one for one in given if one.told and one.whole]
    if not given:
        return none, (), "no trace of their capture was given, or lies in capture_traces/ beside the file"
    if not told:
        several = len(set(streams)) > 1
        how = "these ran on several streams" if several else f"none has {len(order)} of the same kinds in that order"
        return none, (), f"the captures do not name their kernels and {how}"
    wanted = Counter(order)
    best = max(told, key=lambda one: ((wanted & Counter(one.order)).total() / max(len(order), len(one.order)), -len(one.order)))
    share = (wanted & Counter(best.order)).total() / max(len(order), len(best.order))
    if share >= _LEAST and len(set(streams)) == 1 and len(order) * len(best.order) <= _LARGEST:
        share, paths = _aligned(order, best)
        if share >= _LEAST:
            left = paths.count("")
            return paths, (best.file,), f"{left} of {len(order)} have no certain place in {best.file}" if left else ""
    has = f"{best.file} is nearest, {100 * share:.0f} % alike"
    return none, (), f"their graph of {len(order)} kernels is in no capture in this order ({has})"


def _aligned(order: tuple[str, ...], one: _Capture) -> tuple[float, tuple[str, ...]]:
    """Return the share of kernels that a replay and a capture have in the same order, and the path of each of the replay.

    Every way to put most of them side by side is asked: a kernel that it can leave out gets no path, one that it can put in
    several places what these have in common.
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys((*order, *one.order)))}
    ran, captured = (np.array([numbers[text] for text in texts], np.int32) for texts in (order, one.order))
    before = np.zeros((len(ran) + 1, len(captured) + 1), np.int16)
    for row, number in enumerate(ran.tolist()):
        np.maximum(before[row, 1:], before[row, :-1] + (captured == number), out=before[row + 1, 1:])
        np.maximum.accumulate(before[row + 1], out=before[row + 1])
    most, after = int(before[-1, -1]), np.zeros(len(captured) + 1, np.int16)
    paths = [""] * len(ran)
    for row in range(len(ran) - 1, -1, -1):
        same = captured == ran[row]
        if not (before[row] + after == most).any():
            places = np.flatnonzero(same & (before[row, :-1] + after[1:] + 1 == most)).tolist()
            paths[row] = reduce(_common, (one.paths[place] for place in places))
        with_row = np.append(np.maximum(after[:-1], after[1:] + same), np.int16(0))
        after = np.maximum.accumulate(with_row[::-1])[::-1]
    return most / max(len(ran), len(captured)), tuple(paths)


def _common(one: str, other: str) -> str:
    """Return what two paths have in common; parts that differ in their number alone are named without it."""
    if one == other:
        return one
    parts = []
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left == right:
            parts.append(left)
        elif (base := base_of(left)) == base_of(right):
            parts.append(base)
        elif left.isdigit() and right.isdigit():
            parts.append("*")
        else:
            break
    return ".".join(parts)


def _sentence(trace: Trace, replays: Sequence[_Replay], paths: Mapping[int, str], found: Mapping[_Key, _Match]) -> str:
    events = trace.device_events
    length = column(events.end_ns) - column(events.start_ns)
    rows = np.concatenate([own for own, _, _ in replays])
    whole = int(length[rows].sum())
    if whole <= _LEAST_TOLD * int(length.sum()):
        return ""
    named, labelled = (np.isin(rows, list(texts)) for texts in (paths, trace.module_paths))
    share = _percent(length[rows[named]], whole)
    said = f"Graph replays: {int(named.sum())} of {len(rows)} events are named, {share} of their time"
    files = Counter(file for _, key, bare in replays if bare for file in found[key][1])
    by = [f"{int(labelled.sum())} by their own labels"] if labelled.any() else []
    known = first_of([file for file, _ in files.most_common()], _NAMED, "captures")
    by += [f"{int((named & ~labelled).sum())} by {known}"] if files else []
    said += f": {', '.join(by)}" if by else ""
    left = rows[~named]
    if not len(left):
        return f"{said}."
    generated = np.array([_INDUCTOR.match(text) is not None for text in events.names], np.bool_)
    if own := int(generated[np.asarray(events.name)[left]].sum()):
        said += f"; {own} of the others say their operators, as Inductor names them"
    why = Counter(reason for _, _, reason in found.values() if reason)
    return f"{said}. {_percent(length[left], whole)} have no name: {'; '.join(text for text, _ in why.most_common(_NAMED))}."


def _percent(length: Ints, whole: int) -> str:
    return f"{100 * int(length.sum()) / max(1, whole):.1f} %"
