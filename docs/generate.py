"""Write the pages that are made from the code: `make docs`. A house test checks that they are up to date.

Usage: python docs/generate.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App

from strobe.cli.documents.defaults import defaults_schema
from strobe.cli.documents.manual import json_markdown
from strobe.cli.main import app
from strobe.perf.records.schema import schema_markdown
from strobe.serve.protocol_page import protocol_markdown


def commands() -> str:
    """Every verb with its flags, as `--help` has them."""
    _inherit(app)
    text = app.generate_docs(output_format="markdown", recursive=True, heading_level=2)
    return f"# Command line\n\nGenerated from `strobe.cli` by `make docs`; do not edit.\n\n{text.strip()}\n"


def _inherit(parent: App) -> None:
    """Give verbs of verbs the defaults of the first: they have them when they run, and not when they are described."""
    for name in parent:
        if not name.startswith("-"):
            parent[name].default_parameter = parent.default_parameter
            _inherit(parent[name])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (folder / "records.md").write_text(schema_markdown(), encoding="utf-8")
    (folder / "protocol.md").write_text(protocol_markdown(), encoding="utf-8")
    (folder / "json.md").write_text(json_markdown(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
    (folder / "strobe.schema.json").write_text(defaults_schema(), encoding="utf-8")
