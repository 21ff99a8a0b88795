"""A damaged line of the records is named wherever figures are: on the terminal, in JSON, in the pages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from strobe.perf.records.store import seal
from terminal import Strobe

RUN = Path(__file__).parents[2] / "benchmarks" / "engine-h200" / "320x576"
TITLE = "Damaged records: the figures are those of what is left."


@pytest.fixture(params=["sealed", "older"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A run, one line of which is garbage: a denoise step of the candidate's third clip; and the line's number as it is told."""
    lines = gzip.decompress((RUN / "records.jsonl.gz").read_bytes()).splitlines()
    if request.param == "sealed":
        lines = [seal(line, at) for at, line in enumerate(lines, start=1)]
    wanted = {"record": "span", "variant": "balanced", "clip": 2, "name": "denoise_step"}
    at = next(at for at, line in enumerate(lines) if wanted.items() <= json.loads(line).items())
    lines[at] = b'{"record":"span","v":2,"variant":"bal'
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder, f"line {at + 1} is damaged in records.jsonl and not read"


def test_report(strobe: Strobe, run: tuple[Path, str]) -> None:
    folder, told = run
    shown = strobe("report", folder)
    assert shown.code == 0 and TITLE in shown.out and told in shown.out
    assert "clip 2 of balanced is left out: damaged records, " in shown.out
    document = strobe("report", folder, "--json").document
    assert document["damaged"][str(folder)][0] == told and len(document["damaged"][str(folder)]) == 2
    for page in ("report.html", "report.md", "report.json"):
        assert TITLE in (folder / page).read_text() and "clip 2 of balanced is left out" in (folder / page).read_text()
    sound = strobe("report", RUN, "--out", folder.parent / "sound", "--json").document
    assert sound["damaged"] == {} and sound["figures"] != document["figures"]
