"""A soak: what is written while it runs, what its figures are, and its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.bench.cases.soak import run_soak, soak_script
from strobe.core.errors import ConfigError, DataError, StrobeError
from strobe.perf.analysis.runs.soak import soak_of
from strobe.perf.records.record import End, Knob, Memory, Span, Variant
from strobe.perf.records.store import RunRecords, RunWriter, read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.markdown import render_markdown
from strobe.perf.report.soak_page import soak_report

MIB = 1 << 20
FILLING = 2 + 12 // 3
"""Frame blocks until a window of twelve latent frames has filled and evicted."""


def quiet(*step: object) -> None:
    pass


@pytest.fixture
def soaked(fake: Callable[..., Any], tmp_path: Path) -> Callable[..., RunRecords]:
    """Return `make(times, resident, switches, on_gpu)`: a soak whose lengths (ns) and memory are given, written and read back."""
    numbers = iter(range(99))

    def make(
        times: Sequence[int], resident: Sequence[int], switches: Sequence[int] = (), allocated: Sequence[int] | None = None
    ) -> RunRecords:
        folder = run_soak(fake("soaked"), root=tmp_path / f"model{next(numbers)}", limit_s=None, progress=quiet)
        head = read_run(folder).header
        assert head.workload is not None
        prompts = (
            *head.workload.prompts,
            *(msgspec.structs.replace(head.workload.prompts[0], frame_block=at) for at in switches),
        )
        work = msgspec.structs.replace(head.workload, frame_blocks=len(times), prompts=prompts)
        with RunWriter(tmp_path / f"run{next(numbers)}") as writer:
            writer.append(msgspec.structs.replace(head, workload=work), Variant(name="soaked", preset="custom", window=12))
            start = 0
            for index, length in enumerate(times):
                span = Span(
                    variant="soaked", clip=0, order=0, palindrome=0, name="frame_block", index=index, start_ns=start,
                    value_ns=length, clock="perf_counter", warmup=False,
                )  # fmt: skip
                memory = Memory(
                    variant="soaked", clip=0, frame_block=index, resident_bytes=resident[index],
                    allocated_bytes=None if allocated is None else allocated[index],
                )  # fmt: skip
                writer.append(span, memory)
                start += length
            writer.append(End(status="complete", date="2026-01-01T00:00:00Z", wall_ns=start))
        return read_run(writer.folder)

    return make


def test_every_frame_block_is_written_at_once(fake: Callable[..., Any], tmp_path: Path) -> None:
    """A stream that fails half-way leaves what it made, and says so."""
    lines: list[int] = []

    def at_block(name: str, clip: int, block: int) -> None:
        found = [path.read_bytes() for path in tmp_path.rglob("records.jsonl")]
        lines.append(found[0].count(b'"frame_block":'))
        if block == 4:
            raise StrobeError("out of memory")

    with pytest.raises(StrobeError, match="out of memory"):
        run_soak(fake("mine", at_block=at_block), root=tmp_path, limit_s=None, progress=quiet)
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert [line.frame_block for line in run.memory] == [0, 1, 2, 3] and lines == sorted(lines) and lines[4] > lines[1]
    assert run.end is not None and (run.end.status, run.end.message) == ("failed", "out of memory")


def test_a_whole_soak(fake: Callable[..., Any], tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    folder = run_soak(fake("mine"), root=tmp_path, limit_s=None, progress=lambda done, total, what: steps.append((done, total)))
    run = read_run(folder)
    assert steps == [(number, 6) for number in range(1, 7)]
    assert [span.name for span in run.spans] == ["frame_block"] * 6 + ["e2e"]
    blocks, (e2e,) = run.spans[:6], run.spans[6:]
    assert sum(span.value_ns for span in blocks) <= e2e.value_ns
    assert all(line.resident_bytes and line.allocated_bytes is None for line in run.memory)
    assert run.end is not None and run.end.status == "complete" and run.clips[0].num_spans == 7


def test_a_time_limit_ends_it_between_two_frame_blocks(fake: Callable[..., Any], tmp_path: Path) -> None:
    run = read_run(run_soak(fake("mine"), root=tmp_path, limit_s=0.0, progress=quiet))
    assert run.end is not None and (run.end.status, run.end.message) == ("interrupted", "time limit: 1 of 6 frame blocks")
    with pytest.raises(DataError, match="1 frame blocks are too few: from number 6 on"):
        soak_of(run)


def test_first_against_last(soaked: Callable[..., RunRecords]) -> None:
    """300 frame blocks of 1000 ns, every tenth 1500, the last hundred 30 longer; the filling ones are slow and do not count."""
    times = [9000] * FILLING + [1500 if number % 10 == 0 else 1000 for number in range(300)]
    times[-100:] = [length + 30 for length in times[-100:]]
    found = soak_of(soaked(times, [500 * MIB] * len(times)))
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
    found = soak_of(soaked(times, [MIB] * 20, switches=(10, 15)))
    assert {10, 15}.isdisjoint(found.first + found.last) and len(found.first) == (20 - FILLING - 2) // 2
    assert all(each.holds for each in found.times) and found.drift is None


def test_frames_that_come_late_carry_the_work_of_the_next(soaked: Callable[..., RunRecords]) -> None:
    """With `late_frames` a switch makes the frame block before it longer, and the last one only waits."""
    times = [1000] * 19 + [10]
    times[9] = times[14] = 5000
    run = soaked(times, [MIB] * 20, switches=(10, 15))
    late = msgspec.structs.replace(run.variants[0], knobs=(Knob(name="late_frames", value="on", on=True),))
    found = soak_of(replace(run, variants=(late,)))
    assert (found.first, found.last) == ((6, 7, 8, 10, 11), (13, 15, 16, 17, 18))


def test_drift_is_a_slope(soaked: Callable[..., RunRecords]) -> None:
    """One part in a thousand longer with each frame block: as much as the first after 1,000 of them."""
    times = [10_000_000 + 10_000 * number for number in range(140)]
    times[20] = 10**9  # one straggler does not move a median of slopes
    found = soak_of(soaked(times, [MIB] * 140))
    assert found.drift == pytest.approx(1000 * 10_000 / sorted(times[FILLING:])[67], rel=0.02)


def test_memory_that_grows_is_seen(soaked: Callable[..., RunRecords]) -> None:
    count = FILLING + 30
    leak = [100 * MIB + number * MIB for number in range(count)]
    found = {each.what: each for each in soak_of(soaked([1000] * count, [600 * MIB] * count, allocated=leak)).held}
    assert (found["allocated"].growth, found["allocated"].holds) == (15 * MIB, False)
    assert found["resident"].holds and "reserved" not in found


def test_the_page(soaked: Callable[..., RunRecords]) -> None:
    run = soaked([2_000_000] * 250, [512 * MIB] * 250, allocated=[256 * MIB] * 250)
    report = soak_report(run.folder)
    assert build_report([run.folder]) == report
    page = render_markdown(report)
    assert "frame block, median | 2.000 ms | 2.000 ms | 0.0 % | 2.0 % | yes" in page
    assert "GPU memory in tensors, most | 0.250 GiB | 0.250 GiB | 0.00 MiB | 1 MiB | yes" in page
    assert "| 6 to 8 |" in page or "| 6 |" in page
    with pytest.raises(DataError, match="report it without other runs"):
        build_report([run.folder, run.folder])


def test_a_soak_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="every -1 frame blocks: give 1 or more, or 0 for none"):
        soak_script(("a", "b"), 10, -1, seed=0)


def test_prompts_take_turns() -> None:
    script = soak_script(("a", "b", "c"), 10, 3, seed=5)
    assert [(each.frame_block, each.prompt) for each in script.switches] == [(3, "b"), (6, "c"), (9, "a")]
    assert (script.prompt, script.num_blocks, script.seed) == ("a", 10, 5)
    with pytest.raises(ConfigError, match="second prompt"):
        soak_script(("a",), 10, 3, seed=0)


def test_a_run_without_memory_is_no_soak(fake: Callable[..., Any], tmp_path: Path) -> None:
    folder = run_soak(fake("mine"), root=tmp_path, limit_s=None, progress=quiet)
    with pytest.raises(DataError, match="holds no soak"):
        soak_of(replace(read_run(folder), memory=()))
