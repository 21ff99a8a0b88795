"""The command line on our own captures of an H200: every figure again from the raw events and records, by other code."""

from __future__ import annotations

import gzip
import json
import math
import re
import shlex
import shutil
import statistics
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import trace_oracle as oracle
from captures import H200, Raw, Span
from terminal import Strobe

ROOT = Path(__file__).parents[2]
FOCAL = "_forward_kernel"
PAIR = H200 / "pair"
CALL = "range:strobe::attention_kernel:start -> range:strobe::attention_kernel:end"


def _against(*more: object) -> tuple[object, ...]:
    traces = ("--baseline-trace", H200 / "eager.json.gz", "--candidate-trace", H200 / "graph.json.gz")
    return ("speedup", *traces, "--focal-baseline", FOCAL, "--focal-candidate", FOCAL, *more, "--json")


def _tiles(raw: Raw) -> tuple[int, int, int]:
    """Start of the first step, of the last one, and how many lie between: the last one has no end."""
    ranges = raw.facts.spans("user_annotation", "ProfilerStep#")
    owners = [next(int(n) for n, begin, end, _ in ranges if begin <= raw.host(e)[0] < end) for e, _, _ in raw.device]
    starts = {number: start for number, (_, start, _) in reversed(list(zip(owners, raw.device, strict=True)))}
    return min(starts.values()), max(starts.values()), len(starts) - 1


def _lines(raw: Raw) -> dict[str, Fraction]:
    """What each line of the ledger of a step must hold."""
    first, last, steps = _tiles(raw)
    device = [(e, start, end) for e, start, end in raw.device if first <= start < last]
    focal = [(start, end) for e, start, end in device if e["name"] == FOCAL]
    rest = [(start, end) for e, start, end in device if e["name"] != FOCAL]
    idle = raw.idle(until=last)
    own = oracle.union(focal)
    found = {"focal kernel": own, "other kernels": oracle.union(focal + rest) - own}
    found |= {f"idle: {cause}": ns for cause, ns in idle.items() if ns}
    assert sum(found.values()) == last - first
    return {line: Fraction(ns, steps) for line, ns in found.items()}


def test_eager_against_a_graph(strobe: Strobe) -> None:
    found = strobe(*_against("--allow-different", "graphs")).document
    baseline, candidate = Raw("eager"), Raw("graph")
    (ledger,) = found["ledgers"]
    columns = {"baseline_ns": _lines(baseline), "candidate_ns": _lines(candidate)}
    for column, expected in columns.items():
        said = {line["line"]: Fraction(line[column]) for line in ledger["lines"]}
        assert {line: ns for line, ns in said.items() if ns} == expected
        assert sum(said.values()) == Fraction(ledger[column])
    saved = sum(Fraction(line["saved_ns"]) for line in ledger["lines"])
    assert saved == Fraction(ledger["saved_ns"]) == Fraction(ledger["baseline_ns"]) - Fraction(ledger["candidate_ns"])
    means = [Fraction(sum(end - start for start, end in raw.named(FOCAL)), 12) for raw in (baseline, candidate)]
    steps = [Fraction(last - first, count) for first, last, count in (_tiles(baseline), _tiles(candidate))]
    for level, (of_baseline, of_candidate) in (("kernel", means), ("step", steps)):
        figure = found["levels"][level]
        assert (Fraction(figure["baseline"]["mean_ns"]), Fraction(figure["candidate"]["mean_ns"])) == (of_baseline, of_candidate)
        assert math.isclose(figure["ratio"], of_baseline / of_candidate)
    assert found["comparable"]


def test_a_graph_is_declared_or_not_comparable(strobe: Strobe) -> None:
    found = strobe(*_against()).document
    assert (found["comparable"], found["not_comparable_because"]) == (False, ["CUDA or HIP graphs: none seen against yes"])


def _kept(raw: Raw, count: int) -> list[tuple[Span, Span]]:
    """The kernel of each of the last calls, and the device time of the region that launched it."""
    regions = [span[1:3] for span in raw.facts.spans("user_annotation", "strobe::attention_kernel")]
    found = []
    for begin, end in sorted(regions):
        own = [(e, start, stop) for e, start, stop in raw.device if begin <= raw.host(e)[0] < end]
        kernel = next((start, stop) for e, start, stop in own if e["cat"] == "kernel")
        found.append((kernel, (min(start for _, start, _ in own), max(stop for _, _, stop in own))))
    assert len(found) == 10
    return found[-count:]


def test_dense_against_sparse_attention(strobe: Strobe) -> None:
    sides = {"baseline": ("sdpa", "sdpa"), "candidate": ("sparse-triton", FOCAL)}
    flags = [
        flag
        for side, (name, focal) in sides.items()
        for flag in (f"--{side}-trace", PAIR / "traces" / f"{name}.json.gz", f"--focal-{side}", focal)
    ]
    found = strobe("speedup", *flags, "--section", CALL, "--json").document
    means: dict[str, list[Fraction]] = {"kernel": [], "section": []}
    for side, (name, _) in sides.items():
        calls = _kept(Raw(f"pair/traces/{name}"), found["levels"]["kernel"][side]["n"])
        for level, spans in zip(means, zip(*calls, strict=True), strict=True):
            means[level].append(Fraction(sum(end - start for start, end in spans), len(spans)))
    for level, (baseline, candidate) in means.items():
        figure = found["levels"][level]
        assert (Fraction(figure["baseline"]["mean_ns"]), Fraction(figure["candidate"]["mean_ns"])) == (baseline, candidate)
        assert math.isclose(figure["ratio"], baseline / candidate)
    assert means["section"][0] > means["kernel"][0] and means["section"][1] == means["kernel"][1], (
        "a memset before cuDNN's kernel"
    )
    for ledger in (found["call_ledger"], *found["ledgers"]):
        assert sum(Fraction(line["saved_ns"]) for line in ledger["lines"]) == Fraction(ledger["saved_ns"])


def _records(kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in gzip.decompress((PAIR / "records.jsonl.gz").read_bytes()).splitlines()]
    return [line for line in lines if line["record"] == kind]


def _values(variant: str, name: str, palindrome: int | None = None) -> list[int]:
    spans = [span for span in _records("span") if (span["variant"], span["name"]) == (variant, name)]
    return [span["value_ns"] for span in spans if palindrome in (None, span["palindrome"])]


def test_the_timed_calls_as_a_log(strobe: Strobe) -> None:
    sides = {"baseline": "sdpa", "candidate": "sparse:triton"}
    flags = [flag for side, name in sides.items() for flag in (f"--{side}-log", PAIR)]
    flags = [flag / "records.jsonl.gz" if isinstance(flag, Path) else flag for flag in flags]
    flags += ["--names", *(f"^{name}/attention$" for name in sides.values())]
    found = strobe("speedup", *flags, "--allow-different", "backend", "sparsity", "--json").document
    figure = found["levels"]["attention"]
    for side, name in sides.items():
        values = _values(name, "attention")[-figure[side]["n"] :]
        assert Fraction(figure[side]["mean_ns"]) == Fraction(sum(values), len(values))
    checks = {check["name"]: (check["baseline"], check["verdict"]) for check in found["facts"]}
    assert (checks["tokens"], checks["batch"], checks["sparsity"]) == (("8192", "same"), ("1", "same"), ("0.0", "allowed"))


@pytest.mark.parametrize("verb", ["speedup", "report"])
def test_the_page_of_the_pair(verb: str, strobe: Strobe, tmp_path: Path) -> None:
    """A run of attention calls has the page of its own kind, whichever command writes it."""
    folder = shutil.copytree(PAIR, tmp_path / "pair")
    chosen = ("--baseline", "sdpa", "--candidate", "sparse:triton") if verb == "speedup" else ()
    result = strobe(verb, folder, *chosen, "--json")
    assert result.code == 0, result.err
    ratios = {each["level"]: each["ratio"] for each in result.document["speedups"]}
    for level, name in (("kernel", "attention_kernel"), ("section", "attention")):
        sums = [[sum(_values(variant, name, lap)) for variant in ("sdpa", "sparse:triton")] for lap in range(4)]
        assert math.isclose(ratios[level], statistics.median(dense / sparse for dense, sparse in sums))
    into = folder / "sparse-triton-against-sdpa" if verb == "speedup" else folder
    page = (into / "report.md").read_text()
    assert result.document["report"]["md"] == str(into / "report.md")
    assert page.startswith("# Attention: sdpa, sparse:triton") and "no end-to-end times" not in page
    for variant, name in product(("sdpa", "sparse:triton"), ("attention", "attention_kernel")):
        what = "kernel" if name == "attention_kernel" else "section"
        assert f"| {variant} | {what} | {len(_values(variant, name))} | {min(_values(variant, name)) / 1000:#.4g} |" in page


def test_attention_calls_are_reported_alone(strobe: Strobe, tmp_path: Path) -> None:
    result = strobe("report", PAIR, ROOT / "benchmarks" / "presets-h200", "--out", tmp_path)
    assert result.code == 2 and "report it without other runs" in result.err and not list(tmp_path.iterdir())


def test_a_page_without_its_traces_says_so(strobe: Strobe, tmp_path: Path) -> None:
    folder = shutil.copytree(PAIR, tmp_path / "pair")
    (folder / "traces" / "sdpa.json.gz").unlink()
    assert strobe("report", folder).code == 0
    page = (folder / "report.md").read_text()
    assert "traces/sdpa.json.gz is not there any more" in page and "| sparse-triton | sparse-triton.json.gz |" in page


PAGES = ("docs/traces.md", "docs/speedup.md", "docs/tutorial_speedup.md")
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```\n(\$ strobe .*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(
            page, block, id=f"{page}-{i}", marks=pytest.mark.rest if "engine-h200/compare" in block else ()
        )  # it is large
        for i, (page, block) in enumerate(BLOCKS)
    ],
)
def test_the_manual_shows_what_the_commands_print(
    page: str, block: str, strobe: Strobe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("tests", "examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    result = strobe(*shlex.split(command)[2:])
    assert result.code == 0, result.err
    printed = [line.rstrip() for line in result.out.splitlines()]
    lines = [line.rstrip() for line in shown.splitlines() if line.strip() and line != "..."]
    assert lines and not [line for line in lines if line not in printed]


def test_the_readme_s_case_has_the_tutorial_s_figures() -> None:
    """The blocks of the tutorial are what the commands print; the README repeats three of its figures in prose."""
    shown = "".join(block for page, block in BLOCKS if page == "docs/tutorial_speedup.md")
    (caption,) = re.findall(r"^\*The kernel saves (.*?)\[How to read it\]", (ROOT / "README.md").read_text(), re.MULTILINE)
    figures = re.findall(r"\d+\.\d+(?= ms)", caption)
    assert len(figures) == 3 and all(f"{figure} ms" in shown for figure in figures)


def test_every_page_shows_something() -> None:
    assert {page for page, _ in BLOCKS} == set(PAGES)
