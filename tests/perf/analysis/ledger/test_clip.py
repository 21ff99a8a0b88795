"""Accounts of timed clips: exact, by kind of frame block, and with a name for what each nanosecond was spent on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import (
    MEANING,
    MISMATCH,
    NOT_APART,
    UNTRACED,
    ClipKind,
    Explained,
    Part,
    apportion,
    block_kinds,
    clip_ledger,
    coarsened,
    cut_clips,
    explain_by_regions,
    explain_by_trace,
    levelled,
    part_of,
)
from strobe.perf.analysis.ledger.speedup import MOST_LINES, answer
from strobe.perf.analysis.runs.compare import mirrored_pairs
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, TIMED, Label, Partition, Tile
from strobe.perf.records.record import Clip, Regions, Span, Variant
from strobe.perf.records.store import RunRecords

MakeRun = Callable[..., RunRecords]
STEP, FOCAL = ("denoise_step", "dit_forward", "ffn"), ("denoise_step", "dit_forward", "attention", "attention_kernel")


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


def test_a_clip_is_cut_at_the_starts_of_its_frame_blocks(make_run: MakeRun) -> None:
    run = make_run(took)
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


def test_a_block_is_steady_only_where_it_is_for_both(make_run: MakeRun) -> None:
    run = make_run(took)
    slow = Variant(name="slow", preset="slow", window=18)
    assert block_kinds(run, ["baseline", "turbo"])[:5] == (
        ClipKind.FIRST,
        ClipKind.FILLING,
        ClipKind.FILLING,
        ClipKind.STEADY,
        ClipKind.STEADY,
    )
    assert block_kinds(replace(run, variants=(*run.variants, slow)), ["baseline", "slow"])[:6].count(ClipKind.FILLING) == 4
    work = run.header.workload
    assert work is not None
    for prompt in work.prompts:
        if prompt.frame_block:
            assert block_kinds(run, ["turbo"])[prompt.frame_block] == ClipKind.SWITCH


_LABELS = st.builds(
    Label, st.sampled_from([(), STEP, FOCAL, ("vae_decode",)]), st.sampled_from(["kernel", "memcpy", "host_late", "queued"])
)


@given(
    owned=st.dictionaries(
        st.integers(0, 11), st.dictionaries(_LABELS, st.integers(0, 3_000_000), min_size=1, max_size=6), max_size=12
    ),
)
def test_a_traced_account_adds_up_to_the_timed_clips_whatever_was_traced(owned: dict[int, dict[Label, int]]) -> None:
    run = RUN[0]
    clips = clips_of(run, "turbo")
    found = explain_by_trace(run, clips, block_kinds(run, ["turbo"]), traced(owned))
    whole = sum(span.value_ns for span in run.spans if span.name == spans.E2E and span.order in {clip.order for clip in clips})
    assert sum(found.labels.values()) == whole
    assert all(ns >= 0 for label, ns in found.labels.items() if label.activity != MISMATCH)


RUN: list[RunRecords] = []


@pytest.fixture(autouse=True)
def _one_run(make_run: MakeRun) -> None:
    if not RUN:
        RUN.append(make_run(took))


def test_busy_time_is_the_traces_and_idle_what_the_timed_blocks_have_left(make_run: MakeRun) -> None:
    """12 blocks of about 2 ms; 1.2 ms of kernels in each, and the idle of the trace, four times as long, is only a key."""
    run = make_run(took)
    kernel, late, queued = Label(FOCAL, "kernel"), Label(STEP, "host_late"), Label((), "queued")
    blocks = {at: {kernel: 1_200_000, late: 3_000_000, queued: 1_000_000} for at in range(12)}
    kinds = block_kinds(run, ["turbo"])
    found = explain_by_trace(run, clips_of(run, "turbo"), kinds, traced(blocks))
    many = len(clips_of(run, "turbo"))
    assert found.labels[kernel] == 12 * many * 1_200_000
    steady = found.kinds[ClipKind.STEADY]
    assert steady[late] == pytest.approx(3 * steady[queued], abs=2)
    cut = cut_clips(run, clips_of(run, "turbo")).values()
    timed = sum(blocks_ns[at] for blocks_ns, _ in cut for at in range(12) if kinds[at] == ClipKind.STEADY)
    assert sum(steady.values()) == timed
    assert found.traced_ns == 12 * 5_200_000 and found.timed_ns == pytest.approx(12 * 2_000_000, rel=0.01)


def test_what_a_trace_shows_beyond_the_timed_run_is_a_line_that_explains_nothing(make_run: MakeRun) -> None:
    run = make_run(took)
    blocks = {at: {Label(FOCAL, "kernel"): 2_500_000, Label(STEP, "host_late"): 10} for at in range(12)}
    slow = {at: {Label(FOCAL, "kernel"): 3_000_000, Label(STEP, "host_late"): 10} for at in range(12)}
    kinds = block_kinds(run, ["turbo", "baseline"])
    found = explain_by_trace(run, clips_of(run, "turbo"), kinds, traced(blocks))
    over = sum(ns for label, ns in found.labels.items() if label.activity == MISMATCH)
    assert over == pytest.approx(len(clips_of(run, "turbo")) * 12 * -0.5e6, rel=0.05)
    other = explain_by_trace(run, clips_of(run, "baseline"), kinds, traced(slow))
    said = answer(other, found)
    assert said.explained_time == pytest.approx(1 - 0.25, abs=0.01) and said.explained_saving is not None
    assert said.explained_saving == pytest.approx(1 - 0.5 / 2, abs=0.02)


def test_a_kind_of_block_that_was_not_traced_is_said_not_guessed(make_run: MakeRun) -> None:
    run = make_run(took)
    only = {at: {Label(FOCAL, "kernel"): 1_000_000, Label(STEP, "host_late"): 10} for at in (6, 7)}
    kinds = block_kinds(run, ["turbo"])
    found = explain_by_trace(run, clips_of(run, "turbo"), kinds, traced(only))
    unknown = {kind for kind, labels in found.kinds.items() if any(label.activity == UNTRACED for label in labels)}
    assert unknown == set(kinds) - {ClipKind.STEADY}
    assert (
        found.kinds[ClipKind.STEADY][Label(FOCAL, "kernel")]
        == kinds.count(ClipKind.STEADY) * len(clips_of(run, "turbo")) * 1_000_000
    )
    assert answer(found, found).explained_time < 0.9


def with_regions(run: RunRecords, own: Callable[[str], dict[tuple[str, ...], int]]) -> RunRecords:
    """Every timed clip added up these regions in each of its frame blocks."""
    lines = []
    for clip in run.clips:
        if clip.phase == "timed":
            times = own(clip.variant)
            rows = tuple(tuple([ns] * 12) for ns in times.values())
            calls = tuple(tuple([2] * 12) for _ in times)
            lines.append(
                Regions(
                    variant=clip.variant, clip=clip.clip, order=clip.order, blocks=tuple(range(12)), paths=tuple(times),
                    calls=calls, value_ns=rows, region_ns=100,
                )
            )  # fmt: skip
    return replace(run, regions=tuple(lines))


def regions(variant: str) -> dict[tuple[str, ...], int]:
    scale = 2 if variant == "baseline" else 1
    return {
        ("denoise_step",): scale * 900_000,
        ("denoise_step", "dit_forward"): scale * 850_000,
        ("denoise_step", "dit_forward", "attention"): scale * 500_000,
        FOCAL: scale * 300_000,
        ("vae_decode",): scale * 100_000,
    }


def test_on_a_cpu_every_line_is_timed_in_the_clips_themselves(make_run: MakeRun) -> None:
    run = with_regions(make_run(took), regions)
    kinds, pairs = block_kinds(run, ["baseline", "turbo"]), mirrored_pairs(run, "turbo")
    sides = [explain_by_regions(run, [pair[side] for pair in pairs], kinds) for side in (0, 1)]
    many = sides[0].num_clips
    for side, scale in zip(sides, (2, 1), strict=True):
        assert side.labels[Label(FOCAL, TIMED)] == 12 * many * scale * 300_000
        assert side.labels[Label(FOCAL[:3], TIMED)] == 12 * many * scale * 200_000  # without what lies inside it
        assert side.calls["attention_kernel"] == (24 * many, 12 * many * scale * 300_000)
        assert side.marking_ns == many * 12 * 2 * 5 * 100
    ledger = clip_ledger(sides[0], sides[1], [(1, 1)] * len(pairs))
    e2e = [
        sum(span.value_ns for span in run.spans if span.name == "e2e" and span.order in {c.order for p in pairs for c in p[at]})
        for at in (0, 1)
    ]
    assert [ledger.baseline_ns, ledger.candidate_ns] == e2e
    assert ledger.levels[0].ratio == 2 and ledger.spread.lines.keys() == {line.name for line in ledger.lines}
    said = answer(*sides)
    lines = {line.parts[0]: line for line in said.lines}
    assert lines[Part.ATTENTION_KERNEL].saved_ns == 300_000 and lines[Part.ATTENTION_AROUND].saved_ns == 200_000
    assert not said.traced and 0 < said.disturbed[0] < 0.001


class Counted(tuple[Span, ...]):
    """Spans that count how often they are gone through."""

    __slots__ = ()
    reads: ClassVar[list[int]] = []

    def __iter__(self) -> Iterator[Span]:
        self.reads.append(len(self))
        return super().__iter__()


@pytest.mark.parametrize("way", ["regions", "trace"])
def test_the_spans_of_a_run_are_gone_through_once_however_many_clips_it_has(make_run: MakeRun, way: str) -> None:
    run = with_regions(make_run(took), regions)
    pairs, kinds = mirrored_pairs(run, "turbo"), block_kinds(run, ["baseline", "turbo"])
    assert len(pairs) > 1
    counted = replace(run, spans=Counted(run.spans))
    Counted.reads.clear()
    if way == "regions":
        explain_by_regions(counted, [pair[1] for pair in pairs], kinds)
    else:
        explain_by_trace(counted, [clip for pair in pairs for clip in pair[1]], kinds, traced({}))
    assert Counted.reads == [len(run.spans)]


def test_regions_that_do_not_fit_into_each_other_are_refused(make_run: MakeRun) -> None:
    run = with_regions(make_run(took), lambda name: {("denoise_step",): 100, ("denoise_step", "dit_forward"): 101})
    pairs = mirrored_pairs(run, "turbo")
    with pytest.raises(DataError, match="regions inside denoise_step took 1 ns longer than it"):
        explain_by_regions(run, [pairs[0][1]], block_kinds(run, ["turbo"]))
    with pytest.raises(DataError, match="added up no regions"):
        explain_by_regions(replace(run, regions=()), [pairs[0][1]], block_kinds(run, ["turbo"]))


def test_what_one_side_cannot_tell_apart_is_told_apart_on_neither() -> None:
    side = Explained(
        num_clips=1,
        kinds={ClipKind.STEADY: {Label(FOCAL, "kernel"): 5, Label(STEP, "kernel"): 7, Label(("vae_decode",), "kernel"): 1}},
        num_blocks={ClipKind.STEADY: 1},
        calls={},
        units=(),
    )
    merged = coarsened(side, {"denoise_step"}).kinds[ClipKind.STEADY]
    assert merged == {Label(("denoise_step", NOT_APART), "kernel"): 12, Label(("vae_decode",), "kernel"): 1}
    assert part_of(Label(("denoise_step", NOT_APART), "kernel")) == Part.PASS


def test_a_region_that_one_side_does_not_show_is_no_saving(make_run: MakeRun) -> None:
    """The kernel's label is lost on one side, as inside a graph without a key: its time counts as the section, on both."""
    run = make_run(took)
    inside, section, other = FOCAL, FOCAL[:3], STEP
    full = {
        at: {Label(inside, "kernel"): 500_000, Label(section, "kernel"): 100_000, Label(other, "queued"): 9} for at in range(12)
    }
    bare = {at: {Label(section, "kernel"): 600_000, Label(other, "queued"): 9} for at in range(12)}
    kinds = block_kinds(run, ["baseline", "turbo"])
    sides = [
        explain_by_trace(run, clips_of(run, name), kinds, traced(blocks))
        for name, blocks in (("baseline", full), ("turbo", bare))
    ]
    assert levelled(sides[0], sides[0])[0] == sides[0]
    before, after = levelled(*sides)
    assert before.merged == after.merged == (("attention_kernel", "attention"),)
    busy = Label(section, "kernel")
    assert before.labels[busy] == after.labels[busy] == 12 * before.num_clips * 600_000
    assert {part for line in answer(before, after).lines for part in line.parts}.isdisjoint({Part.ATTENTION_KERNEL})
    assert clip_ledger(before, after, ()).baseline_ns == sum(sides[0].labels.values())


def test_a_block_left_out_of_a_trace_is_said(make_run: MakeRun) -> None:
    run = make_run(took)
    blocks = {at: {Label(FOCAL, "kernel"): 1_000_000, Label(STEP, "queued"): 9} for at in range(12) if at != 7}
    kinds = block_kinds(run, ["turbo"])
    found = explain_by_trace(run, clips_of(run, "turbo"), kinds, traced(blocks))
    assert found.stood_for == (7,)
    assert found.kinds[ClipKind.STEADY][Label(FOCAL, "kernel")] == kinds.count(ClipKind.STEADY) * found.num_clips * 1_000_000


@pytest.mark.parametrize(
    ("path", "activity", "part"),
    [
        (FOCAL, "kernel", Part.ATTENTION_KERNEL),
        (FOCAL, "host_late", Part.WAITING),
        (FOCAL, "queued", Part.GAPS),
        (("commit", "dit_forward", "attention", "attention_kernel"), "kernel", Part.ATTENTION_KERNEL),
        (("denoise_step", "dit_forward", "attention", "qkv_projection"), "kernel", Part.ATTENTION_AROUND),
        (("denoise_step", "dit_forward", "attention", "modulated_norm"), "kernel", Part.NORMS),
        (("denoise_step", "dit_forward", "attention", "kv_write"), "memcpy", Part.COPIES),
        (("denoise_step", "dit_forward", "cross_attention", "cross_norm"), "kernel", Part.NORMS),
        (("denoise_step", "dit_forward", "cross_attention", "cross_attention_kernel"), "kernel", Part.CROSS_ATTENTION),
        (("denoise_step", "dit_forward", "ffn", "ffn_up"), "kernel", Part.FEED_FORWARD),
        (("denoise_step", "renoise"), "kernel", Part.NORMS),
        (("vae_decode",), "memcpy", Part.DECODING),
        (("decode_wait",), TIMED, Part.DECODING),
        (("draw",), "memcpy", Part.COPIES),
        (("text",), TIMED, Part.REST),
        ((), TIMED, Part.UNNAMED),
        ((), "kernel", Part.UNNAMED),
        (OUTSIDE, "kernel", Part.UNNAMED),
        (NOT_LINKED, "kernel", Part.UNNAMED),
        (("a region of somebody",), "kernel", Part.UNNAMED),
        (FOCAL, "comm", Part.COMMUNICATION),
    ],
)
def test_every_label_belongs_to_one_part(path: tuple[str, ...], activity: str, part: Part) -> None:
    assert part_of(Label(path, activity)) == part


def test_every_part_says_what_it_is_and_every_region_has_one() -> None:
    assert MEANING.keys() == set(Part)
    inside = [name for name in spans.NAMES if name not in (spans.E2E, spans.FRAME_BLOCK)]
    outermost = (spans.DRAW, spans.TEXT, spans.RECACHE, spans.DENOISE_STEP, spans.COMMIT, spans.VAE_DECODE, spans.DECODE_WAIT)
    for name in inside:
        path = (name,) if name in (*outermost, spans.KV_OPEN) else ("denoise_step", name)
        assert part_of(Label(path, "kernel")) != Part.UNNAMED, name


def test_at_most_eight_lines_that_add_up_with_the_small_ones_together(make_run: MakeRun) -> None:
    run = make_run(took)
    paths = [FOCAL, STEP, ("vae_decode",), ("denoise_step", "dit_forward", "attention"), ("denoise_step", "renoise")]
    paths += [("denoise_step", "dit_forward", "cross_attention"), ("draw",)]

    def blocks(scale: int) -> Partition:
        kernels = {Label(path, "kernel"): scale * 10_000 * (place + 1) for place, path in enumerate(paths)}
        idle = {Label(STEP, "host_late"): 400, Label(STEP, "queued"): 300, Label(STEP, "memcpy"): 200, Label((), "kernel"): 100}
        return traced(dict.fromkeys(range(12), kernels | idle))

    kinds = block_kinds(run, ["baseline", "turbo"])
    sides: list[Any] = [
        explain_by_trace(run, clips_of(run, name), kinds, blocks(scale)) for name, scale in (("baseline", 2), ("turbo", 1))
    ]
    said = answer(*sides)
    assert len(said.lines) == MOST_LINES and len(said.lines[-1].parts) > 1
    for at, side in (("baseline_ns", sides[0]), ("candidate_ns", sides[1])):
        steady = sum(side.kinds[ClipKind.STEADY].values())
        assert getattr(said, at) == Fraction(steady, side.num_clips * kinds.count(ClipKind.STEADY))
        assert sum(getattr(kind, at) for kind in said.kinds) == Fraction(sum(side.labels.values()), side.num_clips)
    beyond = sum(line.elsewhere_ns for line in said.lines)
    saved = Fraction(sum(sides[0].labels.values()) - sum(sides[1].labels.values()), sides[0].num_clips)
    assert said.num_steady * (said.baseline_ns - said.candidate_ns) + beyond == saved
    assert sum(line.share or 0 for line in said.lines) == pytest.approx(1)
