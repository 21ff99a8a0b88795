"""Results of the docs' commands add up over runs, and the page counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from check_all import Item, Result, page, read, text_key, write

SLOW, GPU, PLAIN = "strobe demo", "strobe doctor --gate", "strobe lint README.md"
GIVEN = Result(key=SLOW, date="2026-01-02", passed=False, reason="exit 1: a | b", seconds=12.3, device="no GPU", torch="2.13.0")
ROWS = [
    Item(what=f"README.md: {key}", key=key, marks=frozenset(marks), run=lambda folder: None)
    for key, marks in ((SLOW, {"slow"}), (GPU, {"gpu"}), (PLAIN, ()))
]


def test_the_last_result_of_each_command_is_kept_and_those_of_no_command_go(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == {}
    for result in (GIVEN, replace(GIVEN, key=GPU), replace(GIVEN, key="strobe gone"), replace(GIVEN, passed=True, reason="")):
        write(path, result, keep={SLOW, GPU, "strobe gone"})
    write(path, replace(GIVEN, key=PLAIN, passed=True), keep={SLOW, GPU, PLAIN})
    found = read(path)
    assert list(found) == sorted((SLOW, GPU, PLAIN)) and found[SLOW].passed and not found[GPU].passed
    assert [each.name for each in tmp_path.iterdir()] == ["results.jsonl"]


def test_the_page_counts_by_mark_and_names_what_failed() -> None:
    text = page(ROWS, {SLOW: GIVEN, PLAIN: replace(GIVEN, key=PLAIN, date="2026-01-05", passed=True, reason="")})
    assert "Run between 2026-01-02 and 2026-01-05, on no GPU, torch 2.13.0." in text
    assert f"* `README.md: {SLOW}`: failed on 2026-01-02, exit 1: a | b" in text
    assert "| not marked | 1 | 0 | 0 |" in text and "| slow | 0 | 1 | 0 |" in text and "| gpu | 0 | 0 | 1 |" in text
    assert f"* `README.md: {PLAIN}`: failed" in page(ROWS, {PLAIN: replace(GIVEN, key=PLAIN)})


def test_a_snippet_is_named_by_its_text() -> None:
    assert text_key("x = 1\n") == text_key("x = 1\n") != text_key("x = 2\n")
