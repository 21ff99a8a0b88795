"""Median time of each stage of a whole sparse operator, from the spans that it marks itself."""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch

from strobe.bench.attention.contestant import Contestant
from strobe.core.spans import recording, span
from strobe.perf.measure.stopwatch import Stopwatch
from strobe.perf.measure.timing import Region, TimingRecorder
from strobe.perf.records.grids import WHOLE

CALLS = 9


@torch.no_grad()
def split(contestant: Contestant, device: torch.device, watch: Stopwatch) -> dict[str, int]:
    """Measure the median forward time, ns, of every stage in order of start and, in the same calls, of the whole operator."""
    recorder = TimingRecorder(device, fine=True)
    found: dict[str, list[int]] = defaultdict(list)
    with recording(recorder):
        speed = watch.probe(contestant.forward)
        for _ in range(CALLS):
            recorder.start_clip()
            watch.hold(speed.host_ns)
            with span(WHOLE):
                contestant.forward()
            for name, total in _sums(recorder.finish_clip()).items():
                found[name].append(total)
    return {name: round(statistics.median(values)) for name, values in found.items()}


def _sums(regions: tuple[Region, ...]) -> dict[str, int]:
    """Add up the time of each name in one call. Of nested regions only the innermost count, so that none counts twice."""
    inner = [region for region in regions if region.name != WHOLE]
    sums: dict[str, int] = {}
    for region in inner:
        if not any(other is not region and _inside(other, region) for other in inner):
            sums[region.name] = sums.get(region.name, 0) + region.value_ns
    return sums | {region.name: region.value_ns for region in regions if region.name == WHOLE}


def _inside(inner: Region, outer: Region) -> bool:
    return outer.start_ns <= inner.start_ns and inner.start_ns + inner.value_ns <= outer.start_ns + outer.value_ns
