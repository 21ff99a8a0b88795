"""Write the pages that are made from the code: `make docs`. A house test checks that they are up to date.

Usage: python docs/generate.py [FOLDER]
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from cyclopts import App

import strobe
from strobe.cli.documents.defaults import defaults_schema
from strobe.cli.documents.manual import json_markdown
from strobe.cli.main import app
from strobe.perf.records.schema import schema_markdown
from strobe.serve.protocol_page import protocol_markdown

SUBJECTS: Final = {
    "Streams": ("engine",),
    "Attention": ("attention", "bench.probe"),
    "Measuring, traces and runs": ("perf", "core.spans", "comparing"),
    "Errors": ("core.errors",),
}
"""Where the names of the package live, by the heading that they stand under."""
FURTHER: Final = (
    ("strobe.integrations.diffusers", "sparsify"),
    ("strobe.integrations.diffusers.fastwan", "FastWanPipeline"),
    ("strobe.engine.load", "load"),
    ("strobe.engine.weights", "Weights"),
    ("strobe.serve.client", "watch"),
)
"""What is imported from a module of its own, because it needs an extra or few use it."""


def api() -> str:
    """Every public name with the first sentence of its docstring; the site puts the whole docstrings below."""
    homes = {name: inspect.getmodule(getattr(strobe, name)).__name__ for name in strobe.__all__ if name != "__version__"}
    lines = ["# Python", "", "Generated from the docstrings by `make docs`; do not edit.", ""]
    for subject, rooms in SUBJECTS.items():
        own = sorted(name for name in homes if homes[name].startswith(tuple(f"strobe.{room}" for room in rooms)))
        lines += _table(subject, [(f"strobe.{name}", getattr(strobe, name), homes.pop(name)) for name in own])
    lines += _table("Others", [(f"strobe.{name}", getattr(strobe, name), home) for name, home in sorted(homes.items())])
    further = [(module, name, getattr(import_module(module), name)) for module, name in FURTHER]
    named = [(f"{module}.{name}", thing, inspect.getmodule(thing).__name__) for module, name, thing in further]
    return "\n".join(lines + _table("From modules of their own", named))


def _table(title: str, rows: list[tuple[str, object, str]]) -> list[str]:
    """A heading and a row for each name; nothing without rows."""
    head = [f"## {title}", "", "| name | what it is | defined in |", "|---|---|---|"]
    return [*head, *(f"| `{name}` | {_sentence(thing)} | `{home}` |" for name, thing, home in rows), ""] if rows else []


def _sentence(thing: object) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def commands() -> str:
    """Every verb with its flags, as `--help` has them."""
    _inherit(app)
    app.help_format = "markdown"  # as the docstrings are written; a terminal draws them itself
    text = app.generate_docs(output_format="markdown", recursive=True, heading_level=2)
    text = text.replace("](#strobe-install-completion)", "](#strobe---install-completion)")  # its anchor
    return f"# Command line\n\nGenerated from `strobe.cli` by `make docs`; do not edit.\n\n{text.strip()}\n"


def _inherit(parent: App) -> None:
    """Give verbs of verbs the defaults of the first: they have them when they run, and not when they are described."""
    for name in parent:
        if not name.startswith("-"):
            parent[name].default_parameter = parent.default_parameter
            _inherit(parent[name])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (folder / "api.md").write_text(api(), encoding="utf-8")
    (folder / "records.md").write_text(schema_markdown(), encoding="utf-8")
    (folder / "protocol.md").write_text(protocol_markdown(), encoding="utf-8")
    (folder / "json.md").write_text(json_markdown(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
    (folder / "strobe.schema.json").write_text(defaults_schema(), encoding="utf-8")
