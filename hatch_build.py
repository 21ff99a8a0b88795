"""What an index page shows of this project: its addresses, and the README with links that work there.

One setting says where the repository is, `repository` of `[tool.hatch.metadata.hooks.custom]` in pyproject.toml; every address
of the built package follows from it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CODE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)$|(?P<ticks>`+)[^`]+(?P=ticks)|<!--.*?-->", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<before>\]\(|^\[[^\]]+\]:\s+|\b(?:src|srcset|href)=\")(?P<target>[^)\s\"]+)", re.MULTILINE)
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")


class Addresses(MetadataHookInterface):
    """Fill in the addresses of the project and the long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write `urls` and `readme`."""
        repository = self.config["repository"].rstrip("/")
        metadata["urls"] = {
            "Homepage": repository,
            "Documentation": f"{repository}/blob/HEAD/docs/index.md",
            "Repository": repository,
            "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, repository)}


def absolute_links(text: str, repository: str) -> str:
    """Make the relative links and pictures of a Markdown page absolute; code and comments stay as they are."""
    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [_linked(text[end : code.start()], repository), code[0]]
        end = code.end()
    return "".join((*parts, _linked(text[end:], repository)))


def _linked(text: str, repository: str) -> str:
    def absolute(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:|#|//", target):
            return link[0]
        kind = "raw" if target.lower().endswith(IMAGES) else "blob"
        return f"{link['before']}{repository}/{kind}/HEAD/{target.removeprefix('./')}"

    return LINK.sub(absolute, text)
