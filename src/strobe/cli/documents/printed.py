"""Base of the documents that a verb builds itself, and fields that several have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strobe.perf.report.blocks.rows import DocumentPart
from strobe.perf.report.documents.runs import SCHEMA_VERSION

Written = Annotated[
    dict[str, str], Meta(description="paths of the written files, by kind, e.g. `html`; empty if none was written")
]
ReportPaths = Annotated[dict[str, str], Meta(description="paths of the report, by suffix, e.g. `html`")]
Paths = Annotated[tuple[str, ...], Meta(description="paths of the files of the report")]
NotMet = Annotated[
    tuple[str, ...], Meta(description="requirements (--require) that are not met, each with the reason; exit code 1 if any")
]
Red = Annotated[dict[str, str], Meta(description="by candidate that failed its gate: the rule and the measured figure")]


class Printed(DocumentPart, frozen=True, kw_only=True):
    """Base of documents that a verb builds itself."""

    v: Annotated[int, Meta(description="schema version of the document")] = SCHEMA_VERSION
