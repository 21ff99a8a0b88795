"""`strobe profile stream --breakdown`."""

from __future__ import annotations

from pathlib import Path

from strobe.core.spans import PIECES
from strobe.perf.records.store import read_run
from terminal import Strobe


def test_a_breakdown_of_a_stream(strobe: Strobe, tmp_path: Path) -> None:
    quick = ("turbo", "--no-compile", "--blocks", "4", "--active", "1", "--rounds", "1", "--device", "cpu")
    result = strobe("profile", "stream", *quick, "--breakdown", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    for words in ("Shares of turbo", "Passes and stages", "A layer of", "Launch gaps of", "attention / attention_kernel"):
        assert words in result.out
    run = read_run(tmp_path / "out")
    (trace,) = run.traces
    assert set(PIECES) <= set(trace.regions)
    assert not {span.name for span in run.spans} & set(PIECES)
    assert "Breakdown" in (tmp_path / "out" / "report.md").read_text()
