"""The account of `strobe.compare`: of one call, in words of calls, and what `print` shows of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import strobe
from strobe.perf.analysis.runs.compare import stage_time
from strobe.perf.records.store import read_run


def spanned_sum(x: torch.Tensor, times: int) -> torch.Tensor:
    with strobe.span("sum"):
        for _ in range(times):
            y = x.cumsum(0)
    return y


@strobe.spanned("tail")
def tail(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_what_print_shows_is_a_few_lines_of_text() -> None:
    x = torch.ones(10_000)
    found = strobe.compare({"one": lambda x: spanned_sum(x, 1), "four": lambda x: spanned_sum(x, 4)}, inputs=(x,), rounds=2)
    between = found.between("four", "one")
    for value in (found, between, read_run(found.folder)):
        lines = str(value).splitlines()
        assert repr(value) == str(value) and 1 < len(lines) <= 16
        assert not re.search(r"Row\(|clip:|frame.block|Struct", str(value)), value
    assert str(between).startswith("time of one call, against four\n")
    assert "one" in str(between) and "sum: timed" in str(between)


def test_the_account_is_of_one_call_in_words_of_calls(tmp_path: Path) -> None:
    x = torch.ones(10)
    functions = {"one": lambda x: tail(spanned_sum(x, 1)), "four": lambda x: tail(spanned_sum(x, 4))}
    found = strobe.compare(functions, inputs=(x,), rounds=2, trace=True)
    assert found["one"].calls_per_sample > 1, "short calls are repeated in a sample"
    lines = found.rows("lines")
    for key, name in (("baseline_ns", "one"), ("candidate_ns", "four")):
        time = stage_time(read_run(found.folder), name, "e2e")
        timed = [ns for clip, ns in zip(time.clips, time.ns, strict=True) if clip.phase == "timed"]
        sample_ns = sum(timed) / len(timed)
        assert sum(row[key] for row in lines) == pytest.approx(sample_ns / found[name].calls_per_sample)
    assert {row["level"] for row in lines} <= {"call", "sample", "kernel", "attention section"}
    assert {"before and after the calls", "outside the named spans: timed"} <= {row["line"] for row in lines}
    page = found.report(tmp_path / "page.md").read_text()
    assert not re.search(r"\bclips?\b|frame.{0,2}block", page), "words of video"


def test_a_compiled_function_that_calls_an_operator_is_timed_like_any_other() -> None:
    q, k, v = torch.randn(3, 1, 128, 2, 16).unbind()

    def attend() -> torch.Tensor:
        return strobe.video_sparse_attention(q, k, v, grid=(2, 8, 8), tile=(2, 2, 4), sparsity=0.5).out

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    torch._dynamo.reset()
    found = strobe.compare({"eager": attend, "compiled": compiled}, rounds=2, trace=True)
    assert [each["samples"] for each in found.rows()] == [4, 4]


def test_names_of_the_caller_stay_what_they_are(tmp_path: Path) -> None:
    """A function may be called `clamp`, `clip` or `palindromes of clips`: only the instrument's own words are replaced."""
    x = torch.ones(10)
    found = strobe.compare({"clamp": lambda x: x.clamp(0, 1), "clip": lambda x: x.clip(0, 1)}, inputs=(x,), rounds=2)
    page = found.report(tmp_path / "page.md").read_text()
    assert "clip against clamp" in page and "No account for clip: " in page
    assert "No account for sample" not in page and "no traced sample in this run" in page
