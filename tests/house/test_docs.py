"""The pages that are made from the code are up to date, and no link leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from source import ROOT, name_of

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=600, env=os.environ | {"PYTHONPATH": path})
    for page in tmp_path.iterdir():
        assert page.read_text() == (ROOT / "docs" / page.name).read_text(), f"docs/{page.name} is out of date: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=[name_of(page) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not link to {page.name}"


def test_flags_in_the_list_of_commands_are_flags() -> None:
    """Verbs of verbs once had the library's negative forms there, which are refused."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--(?:no|empty)-[a-z-]+", page)) == {"--no-compile", "--no-details", "--no-switch", "--no-trace"}
