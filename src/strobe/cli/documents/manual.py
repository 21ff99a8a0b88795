"""Generator of the manual's page of JSON documents from their structs."""

from __future__ import annotations

from typing import Final

from strobe.cli.documents.verbs import DOCUMENTS
from strobe.perf.records.store import KEYS, parts_of, struct_sections
from strobe.perf.report.documents.runs import SCHEMA_VERSION

_HEAD: Final = f"""# JSON documents

Generated from `strobe.cli.documents` by `make docs`; do not edit.

With `--json`, every verb prints one JSON document on stdout. The table names the document of each verb. The sections below it
list the keys of each document, and then the keys of the rows and objects inside documents. A key whose type is a list of rows
is a table: `pandas.DataFrame(json.load(file)["speedups"])`. [python.md](python.md) returns the same values to a script.

* **Units** stand in the key: `_ns` is nanoseconds, `_bytes` bytes, `_flops` floating-point operations, `_fps` frames per
  second, `_per_s` per second.
* **Sides.** A candidate is compared with a baseline, also called its reference. The ratio, or speedup, of a comparison is
  time of the baseline / time of the candidate; `saved_ns` is time of the baseline - time of the candidate.
* **Account (ledger).** The account of a difference splits it into lines that add up to it exactly; `ledger` in a key means
  account.
* **Versions.** All documents have the schema version {SCHEMA_VERSION} in `v`. A new key keeps the version; a removed, renamed
  or redefined key raises it.
{KEYS.rstrip()}
* **null** stands for what is not known, not measured or not defined.
* **Pages.** `report.json` is the layout of a page, not data.
"""


def json_markdown() -> str:
    """Return `docs/json.md`: the verbs with their documents, then the keys of each document and of the parts of documents."""
    kinds = dict.fromkeys(kind for found in DOCUMENTS.values() for kind in found)
    parts = dict.fromkeys(part for kind in kinds for part in parts_of(kind) if part not in kinds)
    links = {kind: f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in kinds}
    rows = [f"| `strobe {verb}` | {' or '.join(map(links.__getitem__, found))} |" for verb, found in DOCUMENTS.items()]
    listed = "\n".join(("| verb | document |", "|---|---|", *rows))
    return "\n".join((_HEAD, listed, "", *struct_sections({kind: kind.__name__ for kind in (*kinds, *parts)})))
