"""Timed runs and operations by themselves, orders that drift cannot favour, statistics of times, and traced runs."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forked import run
from strobe.core import spans
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.spans import TRACEABLE, recording, span
from strobe.perf.measure import stats, timing
from strobe.perf.measure.profile import Capture, _slim, trace_blocks, trace_clip
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


@pytest.mark.parametrize(("fine", "more"), [(False, frozenset()), (True, spans.FINE)], ids=["plain", "fine"])
def test_own_names_are_timed_and_pieces_of_a_pass_never(fine: bool, more: frozenset[str]) -> None:
    recorder = TimingRecorder(CPU, fine=fine)
    with recording(recorder):
        recorder.start_clip()
        with span("mine"):
            for name in (*spans.FINE, *spans.PIECES):
                with span(name, 3):
                    pass
    assert {name for name, _ in record(recorder)} == {"mine", *more}


def test_every_clip_starts_empty_at_zero() -> None:
    recorder = TimingRecorder("cpu")
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


def test_an_unknown_device_is_refused() -> None:
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


# Published tables of Student's t (two-sided 90, 95, 99, 99.9 %).
TABLE = [
    (0.975, 1, 12.7062047364), (0.975, 2, 4.3026527297), (0.975, 3, 3.1824463053), (0.975, 4, 2.7764451052),
    (0.975, 5, 2.5705818356), (0.975, 9, 2.2621571628), (0.975, 10, 2.2281388520), (0.975, 30, 2.0422724563),
    (0.975, 120, 1.9799304051), (0.95, 1, 6.3137515147), (0.95, 10, 1.8124611228), (0.995, 5, 4.0321429836),
    (0.9995, 1, 636.6192487687),
]  # fmt: skip


@pytest.mark.parametrize(("p", "dof", "value"), TABLE)
def test_t_quantile_agrees_with_the_tables(p: float, dof: float, value: float) -> None:
    assert stats.t_quantile(p, dof) == pytest.approx(value, rel=1e-9)
    assert stats.t_quantile(1 - p, dof) == pytest.approx(-value, rel=1e-9)


def test_t_quantile_inverts_the_integral_of_its_density_at_fractions_of_a_degree() -> None:
    for dof in (0.7, 2.5, 7.3):
        bound, steps = stats.t_quantile(0.9, dof), 200_000
        scale = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
        middles = ((step + 0.5) * bound / steps for step in range(steps))
        area = sum((1 + t * t / dof) ** (-(dof + 1) / 2) for t in middles) * scale * bound / steps
        assert area == pytest.approx(0.4, abs=1e-8)


def test_t_quantile_of_many_degrees_is_the_normal_quantile() -> None:
    assert stats.t_quantile(0.975, 1e7) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-6)
    assert stats.t_quantile(0.5, 3) == 0


def test_paired_interval_by_hand() -> None:
    found = stats.paired_interval([0.1, 0.2, 0.3])
    half = 4.3026527297 * 0.1 / math.sqrt(3)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(0.2 - half), math.exp(0.2 + half)), rel=1e-9)
    assert stats.paired_interval([0.1], 1.1) is None
    peaks = stats.paired_interval([0.05] * 5 + [0.0] * 4, math.exp(0.05))  # of the mean: to 1.0493
    assert peaks is not None and (peaks.low, peaks.high) == (pytest.approx(1.0075, abs=1e-3), math.exp(0.05))
    assert stats.paired_interval([0.0, 0.0, 0.0]) == stats.Interval(low=1.0, high=1.0)


def test_welch_interval_by_hand() -> None:
    # Logs with variances 0.01 (n 3) and 0.04 (n 4): dof = (1/300 + 1/100)^2 / ((1/300)^2 / 2 + (1/100)^2 / 3).
    a = [math.exp(1 + step * 0.1) for step in (-1, 0, 1)]
    spread = 0.2 * math.sqrt(3 / 4)
    b = [math.exp(0.5 + step * spread) for step in (-1, -1, 1, 1)]
    dof = (0.01 / 3 + 0.04 / 4) ** 2 / ((0.01 / 3) ** 2 / 2 + (0.04 / 4) ** 2 / 3)
    half = stats.t_quantile(0.975, dof) * math.sqrt(0.01 / 3 + 0.04 / 4)
    found = stats.welch_interval(a, b)
    assert found is not None
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-9)
    assert stats.welch_interval([1.0], b) is None
    assert stats.welch_interval([2.0, 2.0], [1.0, 1.0]) == stats.Interval(low=2.0, high=2.0)


def test_p99_needs_459_samples() -> None:
    assert 0.99**stats.P99_SAMPLES < 0.01 < 0.99 ** (stats.P99_SAMPLES - 1)
    few, many = stats.tail(range(458)), stats.tail(range(459))
    assert few == ("max", 457) and many == ("p99", 454)


def test_percentile_is_a_sample() -> None:
    assert [stats.percentile([4, 1, 3, 2], share) for share in (0, 0.25, 0.5, 0.51, 1)] == [1, 1, 2, 3, 4]


def test_theil_sen_ignores_a_stall() -> None:
    values = [3.0 * index for index in range(20)]
    values[7] += 1000
    assert stats.theil_sen(values)[0] == 3
    value, flat = stats.theil_sen([5.0] * 10)
    assert (value, flat.low, flat.high) == (0, 0, 0)


def test_theil_sen_interval_is_sens() -> None:
    # Sen (1968) with n = 10, no ties: C = 1.96 * sqrt(10 * 9 * 25 / 18) = 21.9, so ranks 12 and 34 of 45 slopes.
    draw = random.Random(1)
    values = [draw.random() for _ in range(10)]
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(10) for j in range(i + 1, 10))
    found = stats.theil_sen(values)[1]
    assert slopes.index(found.low) + 1 == 12
    assert slopes.index(found.high) + 1 == 34


@pytest.mark.parametrize(
    ("ratio", "ends", "delta_ns", "verdict"),
    [
        (1.30, (1.25, 1.35), 1e6, "faster"),
        (0.70, (0.65, 0.75), -1e6, "slower"),
        (1.005, (1.004, 1.006), 1e6, "no difference"),  # sure, but below the floor of 1 %
        (1.30, (1.25, 1.35), 900, "inconclusive"),  # sure, but below what the clock resolves
        (1.01, (0.98, 1.03), 1e6, "no difference"),
        (1.05, (0.90, 1.20), 1e6, "inconclusive"),
        (2.0, None, 1e9, "inconclusive"),
    ],
)
def test_verdicts(ratio: float, ends: tuple[float, float] | None, delta_ns: float, verdict: str) -> None:
    assert stats.judge(ratio, ends and stats.Interval(*ends), delta_ns) == verdict


# ------------------------------------------------------------------------------------------------------------- a gate


@given(
    st.sampled_from([">=", ">", "<=", "<"]),
    st.sampled_from([0.5, 0.9, 1.0, 1.005, 1.5]),
    st.floats(0.4, 3.0),
    st.floats(0.0, 0.5),
    st.floats(-5000, 5000),
)
def test_a_gate_is_met_by_the_whole_interval(op: stats.Operator, bound: float, low: float, width: float, delta_ns: float) -> None:
    high = low + width
    ratio = (low + high) / 2
    holds = {">=": min(low, high) >= bound, ">": low > bound, "<=": high <= bound, "<": high < bound}[op]
    claims = {">=": bound > 1, ">": bound >= 1, "<=": bound < 1, "<": bound <= 1}[op]
    exceeds_both_floors = (ratio > 1.01 or ratio < 1 / 1.01) and abs(delta_ns) > 1000
    expected = holds and (not claims or exceeds_both_floors)
    assert stats.proven(op, bound, ratio, stats.Interval(low=low, high=high), delta_ns) is expected


def test_nothing_is_proven_without_an_interval() -> None:
    assert not stats.proven(">=", 0.1, 5.0, None, 1e9)
    assert stats.proven(">", 1.0, 1.5, stats.Interval(low=1.4, high=1.6), None)


# ---------------------------------------------------------------------------------------------------------- bootstrap


def test_the_bootstrap_holds_a_median_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "RESAMPLES", 300)
    draw, hits, rounds = random.Random(5), 0, 120
    for _ in range(rounds):
        found = stats.bootstrap_interval(statistics.median, [10 + draw.gauss(0, 1) for _ in range(40)])
        assert found is not None
        hits += found.low <= 10 <= found.high
    assert 0.88 <= hits / rounds <= 0.99


def test_the_bootstrap_is_refused_where_it_does_not_hold() -> None:
    few = [float(value) for value in range(stats.BOOTSTRAP_SAMPLES - 1)]
    assert (
        stats.bootstrap_interval(statistics.fmean, few) is None
        and stats.bootstrap_interval(statistics.fmean, [*few, 7.0]) is not None
    )


def blocks(count: int, made: list[int]) -> Iterator[int]:
    x = torch.ones(8, 8)
    for block in range(count):
        with span("frame_block", block), span("denoise_step", 0), span("attention"), span("kv_write"):
            x = x @ x
        made.append(block)
        yield block


def names(path: Path, category: str = "user_annotation") -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == category]


def test_options_that_distort_times_are_named_and_do_what_they_say(tmp_path: Path) -> None:
    capture = Capture(with_stack=True, profile_memory=True, record_shapes=True)
    assert capture.options == ("with_stack", "profile_memory", "record_shapes") and Capture().options == ()
    path = tmp_path / "t.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=path, capture=capture)
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    for option, sign in (("with_stack", "python_function"), ("memory", "[memory]"), ("shapes", "Input Dims")):
        assert sign in text, option
    plain = tmp_path / "plain.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=plain)
    assert not names(plain, "python_function")
    assert b"Input Dims" not in gzip.decompress(plain.read_bytes())


def late(count: int, made: list[int]) -> Iterator[int]:
    """A stream whose frames come one frame block late: block `n` is handed out when `n + 1` has been made."""
    for block in range(count):
        with span("frame_block", block), span("denoise_step", 0):
            torch.ones(8, 8) @ torch.ones(8, 8)
        made.append(block)
        if block:
            yield block - 1
    yield count - 1


@pytest.mark.parametrize(
    ("source", "count", "first", "num", "warmup"),
    [(blocks, 9, 4, 1, 3), (late, 9, 3, 2, 1), (late, 4, 2, 2, 1)],
    ids=["after a long warm-up", "frames come late", "late, up to the last block"],
)
def test_the_trace_holds_the_blocks_that_were_made_in_it(
    tmp_path: Path, source: Callable[[int, list[int]], Iterator[int]], count: int, first: int, num: int, warmup: int
) -> None:
    made, path, capture = list[int](), tmp_path / "traces" / "t.json.gz", Capture(warmup=warmup)
    trace_blocks(source(count, made), device=CPU, first_block=first, num_blocks=num, path=path, capture=capture)
    marked = [name for name in names(path) if "frame_block" in name]
    assert marked == [f"strobe::frame_block#{block}" for block in range(first, first + num)]
    assert made == list(range(first + num))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("source", "first", "num", "warmup", "says"),
    [
        (blocks, 0, 1, 1, "after 1 of warm-up"),
        (blocks, 1, 0, 1, "at least 1"),
        (blocks, 2, 1, 3, "after 3 of warm-up"),
        (blocks, 3, 2, 1, "the clip has 4 frame blocks, too few"),
        (late, 3, 2, 1, "the clip has 4 frame blocks, too few"),
    ],
)
def test_a_range_that_cannot_be_traced_is_refused(
    tmp_path: Path, source: Callable[[int, list[int]], Iterator[int]], first: int, num: int, warmup: int, says: str
) -> None:
    path, capture = tmp_path / "t.json.gz", Capture(warmup=warmup)
    with pytest.raises(ConfigError, match=says):
        trace_blocks(source(4, []), device=CPU, first_block=first, num_blocks=num, path=path, capture=capture)
    assert not list(tmp_path.iterdir())


def test_without_regions_each_item_is_a_frame_block(tmp_path: Path) -> None:
    made: list[int] = []
    work = ((torch.ones(8, 8) @ torch.ones(8, 8), made.append(item)) for item in range(9))
    path = tmp_path / "t.json.gz"
    trace_blocks(work, device=CPU, first_block=3, num_blocks=2, path=path)
    assert made == [0, 1, 2, 3, 4] and names(path, "cpu_op").count("aten::matmul") == 2


def test_a_whole_clip_is_traced_by_its_regions_without_operators(tmp_path: Path) -> None:
    """All regions are marked, pieces of a pass and those of other threads too; the warm-up is not in the trace."""
    path = tmp_path / "t.json.gz"

    def clip() -> None:
        with ThreadPoolExecutor(1) as worker, span("e2e"):
            for block in range(3):
                with span("frame_block", block), span("dit_forward"), span("ffn_up"):
                    torch.ones(8, 8) @ torch.ones(8, 8)
                worker.submit(decode).result()

    def decode() -> None:
        with span("vae_decode"):
            torch.ones(8, 8) + 1

    trace_clip(clip, device=CPU, path=path, warm_up=lambda: list(blocks(7, [])) and None)
    marked = [name for name in names(path) if "strobe" in name]
    assert sorted(marked) == sorted(
        f"strobe::{name}" for block in range(3) for name in (f"frame_block#{block}", "dit_forward", "ffn_up", "vae_decode")
    )
    assert not names(path, "cpu_op")
    assert span("x") is span("y")


QUIET = """
import sys
from pathlib import Path
import torch
from strobe.perf.measure.profile import trace_blocks
blocks = iter([torch.ones(4) + 1 for _ in range(3)])
trace_blocks(blocks, device=torch.device("cpu"), first_block=1, num_blocks=1, path=Path(sys.argv[1]))
"""


def test_nothing_is_written_to_the_terminal(tmp_path: Path) -> None:
    """In a process of its own: the profiler's library reads its log level at its first use, whoever makes it."""
    done = run(QUIET, tmp_path / "t.json.gz")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "t.json.gz").stat().st_size > 0


def test_a_slim_trace_keeps_what_an_account_reads(tmp_path: Path) -> None:
    def event(category: str, name: str, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": 1.25, "dur": 2.5, "args": args}

    kernel = event("kernel", "k", correlation=7, device=0, stream=3, grid=[1, 2, 3], registers=32)
    launch, other = (
        event("cuda_runtime", "cudaLaunchKernel", correlation=7, cbid=1),
        event("cuda_runtime", "cudaPointer", correlation=8),
    )
    mark = event("user_annotation", "strobe::frame_block#0", extra=1)
    arrows = [{"ph": "s", "cat": "ac2g", "id": 7}, event("gpu_user_annotation", "strobe::frame_block#0")]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [mark, launch, other, *arrows, kernel]}))
    _slim(path)
    trace = json.loads(path.read_text())
    assert trace["schemaVersion"] == 1
    assert [each["name"] for each in trace["traceEvents"]] == ["cudaLaunchKernel", "k", "strobe::frame_block#0"]
    assert trace["traceEvents"][2] == {name: value for name, value in mark.items() if name != "args"}
    assert trace["traceEvents"][1] == {**kernel, "args": {"correlation": 7, "device": 0, "stream": 3, "grid": [1, 2, 3]}}


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from strobe.core.errors import StrobeError
from strobe.perf.measure.profile import trace_blocks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
blocks = (torch.ones(8, 8) @ torch.ones(8, 8) for _ in range(3))
try:
    trace_blocks(blocks, device=torch.device("cpu"), first_block=1, num_blocks=1, path=Path(sys.argv[1]))
except StrobeError as error:
    print(error, end="")
"""


def test_a_trace_that_does_not_fit_is_no_trace_and_leaves_nothing(tmp_path: Path) -> None:
    """The profiler neither fails nor says so when a file cannot grow; it leaves a part under another name."""
    path = tmp_path / "traces" / "t.json.gz"
    done = run(FULL_DISK, path)
    assert (
        done.returncode == 0
        and done.stdout == f"cannot write {path}: the profiler did not come to the end of it; name another place"
    )
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("left", ["nothing", "a part", "a part, renamed"])
def test_a_full_disk_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    def export(self: object, path: str) -> None:
        if left != "nothing":
            Path(path if "renamed" in left else f"{path}.tmp").write_bytes(b'{"traceEvents": [' + b" " * 5000)

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", export)
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    takes = "" if left == "nothing" else ", it takes 5,017 bytes or more"
    with pytest.raises(StrobeError, match=f"t.json.gz: the disk is full{takes}, 4,096 bytes are free there; free some space"):
        trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=tmp_path / "t.json.gz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("regions", "marked"),
    [
        ((), {"frame_block", "denoise_step", "attention"}),
        (TRACEABLE, {"frame_block", "denoise_step", "attention", "kv_write"}),
        (("kv_write",), {"frame_block", "kv_write"}),
        (("attention",), {"frame_block", "attention"}),
    ],
    ids=["usual", "all", "one", "no piece"],
)
def test_a_trace_marks_pieces_if_asked(regions: tuple[str, ...], marked: set[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=path, capture=Capture(regions=regions))
    found = {name.removeprefix("strobe::").partition("#")[0] for name in names(path) if "strobe::" in name}
    assert found == marked
