"""`strobe lint` from the command to the findings and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from terminal import Strobe

WRONG = """# Page

| Part | Time (ms) |
|---|---|
| one | 52.3 |
| two | 48.7 |
| Total | 144.5 |

Logs print ms, but the values behave as seconds.
"""
RIGHT = WRONG.replace("144.5", "101.0").replace("behave as seconds", "are right")
WINDOWS = "# Ablation: window size\n\n| Window | Mean |\n|---|---|\n| 12 frames | 575.1 ms |\n| 6 frames | 568.2 ms |\n"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    for name, text in (("wrong", WRONG), ("right", RIGHT), ("windows", WINDOWS)):
        (tmp_path / f"{name}.md").write_text(text)
    return tmp_path


def test_findings_are_said_with_place_and_correction(strobe: Strobe, pages: Path) -> None:
    result = strobe("lint", pages / "wrong.md", pages / "right.md")
    assert result.code == 1
    for place in ("7 total-sum Page, Total, Time (ms)", "9 label-admitted"):
        assert f"{pages / 'wrong.md'}:{place}" in result.out
    assert "said     Total: 144.5" in result.out and "correct  101.0 ms" in result.out and "right.md" not in result.out
    assert "2 findings in 2 files" in result.err


def test_json(strobe: Strobe, pages: Path) -> None:
    result = strobe("lint", pages / "wrong.md", "--json")
    assert result.code == 1
    assert result.document["files"] == [str(pages / "wrong.md")]
    total, label = result.document["findings"]
    assert total["place"] == {"path": str(pages / "wrong.md"), "line": 7, "table": "Page", "row": "Total", "column": "Time (ms)"}
    assert (total["rule"], total["severity"], total["corrected"]) == ("total-sum", "error", "101.0 ms")
    assert (label["rule"], label["said"]) == ("label-admitted", "labelled ms, behaving as s")
    clean = strobe("lint", pages / "right.md", "--json")
    assert clean.code == 0 and clean.document["findings"] == [] and "0 findings in 1 file" in clean.err


@pytest.mark.parametrize(("ignored", "rules"), [(("label-admitted",), ["total-sum"]), (("label-admitted", "total-sum"), [])])
def test_rules_can_be_chosen(strobe: Strobe, pages: Path, ignored: tuple[str, ...], rules: list[str]) -> None:
    result = strobe("lint", pages / "wrong.md", "--json", "--ignore", *ignored)
    assert [finding["rule"] for finding in result.document["findings"]] == rules and result.code == len(rules)


def test_a_model_makes_its_rules_speak(strobe: Strobe, pages: Path) -> None:
    assert strobe("lint", pages / "windows.md").code == 0
    facts = ("--model", "wan-1.3b", "--size", "480x832", "--window", "12", "--device", "h100")
    result = strobe("lint", pages / "windows.md", *facts, "--json")
    assert [finding["rule"] for finding in result.document["findings"]] == ["window-free"]
