"""Communication of several ranks: exposed time, skew and transfer, stragglers, and clocks that cannot be the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.collectives import CLOCK_TOLERANCE_NS, collective_skew, communication, message_bytes
from strobe.perf.trace import CollectiveKind, DeviceEvent, Trace

_WORLD = (0, 1, 2)
Told = tuple[str, int, int]
"""Name, sequence and elements of a collective."""


Rows = Sequence[tuple[int, int]]


def _rank(
    rank: int, comm: Rows, told: Sequence[Told | None], work: Sequence[tuple[str, int, int]] = (), base_ns: int = 0
) -> Trace:
    rows = [
        (DeviceEvent("ncclDevKernel_AllReduce", "comm", start, end, 0, 9, 0, None), said)
        for (start, end), said in zip(comm, told, strict=True)
    ]
    rows += [(DeviceEvent("k", kind, start, end, 0, 7, 0, None), None) for kind, start, end in work]
    rows.sort(key=lambda row: (row[0].start_ns, -row[0].end_ns))
    collectives = {
        i: (CollectiveKind(said[0], "tp", _WORLD, said[2], said[2], "BFloat16"), said[1])
        for i, (_, said) in enumerate(rows)
        if said is not None
    }
    events = [event for event, _ in rows]
    return trace_of(events, path=Path(f"rank{rank}.json"), base_ns=base_ns, rank=rank, world_size=3, collectives=collectives)


def _told(n: int, first: int = 0) -> list[Told]:
    return [("allreduce", first + i, 1_000) for i in range(n)]


def _late(late: Sequence[int], transfer: int = 40_000) -> list[Trace]:
    """Three ranks and one collective a millisecond; `late[i]` is the rank that comes 300 µs after the others to the i-th."""
    traces = []
    for rank in _WORLD:
        comm = []
        for i, last in enumerate(late):
            start = 1_000_000 * i + 10_000 * rank + (300_000 if rank == last else 0)
            comm.append((start, 1_000_000 * i + 300_000 + 10_000 * last + transfer))
        traces.append(_rank(rank, comm, _told(len(late))))
    return traces


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("ComplexDouble", 16), ("Double", 8), ("Long", 8), ("ComplexFloat", 8), ("float64", 8), ("int64", 8), ("Float", 4),
        ("Int", 4), ("float32", 4), ("int32", 4), ("Half", 2), ("BFloat16", 2), ("Short", 2), ("float16", 2), ("int16", 2),
        ("Byte", 1), ("Char", 1), ("Bool", 1), ("int8", 1), ("uint8", 1), ("Float8_e4m3fn", 1),
    ],
)  # fmt: skip
def test_a_message_has_the_bytes_of_its_elements(name: str, num_bytes: int) -> None:
    assert message_bytes(CollectiveKind("allreduce", "tp", _WORLD, 1_000, 1_000, name)) == 1_000 * num_bytes


def test_the_straggler_is_who_the_others_wait_longest_for_not_who_is_last_most_often() -> None:
    """Rank 0 comes 1 µs after rank 1 three times, rank 1 comes 500 µs after rank 0 once."""
    starts = [(1_000, 0), (1_000, 0), (1_000, 0), (0, 500_000)]
    traces = []
    for rank in (0, 1):
        comm = [(1_000_000 * i + both[rank], 1_000_000 * i + max(both) + 9_000) for i, both in enumerate(starts)]
        traces.append(_rank(rank, comm, _told(4)))
    found = collective_skew(traces)
    assert found is not None
    zero, one = found.times
    assert (zero.last, zero.cost_ns, one.last, one.cost_ns) == (3, 3_000, 1, 500_000)
    assert found.straggler == one and found.last_most_often == zero


def test_clocks_that_differ_are_said_and_nothing_is_split() -> None:
    traces = _late([2, 0, 1, 2])
    ahead = [(e.start_ns + 600_000, e.end_ns + 600_000) for e in traces[1].device_events]
    found = collective_skew([traces[0], _rank(1, ahead, _told(4)), traces[2]])
    assert found is not None and not found.aligned
    # the third: rank 1 is the last one, at 2910 µs on its clock; rank 0 has ended at 2350
    assert (found.ahead, found.behind, found.worst_ns) == (1, 0, 560_000)
    assert found.violated == 4 and found.times == () == found.kinds and found.straggler is None
    assert found.matched == 4


def test_a_difference_below_the_precision_of_clocks_is_borne() -> None:
    comm = [(100_000 * i, 100_000 * i + 20_000) for i in range(3)]
    late = [(start + 20_000 + CLOCK_TOLERANCE_NS, end + 20_000 + CLOCK_TOLERANCE_NS) for start, end in comm]
    for more, aligned in ((0, True), (1, False)):
        own = [(start + more, end + more) for start, end in late]
        found = collective_skew([_rank(0, comm, _told(3)), _rank(1, own, _told(3)), _rank(2, comm, _told(3))])
        assert (found.aligned, found.worst_ns, found.violated) == (aligned, CLOCK_TOLERANCE_NS + more, 3)


def test_numbers_match_what_a_window_cut_off() -> None:
    traces = _late([2, 0, 1, 2])
    short = _rank(1, [(e.start_ns, e.end_ns) for e in traces[1].device_events][1:], _told(3, first=1))
    found = collective_skew([traces[0], short, traces[2]])
    assert found is not None and (found.matched, found.unmatched) == (3, 2) and not found.problems
    windows = [Window(start_ns=900_000, end_ns=5_000_000, label=""), None, None]
    assert collective_skew([traces[0], traces[1], traces[2]], windows).matched == 3


def test_two_traces_of_one_rank_are_two_runs_and_do_not_meet() -> None:
    traces = [trace for trace in _late([2, 0]) for _ in range(2 if trace.rank == 1 else 1)]
    found = collective_skew(traces)
    assert found is not None and (found.matched, found.unmatched, found.times, found.kinds) == (0, 8, (), ())
    assert found.problems == ("rank 1 has 2 traces, give one of each",)


def test_what_a_window_cuts_is_matched_and_not_split() -> None:
    traces = _late([2, 2, 2])  # rank 2 starts at 320 µs, all end at 360 µs: a window to 330 µs shows 10 µs of a transfer of 40
    windows = [Window(start_ns=0, end_ns=1_330_000, label="")] * 3
    found = collective_skew(traces, windows)
    assert found is not None and (found.matched, found.cut, found.unmatched, found.checked) == (2, 1, 0, 1)
    assert [(transfer.n, transfer.sum_ns) for _, _, transfer in found.kinds] == [(1, 40_000)]
    assert [account.num_cut for account in communication(traces, windows)] == [1, 1, 1]
    only = collective_skew(traces, [Window(start_ns=0, end_ns=330_000, label="")] * 3)
    assert only is not None and (only.matched, only.cut, only.times, only.kinds) == (1, 1, (), ())
    assert only.straggler is None
    # each window ends elsewhere, as it does where every rank counts from its own first event
    found = collective_skew(traces, [None, None, Window(start_ns=0, end_ns=2_350_000, label="")])
    assert found is not None and (found.matched, found.cut) == (3, 1) and found.aligned


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ([("allreduce", -1, 1_000)] * 3, "4 on rank 0, 3 on rank 1, 4 on rank 2; without numbers they cannot be matched"),
        ([("allreduce", -1, 1_000)] * 3 + [("allgather", -1, 1_000)], "differs (allreduce on rank 0, allgather on rank 1)"),
        ([("allreduce", -1, 1_000)] * 3 + [("allreduce", -1, 999)], "call 3 differs"),
    ],
)  # fmt: skip
def test_without_numbers_order_counts_and_is_checked(told: list[Told], problem: str) -> None:
    plain = [("allreduce", -1, 1_000)] * 4
    comm = [[(e.start_ns, e.end_ns) for e in trace.device_events] for trace in _late([2, 0, 1, 2])]
    good = collective_skew([_rank(rank, comm[rank], plain) for rank in _WORLD])
    assert good is not None and (good.by, good.matched, good.problems) == ("order", 4, ())
    assert good.times == collective_skew(_late([2, 0, 1, 2])).times
    bad = collective_skew([_rank(0, comm[0], plain), _rank(1, comm[1][: len(told)], told), _rank(2, comm[2], plain)])
    assert bad is not None and bad.matched == 0 and problem in bad.problems[0] and bad.unmatched == 8 + len(told)


def test_numbers_on_some_ranks_alone_do_not_count() -> None:
    """A rank whose profiler wrote none is matched by order, and so are those that have them."""
    traces = _late([2, 0, 1, 2])
    comm = [(e.start_ns, e.end_ns) for e in traces[1].device_events]
    found = collective_skew([traces[0], _rank(1, comm, [("allreduce", -1, 1_000)] * 4), traces[2]])
    assert found is not None and (found.by, found.matched, found.unmatched, found.problems) == ("order", 4, 0, ())
    assert found.times == collective_skew(traces).times


def test_what_is_missing_or_goes_one_way() -> None:
    traces = _late([2, 0])
    silent = _rank(1, [(0, 10)], [None])  # a kernel that says nothing of itself: no collective of the group
    found = collective_skew([traces[0], silent, traces[2]])
    assert found is not None and found.matched == 0
    assert found.problems == ("group 'tp': no collective of it on rank 1",)
    sends = [_rank(rank, [(0, 10), (20, 30)], [("broadcast", 0, 5), ("send" if rank else "recv", 1, 5)]) for rank in _WORLD]
    found = collective_skew(sends)
    assert found is not None and (found.matched, found.one_way, found.checked) == (1, 1, 0) and found.kinds == ()
    assert collective_skew([traces[0]]) is None
    mute = [_rank(rank, [(5, 25), (30, 45)], [None, None]) for rank in _WORLD]
    found = collective_skew(mute)
    assert found is not None and (found.by, found.matched, found.kinds[0][0].name) == ("order", 2, "ncclDevKernel_AllReduce")
    nameless = [_rank(rank, [(5, 25), (30, 45)], [("", -1, -1)] * 2) for rank in _WORLD]  # a group, but no collective's name
    found = collective_skew(nameless)
    assert found is not None and (found.matched, found.one_way, found.kinds[0][0].name) == (2, 0, "ncclDevKernel_AllReduce")


def test_several_under_one_number_meet_in_order() -> None:
    comm = [[(0, 50), (60, 90), (100, 150)], [(10, 50), (70, 90), (110, 150)]]
    told = [("allreduce", 4, 8), ("allreduce", 4, 8), ("allgather", 4, 8)]
    found = collective_skew([_rank(rank, comm[rank], told) for rank in (0, 1)])
    assert found is not None and found.matched == 3 and found.times[0].wait_ns == 30 and found.times[1].wait_ns == 0


_span = st.tuples(st.integers(0, 60), st.integers(0, 20))


@given(
    st.lists(_span, min_size=1, max_size=6),
    st.lists(st.tuples(_span, st.sampled_from(("kernel", "memset", "memcpy"))), max_size=6),
)
def test_exposed_communication_against_every_nanosecond(comm: list, work: list) -> None:
    comm = [(start, start + n) for start, n in comm]
    told = [("allreduce", i, 10 * (i % 2)) for i in range(len(comm))]
    trace = _rank(0, comm, told, [(kind, start, start + n) for (start, n), kind in work], base_ns=77)
    (found,) = communication([trace])
    running = {moment for start, end in comm for moment in range(start, end)}
    hiding = {moment for (start, n), kind in work if kind != "memcpy" for moment in range(start, start + n)}
    assert (found.n, found.sum_ns, found.union_ns) == (len(comm), sum(e - s for s, e in comm), len(running))
    assert found.exposed_ns == len(running - hiding)
    for row in found.kinds:
        own = {m for i, (start, end) in enumerate(comm) if 2 * told[i][2] == row.message_bytes for m in range(start, end)}
        assert row.exposed_ns == len(own - hiding)


@given(
    st.integers(2, 4),
    st.lists(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 60)), min_size=4, max_size=4), min_size=1, max_size=6),
    st.sampled_from([0, 7, 1_700_000_000_000_000_007]),
)
def test_the_split_against_the_definition(num: int, rounds: list[list[tuple[int, int]]], base: int) -> None:
    """Each rank's file counts from a moment of its own."""
    n = len(rounds)
    comm = [[(200 * i + rounds[i][rank][0], 200 * i + 100 + rounds[i][rank][1]) for i in range(n)] for rank in range(num)]
    bases = [base - rank for rank in range(num)]
    told = [[(start + rank, end + rank) for start, end in comm[rank]] for rank in range(num)]
    found = collective_skew([_rank(rank, told[rank], _told(n), base_ns=bases[rank]) for rank in range(num)])
    assert found is not None and found.violated == 0
    assert (found.by, found.matched, found.unmatched, found.one_way) == ("sequence", n, 0, 0)
    firsts, lasts = ([edge(comm[rank][i][0] for rank in range(num)) for i in range(n)] for edge in (min, max))
    ((_, skew, transfer),) = found.kinds
    assert (skew.n, skew.sum_ns) == (n, sum(lasts) - sum(firsts))
    assert transfer.sum_ns == sum(max(comm[rank][i][1] for rank in range(num)) for i in range(n)) - sum(lasts)
    for rank, member in enumerate(found.times):
        assert member.wait_ns == sum(lasts[i] - comm[rank][i][0] for i in range(n))
        assert member.wait_ns + member.transfer_ns == sum(end - start for start, end in comm[rank])
        others = [max(comm[other][i][0] for other in range(num) if other != rank) for i in range(n)]
        leads = [comm[rank][i][0] - others[i] for i in range(n)]
        assert (member.last, member.cost_ns) == (sum(lead > 0 for lead in leads), sum(lead for lead in leads if lead > 0))
    gaps = [comm[b][i][0] - comm[a][i][1] for a in range(num) for b in range(num) if a != b for i in range(n)]
    tightest = min(max(comm[b][i][0] - comm[a][i][1] for i in range(n)) for a in range(num) for b in range(num) if a != b)
    assert max(gaps) <= 0 and found.slack_ns == -tightest
