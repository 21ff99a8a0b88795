from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import strobe
from made_records import workload_of
from source import ROOT
from strobe.bench import runner
from strobe.bench.case import ComparePlan
from strobe.bench.runner import run_case, steady_window, traced_window
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.analysis.runs.compare import compare_stages, latencies, mirrored_pairs
from strobe.perf.measure.profile import Capture
from strobe.perf.records.record import Clocks
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.study import Profile, load_study
from terminal import quiet


def measured(case: Any, root: Path, **plan: Any) -> RunRecords:
    return read_run(run_case(case, root=root, plan=ComparePlan(**plan), progress=quiet))


def only_run(root: Path) -> Any:
    (folder,) = root.iterdir()
    return read_run(folder)


def test_a_comparison_is_written_in_order(tmp_path: Path, fake: Any) -> None:
    said: list[tuple[int, int, str]] = []
    case = fake("baseline", "balanced", "turbo")
    plan = ComparePlan(palindromes=2, traced_blocks=2)
    run = read_run(run_case(case, root=tmp_path, plan=plan, progress=lambda *step: said.append(step)))
    names, lap = ["baseline", "balanced", "turbo"], ["baseline", "balanced", "turbo", "turbo", "balanced", "baseline"]
    assert case.log == names + lap * 2 + names
    assert (run.header.order, run.header.baseline, run.header.palindromes) == (tuple(lap), "baseline", 2)
    assert (run.header.machine.device, run.header.argv, run.header.workload) == ("cpu", tuple(sys.argv), case.workload)
    assert [clip.order for clip in run.clips] == list(range(3 + 12 + 3))
    assert [clip.variant for clip in run.clips] == case.log
    assert [clip.palindrome for clip in run.clips if clip.phase == "timed"] == [0] * 6 + [1] * 6
    assert [clip.clip for clip in run.clips if clip.variant == "turbo"] == list(range(6))
    assert {variant.name: variant.calls_per_stage for variant in run.variants} == {
        name: {"e2e": 1, "frame_block": 6, "denoise_step": 12} for name in names
    }
    assert {(line.variant, line.indices, line.cause) for line in run.excluded} == {(name, (0,), "warm-up") for name in names}
    assert (run.end is not None, run.end and run.end.status, run.truncated, run.bad_lines) == (True, "complete", False, ())
    assert [quality.variant for quality in run.quality] == names
    assert [done for done, _, _ in said] == list(range(len(said)))
    assert {total for _, total, _ in said} == {len(said)}


def test_every_clip_has_its_spans(tmp_path: Path, fake: Any) -> None:
    run = measured(fake("a", "b"), tmp_path, palindromes=1)
    spans = Counter(span.order for span in run.spans)
    assert all(spans[clip.order] == clip.num_spans for clip in run.clips)
    assert {clip.order for clip in run.clips if clip.phase == "traced"}.isdisjoint(spans)
    assert {span.name for span in run.spans} == {"e2e", "frame_block", "denoise_step"}
    assert {span.order for span in run.spans if span.warmup} == {clip.order for clip in run.clips if clip.phase == "warmup"}
    steps = [span for span in run.spans if span.name == "denoise_step" and span.order == 2]
    assert [(span.index, span.parent) for span in steps] == [(step, block) for block in range(6) for step in range(2)]
    assert {found.stage for found in compare_stages(run, "b")} == {"denoise_step", "frame_block", "e2e"}
    assert latencies(run, "b").first_frame_ns > 0


def test_traces_are_separate_runs_of_the_same_blocks(tmp_path: Path, fake: Any) -> None:
    run = measured(fake("a", "b"), tmp_path, palindromes=1, traced_blocks=2)
    assert [(trace.variant, trace.first_block, trace.num_blocks) for trace in run.traces] == [("a", 3, 2), ("b", 3, 2)]
    for trace in run.traces:
        events = json.loads(gzip.decompress((run.folder / trace.path).read_bytes()))["traceEvents"]
        regions = Counter(event["name"] for event in events if event["name"].startswith("strobe::"))
        assert regions["strobe::frame_block#3"] == regions["strobe::frame_block#4"] == 1
        assert regions["strobe::attention"] == 4
    none = run_case(
        fake("a", "b"), root=tmp_path / "n", plan=ComparePlan(palindromes=1, traced_blocks=0, review=False), progress=quiet
    )
    assert (read_run(none).traces, read_run(none).quality) == ((), ())


def test_a_red_gate_has_no_numbers(tmp_path: Path, fake: Any) -> None:
    case = fake("a", "b", "c", red=("b",))
    run = measured(case, tmp_path / "some", palindromes=1)
    assert [gate.variant for gate in run.gates if not gate.passed] == ["b"]
    assert {span.variant for span in run.spans} == {"a", "c"}
    assert "b" not in case.log
    assert mirrored_pairs(run, "c")
    case = fake("a", "b", red=("b",))
    run = measured(case, tmp_path / "none", palindromes=1)
    assert (run.spans, case.log, len(run.gates)) == ((), [], 1)


@pytest.mark.parametrize("stop", [("b", 0, 0), ("a", 1, 5), ("b", 2, 3)])
def test_ctrl_c_keeps_every_finished_clip(tmp_path: Path, fake: Any, stop: tuple[str, int, int]) -> None:
    def at_block(*place: object) -> None:
        if place == stop:
            raise KeyboardInterrupt

    case = fake("a", "b", at_block=at_block)
    with pytest.raises(KeyboardInterrupt):
        run_case(case, root=tmp_path, plan=ComparePlan(palindromes=3), progress=quiet)
    run = only_run(tmp_path)
    assert run.end.status == "interrupted"
    assert [clip.variant for clip in run.clips] == case.log[:-1]
    assert {span.order for span in run.spans} == {clip.order for clip in run.clips}
    assert (run.truncated, run.bad_lines) == (False, ())


def test_an_error_is_written_down_and_goes_on(tmp_path: Path, fake: Any) -> None:
    def at_block(name: str, clip: int, block: int) -> None:
        if clip == 1:
            raise StrobeError("out of luck")

    with pytest.raises(StrobeError, match="out of luck"):
        run_case(fake("a", "b", at_block=at_block), root=tmp_path, plan=ComparePlan(), progress=quiet)
    run = only_run(tmp_path)
    assert (run.end.status, run.end.message) == ("failed", "out of luck")
    assert [clip.phase for clip in run.clips] == ["warmup", "warmup"]


def test_a_clip_that_compiled_something_is_no_sample(tmp_path: Path, fake: Any) -> None:
    def at_block(name: str, clip: int, block: int) -> None:
        if (name, clip, block) == ("b", 2, 1):
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))

    run = measured(fake("a", "b", at_block=at_block), tmp_path, palindromes=2)
    assert [(line.variant, line.indices) for line in run.excluded if line.cause == "compilation"] == [("b", (2,))]
    assert [pair[0][0].palindrome for pair in mirrored_pairs(run, "b")] == [1]
    assert latencies(run, "b").num_clips == 3


def test_a_variant_is_measured_by_itself(tmp_path: Path, fake: Any) -> None:
    said: list[tuple[int, int, str]] = []
    case, plan = fake("a"), ComparePlan(palindromes=3, alone=True, review=False)
    run = read_run(run_case(case, root=tmp_path, plan=plan, progress=lambda *step: said.append(step)))
    assert (run.header.order, run.header.baseline, run.gates) == (("a",), "a", ())
    assert [clip.phase for clip in run.clips] == ["warmup", "timed", "timed", "timed", "traced"]
    assert latencies(run, "a").num_clips == 3
    assert [done for done, _, _ in said] == list(range(len(said))) and {total for _, total, _ in said} == {len(said)}
    with pytest.raises(ConfigError, match="needs a candidate"):
        run_case(fake("a"), root=tmp_path, plan=ComparePlan(), progress=quiet)


def test_the_attribution_trace_is_one_more_and_says_what_distorts_it(tmp_path: Path, fake: Any) -> None:
    capture = Capture(regions=("attention",))
    plan = ComparePlan(palindromes=1, traced_blocks=2, capture=capture, attribution=Capture(with_stack=True, record_shapes=True))
    run = read_run(run_case(fake("a", "b"), root=tmp_path / "both", plan=plan, progress=quiet))
    assert [(trace.variant, trace.path, trace.num_blocks, trace.regions, trace.options) for trace in run.traces] == [
        row
        for name in ("a", "b")
        for row in (
            (name, f"traces/{name}.json.gz", 2, ("attention",), ()),
            (name, f"attribution/{name}.json.gz", 1, (), ("with_stack", "record_shapes")),
        )
    ]
    assert "python_function" not in gzip.decompress((run.folder / "traces" / "a.json.gz").read_bytes()).decode()
    assert "python_function" in gzip.decompress((run.folder / "attribution" / "a.json.gz").read_bytes()).decode(errors="replace")
    study = load_study([run.folder])
    assert all(isinstance(one.profile, Profile) and one.profile.record.path.startswith("traces/") for one in study.subjects)
    plan = ComparePlan(palindromes=1, traced_blocks=0, attribution=Capture(record_shapes=True), alone=True)
    run = read_run(run_case(fake("a"), root=tmp_path / "alone", plan=plan, progress=quiet))
    assert [trace.options for trace in run.traces] == [("record_shapes",)]


def test_a_hot_gpu_gives_no_sample_and_is_waited_for(tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the GPU had been throttled by heat in the second timed clip of b, and capped by power in another."""
    at: list[tuple[str, int]] = []
    waited: list[tuple[str, int]] = []

    class Sampler(runner.ClockSampler):
        def clocks(self) -> Clocks:
            reasons = {("b", 1): ("hw_thermal_slowdown",), ("a", 1): ("sw_power_cap",)}
            return Clocks(source="nvml", throttle=reasons.get(at[-1], ()))

    monkeypatch.setattr(runner, "ClockSampler", Sampler)
    monkeypatch.setattr(runner, "cool_down", lambda device: waited.append(at[-1]))
    case = fake("a", "b", at_block=lambda name, clip, block: at.append((name, clip)))
    run = measured(case, tmp_path, palindromes=2)
    assert [(line.variant, line.indices) for line in run.excluded if line.cause == "thermal throttling"] == [("b", (1,))]
    assert [pair[0][0].palindrome for pair in mirrored_pairs(run, "b")] == [1]
    assert waited == [("b", 1)]


# A child that measures a fake case and reports each step before it begins.
CHILD = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
from strobe.bench.case import ComparePlan
from strobe.bench.runner import run_case
case = fakes.FakeCase("a", "b", "c")
say = lambda done, total, what: print(done, flush=True)
run_case(case, root=Path(sys.argv[2]), plan=ComparePlan(palindromes=100_000), progress=say)
"""


@pytest.mark.parametrize("delay_s", [0.01, 0.13])
def test_a_kill_loses_no_finished_clip(tmp_path: Path, delay_s: float) -> None:
    fakes = Path(__file__).with_name("conftest.py")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(fakes), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(map(str, (Path(strobe.__file__).parents[1], ROOT / "tests" / "support")))},
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "8":  # two gates, three warm-ups, three timed clips
        assert process.poll() is None
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    lines = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.wait()
    run = only_run(tmp_path)
    begun = int(lines[-1]) if lines else 8
    assert run.end is None
    assert len(run.clips) >= begun - 2  # every step but the gates and the one under way is a finished clip
    spans = Counter(span.order for span in run.spans)
    assert all(spans[clip.order] == clip.num_spans for clip in run.clips)


def test_as_many_blocks_in_a_row_are_traced_in_the_middle_away_from_switches() -> None:
    assert steady_window(workload_of(14), 2) == range(7, 9)
    assert steady_window(workload_of(14, 5, 10), 2) == range(7, 9)
    assert steady_window(workload_of(14, 7), 2) == range(5, 7)
    assert steady_window(workload_of(14, 6, 8), 2) == range(4, 6)
    assert steady_window(workload_of(14, 5), 0) == range(0)
    assert steady_window(workload_of(14, 5, 10), 3) == range(7, 10)
    assert steady_window(workload_of(14, 5, 10), 9) == range(7, 10)
    assert steady_window(workload_of(8, 2, 5), 3) == range(4, 5)
    with pytest.raises(ConfigError, match="no 2 blocks in a row"):
        steady_window(workload_of(8, 1, 2, 3, 4, 5, 6, 7), 2)
    with pytest.raises(ConfigError):
        steady_window(workload_of(2), 2)


def test_blocks_to_trace_may_be_named() -> None:
    assert traced_window(workload_of(14), ComparePlan(traced_from=4, traced_blocks=3)) == range(4, 7)
    assert traced_window(workload_of(14), ComparePlan(traced_blocks=2)) == steady_window(workload_of(14), 2)
    for plan in (ComparePlan(traced_from=12), ComparePlan(traced_from=1, capture=Capture(warmup=2))):
        with pytest.raises(ConfigError, match="make it longer, or wait for fewer"):
            traced_window(workload_of(14), plan)
