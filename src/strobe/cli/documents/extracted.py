"""Documents of `strobe extract`: figures from logs and traces."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from strobe.cli.documents.printed import Printed


class _Extracted(Printed, frozen=True, kw_only=True):
    """Base of documents with figures from logs and traces."""

    inputs: Annotated[tuple[dict[str, Any], ...], Meta(description="each input file: `path`, `bytes`, `sha256`")]
    logs: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="each log: `path`, `counts` of its lines, `damage`, `similar` lines, `rejected` values"),
    ]
    written: Annotated[str | UnsetType, Meta(description="path of the page, with -o")] = UNSET


class Stages(_Extracted, frozen=True, kw_only=True):
    """`strobe extract stages`: rounds of each stage in logs."""

    stages: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each log and stage: `log`, `stage`, `rounds_ns`, `avg_all_rounds_ns`, `avg_excl_warmup_ns`, "
            "`excluded`, `ranks`, `note`"
        ),
    ]


class Timers(_Extracted, frozen=True, kw_only=True):
    """`strobe extract attention`: attention timers in logs."""

    attention: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each timer: `log`, `timer`, `rank`, `units`, number of `values`, `calls` (times in `_ns`), "
            "`method`, `note`, `excluded`, `outliers`, `remarks`"
        ),
    ]


class Kernels(_Extracted, frozen=True, kw_only=True):
    """`strobe extract kernels`: focal kernels in traces."""

    focal: Annotated[str, Meta(description="regular expression of the focal kernel")]
    kernels: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="each trace: `trace`, and its `devices` with `device`, `names` and `calls` (times in `_ns`)"),
    ]
