"""What the site has beyond docs/: the results and examples that pages link to, and the docstring of every public name.

A hook of mkdocs, see `mkdocs.yml`. The pages themselves stay as they are read in a checkout.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
RESULTS: Final = ROOT / "benchmarks" / "README.md"
LANGUAGES: Final = {".py": "python", ".txt": "text", ".json": "json"}
_MARK: Final = re.compile(r"^<!-- (?:docs-check|strobe lint):.*?-->\n", re.MULTILINE | re.DOTALL)
_FENCE: Final = re.compile(r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
_NAME: Final = re.compile(r"^\* `(?P<module>[\w.]+)\.(?P<name>\w+)`:", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file outside docs/ that the navigation or a page names, and what that links to."""
    waiting = [*DOCS.glob("*.md"), RESULTS]
    files.append(File.generated(config, _uri(RESULTS), content=RESULTS.read_text(encoding="utf-8")))
    while waiting:
        for path in _outside(waiting.pop()):
            if files.get_file_from_path(_uri(path)) is None:
                text = path.read_text(encoding="utf-8")
                if path.suffix == ".md":
                    waiting.append(path)
                else:
                    text = f"# {path.name}\n\n````{LANGUAGES[path.suffix]}\n{text}\n````\n"
                files.append(File.generated(config, _uri(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, take marks of the docs' tests out, and put docstrings behind the list of names."""
    uri = page.file.src_uri
    folder = (DOCS if (DOCS / uri).exists() else ROOT) / Path(uri).parent

    def site_link(found: re.Match[str]) -> str:
        target = _uri(_page_of(folder / found["target"]))
        if files.get_file_from_path(target) is None:
            return found["text"]  # a folder or data: it stands in the repository
        return f"[{found['text']}]({os.path.relpath(target, Path(uri).parent)}{found['anchor'] or ''})"

    markdown = _outside_fences(_MARK.sub("", markdown), site_link)
    if uri == "api.md":
        named = [(found["name"], getattr(import_module(found["module"]), found["name"])) for found in _NAME.finditer(markdown)]
        homes = [f"{inspect.getmodule(thing).__name__}.{name}" for name, thing in named]
        markdown += "\n## Each name\n\n" + "\n\n".join(f"::: {home}" for home in homes)
    return markdown


def _outside_fences(markdown: str, site_link: Callable[[re.Match[str]], str]) -> str:
    """The text with every link replaced that is not in a block of code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(site_link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(site_link, markdown[end:])])


def _outside(page: Path) -> Iterator[Path]:
    """Text files outside docs/ that a page links to."""
    for found in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = _page_of(page.parent / found["target"])
        if path.is_file() and not path.is_relative_to(DOCS) and (path.suffix == ".md" or path.suffix in LANGUAGES):
            yield path


def _page_of(path: Path) -> Path:
    """The file that a link means: of a folder its README."""
    path = Path(os.path.normpath(path))
    return path / "README.md" if (path / "README.md").is_file() else path


def _uri(path: Path) -> str:
    """Where a file stands in the site."""
    inside = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
    return inside if path.suffix == ".md" or path.is_relative_to(DOCS) else f"{inside}.md"
