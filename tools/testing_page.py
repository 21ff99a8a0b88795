"""docs/testing.md, whose sections programs write from what they measured; the rest is written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "testing.md"


def section(title: str, page: Path = PAGE) -> str:
    """Return a section of the page with its heading; empty if there is none."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    text = rest.partition("\n## ")[0].rstrip()
    return f"## {title}\n{text}\n" if found else ""


def put(text: str, page: Path = PAGE) -> None:
    """Write a section that begins with its heading in place of the one with the same heading.

    Raises:
        ValueError: the page has no such section.
    """
    title = text.partition("\n")[0].removeprefix("## ")
    before = section(title, page)
    if not before:
        raise ValueError(f"{page} has no section {title!r}")
    page.write_text(page.read_text(encoding="utf-8").replace(before, text.rstrip() + "\n"), encoding="utf-8")
