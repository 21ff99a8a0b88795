"""The examples of the manual's page on Python run as they stand and give what it shows."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import strobe as strobe_package
from model_traces import write_model_trace

ROOT = Path(__file__).parents[2]


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
    text = inspect.cleandoc(getattr(strobe_package, name).__doc__)
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
