"""Sections against looking for the boundaries of every focal event by hand, and what focal kernels prove about a timer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.sections import (
    CROSSED,
    Edge,
    SectionDefinition,
    check_alike,
    find_sections,
    focal_kernels,
    kernel_constraints,
    parse_section,
    trace_evidence,
)
from strobe.perf.trace import DeviceEvent, HostEvent, Trace


def event(
    name: str, start: int, end: int, *, kind: str = "kernel", stream: int = 7, device: int = 0, launch: int | None = None
) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 1, 0)
    return DeviceEvent(name, kind, start, end, device, stream, 0, host)


LAYER = [
    event("Memcpy DtoD", 0, 10, kind="memcpy"), event("tile_kernel", 12, 15), event("flash_fwd<64>", 20, 50),
    event("untile", 51, 55), event("vectorized_gather_kernel", 60, 70),
]  # fmt: skip


def later(events: list[DeviceEvent], by: int) -> list[DeviceEvent]:
    return [each._replace(start_ns=each.start_ns + by, end_ns=each.end_ns + by) for each in events]


def test_missing_and_crossed_boundaries_are_skipped_with_the_reason() -> None:
    trace = trace_of([*LAYER[2:], *later(LAYER, 100), event("late_copy", 5, 500, stream=9)])
    (found,) = find_sections(trace, parse_section("memcpy:end -> flash -> gather:end"))
    assert len(found.found) == 1 and dict(found.skipped) == {"no memcpy:end before it": 1}
    (found,) = find_sections(trace, parse_section("late_copy:end@any -> flash -> gather:end"))
    assert not found.found and dict(found.skipped) == {CROSSED: 2}


def test_ranges_and_modules_by_what_they_launched() -> None:
    device = [
        event("a", 100, 110, launch=1), event("flash", 120, 140, launch=5), event("b", 150, 160, launch=8),
        event("c", 170, 180, launch=20),
    ]  # fmt: skip
    calls = (("strobe::attention#0", 0, 10, 0), ("attention_kernel", 4, 7, 0), ("attention", 0, 30, 1))
    ranges = [HostEvent(*call) for call in calls]
    trace = trace_of(device, ranges, [HostEvent("SelfAttention_3", 4, 25, 0)])
    for text, expected in {
        "range:attention:start -> flash -> range:attention:end": (100, 160),
        "range:attention_kernel:start -> flash -> b:end": (120, 160),
        "module:SelfAttention:start -> flash -> module:SelfAttention:end": (120, 180),
        "module:Self.*:start -> flash -> kernel:start": (120, 150),
    }.items():
        (found,) = find_sections(trace, parse_section(text))
        assert [section.span for section in found.found] == [expected], text
    twice = trace_of([*device, event("flash", 190, 195, launch=40)], ranges)  # the second one lies outside the range
    (found,) = find_sections(twice, parse_section("range:attention:start -> flash -> range:attention:end"))
    assert [section.span for section in found.found] == [(100, 160)] and dict(found.skipped) == {"in no range:attention": 1}
    none = parse_section("range:nowhere:start -> flash -> range:nowhere:end")
    assert dict(find_sections(twice, none)[0].skipped) == {"in no range:nowhere": 2}
    (found,) = find_sections(trace, parse_section("range:attention:end -> flash -> range:attention:start"))
    assert dict(found.skipped) == {"no range:attention:end before it": 1}


def test_a_graphs_kernels_carry_their_module() -> None:
    host = HostEvent("cudaGraphLaunch", 0, 1, 0)
    names = ["a", "flash", "b", "a", "flash", "b"]
    device = [DeviceEvent(name, "kernel", 10 * i, 10 * i + 8, 0, 7, i, host) for i, name in enumerate(names)]
    paths = {0: "layers.0.attn.q", 1: "layers.0.attn", 2: "layers.0.mlp", 4: "layers.1.attn", 5: "layers.1.attn.out"}
    trace = trace_of(device, module_paths=paths)
    (found,) = find_sections(trace, parse_section("module:attn:start -> flash -> module:attn:end"))
    assert [section.span for section in found.found] == [(0, 18), (40, 58)]
    (found,) = find_sections(trace, parse_section(r"module:layers\.1\.attn:start -> flash -> b:end"))
    assert [section.span for section in found.found] == [(40, 58)]


def test_a_window_chooses_the_focal_events_and_not_the_boundaries() -> None:
    trace = trace_of([*LAYER, *later(LAYER, 100)])
    window = Window(start_ns=115, end_ns=140, label="w")
    (found,) = find_sections(trace, parse_section("memcpy:end -> flash -> gather:end"), window)
    assert [section.span for section in found.found] == [(110, 170)]


_NAMES = {"copy": "memcpy", "flash": "kernel", "gather": "kernel", "gemm": "kernel"}
_EVENTS = st.lists(
    st.tuples(st.sampled_from(sorted(_NAMES)), st.integers(0, 80), st.integers(0, 12), st.integers(1, 2)), min_size=1, max_size=14
)
_WHAT = st.sampled_from([("name", "copy"), ("name", "gather"), ("name", "g"), ("kind", "kernel"), ("kind", "memcpy")])
_EDGES = st.builds(
    lambda what, at, any_stream: Edge(source=what[0], what=what[1], at=at, any_stream=any_stream),
    _WHAT, st.sampled_from(["start", "end"]), st.booleans(),
)  # fmt: skip


@given(_EVENTS, _EDGES, _EDGES)
def test_against_looking_at_every_focal_event(rows: list[tuple[str, int, int, int]], left: Edge, right: Edge) -> None:
    trace = trace_of([event(name, at, at + long, kind=_NAMES[name], stream=stream) for name, at, long, stream in rows])
    events = list(trace.device_events)

    def boundary(edge: Edge, places: range, stream: int) -> int | None:
        for i in places:
            named = edge.what == events[i].kind if edge.source == "kind" else edge.what in events[i].name
            if named and (edge.any_stream or events[i].stream == stream):
                return events[i].start_ns if edge.at == "start" else events[i].end_ns
        return None

    expected, skipped = set(), 0
    for i, focal in enumerate(events):
        if focal.name == "flash":
            bounds = boundary(left, range(i - 1, -1, -1), focal.stream), boundary(right, range(i + 1, len(events)), focal.stream)
            if None in bounds or bounds[0] > bounds[1]:
                skipped += 1
            else:
                expected.add((*bounds, focal.stream))
    definition = SectionDefinition(left=left, focal="flash", right=right)
    found = [section for each in find_sections(trace, definition) for section in each.found]
    counted = list(find_sections(trace, definition))
    assert sorted(section.span for section in found) == sorted(bounds[:2] for bounds in expected)
    assert sum(sum(each.skipped.values()) for each in counted) == skipped
    assert sum(each.num_focal - each.merged for each in counted) == skipped + len(expected)
    for each in counted:
        ends = [max(section.span[1] for section in each.found[:i]) for i in range(1, len(each.found))]
        assert each.overlapping == sum(section.start_ns < end for section, end in zip(each.found[1:], ends, strict=True))
    wide = left.any_stream or right.any_stream
    allowed = sorted(expected)
    for section in found:
        lanes = {stream for start, end, stream in allowed if (start, end) == section.span}
        begin, end = section.span
        inside = [i for i, e in enumerate(events) if e.start_ns < end and (e.end_ns > begin or e.start_ns >= begin)]
        assert list(section.members) in [[i for i in inside if wide or events[i].stream == lane] for lane in lanes]
        moments = range(begin, end)
        running = [[events[i].name for i in section.members if events[i].start_ns <= t < events[i].end_ns] for t in moments]
        assert (section.busy_ns, section.focal_ns) == (sum(map(bool, running)), sum("flash" in names for names in running))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("memcpy:end -> flash -> gather:end", "memcpy:end -> flash -> gather:end"),
        ("  name:memcpy:end   ->  a|b ->  comm:start@any ", "name:memcpy:end -> a|b -> comm:start@any"),
        ("name:at::copy:start -> x -> range:ffn:end", "at::copy:start -> x -> range:ffn:end"),
        ("module:a.b:start -> x -> name:range:y:end", "module:a.b:start -> x -> name:range:y:end"),
    ],
)
def test_definitions_have_one_text(text: str, canonical: str) -> None:
    definition = parse_section(text)
    assert str(definition) == canonical and parse_section(canonical) == definition
    apart = parse_section(definition.boundaries, definition.focal)
    assert apart == definition == parse_section(canonical, definition.focal)


@pytest.mark.parametrize(
    ("text", "focal", "says"),
    [
        ("memcpy:end", None, "1 parts"),
        ("memcpy:end -> gather:end", None, "names no focal event"),
        ("memcpy -> flash -> gather:end", None, "must end with :start or :end"),
        ("memcpy:end -> flash -> gather:middle", None, "must end with :start or :end"),
        ("memcpy:end -> flash -> gather(:end", None, "not a regular expression"),
        ("memcpy:end -> flash -> gather:end", "sparse", "given apart"),
    ],
)
def test_what_is_no_definition_is_refused(text: str, focal: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_section(text, focal)


def test_unlike_sections_are_compared_only_if_asked_for() -> None:
    alike = parse_section("memcpy:end -> flash -> gather:end"), parse_section("memcpy:end -> _attn_fwd_sparse -> gather:end")
    assert check_alike(alike[0].boundaries, alike[1].boundaries, allow_unlike=False) == ""
    said = "kernel of the baseline against memcpy:end -> gather:end of the candidate.*--allow-unlike"
    with pytest.raises(ConfigError, match=said):
        check_alike("kernel", alike[1].boundaries, allow_unlike=False)
    assert check_alike("kernel", alike[1].boundaries, allow_unlike=True).startswith("unlike: kernel of the baseline against")


FLASH = "_ZN5flash16flash_fwd_kernelEv"  # flash::flash_fwd_kernel()


def trace(*kernels: tuple[str, int, int, int], ranges: tuple[tuple[str, int, int], ...] = ()) -> Trace:
    """Kernels as (name, start, duration, device), each launched 10 ns before it starts; ranges as (name, start, end)."""
    rows = [
        DeviceEvent(name, "kernel", start, start + length, device, 7, 0, HostEvent("cudaLaunchKernel", start - 10, start - 5, 0))
        for name, start, length, device in kernels
    ]
    return trace_of(rows, [HostEvent(name, start, end, 0) for name, start, end in ranges])


def test_each_device_has_its_own_figures() -> None:
    rows = [("attn_a", 100, 30, 0), ("gemm", 200, 500, 0), ("attn_b", 300, 10, 1), ("attn_a", 800, 20, 0), ("attn_c", 900, 20, 0)]
    found = focal_kernels(trace(*rows), "attn")
    own = [(each.device, each.names, each.num_same, each.window_ns) for each in found]
    assert own == [(0, ("attn_a", "attn_c"), 2, 820), (1, ("attn_b",), 1, 10)]
    calls = found[0].calls
    assert (calls.n, calls.sum_ns, calls.min_ns, calls.p50_ns, calls.max_ns) == (3, 70, 20, 20, 30)


def test_names_are_searched_mangled_and_demangled_and_case_matters() -> None:
    one = trace((FLASH, 100, 30, 0))
    assert len(focal_kernels(one, "16flash")) == 1
    assert focal_kernels(one, "Flash_fwd") == () and focal_kernels(trace(), "attn") == ()
    with pytest.raises(ConfigError, match="not a regular expression"):
        focal_kernels(one, "(")


def test_kernels_bound_a_call_from_both_sides() -> None:
    found = focal_kernels(trace(("attn", 100, 30, 0), ("attn", 500, 20, 0), ("attn", 1000, 25, 0)), "attn")
    floor, ceiling = kernel_constraints(found)
    assert (floor.rule, floor.bound_ns, floor.what) == ("at_least", 20, "the 20.0 ns kernel inside it (attn, shortest of 3)")
    assert (ceiling.rule, ceiling.bound_ns, ceiling.calls) == ("at_most", 925, 2)
    assert [each.rule for each in kernel_constraints(focal_kernels(trace(("attn", 100, 30, 0)), "attn"))] == ["at_least"]
    assert kernel_constraints(()) == ()


def test_a_range_takes_the_device_time_of_what_it_launched() -> None:
    one = trace(
        ("attn", 100, 30, 0), ("gather", 160, 40, 0), ("gemm", 300, 500, 0), ("attn", 1000, 25, 0),
        ranges=(("attention#0", 80, 155), ("mlp", 280, 295), ("attention#1", 980, 995), ("attention#2", 996, 999)),
    )  # fmt: skip
    bounds, span = trace_evidence([one], timed="attention")
    assert [(each.rule, each.bound_ns) for each in bounds] == [("at_least", 25)] and span == (25, "the range attention")


def test_evidence_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DataError, match="no device event of t.json"):
        trace_evidence([trace(("attn", 100, 30, 0))], focal="flash")
    with pytest.raises(DataError, match="no range of t.json"):
        trace_evidence([trace(("attn", 100, 30, 0))], timed="attention")
    assert trace_evidence([]) == ((), None)
