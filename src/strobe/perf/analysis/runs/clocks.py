"""Clock, power and energy of a variant's clips, and what a difference of clocks does to the time of a kernel."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.core import spans
from strobe.perf.analysis.runs.compare import timed_clips
from strobe.perf.records.clocks import Clocks
from strobe.perf.records.store import RunRecords

POWER_CAP: Final = "sw_power_cap"
"""The throttle reason of a GPU that would take more power than its limit allows."""
FEWEST: Final = 5
"""Fewest readings of a traced clip that stand for its clock; with fewer the timed clips' do."""
FEWEST_CLIPS: Final = 2
"""Fewest clips of a side whose clocks prove anything."""
SAME: Final = Fraction(2, 100)
"""Clocks that differ by less count as equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideClocks:
    """Clock and power of a variant, over its clips.

    Args:
        sm_mhz: median SM clock of the clip that kernel times come from: the traced one where it was sampled, else timed ones.
        clips_mhz: median SM clock of each sampled clip.
        max_mhz: highest clock that the GPU supports; None: not recorded.
        watts, limit_watts: mean power of the timed clips, and the limit; None: not recorded.
        power_capped: a reading said that the power limit held the clock down.
        clip_joules: energy of a timed clip, mean; by the GPU's counter, or mean power times the clip's length; None: neither.
    """

    sm_mhz: int
    clips_mhz: tuple[int, ...]
    max_mhz: int | None
    watts: float | None
    limit_watts: float | None
    power_capped: bool
    clip_joules: float | None


def side_clocks(run: RunRecords, variant: str) -> SideClocks | None:
    """Return the clocks of a variant; None if they were not sampled while its clips ran."""
    timed = [clip for clip in timed_clips(run) if clip.variant == variant]
    sampled = [clip.clocks for clip in timed if clip.clocks is not None and clip.clocks.samples]
    traced = [
        clip.clocks
        for clip in run.clips
        if (clip.variant, clip.phase) == (variant, "traced") and clip.clocks and (clip.clocks.samples or 0) >= FEWEST
    ]
    chosen = [each for each in traced or sampled if each.sm_mhz]
    if not chosen:
        return None
    gpu = run.header.machine.gpu
    watts = [each.power_mw / 1000 for each in sampled if each.power_mw is not None]
    lasted = {span.order: span.value_ns for span in run.spans if span.name == spans.E2E}
    energies = [_joules(clip.clocks, lasted[clip.order]) for clip in timed if clip.clocks and clip.order in lasted]
    known = [each for each in energies if each is not None]
    return SideClocks(
        sm_mhz=round(statistics.median(each.sm_mhz for each in chosen if each.sm_mhz)),
        clips_mhz=tuple(each.sm_mhz for each in (*sampled, *traced) if each.sm_mhz),
        max_mhz=None if gpu is None else gpu.max_sm_mhz,
        watts=statistics.fmean(watts) if watts else None,
        limit_watts=gpu.power_limit_mw / 1000 if gpu is not None and gpu.power_limit_mw else None,
        power_capped=any(POWER_CAP in each.throttle for each in (*sampled, *traced)),
        clip_joules=statistics.fmean(known) if known else None,
    )


def block_joules(run: RunRecords, variant: str) -> float | None:
    """Return the energy of the GPU in a clip divided by its frame blocks, J; None where neither energy nor power was recorded."""
    found, work = side_clocks(run, variant), run.header.workload
    return None if found is None or found.clip_joules is None or work is None else found.clip_joules / work.frame_blocks


def differ(baseline: SideClocks, candidate: SideClocks) -> bool:
    """Return whether two clocks differ by more than `SAME`."""
    return abs(baseline.sm_mhz - candidate.sm_mhz) > SAME * max(baseline.sm_mhz, candidate.sm_mhz)


def apart(baseline: SideClocks, candidate: SideClocks) -> bool:
    """Return whether the clips prove that the clocks differ: of two or more a side, each ran above all of the other side."""
    sides = baseline.clips_mhz, candidate.clips_mhz
    if min(map(len, sides)) < FEWEST_CLIPS:
        return False
    return max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0])


def clock_effect(baseline_ns: Fraction, candidate_ns: Fraction, baseline_mhz: int, candidate_mhz: int) -> Fraction:
    """Return the part of `baseline_ns - candidate_ns` that the clock makes; the rest is work, in cycles.

    With cycles `w = t f`, the saving is `(w_b - w_c)(1/f_b + 1/f_c) / 2` of work and `(1/f_b - 1/f_c)(w_b + w_c) / 2` of the
    clock, exactly. It holds for a kernel whose time goes with the SM clock, and for none that waits for memory.
    """
    cycles = baseline_ns * baseline_mhz + candidate_ns * candidate_mhz
    return cycles * (Fraction(1, baseline_mhz) - Fraction(1, candidate_mhz)) / 2


def _joules(clocks: Clocks, lasted_ns: int) -> float | None:
    if clocks.energy_mj is not None:
        return clocks.energy_mj / 1000
    return clocks.power_mw * lasted_ns / 1e12 if clocks.power_mw is not None and clocks.samples else None
