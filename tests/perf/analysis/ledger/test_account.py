"""The ledger closes to 0 ns, whatever the input, and says what it should on a case worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core import spans
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import (
    AROUND,
    CLIP_LEVELS,
    MISMATCH,
    NOT_APART,
    UNTRACED,
    ClipKind,
    Explained,
    Ledger,
    Sampled,
    Spread,
    apportion,
    block_kinds,
    clip_ledger,
    coarsened,
    cut_clips,
    explain_by_regions,
    explain_by_trace,
    levelled,
    paired_spread,
    part_of,
    step_spread,
)
from strobe.perf.analysis.ledger.speedup import answer
from strobe.perf.analysis.ledger.traces import TracedSide, foreign_ledger, label_trace
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.compare import mirrored_pairs
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, TIMED, Label, Partition, Tile
from strobe.perf.records.record import Clip, Regions, Span, Variant
from strobe.perf.records.store import RunRecords
from strobe.perf.trace import DeviceEvent, HostEvent

_STEP, _SECTION = ("denoise_step",), ("denoise_step", "attention")


_FOCAL = (*_SECTION, "attention_kernel")


_PATHS = [(), _STEP, _SECTION, _FOCAL, (*_STEP, "ffn"), ("commit", "attention", "attention_kernel"), ("commit",), ("vae_decode",)]


_OUTSIDE = Label(("clip",), AROUND)


def _side(
    blocks: list[dict[Label, int]], around: int = 0, num_clips: int = 1, calls: dict[str, tuple[int, int]] | None = None
) -> Explained:
    """Steady frame blocks with these labels in one clip, `num_clips` times; without calls, one per busy label."""
    total = Counter({label: 0 for owned in blocks for label in owned})
    for owned in blocks:
        total.update(owned)
    if calls is None:
        calls = {}
        for label, ns in total.items():
            if label.busy:
                count, took = calls.get(label.region, (0, 0))
                calls[label.region] = count + num_clips, took + num_clips * ns
    return Explained(
        num_clips=num_clips,
        kinds={"steady": {label: num_clips * ns for label, ns in total.items()}, "start and end": {_OUTSIDE: num_clips * around}},
        num_blocks={"steady": len(blocks)},
        calls=calls,
        units=tuple(blocks),
    )


def _closes(ledger: Ledger) -> None:
    for column in ("baseline_ns", "candidate_ns", "saved_ns"):
        assert sum(getattr(line, column) for line in ledger.lines) == getattr(ledger, column)
        assert getattr(ledger.levels[-1], column) == getattr(ledger, column)
    assert [level.level for level in ledger.levels] == list(CLIP_LEVELS)
    for before, after in zip(ledger.levels, ledger.levels[1:], strict=False):
        own = [line for line in ledger.lines if line.level == after.level]
        assert after.saved_ns == before.saved_ns + sum(line.saved_ns for line in own)
    busy = {"op", "kernel", "comm", "memset", "memcpy"}
    assert sum(e.saved_ns for e in ledger.kernels) == sum(line.saved_ns for line in ledger.lines if line.label.activity in busy)
    for effect in ledger.kernels:
        assert effect.by_calls_ns + effect.by_speed_ns == effect.saved_ns == effect.baseline_ns - effect.candidate_ns
    assert ledger.lost_ns == sum(line.saved_ns for line in ledger.lines if line.saved_ns < 0)


_CPU_LABELS = st.builds(Label, st.sampled_from(_PATHS), st.sampled_from(["op", "gap"]))


_GPU_LABELS = st.builds(Label, st.sampled_from(_PATHS), st.sampled_from(["kernel", "memcpy", "host_late", "queued", "unlinked"]))


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[Explained, Explained]:
    labels, num_clips = draw(st.sampled_from([_CPU_LABELS, _GPU_LABELS])), draw(st.integers(1, 9))
    blocks = st.lists(st.dictionaries(labels, st.integers(0, 10**15), max_size=8), min_size=1, max_size=4)
    around = st.integers(-(10**6), 10**12)
    return _side(draw(blocks), draw(around), num_clips), _side(draw(blocks), draw(around), num_clips)


@given(pair=_pairs())
def test_it_closes_to_zero_nanoseconds(pair: tuple[Explained, Explained]) -> None:
    ledger = clip_ledger(*pair, ())
    _closes(ledger)
    assert (ledger.baseline_ns, ledger.candidate_ns) == tuple(sum(side.labels.values()) for side in pair)
    for level in ledger.levels[:3]:
        sums = [pair[0].num_clips * sum(tiles) for tiles in level.tiles]
        assert sums == [level.baseline_ns, level.candidate_ns]


def test_calls_and_speed_are_split_exactly() -> None:
    label = Label(_STEP, "op")
    many, few = {"mm": (3, 30), "old": (2, 14)}, {"mm": (2, 17), "new": (1, 5)}
    ledger = clip_ledger(_side([{label: 44}], calls=many), _side([{label: 22}], calls=few), ())
    _closes(ledger)
    effects = {e.kernel: (e.by_calls_ns, e.by_speed_ns) for e in ledger.kernels}
    mean = Fraction(17, 2)
    assert effects["mm"] == ((3 - 2) * (10 + mean) / 2, (10 - mean) * (3 + 2) / 2)
    assert effects["old"] == (14, 0) and effects["new"] == (-5, 0)  # called by one variant only
    assert [e.kernel for e in ledger.kernels] == ["old", "mm", "new"]


def test_a_kernel_that_only_one_side_shows_is_missing_not_saved() -> None:
    ledger = clip_ledger(_side([{Label(_FOCAL, "kernel"): 40}], 60), _side([{Label(_STEP, "kernel"): 30}], 70), ())
    _closes(ledger)
    assert [level.ratio for level in ledger.levels] == [None, None, 40 / 30, 40 / 30, 1.0]
    assert (ledger.kernel_saved_ns, ledger.realised_share, ledger.ideal_ns) == (0, None, 100)


def test_unequal_numbers_of_clips_are_refused() -> None:
    with pytest.raises(DataError, match="1 clips against 2"):
        clip_ledger(_side([{Label((), "op"): 5}]), _side([{Label((), "op"): 5}], num_clips=2), ())
    with pytest.raises(DataError, match="0 clips"):
        clip_ledger(_side([], num_clips=0), _side([], num_clips=0), ())


# Intervals of a ledger's lines against every resample there is, and against t worked out by hand.


FOCAL, IDLE = Label(("focal",), "kernel"), Label(("step",), "host_late")


def sampled(rows: list[dict[Label, int]], weights: list[int] | None = None, scale: int = 1) -> Sampled:
    return rows, weights or [1] * len(rows), Fraction(scale)


def every_resample(values: list[int], weights: list[int], scale: int) -> list[tuple[float, int]]:
    """One unit of each multiset of steps, with the number of ways to draw it."""
    found = []
    for drawn in combinations_with_replacement(range(len(values)), len(values)):
        ways = factorial(len(values)) // prod(map(factorial, Counter(drawn).values()))
        found.append((scale * sum(values[at] for at in drawn) / sum(weights[at] for at in drawn), ways))
    return found


def exact_shares(sides: list[list[tuple[float, int]]], value: float) -> tuple[float, float]:
    """Share of all pairs of resamples that save less than `value`, and that save no more."""
    (before, ways), (after, other_ways) = (np.array(side).T for side in sides)
    saved, pairs = np.subtract.outer(before, after), np.multiply.outer(ways, other_ways)
    return tuple(float(pairs[saved < value + edge].sum() / pairs.sum()) for edge in (-1e-9, 1e-9))


BEFORE = [900, 1000, 1300, 950, 1010]


AFTER = [400, 420, 800, 390, 415, 401]


@pytest.mark.parametrize(("weights", "scale"), [(([1] * 5, [1] * 6), 1), (([1, 2, 3, 1, 2], [2, 2, 1, 4, 2, 3]), 48)])
def test_the_ends_leave_out_as_many_of_all_resamples_as_they_say(weights: tuple[list[int], list[int]], scale: int) -> None:
    """15,625 resamples of five steps against 46,656 of six; 2,000 drawn ones may be off by four of their standard errors."""
    before, after = ([{FOCAL: ns, IDLE: 7} for ns in side] for side in (BEFORE, AFTER))
    found = step_spread(sampled(before, weights[0], scale), sampled(after, weights[1], scale))
    assert found.steps == (5, 6) and set(found.lines) == {str(FOCAL), str(IDLE)}
    sides = [every_resample(values, own, scale) for values, own in zip((BEFORE, AFTER), weights, strict=True)]
    for end, share in ((found.lines[str(FOCAL)].low, 0.025), (found.lines[str(FOCAL)].high, 0.975)):
        below, upto = exact_shares(sides, end)
        assert below - 0.014 <= share <= upto + 0.014
    total = [every_resample([ns + 7 for ns in values], own, scale) for values, own in zip((BEFORE, AFTER), weights, strict=True)]
    assert found.total is not None
    assert exact_shares(total, found.total.low)[0] < 0.039 and exact_shares(total, found.total.high)[1] > 0.961


def test_steps_with_rare_calls_have_none_and_the_reason() -> None:
    rows = [{FOCAL: ns} for ns in AFTER]
    rare = step_spread(sampled(rows, [1, 0, 0, 0, 0, 0]), sampled(rows))
    assert not rare.lines and "some resamples hold none" in rare.none_because


def side(focal: list[int], other: int, calls: int = 1) -> TracedSide:
    """Named steps of `calls` focal kernels and a gemm, back to back; the last of them has no end and is left out."""
    ranges, device, at = [], [], 0
    for step, ns in enumerate((*focal, 50)):
        start = at
        for name, length in (*[("flash", ns)] * calls, ("gemm", other)):
            device.append(DeviceEvent(name, "kernel", at, at + length, 0, 7, 0, HostEvent("launch", start, start + 1, 0)))
            at += length
        ranges.append(HostEvent(f"ProfilerStep#{step}", start, at, 0))
    return label_trace(trace_of(device, ranges), "t", "flash", steps="ProfilerStep")


BOTH = [1000, 1004, 998, 1001, 1003, 999], [500, 503, 499, 502, 501, 498]


def test_a_stage_of_calls_has_intervals_of_its_labels_but_not_of_what_the_log_timed() -> None:
    sides = side(BOTH[0], 300, calls=2), side(BOTH[1], 320, calls=2)
    timed = {"stage": Fraction(10**6)}, {"stage": Fraction(8 * 10**5)}
    staged, plain = foreign_ledger(*sides, timed, (40, 40)).intervals, foreign_ledger(*sides).intervals
    assert staged.total is None and set(staged.lines) == {"focal: kernel", "step: kernel"}
    for name, each in plain.lines.items():  # twenty steps make a stage
        assert staged.lines[name].low == pytest.approx(20 * each.low) and staged.lines[name].high == pytest.approx(20 * each.high)
    assert foreign_ledger(*sides, timed).intervals == plain
    assert plain.total is not None and plain.total.low < foreign_ledger(*sides).saved_ns < plain.total.high


def test_traces_with_too_few_steps_or_none_say_so() -> None:
    sides = side(BOTH[0][:4], 300), side(BOTH[1], 320)
    assert foreign_ledger(*sides).intervals == Spread(none_because="4 and 6 compared steps, and an interval needs 5 on each side")
    assert foreign_ledger(side([1000], 300), sides[1]).intervals.lines == {}


def test_timed_lines_have_the_t_interval_of_their_pairs() -> None:
    """Three pairs save 10, 12 and 14 in all: mean 12, s = 2, t(0.975, 2) = 4.302653, half = 4.968275; two clips are in a pair."""
    found = paired_spread({"outside": [10, 12, 14]}, [4, 4, 4], 2)
    assert found.lines["outside"].low == pytest.approx((12 - 4.968275) / 2, abs=1e-6)
    assert found.lines["outside"].high == pytest.approx((12 + 4.968275) / 2, abs=1e-6)
    assert found.total is not None and (found.total.low, found.total.high) == (2, 2) and found.steps == (3,)
    assert paired_spread({"outside": [10]}, [4], 2) == Spread(none_because="fewer than two pairs")


def test_lines_of_clips_that_were_timed_pair_by_pair_have_intervals_and_traced_ones_have_none() -> None:
    label, sums = Label((), "timed"), [(100, 90), (102, 90), (104, 90)]
    own = [_side([{label: pair[at]} for pair in sums], num_clips=6) for at in (0, 1)]
    paired = [replace(side, pairs=side.units) for side in own]
    timed, traced = clip_ledger(*paired, sums), clip_ledger(*own, sums)
    assert timed.intervals == paired_spread({str(label): [10, 12, 14], str(_OUTSIDE): [0, 0, 0]}, [10, 12, 14], 2)
    assert {line.name: line.interval for line in timed.lines} == timed.intervals.lines
    assert traced.intervals == replace(timed.intervals, lines={}) and not any(line.interval for line in traced.lines)
    assert clip_ledger(paired[0], own[1], sums) == clip_ledger(own[0], paired[1], sums) == traced
    assert clip_ledger(*own, sums[:1]).intervals.none_because == "fewer than two pairs"


# Accounts of timed clips: exact, by kind of frame block, and with a name for what each nanosecond was spent on.


STEP, KERNEL_PATH = ("denoise_step", "dit_forward", "ffn"), ("denoise_step", "dit_forward", "attention", "attention_kernel")


@pytest.fixture
def run(make_run: Callable[..., RunRecords]) -> RunRecords:
    return make_run(took)


def explained(run: RunRecords, name: str, kinds: Sequence[ClipKind], blocks: dict[int, dict[Label, int]]) -> Explained:
    """The timed clips of a variant by one traced clip of these frame blocks."""
    return explain_by_trace(run, clips_of(run, name), kinds, traced(blocks))


def took(name: str, order: int, block: int) -> int:
    return (4_000_000 if name == "baseline" else 2_000_000) + 1000 * block + order


def clips_of(run: RunRecords, name: str) -> list[Clip]:
    return [clip for clip in run.clips if clip.variant == name and clip.phase == "timed"]


def traced(blocks: dict[int, dict[Label, int]]) -> Partition:
    tiles = [Tile(index=at, start_ns=0, end_ns=sum(owned.values()), owned=Counter(owned)) for at, owned in blocks.items()]
    return Partition(device="cuda:0", tiles=tuple(tiles), calls=(), overlap=())


@given(st.integers(-(10**15), 10**15), st.dictionaries(st.integers(), st.integers(0, 10**12), min_size=1, max_size=9))
def test_what_is_divided_adds_up_and_is_off_by_less_than_one(total: int, weights: dict[int, int]) -> None:
    whole = sum(weights.values())
    if not whole:
        with pytest.raises(DataError, match="cannot be divided") if total else pytest.raises(ZeroDivisionError):
            assert apportion(total, weights) == dict.fromkeys(weights, 0)
            raise ZeroDivisionError
        return
    found = apportion(total, weights)
    assert sum(found.values()) == total and found.keys() == weights.keys()
    assert all(abs(found[key] - Fraction(total * weights[key], whole)) < 1 for key in weights)


def test_a_clip_is_cut_at_the_starts_of_its_frame_blocks(run: RunRecords) -> None:
    clip = clips_of(run, "turbo")[0]
    ((blocks_ns, around_ns),) = cut_clips(run, [clip]).values()
    e2e = next(span.value_ns for span in run.spans if span.order == clip.order and span.name == spans.E2E)
    assert sum(blocks_ns) + around_ns == e2e
    assert blocks_ns[3] == took("turbo", clip.order, 3) + 100  # and the pause until the next one starts
    assert blocks_ns[-1] == took("turbo", clip.order, 11)
    lost = replace(
        run, spans=tuple(span for span in run.spans if (span.order, span.name, span.index) != (clip.order, "frame_block", 4))
    )
    with pytest.raises(DataError, match="lacks its end-to-end region or frame blocks"):
        cut_clips(lost, [clip])


def test_a_block_is_steady_only_where_it_is_for_both(run: RunRecords) -> None:
    slow = Variant(name="slow", preset="slow", window=18)
    assert block_kinds(run, ["baseline", "turbo"])[:5] == ("first", *["filling"] * 2, *["steady"] * 2)
    assert block_kinds(replace(run, variants=(*run.variants, slow)), ["baseline", "slow"])[:6].count("filling") == 4
    assert run.header.workload is not None
    switches = {prompt.frame_block for prompt in run.header.workload.prompts if prompt.frame_block}
    assert {at for at, kind in enumerate(block_kinds(run, ["turbo"])) if kind == "switch"} == switches


_LABELS = st.builds(
    Label, st.sampled_from([(), STEP, KERNEL_PATH, ("vae_decode",)]), st.sampled_from(["kernel", "memcpy", "host_late", "queued"])
)


@given(
    owned=st.dictionaries(
        st.integers(0, 11), st.dictionaries(_LABELS, st.integers(0, 3_000_000), min_size=1, max_size=6), max_size=12
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_traced_account_adds_up_to_the_timed_clips_whatever_was_traced(
    run: RunRecords, owned: dict[int, dict[Label, int]]
) -> None:
    clips = clips_of(run, "turbo")
    found = explain_by_trace(run, clips, block_kinds(run, ["turbo"]), traced(owned))
    whole = sum(span.value_ns for span in run.spans if span.name == spans.E2E and span.order in {clip.order for clip in clips})
    assert sum(found.labels.values()) == whole
    assert all(ns >= 0 for label, ns in found.labels.items() if label.activity != MISMATCH)


def test_busy_time_is_the_traces_and_idle_what_the_timed_blocks_have_left(run: RunRecords) -> None:
    """12 blocks of about 2 ms; 1.2 ms of kernels in each, and the idle of the trace, four times as long, is only a key."""
    kernel, late, queued = Label(KERNEL_PATH, "kernel"), Label(STEP, "host_late"), Label((), "queued")
    blocks = {at: {kernel: 1_200_000, late: 3_000_000, queued: 1_000_000} for at in range(12)}
    kinds = block_kinds(run, ["turbo"])
    found = explained(run, "turbo", kinds, blocks)
    many = len(clips_of(run, "turbo"))
    assert found.labels[kernel] == 12 * many * 1_200_000
    steady = found.kinds["steady"]
    assert steady[late] == pytest.approx(3 * steady[queued], abs=2)
    cut = cut_clips(run, clips_of(run, "turbo")).values()
    timed = sum(blocks_ns[at] for blocks_ns, _ in cut for at in range(12) if kinds[at] == "steady")
    assert sum(steady.values()) == timed
    assert found.traced_ns == 12 * 5_200_000 and found.timed_ns == pytest.approx(12 * 2_000_000, rel=0.01)


def test_what_a_trace_shows_beyond_the_timed_run_is_a_line_that_explains_nothing(run: RunRecords) -> None:
    blocks = {at: {Label(KERNEL_PATH, "kernel"): 2_500_000, Label(STEP, "host_late"): 10} for at in range(12)}
    slow = {at: {Label(KERNEL_PATH, "kernel"): 3_000_000, Label(STEP, "host_late"): 10} for at in range(12)}
    kinds = block_kinds(run, ["turbo", "baseline"])
    found = explained(run, "turbo", kinds, blocks)
    over = sum(ns for label, ns in found.labels.items() if label.activity == MISMATCH)
    assert over == pytest.approx(len(clips_of(run, "turbo")) * 12 * -0.5e6, rel=0.05)
    other = explained(run, "baseline", kinds, slow)
    said = answer(other, found)
    assert said.explained_time_share == pytest.approx(1 - 0.25, abs=0.01) and said.explained_saving_share is not None
    assert said.explained_saving_share == pytest.approx(1 - 0.5 / 2, abs=0.02)


@pytest.mark.parametrize("held", [{6, 7}, set(range(12)) - {7}])
def test_a_kind_of_block_that_was_not_traced_is_said_not_guessed(run: RunRecords, held: set[int]) -> None:
    """Others of its kind stand for a frame block that is left out."""
    kinds = block_kinds(run, ["turbo"])
    blocks = {at: {Label(KERNEL_PATH, "kernel"): 1_000_000, Label(STEP, "host_late"): 10} for at in held}
    found = explained(run, "turbo", kinds, blocks)
    unknown = {kind for kind, labels in found.kinds.items() if any(label.activity == UNTRACED for label in labels)}
    assert unknown == {kind for at, kind in enumerate(kinds)} - {kinds[at] for at in held}
    assert found.stood_for == tuple(at for at, kind in enumerate(kinds) if at not in held and kind not in unknown)
    assert found.kinds["steady"][Label(KERNEL_PATH, "kernel")] == kinds.count("steady") * found.num_clips * 1_000_000
    assert (answer(found, found).explained_time_share < 0.9) == bool(unknown)


def with_regions(run: RunRecords, own: Callable[[str], dict[tuple[str, ...], int]]) -> RunRecords:
    """Every timed clip added up these regions in each of its frame blocks."""
    lines = [
        Regions(
            variant=clip.variant, clip=clip.clip, order=clip.order, blocks=tuple(range(12)), paths=tuple(own(clip.variant)),
            calls=((2,) * 12,) * len(own(clip.variant)), value_ns=tuple((ns,) * 12 for ns in own(clip.variant).values()),
            region_ns=100,
        )
        for clip in run.clips
        if clip.phase == "timed"
    ]  # fmt: skip
    return replace(run, regions=tuple(lines))


def regions(variant: str) -> dict[tuple[str, ...], int]:
    scale = 2 if variant == "baseline" else 1
    return {
        ("denoise_step",): scale * 900_000,
        ("denoise_step", "dit_forward"): scale * 850_000,
        ("denoise_step", "dit_forward", "attention"): scale * 500_000,
        KERNEL_PATH: scale * 300_000,
        ("vae_decode",): scale * 100_000,
    }


def test_on_a_cpu_every_line_is_timed_in_the_clips_themselves(run: RunRecords) -> None:
    run = with_regions(run, regions)
    kinds, pairs = block_kinds(run, ["baseline", "turbo"]), mirrored_pairs(run, "turbo")
    sides = [explain_by_regions(run, [pair[side] for pair in pairs], kinds) for side in (0, 1)]
    many = sides[0].num_clips
    for side, scale in zip(sides, (2, 1), strict=True):
        assert side.labels[Label(KERNEL_PATH, TIMED)] == 12 * many * scale * 300_000
        assert side.labels[Label(KERNEL_PATH[:3], TIMED)] == 12 * many * scale * 200_000  # without what lies inside it
        assert side.calls["attention_kernel"] == (24 * many, 12 * many * scale * 300_000)
        assert side.marking_ns == many * 12 * 2 * 5 * 100
    ledger = clip_ledger(sides[0], sides[1], [(1, 1)] * len(pairs))
    e2e = [
        sum(span.value_ns for span in run.spans if span.name == "e2e" and span.order in {c.order for p in pairs for c in p[at]})
        for at in (0, 1)
    ]
    assert [ledger.baseline_ns, ledger.candidate_ns] == e2e
    assert ledger.levels[0].ratio == 2 and ledger.intervals.lines.keys() == {line.name for line in ledger.lines}
    said = answer(*sides)
    lines = {line.parts[0]: line for line in said.lines}
    assert lines[Part.ATTENTION_KERNEL].saved_ns == 300_000 and lines[Part.ATTENTION_AROUND].saved_ns == 200_000
    assert not said.sides[0].traced_ns and 0 < said.sides[0].disturbed < 0.001


class Counted(tuple[Span, ...]):
    """Spans that count how often they are gone through."""

    __slots__ = ()
    reads: ClassVar[list[int]] = []

    def __iter__(self) -> Iterator[Span]:
        self.reads.append(len(self))
        return super().__iter__()


def test_the_spans_of_a_run_are_gone_through_once_however_many_clips_it_has(run: RunRecords) -> None:
    counted = with_regions(replace(run, spans=Counted(run.spans)), regions)
    pairs, kinds = [pair[1] for pair in mirrored_pairs(run, "turbo")], block_kinds(run, ["baseline", "turbo"])
    assert len(pairs) > 1
    explain_by_regions(counted, pairs, kinds)
    explain_by_trace(counted, [clip for pair in pairs for clip in pair], kinds, traced({}))
    assert Counted.reads == [len(run.spans)] * 2


def test_regions_that_do_not_fit_into_each_other_are_refused(run: RunRecords) -> None:
    run = with_regions(run, lambda name: {("denoise_step",): 100, ("denoise_step", "dit_forward"): 101})
    pairs = mirrored_pairs(run, "turbo")
    with pytest.raises(DataError, match="regions inside denoise_step took 1 ns longer than it"):
        explain_by_regions(run, [pairs[0][1]], block_kinds(run, ["turbo"]))
    with pytest.raises(DataError, match="added up no regions"):
        explain_by_regions(replace(run, regions=()), [pairs[0][1]], block_kinds(run, ["turbo"]))


def test_what_one_side_cannot_tell_apart_is_told_apart_on_neither() -> None:
    side = Explained(
        num_clips=1,
        kinds={"steady": {Label(KERNEL_PATH, "kernel"): 5, Label(STEP, "kernel"): 7, Label(("vae_decode",), "kernel"): 1}},
        num_blocks={"steady": 1},
        calls={},
        units=(),
    )
    merged = coarsened(side, {"denoise_step"}).kinds["steady"]
    assert merged == {Label(("denoise_step", NOT_APART), "kernel"): 12, Label(("vae_decode",), "kernel"): 1}
    assert part_of(Label(("denoise_step", NOT_APART), "kernel")) == Part.PASS


def test_a_region_that_one_side_does_not_show_is_no_saving(run: RunRecords) -> None:
    """The kernel's label is lost on one side, as inside a graph without a key: its time counts as the section, on both."""
    inside, section, other = KERNEL_PATH, KERNEL_PATH[:3], STEP
    full = {
        at: {Label(inside, "kernel"): 500_000, Label(section, "kernel"): 100_000, Label(other, "queued"): 9} for at in range(12)
    }
    bare = {at: {Label(section, "kernel"): 600_000, Label(other, "queued"): 9} for at in range(12)}
    kinds = block_kinds(run, ["baseline", "turbo"])
    sides = [explained(run, name, kinds, blocks) for name, blocks in (("baseline", full), ("turbo", bare))]
    assert levelled(sides[0], sides[0])[0] == sides[0]
    before, after = levelled(*sides)
    assert before.merged == after.merged == (("attention_kernel", "attention"),)
    busy = Label(section, "kernel")
    assert before.labels[busy] == after.labels[busy] == 12 * before.num_clips * 600_000
    assert {part for line in answer(before, after).lines for part in line.parts}.isdisjoint({Part.ATTENTION_KERNEL})
    assert clip_ledger(before, after, ()).baseline_ns == sum(sides[0].labels.values())


LAYER = "denoise_step/dit_forward/"
PARTS = {
    Part.ATTENTION_KERNEL: (LAYER + "attention/attention_kernel", "commit/dit_forward/attention/attention_kernel"),
    Part.WAITING: (LAYER + "attention/attention_kernel: host_late",),
    Part.GAPS: (LAYER + "attention/attention_kernel: queued",),
    Part.COMMUNICATION: (LAYER + "attention/attention_kernel: comm",),
    Part.ATTENTION_AROUND: (LAYER + "attention/qkv_projection",),
    Part.NORMS: (
        *(LAYER + inside for inside in ("attention/modulated_norm", "cross_attention/cross_norm", "ffn/modulated_norm/mine")),
        "denoise_step/renoise",
    ),
    Part.COPIES: (LAYER + "attention/kv_write: memcpy", "draw: memcpy"),
    Part.CROSS_ATTENTION: (LAYER + "cross_attention/cross_attention_kernel",),
    Part.FEED_FORWARD: (LAYER + "ffn/ffn_up", LAYER + "ffn/mine"),  # a region of the user's own
    Part.OTHER_KERNELS: (LAYER + "other kernels/attention_tile",),
    Part.DECODING: ("vae_decode: memcpy", f"decode_wait: {TIMED}"),
    Part.REST: (f"text: {TIMED}",),
    Part.UNNAMED: (f": {TIMED}", ": kernel", "/".join(OUTSIDE), "/".join(NOT_LINKED), "a region of somebody"),
}


@pytest.mark.parametrize(("label", "part"), [(label, part) for part, labels in PARTS.items() for label in labels])
def test_every_label_belongs_to_one_part(label: str, part: Part) -> None:
    path, _, activity = label.partition(": ")
    assert part_of(Label(tuple(path.split("/")) if path else (), activity or "kernel")) == part


def test_every_region_has_a_part() -> None:
    inside = [name for name in spans.NAMES if name not in (spans.E2E, spans.FRAME_BLOCK)]
    outermost = (spans.DRAW, spans.TEXT, spans.RECACHE, spans.DENOISE_STEP, spans.COMMIT, spans.VAE_DECODE, spans.DECODE_WAIT)
    for name in inside:
        path = (name,) if name in (*outermost, spans.KV_OPEN) else ("denoise_step", name)
        assert part_of(Label(path, "kernel")) != Part.UNNAMED, name
