"""Predicted times of a call by the plan, with links measured on these ranks, and with faster links."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from strobe.attention.tree import Links, TreePlan, explain
from strobe.attention.tree.links import KINDS, Rate
from strobe.attention.tree.placement import split
from strobe.attention.tree.plan import Message, Prediction
from strobe.bench.tree.candidates import Inputs
from strobe.bench.tree.request import Predicted
from strobe.perf.records import grids
from strobe.perf.records.grids import Collective, LinkRate, SentMessage, WhatIf


def links_line(links: Links, auto: str) -> grids.Links:
    """Return links as their record; a bandwidth too large to be seen beside the latency is left out."""

    def line(kind: Collective, rate: Rate) -> LinkRate:
        return LinkRate(kind=kind, alpha_s=finite(rate.alpha_s), bytes_per_s=finite(rate.bytes_per_s), host_s=finite(rate.host_s))

    return grids.Links(
        flops_per_s=finite(links.flops_per_s),
        memory_bytes_per_s=finite(links.memory_bytes_per_s),
        launch_s=finite(links.launch_s),
        rates=(*(line(kind, links.rate(kind)) for kind in KINDS), line("merge", links.merge)),
        auto=auto,
    )


def finite(value: float) -> float | None:
    """Return the value, or None if it is not finite: JSON has no such number."""
    return value if math.isfinite(value) else None


def predict(inputs: Inputs, links: Links, what_if: tuple[float, ...]) -> tuple[dict[str, Predicted], str]:
    """Return predictions of every strategy that can do the call, and the one that `auto` takes."""
    plan = _plan(inputs, links)
    faster: list[tuple[Literal["bandwidth", "latency"], float, TreePlan]] = []
    for factor in what_if:
        faster.append(("bandwidth", factor, _plan(inputs, _scaled(links, 1.0, factor))))
        faster.append(("latency", factor, _plan(inputs, _scaled(links, factor, 1.0))))
    found: dict[str, Predicted] = {}
    for each in plan.predictions:
        found[each.strategy] = Predicted(
            local_ns=each.local_s * 1e9,
            hidden_ns=each.hidden_s * 1e9,
            host_ns=each.host_s * 1e9,
            messages=tuple(_sent(message, links) for message in each.messages),
            bound=_bound(inputs, links, each),
            what_if=tuple(
                WhatIf(faster=what, factor=factor, total_ns=_seconds(other, each.strategy) * 1e9)
                for what, factor, other in faster
            ),
        )
    return found, plan.strategy


def _plan(inputs: Inputs, links: Links) -> TreePlan:
    shape = inputs.shape
    return explain(
        inputs.q,
        inputs.k,
        inputs.v,
        shards=inputs.shards,
        q_placement=shape.placement,
        out_placement=shape.placement,
        q_lengths=[stop - start for start, stop in split(shape.q_len, shape.world_size)]
        if shape.placement != "replicated"
        else None,
        links=links,
    )


def _scaled(links: Links, latency: float, bandwidth: float) -> Links:
    def scaled(rate: Rate) -> Rate:
        return replace(rate, alpha_s=rate.alpha_s / latency, bytes_per_s=rate.bytes_per_s * bandwidth)

    return replace(links, gather=scaled(links.gather), exchange=scaled(links.exchange), reduce=scaled(links.reduce))


def _seconds(plan: TreePlan, strategy: str) -> float:
    return next(each.seconds for each in plan.predictions if each.strategy == strategy)


def _sent(message: Message, links: Links) -> SentMessage:
    alpha_ns = links.rate(message.kind).alpha_s * 1e9
    return SentMessage(
        payload=message.what,
        kind=message.kind,
        sent_bytes=message.sent_bytes,
        alpha_ns=alpha_ns,
        beta_ns=message.seconds * 1e9 - alpha_ns,
    )


def _bound(inputs: Inputs, links: Links, each: Prediction) -> Literal["flop", "memory"]:
    """Return whether local attention is bound by FLOPs or memory: a ring reads all keys, other strategies read a share."""
    shape = inputs.shape
    flops = 4 * shape.batch * shape.heads * shape.dim * shape.q_len * shape.seq_len / shape.world_size
    moved: float = 2 * shape.batch * shape.kv_heads * shape.dim * inputs.k.element_size() * shape.seq_len
    moved /= 1 if each.strategy == "ring" else shape.world_size
    return "flop" if flops / links.flops_per_s > moved / links.memory_bytes_per_s else "memory"
