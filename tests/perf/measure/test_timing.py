"""Regions of a timed run, orders of clips that drift cannot favour, and operations by themselves."""

from __future__ import annotations

import threading
import time
from fractions import Fraction

import pytest
import torch

from strobe.core import spans
from strobe.core.errors import ConfigError
from strobe.core.spans import recording, span
from strobe.perf.measure import timing
from strobe.perf.measure.timing import TimedRegion, TimingRecorder, palindrome, span_records, time_isolated
from strobe.perf.records.record import Clip

CPU = torch.device("cpu")


def record(recorder: TimingRecorder) -> dict[tuple[str, int | None], TimedRegion]:
    return {(region.name, region.index): region for region in recorder.finish_clip()}


def make_block(block: int) -> None:
    with span(spans.FRAME_BLOCK, block):
        for step in range(2):
            with span(spans.DENOISE_STEP, step):
                time.sleep(0.001)
        with span(spans.COMMIT):
            pass


def test_regions_nest_and_know_their_parent() -> None:
    recorder = TimingRecorder(CPU)
    with recording(recorder):
        recorder.start_clip()
        with span(spans.E2E):
            make_block(0)
            make_block(1)
    found = recorder.finish_clip()
    names = [(region.name, region.index, region.parent) for region in found]
    block = [("denoise_step", 0), ("denoise_step", 1), ("commit", None)]
    assert names == [("e2e", None, None)] + [
        row for at in (0, 1) for row in [("frame_block", at, None), *((name, index, at) for name, index in block)]
    ]
    e2e, first = found[0], found[1]
    assert all(region.clock == "perf_counter" and region.thread == 0 for region in found)
    assert e2e.start_ns <= first.start_ns
    assert sum(region.value_ns for region in found if region.name == "frame_block") <= e2e.value_ns
    assert all(region.value_ns >= 1_000_000 for region in found if region.name == "denoise_step")


@pytest.mark.parametrize(
    ("recorder", "more"),
    [
        (TimingRecorder(CPU), frozenset()),
        (TimingRecorder(CPU, fine=True), spans.FINE),
    ],
    ids=["plain", "fine"],
)
def test_own_names_are_timed_and_pieces_of_a_pass_never(recorder: TimingRecorder, more: frozenset[str]) -> None:
    with recording(recorder):
        recorder.start_clip()
        with span("mine"):
            for name in (*spans.FINE, *spans.PIECES):
                with span(name, 3):
                    pass
    assert {name for name, _ in record(recorder)} == {"mine", *more}


def test_every_clip_starts_empty_at_zero() -> None:
    recorder = TimingRecorder(CPU)
    with recording(recorder):
        for number in range(3):
            recorder.start_clip()
            time.sleep(0.002)
            with span("part", number):
                pass
            found = record(recorder)
            assert list(found) == [("part", number)]
            assert found["part", number].start_ns >= 2_000_000


def test_other_threads_are_kept_apart() -> None:
    recorder = TimingRecorder(CPU)
    inside = threading.Barrier(2)

    def decode() -> None:
        with span(spans.VAE_DECODE):
            inside.wait()

    with recording(recorder):
        recorder.start_clip()
        with span(spans.FRAME_BLOCK, 7), span("mine"):
            worker = threading.Thread(target=decode)
            worker.start()
            with span(spans.COMMIT):
                inside.wait()
            worker.join()
    found = record(recorder)
    assert (found["commit", None].thread, found["commit", None].parent) == (0, 7)
    assert (found["vae_decode", None].thread, found["vae_decode", None].parent) == (1, None)


def test_a_region_that_fails_is_closed_and_the_slot_is_given_back() -> None:
    recorder = TimingRecorder(CPU)
    with pytest.raises(RuntimeError), recording(recorder):
        recorder.start_clip()
        with span("outer", 1), span("inner"):
            raise RuntimeError
    assert {name for name, _ in record(recorder)} == {"outer", "inner"}
    with span("after"):
        pass
    assert recorder.finish_clip() == recorder.finish_clip()
    recorder.start_clip()
    with recording(recorder), span("again"):
        pass
    assert record(recorder)["again", None].parent is None


def test_regions_become_records_of_their_clip() -> None:
    recorder = TimingRecorder(CPU)
    with recording(recorder):
        recorder.start_clip()
        make_block(5)
    regions = recorder.finish_clip()
    clip = Clip(variant="mine", clip=2, order=9, palindrome=1, phase="timed", num_spans=len(regions))
    found = span_records(clip, regions)
    assert {(line.variant, line.clip, line.order, line.palindrome, line.warmup) for line in found} == {("mine", 2, 9, 1, False)}
    assert [(line.name, line.index, line.parent, line.value_ns) for line in found] == [
        (region.name, region.index, region.parent, region.value_ns) for region in regions
    ]


@pytest.mark.gpu
@pytest.mark.alone
def test_cuda_events_measure_the_device_and_e2e_the_wall() -> None:
    device = torch.device("cuda", 0)
    recorder = TimingRecorder(device)
    x = torch.randn(4096, 4096, device=device)
    for _ in range(2):
        recorder.start_clip()
        with recording(recorder), span(spans.E2E):
            for block in range(3):
                with span(spans.FRAME_BLOCK, block):
                    x = torch.nn.functional.normalize(torch.linalg.multi_dot([x] * 20))
        found = record(recorder)
    blocks = [found["frame_block", block] for block in range(3)]
    e2e = found["e2e", None]
    assert e2e.clock == "perf_counter"
    assert all(block.clock == "cuda_event" and block.value_ns > 1_000_000 for block in blocks)
    assert abs(sum(block.value_ns for block in blocks) - e2e.value_ns) < 0.1 * e2e.value_ns
    ends = [block.start_ns + block.value_ns for block in blocks]
    assert all(abs(end - block.start_ns) < 200_000 for end, block in zip(ends, blocks[1:], strict=False))


def test_a_recorder_takes_the_name_of_a_device() -> None:
    recorder = TimingRecorder("cpu")
    with recording(recorder):
        recorder.start_clip()
        with span("part"):
            pass
    assert list(record(recorder)) == [("part", None)]
    with pytest.raises(ConfigError, match="unknown device 'gpu'; allowed: auto, cpu, cuda, cuda:N"):
        TimingRecorder("gpu")


def test_one_candidate_is_abba() -> None:
    assert palindrome("B", ["C"]) == ("B", "C", "C", "B")
    assert palindrome("B", ["C1", "C2", "C3"]) == ("B", "C1", "C2", "C3", "C3", "C2", "C1", "B")


@pytest.mark.parametrize(("baseline", "candidates"), [("a", []), ("a", ["a"]), ("a", ["b", "b"])])
def test_names_that_make_no_comparison_are_refused(baseline: str, candidates: list[str]) -> None:
    with pytest.raises(ConfigError):
        palindrome(baseline, candidates)


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5])
def test_linear_drift_cancels_exactly(num_candidates: int) -> None:
    names = [f"c{number}" for number in range(num_candidates)]
    cost = {name: Fraction(100 + 7 * number) for number, name in enumerate(["b", *names])}
    for drift in (Fraction(3, 100), Fraction(-1, 50)):
        order = palindrome("b", names) * 3
        times = [cost[name] * (1 + drift * place) for place, name in enumerate(order)]
        length = len(order) // 3
        for first in range(0, len(order), length):
            block = list(zip(order, times, strict=True))[first : first + length]
            sums = {name: sum(time for other, time in block if other == name) for name in cost}
            assert all(sums["b"] / sums[name] == cost["b"] / cost[name] for name in names)


def test_every_call_is_a_sample_and_warm_up_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the calls move: the first by 1 ns, the second by 2, and so on."""
    calls: list[int] = []
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: sum(calls))
    found = time_isolated(lambda: calls.append(len(calls) + 1), iterations=5, device=CPU, warmup=2)
    assert found == ((3, 4, 5, 6, 7), "perf_counter")


@pytest.mark.parametrize(("iterations", "warmup"), [(0, 1), (1, 0)])
def test_no_calls_are_refused(iterations: int, warmup: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 of each"):
        time_isolated(lambda: None, iterations=iterations, device=CPU, warmup=warmup)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("cold", [False, True])
def test_queued_calls_have_no_launch_gaps(cold: bool) -> None:
    """A tiny kernel takes a few microseconds on the GPU; launching it from Python takes longer than that."""
    device = torch.device("cuda", 0)
    x = torch.ones(1024, device=device)
    times_ns, clock = time_isolated(lambda: x.add_(1), iterations=120, device=device, cold=cold)
    assert (len(times_ns), clock) == (120, "cuda_event") and sorted(times_ns)[60] < 20_000
    assert len(time_isolated(lambda: x.sum().item(), iterations=3, device=device, waits=True)[0]) == 3
