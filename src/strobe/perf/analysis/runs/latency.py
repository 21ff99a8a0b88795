"""Latencies that a user sees: first frame, frame rate, a prompt switch, and viewers of a loaded server."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated as A
from typing import Final

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.perf.analysis.runs.compare import block_joules, timed_clips
from strobe.perf.analysis.steady import SteadyState, find_steady
from strobe.perf.records.record import Served, Span, Viewer, Workload
from strobe.perf.records.store import RunRecords
from strobe.perf.table.model import Count, Time
from strobe.perf.table.rows import col

# Latencies that a user sees: time to the first frame, frame rate, and the cost of a prompt switch.

NS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchCost:
    """Cost of one prompt switch; medians over clips."""

    frame_block: A[int, col("first block under the new prompt", "switch at frame block", Count)]
    mode: A[str, col("how the switch was made")]
    before_ns: A[float, col("the block before", "block before", Time)]
    after_ns: A[float, col("the first block after, with everything the switch needs", "first block after", Time)]
    extra_ns: A[float, col("after - before", "extra", Time)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Latencies of one variant over its timed clips. A block lasts from one delivery of frames to the next, decode included.

    Args:
        blocks_ns: steady frame blocks of all clips. `steady` says which were kept and why the others were not.
        mean_ns: of these, and every figure of a steady block below; None if there are none.
        dit_block_ns: denoise steps and commit pass alone in a steady block, mean.
        decode_block_ns: VAE decode alone in a steady block, mean; it may run beside the others.
        inter_latent_ns: steady block / latent frames in it; `inter_frame_ns`: / pixel frames in it.
        pixel_fps: pixel frames per second in the steady state, streamed, decode included; `latent_fps`: latent frames.
        clip_pixel_fps: pixel frames of a whole clip / median end-to-end time, start and prompt switches included.
        first_frame_ns: from the call to the first frames handed over, median over clips.
        stalled_frames: playback at the model's rate that has one frame block ahead waits for so many frames' time, whole ones, in
            the clip where it waits most: what a frame block takes longer than the one before it plays.
        switches_ns: first frame blocks under a new prompt, of all switches and clips.
        block_joules: energy of the GPU in a clip / its frame blocks, J; `video_second_joules`: / its seconds of video at the rate
            of playback; None where neither energy nor power was recorded.
    """

    num_clips: int
    steady: SteadyState
    blocks_ns: tuple[int, ...]
    mean_ns: float | None
    dit_block_ns: float | None
    decode_block_ns: float | None
    inter_latent_ns: float | None
    inter_frame_ns: float | None
    pixel_fps: float | None
    latent_fps: float | None
    clip_pixel_fps: float
    first_frame_ns: float
    stalled_frames: int
    switches: tuple[SwitchCost, ...]
    switches_ns: tuple[int, ...]
    block_joules: float | None = None
    video_second_joules: float | None = None


def latencies(run: RunRecords, variant: str) -> Latencies:
    """Return the latencies of a variant from its timed clips.

    Raises:
        DataError: the run has no workload (it measured the caller's own code), or no finished timed clip of the variant.
    """
    work = run.header.workload
    timed = {clip.order for clip in timed_clips(run) if clip.variant == variant}
    if work is not None and work.unit == "denoise step":
        raise DataError(f"run {run.header.run} holds forward passes over a whole clip, which is no stream: it has no latencies")
    if work is None or not timed:
        raise DataError(f"run {run.header.run} has no finished timed clip of {variant!r}; latencies need one")
    by_clip: dict[int, list[Span]] = {order: [] for order in timed}
    for span in run.spans:
        if span.order in timed:
            by_clip[span.order].append(span)
    e2es, clips, dits, decodes = zip(*(_clip_times(by_clip[order]) for order in sorted(timed)), strict=True)
    series = [statistics.median(column) for column in zip(*clips, strict=True)]
    steady = find_steady(series, known_causes(run, variant))
    blocks = [clip[index] for clip in clips for index in steady.kept]
    mean = statistics.fmean(blocks) if blocks else None
    e2e_ns = statistics.median(e2es)
    starts = [prompt.frame_block for prompt in work.prompts if 0 < prompt.frame_block < work.frame_blocks]
    switched = [clip[index] for clip in clips for index in starts]
    joules = block_joules(run, variant)
    return Latencies(
        num_clips=len(clips),
        steady=steady,
        blocks_ns=tuple(blocks),
        mean_ns=mean,
        dit_block_ns=statistics.fmean(clip[index] for clip in dits for index in steady.kept) if mean else None,
        decode_block_ns=statistics.fmean(clip[index] for clip in decodes for index in steady.kept) if mean else None,
        inter_latent_ns=mean / work.latents_per_block if mean else None,
        inter_frame_ns=mean / work.frames_per_block if mean else None,
        pixel_fps=NS * work.frames_per_block * work.batch / mean if mean else None,
        latent_fps=NS * work.latents_per_block * work.batch / mean if mean else None,
        clip_pixel_fps=NS * work.frames * work.batch / e2e_ns,
        first_frame_ns=statistics.median(clip[0] for clip in clips),
        stalled_frames=max(_stalled(work, clip) for clip in clips),
        switches=_switches(work, clips),
        switches_ns=tuple(switched),
        block_joules=joules,
        video_second_joules=None if joules is None else joules * work.frame_blocks * work.fps / (work.frames * work.batch),
    )


def known_causes(run: RunRecords, variant: str) -> dict[int, str]:
    """Return frame blocks with a known cause to differ: first block, cache not full, prompt switch, excluded in the run."""
    work, settings = run.header.workload, run.variant(variant)
    causes: dict[int, str] = {}
    if work is not None:
        full = settings.window or 0
        filling = [index for index in range(work.frame_blocks) if (index + 1) * work.latents_per_block < full]
        causes |= dict.fromkeys(filling, "cache not full")
        causes |= {prompt.frame_block: f"prompt switch ({prompt.mode})" for prompt in work.prompts}
        causes[0] = "first block"
    for line in run.excluded:
        if line.variant == variant and line.span == spans.FRAME_BLOCK and line.clip is None:
            causes |= dict.fromkeys(line.indices, line.cause)
    return causes


def _clip_times(samples: Sequence[Span]) -> tuple[int, list[int], list[int], list[int]]:
    """Cut one clip at the deliveries of its frame blocks; return its length, and each block's own, denoising and decoding."""
    e2e = next((span for span in samples if span.name == spans.E2E), None)
    blocks = sorted((span for span in samples if span.name == spans.FRAME_BLOCK), key=lambda span: span.index or 0)
    if e2e is None or not blocks:
        raise DataError("a timed clip has no end-to-end region or no frame blocks; latencies need both")
    ends = [span.start_ns + span.value_ns for span in blocks]
    starts = [e2e.start_ns, *ends[:-1]]
    inside = {name: [0] * len(blocks) for name in (spans.DENOISE_STEP, spans.COMMIT, spans.VAE_DECODE)}
    for span in samples:
        if span.name in inside:
            block = min(bisect_right(ends, span.start_ns), len(blocks) - 1)
            inside[span.name][block] += span.value_ns
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    dit = [sum(pair) for pair in zip(inside[spans.DENOISE_STEP], inside[spans.COMMIT], strict=True)]
    return e2e.value_ns, lengths, dit, inside[spans.VAE_DECODE]


def _stalled(work: Workload, blocks_ns: Sequence[int]) -> int:
    """Return the frames that playback waits for: a frame block is made while the one before it plays."""
    plays = [work.frames_first_block, *[work.frames_per_block] * (work.frame_blocks - 2)][: len(blocks_ns) - 1]
    late = (ns * work.fps - frames * NS for ns, frames in zip(blocks_ns[1:], plays, strict=True))
    return sum(-(-each // NS) for each in late if each > 0)


def _switches(work: Workload, clips: Sequence[Sequence[int]]) -> tuple[SwitchCost, ...]:
    found = []
    for prompt in work.prompts:
        at = prompt.frame_block
        if 0 < at < work.frame_blocks:
            before, after = ([clip[index] for clip in clips] for index in (at - 1, at))
            found.append(
                SwitchCost(
                    frame_block=at,
                    mode=prompt.mode,
                    before_ns=statistics.median(before),
                    after_ns=statistics.median(after),
                    extra_ns=statistics.median(late - early for early, late in zip(before, after, strict=True)),
                )
            )
    return tuple(found)


# Figures of a loaded server: by load, what viewers waited for and what came late.

HELD: Final = 0.99
"""Share of pictures on time at which a load counts as held, if nobody was refused or lost its connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigures:
    """Figures of the viewers of one load. Times are ns, pooled over all viewers who were let in.

    Args:
        load: viewers at once on average, as asked for.
        at_once: viewers who really watched at once, on average over the level.
        on_time: share of the pictures that were due and were painted at most one frame time late; None if none was due.
        play_ratio: time played over time played and stalled; None if nothing was played.
        prompt_parts_ns: parts of each time from prompt to pixel, `rest` the last: they add up to it. Empty without them.
        served: the server's own account of the load; None if it does not show its counters.
    """

    load: float
    at_once: float
    came: int
    refused: int
    failed: int
    on_time: float | None
    play_ratio: float | None
    first_picture_ns: tuple[int, ...]
    prompt_to_pixel_ns: tuple[int, ...]
    prompt_parts_ns: dict[str, tuple[int, ...]]
    block_gaps_ns: tuple[int, ...]
    stalls: int
    stall_ns: int
    lost: int
    served: Served | None = None

    @property
    def held(self) -> bool:
        """Everybody was let in and saw at least `HELD` of the pictures on time."""
        return self.on_time is not None and self.on_time >= HELD and not self.refused and not self.failed and not self.lost


def is_load(run: RunRecords) -> bool:
    """Return whether the run loaded a server."""
    return run.header.kind == "serve"


def figures_of(run: RunRecords) -> tuple[LoadFigures, ...]:
    """Return the figures of each load, in order of the load.

    Raises:
        DataError: the run has no server or no viewer.
    """
    if run.server is None or not run.viewers:
        raise DataError(f"{run.folder} holds no viewer of a server: it was stopped before the first one left")
    loads = sorted({each.load for each in run.viewers})
    servers = {each.load: each for each in run.served}
    return tuple(
        _figures(load, [each for each in run.viewers if each.load == load], run.server.fps, servers.get(load)) for load in loads
    )


def _figures(load: float, viewers: Sequence[Viewer], fps: int, served: Served | None) -> LoadFigures:
    let_in = [each for each in viewers if not each.refusal]
    stall_ns = sum(each.stall_ns for each in let_in)
    painted = sum(each.painted for each in let_in)
    frame_ns = 1e9 / fps
    missed = stall_ns / frame_ns  # pictures that were due while a viewer stood still
    on_time = sum(late <= frame_ns for each in let_in for late in each.late_ns)
    played_ns = painted * frame_ns
    length_ns = max(each.arrived_ns + each.watched_ns for each in viewers)
    return LoadFigures(
        load=load,
        at_once=sum(each.watched_ns for each in let_in) / length_ns,
        came=len(viewers),
        refused=sum(each.refusal == "refused" for each in viewers),
        failed=sum(each.refusal == "failed" for each in viewers),
        on_time=on_time / (painted + missed) if painted else None,
        play_ratio=played_ns / (played_ns + stall_ns) if painted else None,
        first_picture_ns=tuple(each.first_picture_ns for each in let_in if each.first_picture_ns is not None),
        prompt_to_pixel_ns=tuple(ns for each in let_in for ns in each.prompt_to_pixel_ns),
        prompt_parts_ns=_prompt_parts(let_in),
        block_gaps_ns=tuple(ns for each in let_in for ns in each.block_gaps_ns),
        stalls=sum(each.stalls for each in let_in),
        stall_ns=stall_ns,
        lost=sum(each.lost for each in let_in),
        served=served,
    )


def _prompt_parts(viewers: Sequence[Viewer]) -> dict[str, tuple[int, ...]]:
    """Return the parts of each time from prompt to pixel, `rest` the last; empty if a viewer's record lacks them."""
    prompted = [each for each in viewers if each.prompt_to_pixel_ns]
    if not prompted or any(not each.prompt_parts_ns for each in prompted):
        return {}
    parts = {name: tuple(ns for each in prompted for ns in each.prompt_parts_ns[name]) for name in prompted[0].prompt_parts_ns}
    in_all = (ns for each in prompted for ns in each.prompt_to_pixel_ns)
    return parts | {"rest": tuple(ns - sum(measured) for ns, *measured in zip(in_all, *parts.values(), strict=True))}
