"""Growth over a long clip: what is written, what its figures are, and its section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from made_records import header_of, span_of, workload_of
from strobe.bench.case import ComparePlan
from strobe.bench.runner import run_case
from strobe.perf.analysis.runs.compare import LongClip, growths_of
from strobe.perf.records.record import Clip, End, Knob, Memory, Variant
from strobe.perf.records.store import RunRecords, RunWriter, read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.write import render_markdown
from terminal import quiet

MIB = 1 << 20
FILLING = 2 + 12 // 3
"""Frame blocks until a window of twelve latent frames has filled and evicted."""


def only(run: RunRecords) -> LongClip:
    (found,) = growths_of(run)
    return found


@pytest.fixture
def soaked(tmp_path: Path) -> Callable[..., RunRecords]:
    """Return `make(times, resident, switches, allocated)`: a run of one clip with these lengths (ns) and memory."""

    def make(
        times: Sequence[int], resident: Sequence[int], switches: Sequence[int] = (), allocated: Sequence[int] | None = None
    ) -> RunRecords:
        with RunWriter(tmp_path / "soaked") as writer:
            work = workload_of(len(times), *switches)
            writer.append(header_of(("soaked",), workload=work), Variant(name="soaked", preset="custom", window=12))
            at, start = {"clip": 0, "order": 0, "palindrome": 0}, 0
            for index, length in enumerate(times):
                memory = Memory(
                    variant="soaked", clip=0, frame_block=index, resident_bytes=resident[index],
                    allocated_bytes=None if allocated is None else allocated[index],
                )  # fmt: skip
                writer.append(span_of("soaked", "frame_block", length, index=index, start_ns=start, **at), memory)
                start += length
            clip = Clip(variant="soaked", phase="timed", num_spans=len(times), **at)
            writer.append(clip, End(status="complete", date="2026-01-01T00:00:00Z", wall_ns=start))
        return read_run(writer.folder)

    return make


def test_memory_is_read_after_each_frame_block_of_a_timed_clip(fake: Callable[..., Any], tmp_path: Path) -> None:
    plan = ComparePlan(palindromes=1, traced_blocks=0, review=False, alone=True, memory=True)
    run = read_run(run_case(fake("mine"), root=tmp_path, plan=plan, progress=quiet))
    (timed,) = (clip.clip for clip in run.clips if clip.phase == "timed")
    assert [(line.clip, line.frame_block) for line in run.memory] == [(timed, number) for number in range(6)]
    assert all(line.resident_bytes and line.allocated_bytes is None for line in run.memory)
    assert not growths_of(run)  # six frame blocks are too few


def test_first_against_last(soaked: Callable[..., RunRecords]) -> None:
    """300 frame blocks of 1000 ns, every tenth 1500, the last hundred 30 longer; the filling ones are slow and do not count."""
    times = [9000] * FILLING + [1500 if number % 10 == 0 else 1000 for number in range(300)]
    times[-100:] = [length + 30 for length in times[-100:]]
    found = only(soaked(times, [500 * MIB] * len(times)))
    assert (found.settled, found.first[0], found.last[-1]) == (FILLING, FILLING, FILLING + 299)
    assert len(found.first) == len(found.last) == 100
    median, longest = found.times
    assert (median.first, median.last, median.holds) == (1000, 1030, False)  # 3 % > 2 %
    assert (longest.first, longest.last, longest.holds) == (1500, 1530, True)  # 2 % < 5 %
    (resident,) = found.held
    assert (resident.growth, resident.holds) == (0, True)


def test_a_stream_with_switches_leaves_them_out(soaked: Callable[..., RunRecords]) -> None:
    times = [1000] * 20
    times[10] = times[15] = 5000
    found = only(soaked(times, [MIB] * 20, switches=(10, 15)))
    assert {10, 15}.isdisjoint(found.first + found.last) and len(found.first) == (20 - FILLING - 2) // 2
    assert all(each.holds for each in found.times) and found.drift is None


def test_frames_that_come_late_carry_the_work_of_the_next(soaked: Callable[..., RunRecords]) -> None:
    """With `late_frames` a switch makes the frame block before it longer, and the last one only waits."""
    times = [1000] * 19 + [10]
    times[9] = times[14] = 5000
    run = soaked(times, [MIB] * 20, switches=(10, 15))
    late = msgspec.structs.replace(run.variants[0], knobs=(Knob(name="late_frames", value="on", on=True),))
    found = only(replace(run, variants=(late,)))
    assert (found.first, found.last) == ((6, 7, 8, 10, 11), (13, 15, 16, 17, 18))


def test_drift_is_a_slope(soaked: Callable[..., RunRecords]) -> None:
    """One part in a thousand longer with each frame block: as much as the first after 1,000 of them."""
    times = [10_000_000 + 10_000 * number for number in range(140)]
    times[20] = 10**9  # one straggler does not move a median of slopes
    found = only(soaked(times, [MIB] * 140))
    assert found.drift == pytest.approx(1000 * 10_000 / sorted(times[FILLING:])[67], rel=0.02)


def test_memory_that_grows_is_seen(soaked: Callable[..., RunRecords]) -> None:
    count = FILLING + 30
    leak = [100 * MIB + number * MIB for number in range(count)]
    found = {each.what: each for each in only(soaked([1000] * count, [600 * MIB] * count, allocated=leak)).held}
    assert (found["allocated"].growth, found["allocated"].holds) == (15 * MIB, False)
    assert found["resident"].holds and "reserved" not in found


def test_the_section(soaked: Callable[..., RunRecords]) -> None:
    run = soaked([2_000_000] * 250, [512 * MIB] * 250, allocated=[256 * MIB] * 250)
    page = render_markdown(build_report([run.folder]))
    assert "First against last" in page and "soaked: the first frame blocks against the last" in page
    assert "frame block, median | 2.000 ms | 2.000 ms | 0.0 % | 2.0 % | yes" in page
    assert "GPU memory in tensors, most | 0.250 GiB | 0.250 GiB | 0.00 MiB | 1 MiB | yes" in page
    assert "| 6 to 8 |" in page or "| 6 |" in page
    assert "denoise steps and commit alone, in a steady block | not measured" in page
