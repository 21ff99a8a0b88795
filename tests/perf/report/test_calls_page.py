"""The page of functions and programs, from records that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import strobe
from strobe.perf.analysis.runs.compare import own_code
from strobe.perf.report.build import build_report
from strobe.perf.report.write import render_markdown
from strobe.perf.table.model import Ratio, speedup_words
from strobe.records import Clip, Excluded, Gate, Span, Variant

MS = 1_000_000
ORDER = ("slow", "fast", "fast", "slow")
SAMPLES = {"slow": (40, 44, 42, 46), "fast": (20, 22, 21, 23)}
"""Milliseconds of each sample, in order."""


def made(root: Path, kind: str, *, calls: int = 1, samples: dict[str, tuple[int, ...]] = SAMPLES, **clip: Any) -> Path:
    """A run of half as many rounds as there are samples; `odd` has failed its gate."""
    rounds = len(samples["slow"]) // 2
    order = (*ORDER[:2], "odd", "odd", *ORDER[2:])
    with strobe.create_run(root, "made") as run:
        run.append(strobe.describe_run(run.folder, torch.device("cpu"), order, rounds, kind))
        run.append(*(Variant(name=name, preset="custom", command=name if kind == "programs" else "") for name in SAMPLES))
        if kind == "calls":
            run.append(
                Gate(variant="fast", reference="slow", rule="the same", passed=True, detail="equal in every bit", exact=True),
                Gate(variant="odd", reference="slow", rule="the same", passed=False, detail="out: 1, expected 2", exact=True),
            )
        done = dict.fromkeys(SAMPLES, 0)
        for place, name in enumerate(ORDER * rounds):
            number = done[name]
            done[name] += 1
            common = {"variant": name, "clip": number, "order": place, "palindrome": place // 4}
            value_ns = samples[name][number] * MS * calls
            span = Span(**common, name="e2e", index=None, start_ns=0, value_ns=value_ns, clock="perf_counter", warmup=False)
            run.append(span, Clip(**common, phase="timed", num_spans=1, calls=calls, **clip))
        return run.folder


@pytest.mark.parametrize("calls", [1, 50])
def test_times_are_of_one_call(tmp_path: Path, calls: int) -> None:
    slow, fast, odd = own_code(strobe.read_run(made(tmp_path, "calls", calls=calls, peak_bytes=90, start_bytes=70)))
    assert [value / MS for value in slow.samples_ns] == [40, 44, 42, 46]
    assert fast.mean_ns == pytest.approx((20 * 22 * 21 * 23) ** 0.25 * MS)
    assert fast.low_ns < fast.mean_ns < fast.high_ns
    assert fast.speedup.ratio == 2.0 and slow.speedup is None
    assert (fast.peak_bytes, fast.added_bytes) == (90, 20)
    assert (odd.samples_ns, odd.mean_ns, odd.low_ns, odd.speedup, odd.peak_bytes) == ((), None, None, None, None)
    assert not odd.gate.passed and slow.gate is None


def test_a_sample_that_was_excluded_is_none(tmp_path: Path) -> None:
    folder = made(tmp_path, "calls")
    run = strobe.read_run(folder)
    left_out = Excluded(variant="fast", span="clip", clip=None, indices=(1,), kind="compilation", cause="compilation")
    found = own_code(type(run)(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"excluded": (left_out,)}))
    assert [value / MS for value in found[1].samples_ns] == [20, 21, 23]
    assert len(found[1].speedup.ratios) == 1, "its whole round"


def test_the_page_of_functions(tmp_path: Path) -> None:
    report = build_report([made(tmp_path, "calls", peak_bytes=3 << 20, start_bytes=1 << 20)])
    text = render_markdown(report).replace("\\", "")
    assert report.title == "fast and odd against slow"
    assert "2.000x [2.000, 2.000]" in text and "| 3.0 MiB | 2.0 MiB |" in text
    assert "out: 1, expected 2" in text and "outputs differ" in text
    assert "No account for fast" in text and 'strobe.span("name")' in text
    assert [(each.candidate, each.level, each.ratio.value) for each in report.speedups] == [("fast", "e2e", 2.0)]


def test_the_page_of_programs(tmp_path: Path) -> None:
    folder = made(tmp_path, "programs", user_ns=7 * MS, system_ns=2 * MS, exit_status=1)
    report = build_report([folder])
    text = render_markdown(report).replace("\\", "")
    assert "| 7.000 | 2.000 |" in text, "CPU times"
    assert "about 10 MiB" in text, "why there is no peak"
    assert "failed runs" in text and not any("account" in f"{each.title} {each.lead}".lower() for each in report.sections)
    row = strobe.compare_runs(folder).calls[1]
    assert (row.user_ns, row.system_ns, row.failures, row.peak_bytes, row.equal_output) == (7 * MS, 2 * MS, 4, None, None)


def test_two_of_a_run_are_reported_alone(tmp_path: Path) -> None:
    found = strobe.compare_runs(made(tmp_path, "calls"), pair=("fast", "slow"))
    assert [(row.name, row.ratio) for row in found.calls] == [("fast", None), ("slow", 0.5)]


@pytest.mark.parametrize("pairs", [3, 4])
def test_the_two_times_beside_a_ratio_have_it_as_their_quotient(tmp_path: Path, pairs: int) -> None:
    """Means of all samples have another: a slow pair of the baseline moves them, and not the median ratio."""
    samples = {"slow": (40, 40, 44, 40, 90, 60, 30, 30)[: 2 * pairs], "fast": (20, 24, 20, 22, 21, 23, 60, 60)[: 2 * pairs]}
    folder = made(tmp_path, "calls", calls=5, samples=samples)
    found = strobe.compare_runs(folder).calls[1]
    assert found.pair_baseline_ns / found.pair_candidate_ns == pytest.approx(found.ratio, rel=1e-12)
    assert 20 * MS < found.pair_candidate_ns < 23 * MS and 40 * MS <= found.pair_baseline_ns < 43 * MS
    base, own, _ = own_code(strobe.read_run(folder))
    assert base.mean_ns / own.mean_ns != pytest.approx(found.ratio, rel=0.01)
    assert base.pair_baseline_ns is None
    shown = " -> ".join(f"{ns / MS:#.4g}" for ns in (found.pair_baseline_ns, found.pair_candidate_ns))
    assert shown in render_markdown(build_report([folder])).replace("\\", "").replace("&gt;", ">")


@pytest.mark.parametrize(
    ("ratio", "verdict", "said"),
    [
        (Ratio(1.2683, 1.25, 1.29), "faster", "1.27x [1.25, 1.29] faster than plain"),
        (Ratio(0.8696, 0.8547, 0.8850), "slower", "15 % [13, 17] slower than plain"),
        (Ratio(0.25, 0.2, 0.5), "slower", "4.00x [2.00, 5.00] slower than plain"),
        (Ratio(0.998, 0.99, 1.01), "no difference", "1.00x [0.99, 1.01] of plain's speed: no difference"),
        (Ratio(1.5), "inconclusive", "1.50x of plain's speed: not proven, there is no interval; measure more rounds"),
        (
            Ratio(1.53, 0.13, 7.39),
            "inconclusive",
            "1.53x [0.13, 7.39] of plain's speed: not proven, the interval holds 1; measure more rounds",
        ),
        (
            Ratio(1.005, 1.001, 1.04),
            "inconclusive",
            "1.00x [1.00, 1.04] of plain's speed: not proven, the difference is too small to count",
        ),
    ],
)
def test_a_speedup_is_said_as_a_practitioner_says_it(ratio: Ratio, verdict: str, said: str) -> None:
    assert speedup_words(ratio, verdict, "plain") == said
