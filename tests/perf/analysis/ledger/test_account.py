"""The ledger closes to 0 ns, whatever the input, and says what it should on a case worked out by hand."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import AROUND, CLIP_LEVELS, AccountLevel, ClipKind, Explained, Ledger, clip_ledger
from strobe.perf.analysis.runs.timeline import Label

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
        kinds={
            ClipKind.STEADY: {label: num_clips * ns for label, ns in total.items()},
            ClipKind.AROUND: {_OUTSIDE: num_clips * around},
        },
        num_blocks={ClipKind.STEADY: len(blocks)},
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
    assert sum(e.saved_ns for e in ledger.effects) == sum(line.saved_ns for line in ledger.lines if line.label.activity in busy)
    for effect in ledger.effects:
        assert effect.calls_effect_ns + effect.speed_effect_ns == effect.saved_ns == effect.baseline_ns - effect.candidate_ns
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


@given(pair=_pairs())
def test_the_same_twice_gives_zeros_and_ratio_one(pair: tuple[Explained, Explained]) -> None:
    ledger = clip_ledger(pair[0], pair[0], ())
    assert {line.saved_ns for line in ledger.lines} == {0} and {line.share for line in ledger.lines} == {None}
    assert all(level.saved_ns == 0 and level.ratio in (1.0, None) for level in ledger.levels)
    assert all((e.calls_effect_ns, e.speed_effect_ns) == (0, 0) for e in ledger.effects)
    assert (ledger.saved_ns, ledger.kernel_saved_ns, ledger.lost_ns, ledger.realised_share) == (0, 0, 0, None)
    assert ledger.ideal_ns == ledger.baseline_ns


@given(pair=_pairs())
def test_swapping_the_variants_flips_every_sign(pair: tuple[Explained, Explained]) -> None:
    there, back = clip_ledger(*pair, ()), clip_ledger(pair[1], pair[0], ())
    assert [(line.name, line.saved_ns) for line in there.lines] == [(line.name, -line.saved_ns) for line in back.lines]
    effects = {e.name: (e.calls_effect_ns, e.speed_effect_ns) for e in there.effects}
    assert effects == {e.name: (-e.calls_effect_ns, -e.speed_effect_ns) for e in back.effects}


def test_an_account_worked_out_by_hand() -> None:
    """Two blocks, three clips; the kernel halves, the section gains a gap, the commit pass follows, decode grows."""
    commit = ("commit", "attention", "attention_kernel")
    before = {Label(_FOCAL, "op"): 400, Label(_SECTION, "op"): 50, Label(commit, "op"): 100, Label(("vae_decode",), "op"): 200}
    after = {Label(_FOCAL, "op"): 200, Label(_SECTION, "op"): 50, Label(_SECTION, "gap"): 30, Label(commit, "op"): 50}
    after[Label(("vae_decode",), "op")] = 240
    ledger = clip_ledger(_side([before, before], 100, 3), _side([after, after], 60, 3), ((1600, 1200), (3200, 2400)))
    _closes(ledger)
    assert {line.name: (line.level, line.saved_ns) for line in ledger.lines} == {
        "denoise_step / attention / attention_kernel: op": (AccountLevel.KERNEL, 1200),
        "denoise_step / attention: gap": (AccountLevel.SECTION, -180),
        "denoise_step / attention: op": (AccountLevel.SECTION, 0),
        "commit / attention / attention_kernel: op": (AccountLevel.BLOCK, 300),
        "vae_decode: op": (AccountLevel.BLOCK, -240),
        str(_OUTSIDE): (AccountLevel.E2E, 120),
    }
    assert [(level.saved_ns, level.ratio) for level in ledger.levels] == [
        (1200, 2.0), (1020, 2700 / 1680), (1020, 2700 / 1680), (1080, 4500 / 3420), (1200, 4800 / 3600),
    ]  # fmt: skip
    assert ledger.levels[0].tiles == ((400, 400), (200, 200))
    assert (ledger.kernel_saved_ns, ledger.ideal_ns, ledger.realised_share) == (1500, 3300, 1200 / 1500)
    assert ledger.lost_ns == -180 - 240
    assert {line.name: line.share for line in ledger.lines}[str(_OUTSIDE)] == 0.1
    assert ledger.spread.total is not None and not ledger.spread.lines


def test_calls_and_speed_are_split_exactly() -> None:
    label = Label(_STEP, "op")
    many, few = {"mm": (3, 30), "old": (2, 14)}, {"mm": (2, 17), "new": (1, 5)}
    ledger = clip_ledger(_side([{label: 44}], calls=many), _side([{label: 22}], calls=few), ())
    _closes(ledger)
    effects = {e.name: (e.calls_effect_ns, e.speed_effect_ns) for e in ledger.effects}
    mean = Fraction(17, 2)
    assert effects["mm"] == ((3 - 2) * (10 + mean) / 2, (10 - mean) * (3 + 2) / 2)
    assert effects["old"] == (14, 0) and effects["new"] == (-5, 0)  # called by one variant only
    assert [e.name for e in ledger.effects] == ["old", "mm", "new"]


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
