"""`strobe.compare`: order, gate, equal inputs and outputs, devices, errors, the run it leaves, its account in words of calls."""

from __future__ import annotations

import itertools
import math
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import strobe
from fake_gpu import FakeGpu
from strobe.bench.own.calls import CallArguments, agree, bound, copied, leaves, num_bytes
from strobe.cli.main import main
from strobe.core.errors import ConfigError
from strobe.perf.analysis.runs.compare import stage_time
from strobe.perf.records.store import read_run


class Clock:
    """A clock that only work advances, and that drifts: each call costs a little more than the one before."""

    def __init__(self, drift_ns: int) -> None:
        self.now_ns = 0
        self.drift_ns = drift_ns
        self.calls = 0

    def work(self, cost_ns: int) -> None:
        self.now_ns += cost_ns + self.drift_ns * self.calls
        self.calls += 1


@pytest.mark.parametrize("drift_ns", [0, 5_000])
def test_the_ratio_is_exact_under_linear_drift(monkeypatch: pytest.MonkeyPatch, drift_ns: int) -> None:
    clock = Clock(drift_ns)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    same = strobe.compare({"a": lambda: clock.work(3_000_000), "b": lambda: clock.work(3_000_000)}, rounds=4)["b"]
    assert (same.ratio, same.verdict) == (1.0, "no difference")
    found = strobe.compare({"a": lambda: clock.work(3_000_000), "b": lambda: clock.work(2_000_000)}, rounds=4)["b"]
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(1.5, rel=0.1 if drift_ns else 1e-12)
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert (found.calls_per_sample, found.samples) == (1, 8)
    if not drift_ns:
        assert found.mean_ns == pytest.approx(2_000_000) and found.min_ns == found.max_ns == 2_000_000


def test_a_sample_of_short_calls_is_the_mean_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    row = strobe.compare({"a": lambda: clock.work(1_000), "b": lambda: clock.work(4_000)}, rounds=2)["b"]
    assert (row.calls_per_sample, row.mean_ns, row.ratio) == (2_000, pytest.approx(4_000), 0.25)
    row = strobe.compare({"a": lambda: clock.work(1_000), "b": lambda: clock.work(100_000_000)}, rounds=2)["b"]
    assert row.calls_per_sample == 5, "a slow function is not called as often as the fast one needs"


def test_samples_run_forwards_and_back_after_gate_and_warm_up() -> None:
    log: list[str] = []
    functions = {name: lambda name=name: log.append(name) for name in "abc"}
    found = strobe.compare(functions, warmup=2, rounds=3)
    assert "".join(log[:12]) == "abc" + "aabbcc" + "abc", "gate, warm-up, how long is a call"
    n = found["b"].calls_per_sample
    runs = [(name, len(list(group)) // n) for name, group in itertools.groupby(log[12 + 3 * n :])]
    once = [("a", 1), ("b", 1), ("c", 2), ("b", 1)]
    assert runs == [*once, ("a", 2), *once[1:], ("a", 2), *once[1:], ("a", 1)]


@pytest.mark.parametrize(
    "options", [{"warmup": 0}, {"rounds": 0}, {"rounds": 1.5}, {"tolerance": -1.0}, {"tolerance": math.nan}, {"tolerance": "x"}]
)
def test_counts_and_tolerances_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"at least 1|0 or more"):
        strobe.compare({"a": lambda: None, "b": lambda: None}, **options)


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"alone": len}, "two functions or more, got 'alone'"),
        ({}, "two functions or more, got none"),
        ([len, sum], "give a dictionary of functions"),
        ({"a": len, "b": 3}, "'b' cannot be called, for its type is int"),
        ({"a": len, "": sum}, "'' is no name"),
        ({"a": len, 1: sum}, "1 is no name"),
        ({"a": len, "a\n": sum}, "is no name"),
        ({"a": len, " a": sum}, "names must differ in more than spaces"),
    ],
)
def test_what_is_no_comparison_is_refused_before_anything_is_called(functions: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        strobe.compare(functions, out=tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_unequal_outputs_get_no_numbers_and_the_others_do() -> None:
    x = torch.ones(4)
    functions = {"base": lambda x: x + 1, "wrong": lambda x: x + 2, "right": lambda x: 1 + x}
    found = strobe.compare(functions, inputs=(x,), rounds=2)
    wrong, right = found["wrong"], found["right"]
    assert (wrong.equal_output, wrong.samples, wrong.ratio) == (False, 0, None)
    assert "relative error 0.5" in wrong.output
    assert right.equal_output and right.samples == 4
    assert found["base"].samples == 4
    assert "wrong: not timed, out: relative error 0.5" in str(found)


def test_if_no_output_is_equal_nothing_is_timed_unless_outputs_are_left_uncompared(tmp_path: Path) -> None:
    found = strobe.compare({"one": lambda: 1, "two": lambda: 2}, rounds=2)
    assert [row.samples for row in found] == [0, 0]
    page = found.report(tmp_path / "page.html").read_text()
    assert "outputs differ" in page and "2, expected 1" in page
    found = strobe.compare({"one": lambda: 1, "model": lambda: torch.nn.Linear(1, 1)}, tolerance=math.inf, rounds=2)
    assert (found["model"].equal_output, found["model"].samples) == (None, 4)


def test_random_numbers_are_equal_where_they_are_compared_and_the_callers_go_on_as_if_nothing_was() -> None:
    def drawn() -> tuple[object, ...]:
        return torch.randn(1).item(), random.random(), np.random.rand()

    def once() -> Any:
        calls = itertools.count()
        return lambda: drawn() if next(calls) == 0 else None

    seen = []
    for compares in (False, True):
        torch.manual_seed(5), random.seed(5), np.random.seed(5)
        if compares:
            assert strobe.compare({"a": once(), "b": once()}, rounds=1)["b"].equal_output
        seen.append(drawn())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("changes", ["first", "second"])
def test_every_candidate_gets_equal_inputs_whatever_one_does_to_them(changes: str) -> None:
    given = torch.zeros(8)
    seen: dict[str, set[float]] = {"first": set(), "second": set()}

    def function(name: str) -> Any:
        def run(x: torch.Tensor, many: list[int]) -> float:
            seen[name].add(float(x.sum()) + len(many))
            if name == changes:
                x.add_(1)
                many.append(1)
            return 1.0

        return run

    found = strobe.compare({name: function(name) for name in seen}, inputs=(given, []), rounds=2, trace=True)
    assert found["second"].equal_output
    assert seen == {"first": {0.0}, "second": {0.0}}, "in every call of the gate, warm-up, samples and trace"
    assert given.sum() == 0


def test_inputs_that_nobody_changes_are_copied_once_for_each() -> None:
    x, places = torch.zeros(8), {"a": set(), "b": set()}
    functions = {name: lambda x, own=own: own.add(x.data_ptr()) for name, own in places.items()}
    strobe.compare(functions, inputs=(x,), rounds=2)
    assert all(len(own) <= 2 for own in places.values()), "one for the gate, one for all that follows"
    assert x.data_ptr() not in places["a"] | places["b"]


def test_what_one_function_sets_for_the_process_is_not_set_for_the_others() -> None:
    found: Any = lambda: (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())  # noqa: E731
    seen, before, more = set(), found(), torch.get_num_threads() + 1
    sets = (torch.set_num_threads, more), (torch.set_default_dtype, torch.float64), (torch.set_grad_enabled, False)
    functions = {"sets": lambda: [put(value) for put, value in sets] and None, "sees": lambda: seen.add(found())}
    strobe.compare(functions, rounds=1)
    assert seen == {before} == {found()}


def test_an_error_in_a_round_is_the_callers_with_a_note(tmp_path: Path) -> None:
    calls = itertools.count()

    def breaks() -> None:
        time.sleep(0.003)  # one call in a sample
        if next(calls) == 3 + 2 * 2 + 1:  # gate, warm-up, its length, the sample that warms up, two rounds of two
            raise ZeroDivisionError("by design")

    with pytest.raises(ZeroDivisionError, match="by design") as caught:
        strobe.compare({"good": lambda: time.sleep(0.003), "bad": breaks}, rounds=3, warmup=1, out=tmp_path)
    assert caught.value.__notes__ == ["strobe.compare: 'bad' raised this in round 3"]
    (folder,) = tmp_path.iterdir()
    end = read_run(folder).end
    assert (end.status, end.message) == ("failed", "strobe.compare: 'bad' raised this in round 3")
    kept = strobe.compare_runs(folder).rows("calls")
    assert [row["samples"] for row in kept] == [5, 4], "what was finished counts"


def test_an_error_in_the_sample_that_warms_up_has_a_note_too() -> None:
    calls = iter(range(3))  # gate, warm-up, its length
    with pytest.raises(StopIteration) as caught:
        strobe.compare({"good": lambda: time.sleep(0.003), "bad": lambda: time.sleep(0.003 + 0 * next(calls))}, warmup=1)
    assert caught.value.__notes__ == ["strobe.compare: 'bad' raised this in the warm-up"]
    with pytest.raises(TypeError) as caught:
        strobe.compare({"a": len, "b": len}, inputs=torch.nn.Linear(1, 1))
    assert caught.value.__notes__[0].endswith("what can be called makes them: (x,) is one argument")


def test_an_error_in_the_first_call_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        strobe.compare({"a": len, "b": abs}, inputs=(-3,), out=tmp_path)
    assert caught.value.__notes__ == ["strobe.compare: 'a' raised this in its first call"]
    assert not list(tmp_path.iterdir())


def test_records_without_a_folder_go_with_the_result(tmp_path: Path) -> None:
    found = strobe.compare({"a": lambda: None, "b": lambda: None}, rounds=1)
    folder = found.folder
    assert folder.is_dir()
    del found
    assert not folder.exists()
    kept = strobe.compare({"a": lambda: None, "b": lambda: None}, rounds=1, out=tmp_path)
    folder, rows = kept.folder, kept.rows()
    del kept
    assert strobe.compare_runs(folder).rows("calls") == rows


def test_the_caller_can_look_at_it_in_every_way(tmp_path: Path) -> None:
    found = strobe.compare({"a": lambda: None, "<b>": lambda: None}, rounds=2)
    assert [row["name"] for row in found.rows()] == ["a", "<b>"] == [row.name for row in found]
    assert "&lt;b&gt;" in found._repr_html_() and "<b>" not in found._repr_html_()
    assert found.rows("speedups")[0]["candidate"] == "<b>"
    assert {path.suffix for path in (found.report(tmp_path / "new" / f"page.{end}") for end in ("html", "md", "json"))} == {
        ".html", ".md", ".json",
    }  # fmt: skip
    page = (tmp_path / "new" / "page.html").read_text()
    assert "report.md" not in page and "<b>:" not in page
    with pytest.raises(ConfigError, match=r"the ending says the format: \.html, \.md, \.json"):
        found.report(tmp_path / "page.pdf")
    with pytest.raises(ConfigError, match="unknown function 'c'"):
        found["c"]
    with pytest.raises(ConfigError, match="unknown table"):
        found.rows("nothing")
    with pytest.raises(ConfigError, match="unknown variant"):
        found.between("a", "c")


def spanned_sum(x: torch.Tensor, times: int) -> torch.Tensor:
    with strobe.span("sum"):
        for _ in range(times):
            y = x.cumsum(0)
    return y


@strobe.spanned("tail")
def tail(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_account_of_regions_adds_up() -> None:
    x = torch.ones(10_000)
    functions = {
        "one": lambda x: tail(spanned_sum(x, 1)),
        "four": lambda x: tail(spanned_sum(x, 4)),
        "none": lambda x: x.cumsum(0) * 2,
    }
    found = strobe.compare(functions, inputs=(x,), rounds=3)
    lines = [row for row in found.rows("lines") if row["candidate"] == "four"]
    assert {"sum: timed", "tail: timed"} <= {row["line"] for row in lines}
    own = found.between("one", "four").rows("lines")
    assert [row["line"] for row in own] == [row["line"] for row in lines]
    saved = sum(row["saved_ns"] for row in lines)
    whole = next(row for row in found.rows("speedups") if (row["candidate"], row["level"]) == ("four", "e2e"))
    assert saved == pytest.approx(whole["saved_ns"])
    assert [row for row in found.rows("lines") if row["candidate"] == "none"], "one without regions has an account too"
    back = found.between("four", "one").rows("lines")
    assert sum(row["saved_ns"] for row in back) == pytest.approx(-saved)


def test_a_trace_of_each_has_its_operators(tmp_path: Path) -> None:
    x = torch.ones(64, 64)
    functions = {"a b/c": lambda x: x @ x, "a b c": lambda x: x.mm(x)}
    found = strobe.compare(functions, inputs=(x,), rounds=2, trace=True, out=tmp_path)
    traces = read_run(found.folder).traces
    assert len({trace.path for trace in traces}) == 2, "names that give the same words have files of their own"
    assert all((found.folder / trace.path).is_file() for trace in traces)
    lines = found.rows("lines")
    assert any("op" in row["line"] for row in lines)
    assert "aten::mm" in found.report(tmp_path / "page.html").read_text()


def test_the_account_is_of_one_call_in_words_of_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(10)
    functions = {"one": lambda x: tail(spanned_sum(x, 1)), "four": lambda x: tail(spanned_sum(x, 4))}
    found = strobe.compare(functions, inputs=(x,), rounds=1, trace=True, out=tmp_path)
    assert found["one"].calls_per_sample > 1, "short calls are repeated in a sample"
    lines = found.rows("lines")
    for key, name in (("baseline_ns", "one"), ("candidate_ns", "four")):
        timed = [ns for clip, ns, _ in stage_time(read_run(found.folder), name, "e2e") if clip.phase == "timed"]
        sample_ns = sum(timed) / len(timed)
        assert sum(row[key] for row in lines) == pytest.approx(sample_ns / found[name].calls_per_sample)
    assert {row["level"] for row in lines} <= {"call", "sample", "kernel", "attention section"}
    assert {"before and after the calls", "outside the named spans: timed"} <= {row["line"] for row in lines}
    assert main(["report", str(found.folder)]) == 0
    page = found.report(tmp_path / "page.md").read_text() + capsys.readouterr().out
    assert not re.search(r"\bclips?\b|frame.{0,2}block|the difference exceeds", page), "words of video, or of a single call"
    assert "saved in each region, by fewer" in page and "traced time" not in page and "Busy time is that of" not in page


def test_names_of_the_caller_stay_what_they_are(tmp_path: Path) -> None:
    """A function may be called `clamp`, `clip` or `palindromes of clips`: only the instrument's own words are replaced."""
    x = torch.ones(10)
    found = strobe.compare({"clamp": lambda x: x.clamp(0, 1), "clip": lambda x: x.clip(0, 1)}, inputs=(x,), rounds=2)
    page = found.report(tmp_path / "page.md").read_text()
    assert "clip against clamp" in page and "No account for clip: " in page
    assert "No account for sample" not in page and "no traced sample in this run" in page


# ------------------------------------------------------------------------------------------------------------- a GPU


@pytest.mark.parametrize("used", [True, False], ids=["a GPU in use", "a GPU that the functions use first"])
def test_by_default_kernels_are_timed_and_not_their_launches(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    gpu = FakeGpu(monkeypatch, used=used)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: gpu.now_ns)
    row = strobe.compare({"a": lambda: gpu.kernel(30_000_000), "b": lambda: gpu.kernel(10_000_000)}, rounds=4)["b"]
    assert row.ratio == pytest.approx(3, rel=1e-3)
    assert row.device_ratio == pytest.approx(3, rel=1e-3)
    assert (row.peak_bytes, row.added_bytes) == (3 << 20, 2 << 20), "of the GPU"


def test_what_the_host_does_between_kernels_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: gpu.now_ns)

    def with_work_of_the_host(length_ns: int) -> None:
        gpu.kernel(length_ns)
        gpu.synchronize()
        gpu.now_ns += 20_000_000

    functions = {"a": lambda: with_work_of_the_host(40_000_000), "b": lambda: gpu.kernel(10_000_000)}
    with pytest.raises(ConfigError, match='device="cpu", but this process works on a GPU'):
        strobe.compare(functions, device="cpu")
    found = strobe.compare(functions, device="cuda", rounds=2)
    assert found["b"].ratio == pytest.approx(6, rel=1e-2)
    assert found["b"].device_ratio == pytest.approx(6, rel=1e-2)
    assert read_run(found.folder).header.machine.device == "cuda:0"


CYCLES = 20_000_000
FASTEST_HZ = 3e9


@pytest.mark.gpu
@pytest.mark.alone
def test_kernels_of_known_length_on_a_gpu() -> None:
    """A kernel that counts cycles of the GPU's clock lasts as long as it says, whatever its launch costs."""
    torch.cuda.init()
    functions = {"three": lambda: torch.cuda._sleep(3 * CYCLES), "one": lambda: torch.cuda._sleep(CYCLES)}
    found = strobe.compare(functions, rounds=6, trace=True)
    row = found["one"]
    assert row.ratio == pytest.approx(3, rel=0.05)
    assert row.device_ratio == pytest.approx(3, rel=0.05)
    assert row.ratio_low > 2.5
    assert row.min_ns >= CYCLES / FASTEST_HZ * 1e9
    assert any("kernel" in line["line"] for line in found.rows("lines"))


@pytest.mark.gpu
@pytest.mark.alone
def test_one_against_three_products_on_a_gpu_by_default() -> None:
    x = torch.randn(
        8192, 8192, device="cuda", dtype=torch.bfloat16
    )  # a product takes 1.4 ms, so that launching it is a small part
    functions = {"one": lambda: x @ x, "three": lambda: [x @ x for _ in range(3)]}
    row = strobe.compare(functions, rounds=10, tolerance=math.inf)["three"]
    assert row.device_ratio == pytest.approx(1 / 3, rel=0.1)
    assert row.ratio == pytest.approx(1 / 3, rel=0.1)
    assert row.verdict == "slower"


@pytest.mark.gpu
@pytest.mark.alone
def test_the_cpu_is_refused_for_tensors_of_a_gpu() -> None:
    x = torch.randn(64, 64, device="cuda")
    with pytest.raises(ConfigError, match='device="cpu", but this process works on a GPU'):
        strobe.compare({"a": lambda: x @ x, "b": lambda: x @ x}, device="cpu")


class Pair(NamedTuple):
    one: Any
    two: Any


@dataclass
class Batch:
    frames: torch.Tensor
    names: list[str]


KINDS = {
    "tensor": (torch.tensor([1.0, float("nan"), 2.0]), lambda value: value.add_(1)),
    "array": (np.arange(4.0), lambda value: value.__setitem__(0, 9)),
    "pair": (Pair(torch.zeros(2), [1, 2]), lambda value: value.two.append(3)),
    "tuple": ((torch.ones(2), "text"), lambda value: value[0].zero_()),
    "batch": (Batch(torch.zeros(3), ["a"]), lambda value: value.frames.add_(1)),
    "dictionary": ({"x": torch.zeros(1)}, lambda value: value.__setitem__("y", 1)),
    "set": ({1, 2}, lambda value: value.add(3)),
    "bytes": (bytearray(b"abc"), lambda value: value.extend(b"d")),
    "generator": (torch.Generator().manual_seed(3), lambda value: torch.randn(1, generator=value)),
}
"""Of every kind that is copied one value, and a change."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen_and_does_not_reach_the_original(kind: str) -> None:
    value, change = KINDS[kind]
    inputs = CallArguments((value,))
    (own,) = arguments = inputs.one()
    assert inputs.unchanged(arguments)
    change(own)
    assert not inputs.unchanged(arguments)
    assert inputs.unchanged(inputs.one()), "what is kept is as it was"


def test_what_is_no_data_is_handed_over_as_it_is() -> None:
    model, marker = torch.nn.Linear(2, 2), object()
    found = copied((model, marker))
    assert found[0] is model and found[1] is marker
    for odd in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.ones(2, device="meta")):
        given = CallArguments((odd,))
        assert given.one()[0] is odd and given.unchanged(given.one()) and num_bytes(odd) == 0
        with pytest.raises(ConfigError, match=r"out is a sparse, .* return dense tensors, .*math\.inf"):
            leaves(odd)


def test_strides_storage_and_aliases_are_kept() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    wide, same_one, turned = copied((x.expand(2, 3, 4), x, x.t()))
    assert wide.stride() == (0, 4, 1) and turned.stride() == (1, 4)
    assert same_one.data_ptr() == turned.data_ptr() == wide.data_ptr() != x.data_ptr()


def lazily() -> Iterator[int]:
    yield 1


ONCE = "used up by the first call.*give a list or a tuple, or a function"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((given, ONCE) for given in (lazily(), (lazily(),), {"x": iter([1])}, ([map(str, [1])],))),
        ((torch.ones(2, requires_grad=True) * 2,), r"x\.detach\(\)"),
    ],
)
def test_what_cannot_be_copied_is_refused(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CallArguments(given)


def test_a_function_makes_them_anew() -> None:
    made: list[int] = []

    def make() -> tuple[list[int]]:
        made.append(len(made))
        return (made[-1:],)

    inputs = CallArguments(make)
    assert inputs.fresh and [inputs.one()[0] for _ in range(3)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("arguments", "expected"), [((1, 2), ((1, 2), {})), ({"x": 1}, ((), {"x": 1})), ((), ((), {})), ([1], (([1],), {}))]
)
def test_arguments_are_a_tuple_a_dictionary_or_one(arguments: Any, expected: object) -> None:
    assert bound(lambda *args, **kwargs: (args, kwargs), arguments)() == expected


def test_copies_made_ahead_are_bounded_by_their_bytes() -> None:
    inputs = CallArguments((torch.zeros(1 << 20),))  # 4 MiB
    inputs.fresh = True
    assert inputs.most() == 64


def held(found: object, expected: object, tolerance: float | None = None) -> Any:
    return agree(leaves(found), leaves(expected), tolerance)


@dataclass
class Frames:
    video: torch.Tensor
    fps: int


X = torch.linspace(1, 2, 100)
ALIKE = [
    (X, X * (1 + 2e-6)),
    (X.bfloat16(), (X * 1.005).bfloat16()),
    (X, X.bfloat16()),  # the coarser dtype decides
    (X.to(torch.complex64), X.to(torch.complex64) * (1 + 2e-6)),
    (1.0, 1.0 + 1e-9), (1, 1), ("a", "a"), (True, True), (np.arange(3), np.arange(3)), (np.array(["a"]), np.array(["a"])),
    (np.arange(3, dtype=">f4"), np.arange(3, dtype="<f4")), ({"a": [X, (1, "b")]}, {"a": [X, (1, "b")]}),
    (Frames(X, 16), Frames(X, 16)), ({"a": X, "b": 1}, {"b": 1, "a": X}),
    (torch.tensor([1.0, math.nan, math.inf]), torch.tensor([1.0, math.nan, math.inf])), (torch.zeros(0), torch.zeros(0)),
    (torch.zeros(3), torch.zeros(3)),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), ALIKE)
def test_equal_outputs_pass(found: object, expected: object) -> None:
    result = held(found, expected)
    assert result.passed and result.exact


UNLIKE = [
    (X * 1.001, X, "out: relative error 0.001, at most 1e-05 allowed"),
    (X[:-1], X, r"out: shape \(99,\), expected \(100,\)"),
    ({"a": X, "b": X + 1}, {"a": X, "b": X}, r"out\['b'\]: relative error"),
    ([X], [X, X], r"not built alike: only one has out\[1\]"),
    ({"a": 1}, {"b": 1}, r"only one has out\['a'\]"),
    (Frames(X, 24), Frames(X, 16), r"out\.fps: 24, expected 16"),
    ("a", "b", "out: 'a', expected 'b'"),
    (True, 1, "out: True, expected 1"),
    (None, X, "out: None, expected tensor"),
    (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), "1 of 3 integers differ"),
    (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), "not finite in the same places"),
    (torch.tensor([math.inf]), torch.tensor([-math.inf]), "not finite in the same places"),
    (torch.full((3,), 1e-3), torch.zeros(3), "relative error 0.001"),
]


@pytest.mark.parametrize(("found", "expected", "said"), UNLIKE)
def test_unequal_outputs_fail_and_say_where(found: object, expected: object, said: str) -> None:
    result = held(found, expected)
    assert not result.passed
    assert re.search(said, result.detail), result.detail


def test_nothing_returned_is_said_to_be_nothing_compared() -> None:
    result = held(None, None)
    assert result.passed and not result.exact and "nothing to compare" in result.rule


def test_an_output_is_kept_from_what_the_next_call_overwrites() -> None:
    buffer = torch.zeros(2)
    kept = leaves(buffer)
    buffer.fill_(7)
    assert kept[0][1].tolist() == [0, 0]


async def later() -> int:
    return 1


async def streamed() -> AsyncIterator[int]:
    yield 1


def test_what_has_not_run_or_cannot_be_compared_is_refused() -> None:
    coroutine = later()
    for output, waits in ((lazily(), "list"), (coroutine, "asyncio.run")):
        with pytest.raises(ConfigError, match=rf"nothing has run when it is returned; .* lambda: {waits}\(f\(\)\)$"):
            leaves(output)
    coroutine.close()
    with pytest.raises(ConfigError, match=r"run\(g\(\)\), where async def g\(\): return \[x async for x"):
        leaves(streamed())
    with pytest.raises(ConfigError, match=r"out\['model'\] is a Linear, which cannot be compared; .*math\.inf"):
        leaves({"model": torch.nn.Linear(1, 1)})
