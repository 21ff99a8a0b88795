"""Base types of record lines: schema versions, `Line` and `RecordPart`, and `Prose` for text that no program reads."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

SCHEMA_VERSION: Final = 2

Prose: TypeAlias = Annotated[str, Meta(extra={"prose": True})]
"""Text for a reader. It may be reworded at any time: code checks at most whether it is empty, never its words."""


class RecordPart(msgspec.Struct, frozen=True, kw_only=True):
    """A struct inside a line."""


class Line(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower, tag_field="record"):
    """One line of `records.jsonl`."""

    v: Annotated[int, Meta(description="schema version of this line")] = SCHEMA_VERSION
