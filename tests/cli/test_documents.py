"""The documents that `--json` prints and Python returns, and the manual's examples in Python: every row, units in the keys."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import strobe as strobe_package
from artefacts import FA, VSA, write_guide, write_trace
from documents import DOCUMENTS
from model_traces import write_model_trace
from strobe.cli.defaults import every_verb
from strobe.core.errors import ConfigError, DataError
from strobe.core.notebook import MAX_ROWS, html_table
from strobe.perf.report.documents.runs import Document, RunDocument, table_kinds
from strobe.perf.report.documents.speedup import SpeedupDocument, TraceDocument
from strobe.perf.table.rows import struct_of, to_json
from terminal import Strobe, check_document

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "presets-h200"
VALUES = [TraceDocument, SpeedupDocument, RunDocument]
LONG = "void very::long::kernel<" + ", ".join(f"int_c<{n}>" for n in range(80)) + ">(int*)"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 45 kernels of different names and lengths, and one with a long name."""
    layer = [("kernel", f"work{chr(97 + n % 26)}{chr(97 + n // 26)}", 1_000 + 7 * n) for n in range(45)]
    return write_trace(tmp_path_factory.mktemp("many") / "t.json.gz", [[*layer, ("kernel", LONG, 500)]] * 3)


def test_every_kernel_is_a_row_whatever_a_page_shows(many: Path, strobe: Strobe) -> None:
    found = strobe_package.read_trace(many)
    rows = found.rows()
    assert len(rows) == 46 > 30, "a page shows the first 30"
    assert {(row["kernel"], row["calls"], row["sum_ns"]) for row in rows if row["kernel"].startswith("work")} == {
        (f"work{chr(97 + n % 26)}{chr(97 + n // 26)}", 3, 3 * (1_000 + 7 * n)) for n in range(45)
    }
    assert LONG in {row["name"] for row in found.rows("kernel_names")}
    assert found.critical_paths and not strobe_package.read_trace(many, details=False).critical_paths
    printed = strobe("trace", many, "--json").document
    assert printed.pop("written") == {} and printed == to_json(found)
    assert printed["v"] == 1 and strobe("trace", many, "--top", 1, "--json").document["kernels"] == printed["kernels"]


def test_print_shows_a_few_lines(many: Path) -> None:
    trace = strobe_package.read_trace(many)
    other = strobe_package.compare_traces(many, many, focal="workaa")
    for found in (trace, other, strobe_package.compare_runs(RUN, pair=("quality", "turbo"))):
        lines = str(found).splitlines()
        assert repr(found) == str(found) and 3 < len(lines) <= 18 and max(map(len, lines)) <= 150, found
        assert lines[0] == found.title()
    assert "... and 41 more" in str(trace) and trace.rows()[0]["kernel"][:40] in str(trace)


def test_a_window_and_a_section_are_as_on_the_command_line(tmp_path: Path) -> None:
    path = write_model_trace(tmp_path / "m.json")
    found = strobe_package.read_trace(path, window="ProfilerStep#2", sections=["kernel:start -> gemm -> kernel:end"])
    assert sum(row.calls for row in found.kernels) == 2 and found.files[0].window_start_ns is not None
    with pytest.raises(DataError, match="ProfilerStep#0"):
        strobe_package.read_trace(path, window="ProfilerStep#9")
    with pytest.raises(ConfigError, match="no path"):
        strobe_package.read_trace([])


def test_two_traces(tmp_path: Path, strobe: Strobe) -> None:
    guide = write_guide(tmp_path / "guide")
    found = strobe_package.compare_traces(guide["fa_trace"], guide["vsa_trace"], focal=(FA, VSA))
    assert found.comparable and found.levels["kernel"].ratio == pytest.approx(9_534_580 / 2_762_085)
    lines = found.rows()
    assert sum(row["saved_ns"] for row in lines) == pytest.approx(float(found.ledgers[0].saved_ns)) == 4_371_483
    assert [row["level"] for row in found.rows("levels")] == ["kernel", "section", "attention", "step", "stage", "e2e"]
    assert {row["kernel"] for row in found.rows("kernels")} >= {"focal kernel", "gemm"}
    assert {row["name"] for row in found.rows("facts")} >= {"model", "device", "world"}
    given = ("--baseline-trace", guide["fa_trace"], "--candidate-trace", guide["vsa_trace"])
    printed = strobe("speedup", *given, "--focal-baseline", FA, "--focal-candidate", VSA, "--json").document
    assert {key: value for key, value in printed.items() if key not in ("written", "not_met")} == to_json(found)
    with pytest.raises(ConfigError, match="did you mean 'lines'"):
        found.rows("line")


def test_two_unlike_models(tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json"), write_model_trace(tmp_path / "b.json", "ViT", size=(96, 20))
    found = strobe_package.compare_traces(*sides, focal="flash")
    assert not found.comparable and found.obstacles == ("model", "weights", "shapes") and found.levels["kernel"].ratio is None
    assert "not comparable: model: Bert against ViT" in found._repr_html_()
    meant = strobe_package.compare_traces(*sides, focal="flash", allow_different=found.obstacles, facts={"frames": "9"})
    assert meant.comparable and meant.levels["kernel"].ratio == 1.0
    with pytest.raises(ConfigError, match="'modle'.*did you mean 'model'"):
        strobe_package.compare_traces(*sides, allow_different="modle")  # one is no list of letters
    with pytest.raises(ConfigError, match="unknown by 'shapes'"):
        strobe_package.read_trace(sides[0], by="shapes")  # type: ignore[arg-type]


def test_runs() -> None:
    run = strobe_package.read_run(str(RUN))
    assert len(run.rows()) == len(run.spans) and run.rows()[0]["value_ns"] == run.spans[0].value_ns
    assert "<table>" in run._repr_html_() and run.header.machine.device_name in run._repr_html_()
    with pytest.raises(ConfigError, match="did you mean 'clips'"):
        run.rows("clip")


def numbers(kind: inspect.Type, name: str = "") -> Iterator[str]:
    """Names of the fields that are numbers, at any depth."""
    match kind:
        case inspect.Metadata():
            yield from numbers(kind.type, name)
        case inspect.StructType():
            for field in kind.fields:
                yield from numbers(field.type, field.name)
        case inspect.VarTupleType():
            yield from numbers(kind.item_type, name)
        case inspect.UnionType():
            for member in kind.types:
                yield from numbers(member, name)
        case inspect.IntType() | inspect.FloatType():
            yield name


COUNTS = {
    "v", "n", "calls", "events", "lost", "mended", "rank", "world_size", "device", "stream", "unlinked_events", "unlinked_calls",
    "kernels", "number", "steps", "groups", "found", "merged", "overlapping", "calls_per_stage", "share", "realised",
    "steady_blocks", "frame_blocks", "ratio", "low", "high", "value", "place", "inferred_events", "longest", "median",
    "mean", "queued_events", "samples", "calls_per_sample", "failures", "ratio_low", "ratio_high", "device_ratio",
    "device_events", "overlap_pairs", "ranks", "dtod_copies",
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_a_number_has_its_unit_in_its_key(kind: type[Document]) -> None:
    names = set(numbers(inspect.type_info(struct_of(kind))))
    assert {name for name in names if not re.search(r"_(ns|bytes|share|flops|per_s)$", name)} <= COUNTS
    assert table_kinds(kind) and kind.MAIN and "v" in names


def test_documents_are_frozen_and_shown(many: Path) -> None:
    found = strobe_package.read_trace(many)
    with pytest.raises(AttributeError):
        found.files = ()
    page = found._repr_html_()
    assert page.count("<table>") == 5 and "very::long" not in page and f"{46 - MAX_ROWS} more in .rows()." in page
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceDocument) == found


def test_foreign_names_are_escaped() -> None:
    rows: list[dict[str, Any]] = [{"<b>": "<script>alert(1)</script>", "x_ns": 1 / 3, "none": None}]
    page = html_table("a & b", rows)
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page and "a &amp; b" in page
    assert "0.333333" in page and "<td></td>" in page and html_table("x", []) == "<p>x: none.</p>"


def test_every_verb_has_its_document_in_the_manual() -> None:
    assert {" ".join(words) for words, _ in every_verb()} == set(DOCUMENTS)
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for verb, kinds in DOCUMENTS.items():
        for kind in kinds:
            said = page.split(f"## {kind.__name__}\n\n")[1].split("\n")[0]
            assert re.search(rf"\b{verb}\b|\b{verb.split()[0]}`?.*`{verb.split()[-1]}`", said), verb


def test_a_key_that_the_manual_does_not_have_is_found() -> None:
    arguments = ("lint", "README.md", "--json")
    check_document(arguments, '{"v": 1, "files": [], "findings": []}')
    for wrong in ('"files": [], "findings": [], "more": 1', '"files": []', '"files": 3, "findings": []'):
        with pytest.raises(msgspec.ValidationError):
            check_document(arguments, f'{{"v": 1, {wrong}}}')


def test_the_manual_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```pycon\n(.*?)```", page, re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "python.md", "docs/python.md", 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(example, out=said.append)
    assert result.attempted >= 12 and not result.failed, "".join(said)


@pytest.mark.parametrize("name", ["read_trace", "compare_traces", "compare_runs", "read_run"])
def test_the_example_of_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files of the names that it gives, and a stand-in for pandas that takes rows as it does."""
    text = cleandoc(getattr(strobe_package, name).__doc__)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    write_model_trace(tmp_path / "trace.json.gz")
    write_model_trace(tmp_path / "dense.json.gz")
    write_model_trace(tmp_path / "sparse.json.gz", kernels=("sparse_fwd", "gemm"), faster=2)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "20260101T120000Z-compare-1a2b3c").symlink_to(ROOT / "benchmarks" / "presets-h200")
    framed: list[list[dict[str, object]]] = []

    class Pandas:
        DataFrame = staticmethod(framed.append)

    exec(code, {"strobe": strobe_package, "pandas": Pandas})
    (rows,) = framed
    assert rows and all(row.keys() == rows[0].keys() for row in rows), "every row has the same columns"
