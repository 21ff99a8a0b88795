"""A report on a full disk leaves the earlier one as it was: page, Markdown and data belong together."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from strobe.core.errors import StrobeError
from strobe.perf.report.build import build_report
from strobe.perf.report.write import write_report

RUN = Path(__file__).parents[3] / "benchmarks" / "presets-h200"


@pytest.mark.parametrize("full_at", [1, 2, 3])
def test_an_earlier_report_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int) -> None:
    report = build_report([shutil.copytree(RUN, tmp_path / "run")])
    into = tmp_path / "page"
    into.mkdir()
    for name in ("report.html", "report.md", "report.json"):
        (into / name).write_text("good")
    calls = iter(range(1, 10))

    def full(descriptor: int) -> None:
        if next(calls) == full_at:
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StrobeError, match="the disk is full"):
        write_report(report, into)
    assert {path.name: path.read_text() for path in into.iterdir()} == dict.fromkeys(
        ("report.html", "report.md", "report.json"), "good"
    )
