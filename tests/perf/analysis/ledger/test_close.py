"""The ledger closes to 0 ns, whatever the input, and says what it should on a case worked out by hand."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.close import (
    CLIP_LEVELS,
    DILATION,
    OUTSIDE_WINDOW,
    STEP_DILATION,
    Ledger,
    Level,
    TimedSums,
    build_ledger,
)
from strobe.perf.analysis.runs.partition import Partition, Tile
from strobe.perf.analysis.runs.timeline import Call, Label

_STEP, _SECTION = ("denoise_step",), ("denoise_step", "attention")
_FOCAL = (*_SECTION, "attention_kernel")
_PATHS = [(), _STEP, _SECTION, _FOCAL, (*_STEP, "ffn"), ("commit", "attention", "attention_kernel"), ("commit",), ("vae_decode",)]


def _partition(tiles: list[dict[Label, int]], calls: list[Call] | None = None, device: str = "cpu") -> Partition:
    """A partition with these labels; without calls, one call per busy label and tile."""
    placed, position = [], 0
    for index, owned in enumerate(tiles):
        end = position + sum(owned.values())
        placed.append(Tile(index=index, start_ns=position, end_ns=end, owned=Counter(owned)))
        position = end
    if calls is None:
        calls = [Call(label.region, label, 0, ns, ns) for owned in tiles for label, ns in owned.items() if label.busy]
    return Partition(device=device, tiles=tuple(placed), calls=tuple(calls), overlap=())


def _closes(ledger: Ledger) -> None:
    for column in ("baseline_ns", "candidate_ns", "saved_ns"):
        assert sum(getattr(line, column) for line in ledger.lines) == getattr(ledger, column)
        assert getattr(ledger.levels[-1], column) == getattr(ledger, column)
    assert [level.level for level in ledger.levels] == list(CLIP_LEVELS)
    for before, after in zip(ledger.levels, ledger.levels[1:], strict=False):
        own = [line for line in ledger.lines if line.level == after.level]
        assert after.saved_ns == before.saved_ns + sum(line.saved_ns for line in own)
    busy = {"op", "kernel", "comm", "memset", "memcpy"}
    assert sum(e.saved_ns for e in ledger.effects) == sum(line.saved_ns for line in ledger.lines if line.activity in busy)
    for effect in ledger.effects:
        assert effect.calls_effect_ns + effect.speed_effect_ns == effect.saved_ns == effect.baseline_ns - effect.candidate_ns
    assert ledger.lost_ns == sum(line.saved_ns for line in ledger.lines if line.saved_ns < 0)


_CPU_LABELS = st.builds(Label, st.sampled_from(_PATHS), st.sampled_from(["op", "gap"]))
_GPU_LABELS = st.builds(Label, st.sampled_from(_PATHS), st.sampled_from(["kernel", "memcpy", "host_late", "queued", "unlinked"]))


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[Partition, Partition]:
    labels, device = draw(st.sampled_from([(_CPU_LABELS, "cpu"), (_GPU_LABELS, "cuda:0")]))
    num_tiles = draw(st.integers(1, 4))
    tiles = st.lists(st.dictionaries(labels, st.integers(0, 10**15), max_size=8), min_size=num_tiles, max_size=num_tiles)
    return _partition(draw(tiles), device=device), _partition(draw(tiles), device=device)


_TIMES = st.integers(1, 10**17)
_SUMS = st.builds(TimedSums, e2e_ns=_TIMES, frame_blocks_ns=_TIMES, denoise_steps_ns=st.just(0) | _TIMES)


@given(pair=_pairs(), timed=st.tuples(_SUMS, _SUMS), num_clips=st.integers(1, 9))
def test_it_closes_to_zero_nanoseconds(
    pair: tuple[Partition, Partition], timed: tuple[TimedSums, TimedSums], num_clips: int
) -> None:
    ledger = build_ledger(*pair, timed_baseline=timed[0], timed_candidate=timed[1], num_clips=num_clips)
    _closes(ledger)
    assert ledger.saved_ns == timed[0].e2e_ns - timed[1].e2e_ns
    assert ledger.levels[3].baseline_ns == timed[0].frame_blocks_ns
    steps_timed = all(sums.denoise_steps_ns for sums in timed)
    assert (ledger.levels[2].tiles == ((), ())) == steps_timed
    if steps_timed:
        assert (ledger.levels[2].baseline_ns, ledger.levels[2].candidate_ns) == tuple(sums.denoise_steps_ns for sums in timed)
    for level in ledger.levels[: 2 if steps_timed else 3]:
        assert [num_clips * sum(tiles) for tiles in level.tiles] == [level.baseline_ns, level.candidate_ns]


@given(pair=_pairs(), timed=_SUMS, num_clips=st.integers(1, 9))
def test_the_same_twice_gives_zeros_and_ratio_one(pair: tuple[Partition, Partition], timed: TimedSums, num_clips: int) -> None:
    ledger = build_ledger(pair[0], pair[0], timed_baseline=timed, timed_candidate=timed, num_clips=num_clips)
    assert {line.saved_ns for line in ledger.lines} == {0} and {line.share for line in ledger.lines} == {None}
    assert all(level.saved_ns == 0 and level.ratio in (1.0, None) for level in ledger.levels)
    assert all((e.calls_effect_ns, e.speed_effect_ns) == (0, 0) for e in ledger.effects)
    assert (ledger.saved_ns, ledger.kernel_saved_ns, ledger.lost_ns, ledger.realised_share) == (0, 0, 0, None)
    assert ledger.ideal_ns == ledger.baseline_ns


@given(pair=_pairs(), timed=st.tuples(_SUMS, _SUMS))
def test_swapping_the_variants_flips_every_sign(pair: tuple[Partition, Partition], timed: tuple[TimedSums, TimedSums]) -> None:
    there = build_ledger(*pair, timed_baseline=timed[0], timed_candidate=timed[1], num_clips=2)
    back = build_ledger(pair[1], pair[0], timed_baseline=timed[1], timed_candidate=timed[0], num_clips=2)
    assert [(line.name, line.saved_ns) for line in there.lines] == [(line.name, -line.saved_ns) for line in back.lines]
    effects = {e.name: (e.calls_effect_ns, e.speed_effect_ns) for e in there.effects}
    assert effects == {e.name: (-e.calls_effect_ns, -e.speed_effect_ns) for e in back.effects}


def test_an_account_worked_out_by_hand() -> None:
    """Two blocks traced, three clips timed; the kernel halves, the section gains a gap, the commit pass follows, decode grows."""
    commit = ("commit", "attention", "attention_kernel")
    before = {Label(_FOCAL, "op"): 400, Label(_SECTION, "op"): 50, Label(commit, "op"): 100, Label(("vae_decode",), "op"): 200}
    after = {Label(_FOCAL, "op"): 200, Label(_SECTION, "op"): 50, Label(_SECTION, "gap"): 30, Label(commit, "op"): 50}
    after[Label(("vae_decode",), "op")] = 240
    ledger = build_ledger(
        _partition([before, before]),
        _partition([after, after]),
        timed_baseline=TimedSums(e2e_ns=5000, frame_blocks_ns=4200),
        timed_candidate=TimedSums(e2e_ns=4000, frame_blocks_ns=3300),
        num_clips=3,
    )
    _closes(ledger)
    assert {line.name: (line.level, line.saved_ns) for line in ledger.lines} == {
        "denoise_step / attention / attention_kernel: op": (Level.KERNEL, 1200),
        "denoise_step / attention: gap": (Level.SECTION, -180),
        "denoise_step / attention: op": (Level.SECTION, 0),
        "commit / attention / attention_kernel: op": (Level.BLOCK, 300),
        "vae_decode: op": (Level.BLOCK, -240),
        DILATION: (Level.BLOCK, (4200 - 4500) - (3300 - 3420)),
        OUTSIDE_WINDOW: (Level.E2E, 800 - 700),
    }
    assert [(level.saved_ns, level.ratio) for level in ledger.levels] == [
        (1200, 2.0), (1020, 2700 / 1680), (1020, 2700 / 1680), (900, 4200 / 3300), (1000, 1.25),
    ]  # fmt: skip
    assert ledger.levels[0].tiles == ((400, 400), (200, 200)) and ledger.levels[3].tiles == ((), ())
    assert (ledger.kernel_saved_ns, ledger.ideal_ns, ledger.realised_share) == (1500, 3500, 1000 / 1500)
    assert ledger.lost_ns == -180 - 240 - 180
    assert {line.name: line.share for line in ledger.lines}[OUTSIDE_WINDOW] == 0.1


def test_dilation_is_told_apart_inside_and_outside_the_denoise_steps() -> None:
    """Traced: 90 of step and 60 of decode, doubled by the profiler in the steps of the baseline alone."""
    before = _partition([{Label(_STEP, "op"): 90, Label(("vae_decode",), "op"): 60}])
    after = _partition([{Label(_STEP, "op"): 30, Label(("vae_decode",), "op"): 60}])
    ledger = build_ledger(
        before,
        after,
        timed_baseline=TimedSums(e2e_ns=260, frame_blocks_ns=210, denoise_steps_ns=90),
        timed_candidate=TimedSums(e2e_ns=220, frame_blocks_ns=170, denoise_steps_ns=60),
        num_clips=2,
    )
    _closes(ledger)
    took = {line.name: (line.level, line.baseline_ns, line.candidate_ns) for line in ledger.lines}
    assert took[STEP_DILATION] == (Level.STEP, 90 - 180, 60 - 60)
    assert took[DILATION] == (Level.BLOCK, (210 - 90) - 120, (170 - 60) - 120)
    assert [(level.baseline_ns, level.candidate_ns) for level in ledger.levels[2:]] == [(90, 60), (210, 170), (260, 220)]


def test_calls_and_speed_are_split_exactly() -> None:
    label = Label(_STEP, "op")
    many = [Call("mm", label, 0, 10, 10)] * 3 + [Call("old", label, 0, 7, 7)] * 2
    few = [Call("mm", label, 0, 8, 8), Call("mm", label, 0, 9, 9), Call("new", label, 0, 5, 5)]
    timed = TimedSums(e2e_ns=100, frame_blocks_ns=90)
    ledger = build_ledger(
        _partition([{label: 44}], many), _partition([{label: 22}], few), timed_baseline=timed, timed_candidate=timed, num_clips=1
    )
    _closes(ledger)
    effects = {e.name: (e.calls_effect_ns, e.speed_effect_ns) for e in ledger.effects}
    mean = Fraction(17, 2)
    assert effects["mm"] == ((3 - 2) * (10 + mean) / 2, (10 - mean) * (3 + 2) / 2)
    assert effects["old"] == (14, 0) and effects["new"] == (-5, 0)  # called by one variant only
    assert [e.name for e in ledger.effects] == ["old", "mm", "new"]


def test_a_kernel_that_only_one_trace_shows_is_missing_not_saved() -> None:
    timed = TimedSums(e2e_ns=100, frame_blocks_ns=90)
    ledger = build_ledger(
        _partition([{Label(_FOCAL, "kernel"): 40}], device="cuda:0"),
        _partition([{Label(_STEP, "kernel"): 30}], device="cuda:0"),
        timed_baseline=timed,
        timed_candidate=timed,
        num_clips=1,
    )
    _closes(ledger)
    assert [level.ratio for level in ledger.levels] == [None, None, 40 / 30, 1.0, 1.0]
    assert (ledger.kernel_saved_ns, ledger.realised_share, ledger.ideal_ns) == (0, None, 100)


def test_unlike_traces_and_missing_times_are_refused() -> None:
    one, timed = _partition([{Label((), "op"): 5}]), TimedSums(e2e_ns=9, frame_blocks_ns=8)
    sums = {"timed_baseline": timed, "timed_candidate": timed, "num_clips": 1}
    with pytest.raises(DataError, match="same blocks"):
        build_ledger(one, _partition([{Label((), "op"): 5}] * 2), **sums)
    with pytest.raises(DataError, match="same kind of device"):
        build_ledger(one, replace(one, device="cuda:0"), **sums)
    for bad in ({"num_clips": 0}, {"timed_candidate": TimedSums(e2e_ns=9, frame_blocks_ns=0)}):
        with pytest.raises(DataError, match="no timed clips"):
            build_ledger(one, one, **sums | bad)
