"""Soak: one long stream whose frame blocks are timed and whose memory is read after each, written at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from strobe.bench.case import Case, Progress
from strobe.bench.cases.stream import Script
from strobe.bench.clips import ClipNumbers
from strobe.bench.runner import end_line
from strobe.core.errors import ConfigError
from strobe.core.spans import E2E, FRAME_BLOCK
from strobe.engine.prompts import Switch
from strobe.perf.measure.clocks import ClockSampler
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.memory import held, reset_peak
from strobe.perf.records.record import Memory, Span
from strobe.perf.records.store import RunWriter, create_run

_SYNC_BLOCKS: Final = 50
"""Frame blocks between two waits for the disk."""


def soak_script(prompts: Sequence[str], num_blocks: int, switch_every: int, seed: int) -> Script:
    """Build one long stream; with `switch_every` the prompts take turns, so many frame blocks each; see `counted`.

    Raises:
        ConfigError: a count that cannot be, or switches without a second prompt.
    """
    if switch_every < 0:
        raise ConfigError(f"a prompt switch every {switch_every} frame blocks: give 1 or more, or 0 for none")
    if switch_every and len(prompts) < 2:
        raise ConfigError("a prompt switch needs a second prompt; give --then, or --switch-every 0")
    starts = range(switch_every, num_blocks, switch_every) if switch_every else range(0)
    switches = tuple(Switch(frame_block=at, prompt=prompts[number % len(prompts)]) for number, at in enumerate(starts, start=1))
    return Script(prompt=prompts[0], switches=switches, num_blocks=num_blocks, seed=seed)


def run_soak(
    case: Case,
    *,
    root: Path,
    limit_s: float | None,
    progress: Progress,
    open_run: Callable[[Path, str], RunWriter] = create_run,
) -> Path:
    """Stream the baseline of a case once. Only the host's clock times it: a frame block lasts from delivery to delivery.

    Nothing is kept of a frame block but a line on the disk, so that the soak's own memory does not grow.

    Args:
        limit_s: stop after so many seconds, between two frame blocks; None: never.
        open_run: makes the folder from `root` and the case's slug.

    Returns:
        the run folder. Where the time was up, the end line says `interrupted` and after how many frame blocks.
    """
    name, total = case.baseline, case.workload.frame_blocks
    with open_run(root, f"soak-{case.slug}") as writer:
        header = describe_run(writer.folder, case.device, (name,), 1, "soak")
        writer.append(msgspec.structs.replace(header, model=case.model, workload=case.workload))
        with end_line(writer) as cut_short:
            done = _stream(case, writer, limit_s, progress)
            if done < total:
                cut_short(f"time limit: {done} of {total} frame blocks")
    return writer.folder


def _stream(case: Case, writer: RunWriter, limit_s: float | None, progress: Progress) -> int:
    """Make the stream; return the number of frame blocks it made."""
    name, clips = case.baseline, ClipNumbers(case.device)
    case.prepare(name)
    writer.append(case.settings(name))
    gc.collect()
    reset_peak(case.device)

    def line(region: str, index: int | None, start_ns: int, value_ns: int) -> Span:
        return Span(
            variant=name, clip=0, order=0, palindrome=0, name=region, index=index, start_ns=start_ns, value_ns=value_ns,
            clock="perf_counter", warmup=False,
        )  # fmt: skip

    done, first_ns = 0, time.perf_counter_ns()
    before_ns = first_ns
    with ClockSampler(case.device) as sampler:
        for _ in case.blocks(name):
            now_ns = time.perf_counter_ns()
            own = held(case.device)
            memory = Memory(
                variant=name, clip=0, frame_block=done, resident_bytes=own.resident_bytes,
                allocated_bytes=own.allocated_bytes, reserved_bytes=own.reserved_bytes,
            )  # fmt: skip
            writer.append(line(FRAME_BLOCK, done, before_ns - first_ns, now_ns - before_ns), memory)
            done += 1
            if done % _SYNC_BLOCKS == 0:
                writer.sync()
            progress(done, case.workload.frame_blocks, f"{(now_ns - first_ns) / 1e9:.0f} s")
            if limit_s is not None and now_ns - first_ns >= limit_s * 1e9:
                break
            before_ns = now_ns
    writer.append(line(E2E, None, 0, time.perf_counter_ns() - first_ns))
    writer.append(clips.finish(name, "timed", 0, done + 1, sampler.clocks()))
    return done
