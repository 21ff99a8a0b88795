"""A run as `RunRecords`, from a function that says how long each frame block of each clip takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from made_records import header_of, span_of
from strobe.perf.measure.timing import palindrome
from strobe.perf.records.record import Clip, Header, PromptAt, Span, Variant, Workload
from strobe.perf.records.store import RunRecords
from strobe.perf.trace import columns

BLOCKS, SWITCH, STEPS = 12, 8, 4


@pytest.fixture(autouse=True, scope="module")
def three_events_at_a_time() -> Iterator[None]:
    """Look at a long trace's events three at a time, so that small traces have many parts: no finding depends on it."""
    kept, columns.BLOCK = columns.BLOCK, 3
    yield
    columns.BLOCK = kept


BlockTime = Callable[[str, int, int], int]
"""(variant, order of the clip, frame block) -> nanoseconds."""


def header(names: tuple[str, ...], palindromes: int) -> Header:
    prompts = (
        PromptAt(frame_block=0, text="a red circle", mode="start"),
        PromptAt(frame_block=SWITCH, text="a blue square", mode="recache"),
    )
    workload = Workload(
        prompts=prompts, seed=0, frame_blocks=BLOCKS, latents_per_block=3, frames_first_block=9, frames_per_block=12,
        frames=9 + 12 * (BLOCKS - 1), height=128, width=128, fps=16,
    )  # fmt: skip
    return header_of(palindrome(names[0], names[1:]), palindromes=palindromes, workload=workload)


def clip_spans(clip: Clip, steps: int, block_time: BlockTime) -> list[Span]:
    """e2e > 10 µs of text > frame blocks of equal denoise steps with a 1000 ns decode, 100 ns apart."""
    found: list[Span] = []

    def add(name: str, index: int | None, start_ns: int, value_ns: int, parent: int | None = None) -> None:
        own = {"clip": clip.clip, "order": clip.order, "palindrome": clip.palindrome, "warmup": clip.phase == "warmup"}
        found.append(span_of(clip.variant, name, value_ns, index=index, start_ns=start_ns, parent=parent, **own))

    now = 10_000
    add("text", None, 0, now)
    for block in range(BLOCKS):
        length = block_time(clip.variant, clip.order, block)
        step_ns = (length - 1000) // steps
        for step in range(steps):
            add("denoise_step", step, now + step * step_ns, step_ns, parent=block)
        add("vae_decode", None, now + length - 1000, 1000, parent=block)
        add("frame_block", block, now, length)
        now += length + 100
    add("e2e", None, 0, now)
    return found


@pytest.fixture
def make_run() -> Callable[..., RunRecords]:
    """Return `make(block_time, names, palindromes, clips)`; `clips` cuts the run short after so many."""

    def make(
        block_time: BlockTime,
        names: tuple[str, ...] = ("baseline", "turbo"),
        palindromes: int = 4,
        clips: int | None = None,
        steps: dict[str, int] | None = None,
    ) -> RunRecords:
        head = header(names, palindromes)
        plan = [("warmup", None, name) for name in names]
        plan += [("timed", lap, name) for lap in range(palindromes) for name in head.order]
        counts = dict.fromkeys(names, 0)
        finished, samples = [], []
        for order, (phase, lap, name) in enumerate(plan[:clips]):
            clip = Clip(variant=name, clip=counts[name], order=order, palindrome=lap, phase=phase, num_spans=0)
            counts[name] += 1
            finished.append(clip)
            samples += clip_spans(clip, (steps or {}).get(name, STEPS), block_time)
        return RunRecords(
            folder=Path("run"), header=head, variants=tuple(Variant(name=name, preset=name, window=12) for name in names),
            spans=tuple(samples), clips=tuple(finished), traces=(), videos=(), quality=(), gates=(), excluded=(), end=None,
            truncated=False, bad_lines=(),
        )  # fmt: skip

    return make
