"""The worked examples of pages about attention run as they are written, and print what the page says they print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(?P<code>(?:(?!```).)*)```\n\n```text\n(?P<said>.*?)```", re.DOTALL)
EXAMPLES = {
    f"{page}: {re.findall(r'^## (.*)$', text[: found.start()], re.MULTILINE)[-1]}": found
    for page in ("attention.md", "tutorial_laptop.md")
    for text in [(DOCS / page).read_text("utf-8")]
    for found in EXAMPLE.finditer(text)
}


def test_the_pages_have_them() -> None:
    assert {"attention.md: A video", "attention.md: A history", "attention.md: Packed sequences"} < EXAMPLES.keys()
    assert any(title.startswith("tutorial_laptop.md: ") for title in EXAMPLES)


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_prints_what_the_page_says(title: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(EXAMPLES[title]["code"], title, "exec"), {})
    assert said.getvalue() == EXAMPLES[title]["said"]


def test_the_worked_example_says_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "tree.md").read_text(encoding="utf-8")
    found = re.search(
        r"^```python\n(# (tree_example\.py): torchrun (.*?) \2\n.*?)^```\n\n```\n(.*?)^```\n", page, re.DOTALL | re.MULTILINE
    )
    assert found is not None, "the page has the example and, behind it, what it prints"
    source, name, flags, printed = found.groups()
    (tmp_path / name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", *flags.split(), name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(DOCS.parent / "src"), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
