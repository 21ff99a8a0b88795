"""The worked examples of docs/attention.md run as they are written, and print what the page says they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "attention.md"
EXAMPLE = re.compile(r"```python\n(?P<code>(?:(?!```).)*)```\n\n```text\n(?P<said>.*?)```", re.DOTALL)
EXAMPLES = {
    re.findall(r"^## (.*)$", PAGE.read_text("utf-8")[: found.start()], re.MULTILINE)[-1]: found
    for found in EXAMPLE.finditer(PAGE.read_text("utf-8"))
}


def test_the_page_has_them() -> None:
    assert {"A video", "A history", "Packed sequences"} <= EXAMPLES.keys()


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_prints_what_the_page_says(title: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(EXAMPLES[title]["code"], f"{PAGE.name}: {title}", "exec"), {})
    assert said.getvalue() == EXAMPLES[title]["said"]
