from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.compare import known_causes, latencies
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Excluded
from strobe.perf.records.store import RunRecords

MakeRun = Callable[..., RunRecords]
MS = 1_000_000


def block_time(name: str, order: int, block: int) -> int:
    """First block 50 ms, switch at block 8 costs 15 ms more, each clip 0, 1, 2 ... steps of 1000 ns slower."""
    return {0: 50 * MS, 8: 40 * MS}.get(block, 25 * MS) + 1000 * order


def test_latencies_by_hand(make_run: MakeRun) -> None:
    run = make_run(block_time)
    found = latencies(run, "turbo")
    orders = [clip.order for clip in run.clips if clip.variant == "turbo" and clip.phase == "timed"]
    assert orders == [3, 4, 7, 8, 11, 12, 15, 16]
    block = 25 * MS + 100  # and 100 ns between two blocks
    middle = sum(orders) / len(orders)
    assert found.num_clips == 8
    assert found.steady.kept == (3, 4, 5, 6, 7, 9, 10, 11)
    assert (len(found.blocks_ns), found.mean_ns) == (64, block + 1000 * middle)
    assert percentile(found.blocks_ns, 0.5) == block + 8000 and max(found.blocks_ns) == block + 16_000
    mean = found.mean_ns
    assert (found.inter_latent_ns, found.inter_frame_ns) == (mean / 3, mean / 12)
    assert found.pixel_fps == pytest.approx(12e9 / mean)
    assert found.latent_fps == pytest.approx(3e9 / mean)
    assert found.first_frame_ns == 10_000 + 50 * MS + 1000 * 9.5
    assert found.dit_block_ns == pytest.approx(25 * MS - 1000 + 1000 * middle)
    assert found.decode_block_ns == 1000
    e2e_ns = 10_000 + 50 * MS + 40 * MS + 10 * 25 * MS + 12 * (9500 + 100)
    assert found.clip_pixel_fps == pytest.approx(141e9 / e2e_ns)
    (switch,) = found.switches
    assert (switch.frame_block, switch.mode, switch.extra_ns) == (8, "recache", 15 * MS)
    assert switch.after_ns - switch.before_ns == 15 * MS


@pytest.mark.parametrize(("slow_ms", "stalled"), [({8: 740.0}, 0), ({8: 751.0}, 1), ({1: 700.0}, 3), ({5: 800.0, 8: 870.0}, 3)])
def test_frames_that_stall(make_run: MakeRun, slow_ms: dict[int, float], stalled: int) -> None:
    """Twelve frames play for 750 ms at 16 FPS, the nine of the first block for 562.5; only one clip is slow."""
    run = make_run(lambda name, order, block: int(slow_ms.get(block, 25.0) * MS) if order == 7 else 25 * MS)
    assert run.header.workload is not None and run.header.workload.fps == 16
    assert latencies(run, "turbo").stalled_frames == stalled


def test_a_clip_of_one_frame_block_stalls_nothing(make_run: MakeRun) -> None:
    run = make_run(block_time)
    assert run.header.workload is not None
    work = msgspec.structs.replace(run.header.workload, frame_blocks=1, frames=run.header.workload.frames_first_block)
    header = msgspec.structs.replace(run.header, workload=work)
    first = tuple(span for span in run.spans if span.name != "frame_block" or span.index == 0)
    assert latencies(dataclasses.replace(run, header=header, spans=first), "turbo").stalled_frames == 0


def test_every_excluded_block_has_its_cause(make_run: MakeRun) -> None:
    run = make_run(block_time)
    causes = {0: "first block", 1: "cache not full", 2: "cache not full", 8: "prompt switch (recache)"}
    assert known_causes(run, "turbo") == causes
    assert latencies(run, "turbo").steady.excluded == causes
    noted = Excluded(variant="turbo", span="frame_block", clip=None, indices=(4,), cause="compilation")
    other = msgspec.structs.replace(noted, variant="baseline", indices=(5,))
    assert known_causes(dataclasses.replace(run, excluded=(noted, other)), "turbo") == causes | {4: "compilation"}


def test_a_variant_without_timed_clips_is_an_error(make_run: MakeRun) -> None:
    with pytest.raises(DataError, match="no finished timed clip of 'turbo'"):
        latencies(make_run(block_time, clips=2), "turbo")
