"""Upgrade of records of schema version 1 to the current version: names and sentences become fields.

Version 1 kept a stage as `stage:NAME`, a region of a rank as `MODE/REGION/rankN`, links, predictions and choices as lines of
quality, the cell of a grid in the folder's name, and the kinds of gates and exclusions in their sentences.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, get_args

from msgspec.structs import replace

from strobe.core.spans import ATTENTION
from strobe.perf.records.base import SCHEMA_VERSION
from strobe.perf.records.grids import (
    GUIDE,
    AttentionCell,
    Collective,
    Contestant,
    LinkRate,
    Links,
    Prediction,
    SentMessage,
    Surroundings,
    WhatIf,
    Work,
)
from strobe.perf.records.record import (
    End,
    Excluded,
    Exclusion,
    Gate,
    Header,
    Memory,
    Quality,
    Record,
    RunKind,
    Span,
    Variant,
    Video,
)

_MACHINE: Final = "machine"
"""Variant name of quality lines that describe the machine, not a contestant."""
_NUMBER: Final = r"\d{1,9}(?:\.\d{1,9})?(?:e-?\d{1,2})?"
_CELL: Final = re.compile(
    rf"(?P<shape>[^_]+)_(?P<budget>[sk])(?P<share>{_NUMBER})_b(?P<block>\d{{1,9}})_(?P<way>forward|backward)"
)
_TREE: Final = re.compile(r"ws\d+_n\d+_q\d+_")
_OF_RANK: Final = re.compile(r"(?:(?P<mode>free-running|serialised)/)?(?P<name>.+)/rank(?P<rank>\d{1,9})")
_GUIDE_KINDS: Final = {"comm": "communication", "wait": "waiting"}
_STAGE: Final = "stage:"
_PARTED: Final = ("tree_message:", "tree_wait:")
_ON_RANK: Final = re.compile(r"largest absolute error(?: of the lse)? on rank (\d{1,9})")
_AGAINST: Final = {"the same selection": "selection", "full dense attention": "dense"}
_CAUSES: Final[dict[str, Exclusion]] = {"warm-up": "warm-up", "compilation": "compilation", "thermal throttling": "throttling"}
_WHAT_IF: Final = re.compile(rf"what_if:(?P<faster>bandwidth|latency) [x/](?P<factor>{_NUMBER})")
_COLLECTIVES: Final[dict[str, Collective]] = {kind: kind for kind in get_args(Collective)}
_ROOFS: Final = ("flops_per_s", "memory_bytes_per_s", "launch_s")
_RATES: Final = ("alpha_s", "bytes_per_s", "host_s")


def upgraded(found: Mapping[int, Record]) -> Mapping[int, Record]:
    """Return the records of one run, by line, in the current schema; several lines that become one take the first one's place."""
    header = next((record for record in found.values() if isinstance(record, Header)), None)
    if header is None or header.v == SCHEMA_VERSION:
        return found
    kind = _kind(header, found.values())
    records = {number: _run_line(record, header, kind) for number, record in found.items()}
    numbers = [(number, record) for number, record in found.items() if isinstance(record, Quality)]
    collapsed = {*(number for number, line in numbers if _is_collapsed(line))}
    kept = {number: record for number, record in records.items() if number not in collapsed}
    for number, line in _collapsed(numbers, collapsed):
        kept[number] = line
    cell = _CELL.match(header.run) if kind == "attention" else None
    return {**({0: _cell(cell)} if cell else {}), **dict(sorted(kept.items()))}


def upgraded_span(span: Span) -> Span:
    """Return a span with the fields that version 1 encoded in its name."""
    if span.name.startswith(_STAGE):
        return replace(span, name="stage", part=span.name.removeprefix(_STAGE))
    of_rank = _OF_RANK.fullmatch(span.name)
    if of_rank is None:
        return span
    name, part = of_rank["name"], ""
    if name.startswith(_PARTED):
        name, _, part = name.partition(":")
    if span.variant == GUIDE:
        part = _GUIDE_KINDS.get(name.partition("_")[0], "computation")
    mode = of_rank["mode"]
    assert mode is None or mode == "free-running" or mode == "serialised"
    return replace(span, name=name, part=part, rank=int(of_rank["rank"]), mode=mode)


def _kind(header: Header, records: Iterable[Record]) -> RunKind:
    if any(isinstance(record, Memory) for record in records):
        return "soak"
    if header.workload is not None:
        return "stream"
    return "attention" if _CELL.match(header.run) else "tree" if _TREE.match(header.run) else "operator"


def _run_line(record: Record, header: Header, kind: RunKind) -> Record:
    """Return one record of a version 1 run in the current schema, without collapsing lines of quality."""
    match record:
        case Header():
            return replace(record, kind=kind)
        case Span():
            return upgraded_span(record) if kind in ("attention", "tree") else record
        case Variant():
            return replace(record, contestant=_contestant(record, kind))
        case Gate():
            return replace(record, exact="relative error" in record.rule or record.rule.startswith("out within"))
        case Excluded():
            span = "stage" if record.span == _STAGE else record.span
            return replace(record, span=span, kind=_exclusion(record.cause))
        case Video():
            return replace(record, caption=record.caption.removeprefix(f"{record.variant}, "))
        case Quality():
            return _quality(record)
        case End():
            named = [name for name in header.order if record.message.startswith(f"{name}: ")]
            return replace(record, variant=named[0]) if named else record
        case _:
            return record


def _cell(found: re.Match[str]) -> AttentionCell:
    by_share = found["budget"] == "s"
    return AttentionCell(
        shape=found["shape"],
        sparsity=float(found["share"]) if by_share else None,
        topk=None if by_share else int(float(found["share"])),
        block=int(found["block"]),
        backward=found["way"] == "backward",
    )


def _contestant(variant: Variant, kind: RunKind) -> Contestant | None:
    group, colon, impl = variant.name.partition(":")
    if kind == "tree":
        return Contestant(work="dense", impl=variant.name, peer=group == "peer")
    if kind != "attention":
        return None
    if not colon:
        return None
    work: Work = "dense" if group == "dense" else "fine" if group == "fine" else "whole"
    if variant.costs:
        cost = variant.costs[0]
        work = "whole" if cost.span == ATTENTION else "dense" if cost.dense_flops is None else "fine"
    return Contestant(work=work, impl=impl, peer=group == "peer", raster=group == "raster")


def _exclusion(cause: str) -> Exclusion:
    if cause.startswith("rank "):  # ranks that said different things
        return "failed" if "failed: " in cause else "refused"
    if cause.startswith("refused: "):
        return "refused"
    return "failed" if cause.startswith(("failed: ", "stages: ")) else _CAUSES.get(cause, "other")


def _quality(line: Quality) -> Quality:
    against = next((value for words, value in _AGAINST.items() if line.reference.startswith(words)), None)
    on_rank = _ON_RANK.fullmatch(line.definition)
    if against is None and on_rank is None:
        return line
    assert against is None or against == "selection" or against == "dense"
    named = line.definition.partition(":")[0]
    tensor = "lse" if line.metric == "LSE error" else named if named in ("out", "dq", "dk", "dv") else ""
    return replace(line, against=against, tensor=tensor, rank=int(on_rank[1]) if on_rank else None)


# ------------------------------------------------------------------------------------- lines of quality that became others


def _is_collapsed(line: Quality) -> bool:
    return line.variant == _MACHINE or line.metric.startswith(("predicted", "sent:", "alpha:", "beta:", "what_if:"))


def _collapsed(lines: Iterable[tuple[int, Quality]], chosen: set[int]) -> Iterator[tuple[int, Record]]:
    """Yield the links, surroundings and predictions made of several lines of quality, each with the first one's line number."""
    groups: dict[tuple[str, bool], list[tuple[int, Quality]]] = defaultdict(list)
    for number, line in lines:
        if number in chosen:
            links = line.metric.startswith("link:") or line.metric == "auto_choice"
            groups[line.variant, links].append((number, line))
    for (variant, links), group in groups.items():
        by_metric = {line.metric: line for _, line in group}
        if variant == _MACHINE:
            yield group[0][0], _links(by_metric) if links else _surroundings(by_metric)
        elif (prediction := _prediction(variant, by_metric)) is not None:
            yield group[0][0], prediction


def _value(lines: Mapping[str, Quality], metric: str) -> float | None:
    return lines[metric].value if metric in lines else None


def _links(lines: Mapping[str, Quality]) -> Links:
    flops, memory, launch = (_value(lines, f"link:{name}") for name in _ROOFS)
    rates = []
    for kind in _COLLECTIVES.values():
        alpha, bandwidth, host = (_value(lines, f"link:{kind}_{name}") for name in _RATES)
        if not (alpha is None and bandwidth is None and host is None):
            rates.append(LinkRate(kind=kind, alpha_s=alpha, bytes_per_s=bandwidth, host_s=host))
    auto = lines["auto_choice"].definition if "auto_choice" in lines else ""
    return Links(flops_per_s=flops, memory_bytes_per_s=memory, launch_s=launch, rates=tuple(rates), auto=auto)


def _surroundings(lines: Mapping[str, Quality]) -> Surroundings:
    delayed = re.search(r"\d{1,9}", lines["delay"].definition) if "delay" in lines else None
    return Surroundings(
        busy_cores=_value(lines, "foreign_load"),
        lost_machines=round(_value(lines, "lost_machines") or 0),
        delayed_rank=None if delayed is None else int(delayed[0]),
        delay_ms=_value(lines, "delay") or 0.0,
    )


def _prediction(variant: str, lines: Mapping[str, Quality]) -> Prediction | None:
    if "predicted" not in lines or "predicted_local" not in lines:
        return None  # what is left of a damaged file
    return Prediction(
        variant=variant,
        total_ns=lines["predicted"].value,
        local_ns=lines["predicted_local"].value,
        bound="flop" if lines["predicted_local"].definition.endswith("flop") else "memory",
        hidden_ns=_value(lines, "predicted_hidden") or 0.0,
        messages=tuple(_messages(lines)),
        what_if=tuple(_what_if(lines.values())),
    )


def _messages(lines: Mapping[str, Quality]) -> Iterator[SentMessage]:
    number = 0
    while (line := lines.get(f"sent:{number}")) is not None:
        word, _, what = line.definition.partition(": ")
        kind = _COLLECTIVES.get(word)
        if kind is None:
            return
        values = [_value(lines, f"{name}:{number}") or 0.0 for name in ("sent", "alpha", "beta")]
        yield SentMessage(kind=kind, payload=what, sent_bytes=values[0], alpha_ns=values[1], beta_ns=values[2])
        number += 1


def _what_if(lines: Iterable[Quality]) -> Iterator[WhatIf]:
    for line in lines:
        found = _WHAT_IF.fullmatch(line.metric)
        if found is not None and line.value is not None:
            faster: Literal["bandwidth", "latency"] = "bandwidth" if found["faster"] == "bandwidth" else "latency"
            yield WhatIf(faster=faster, factor=float(found["factor"]), total_ns=line.value)
