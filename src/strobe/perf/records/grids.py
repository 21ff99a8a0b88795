"""Record lines of one cell of a grid: its coordinates, predicted times of a call, and measured rates of the machine's links."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from strobe.perf.records.base import Line, Part, Prose

CELLS: Final = "cells"
"""Folder, inside a grid's folder, that holds the cells' run folders."""

# ------------------------------------------------------------------------------------------------------ attention names

MATMUL: Final = "matmul"
"""Variant and span: the matrix product that is timed beside the contestants, the measured peak."""
HOST: Final = "host_call"
"""Span: time until one call returned to its caller."""
STAGE: Final = "stage"
"""Span: a stage of an operator; `part` names it."""
WHOLE: Final = "whole call"
"""Stage: the whole call, in the same calls in which the other stages were timed."""
RECALL: Final = "recall"
TEMPORARY: Final = "temporary memory"
PEAK: Final = "peak memory"
SAVED: Final = "saved memory"
COSINE: Final = "cosine similarity"
L1: Final = "L1 relative error"
RMSE: Final = "RMSE"
LSE: Final = "LSE error"

# ----------------------------------------------------------------------------------------------------------- tree names

CALL: Final = "tree_call"
"""Span: one call, on the slowest rank; with `rank`, on that rank."""
LOCAL: Final = "tree_local"
MERGE: Final = "tree_merge"
MESSAGE: Final = "tree_message"
"""Span: one collective; `part` is its kind."""
WAIT: Final = "tree_wait"
"""Span: time that a collective which began earlier holds a rank up; `part` is its kind."""
MEETING: Final = "tree_meeting"
"""Span: wait for the last rank, where calls are serialised and the ranks meet before each collective."""
GUIDE: Final = "guide"
"""Variant of the guide's blocks; spans are blocks, with `mode`, `rank` and their kind as `part`."""
TOTAL: Final = "total_tree_attn"
ERROR: Final = "error"
LSE_ERROR: Final = "lse_error"

Work = Literal["dense", "fine", "whole"]
"""Dense attention; the fine stage of sparse attention for a given selection; the whole sparse operator."""
Collective = Literal["gather", "exchange", "reduce", "merge"]


class Contestant(Part, frozen=True, kw_only=True):
    """Implementation that is measured in a cell of a grid, and the work it does there."""

    work: Annotated[Work, Meta(description="what it computes: dense attention, the fine stage alone, or the whole operator")]
    impl: Annotated[str, Meta(description="implementation that ran")]
    peer: Annotated[bool, Meta(description="it is not ours")] = False
    raster: Annotated[bool, Meta(description="a whole operator that takes its tokens in raster order, not in tiles")] = False


class AttentionCell(Line, frozen=True, kw_only=True):
    """One cell of the attention grid."""

    shape: Annotated[str, Meta(description="name of the shape")]
    sparsity: Annotated[float | None, Meta(description="share of the key tiles skipped; null where `topk` is given")]
    topk: Annotated[int | None, Meta(description="key tiles selected; null where `sparsity` is given")]
    block: Annotated[int, Meta(description="tokens of an attention block")]
    backward: Annotated[bool, Meta(description="the gradient is measured, not the output")]

    @property
    def budget(self) -> str:
        """Short name of the cell's budget on pages: `s0.9` (sparsity) or `k64` (top k)."""
        return f"s{self.sparsity:g}" if self.topk is None else f"k{self.topk}"

    @property
    def direction(self) -> str:
        """Direction that is timed: `forward` or `backward`."""
        return "backward" if self.backward else "forward"


class Surroundings(Line, frozen=True, kw_only=True):
    """State of a cell's machine while the cell ran: busy cores, lost machines, a rank delayed on purpose."""

    busy_cores: Annotated[float | None, Meta(description="cores busy before the ranks began; null: not known")] = None
    lost_machines: Annotated[int, Meta(description="machines that were lost while the cell ran there")] = 0
    delayed_rank: Annotated[int | None, Meta(description="rank held back on purpose before each call; null: none")] = None
    delay_ms: Annotated[float, Meta(description="by how much, ms")] = 0.0


class LinkRate(Part, frozen=True, kw_only=True):
    """Latency, bandwidth and host time of one kind of collective; null where too small to measure beside the rest."""

    kind: Annotated[Collective, Meta(description="kind of collective, or the merge of partial results")]
    alpha_s: Annotated[float | None, Meta(description="latency, s")] = None
    bytes_per_s: Annotated[float | None, Meta(description="bandwidth, bytes per second")] = None
    host_s: Annotated[float | None, Meta(description="time of the host, s")] = None


class Links(Line, frozen=True, kw_only=True):
    """Measured rates of these ranks' links, compute and memory, and the strategy that `auto` chooses with them."""

    flops_per_s: Annotated[float | None, Meta(description="FLOP per second of one rank")] = None
    memory_bytes_per_s: Annotated[float | None, Meta(description="bytes per second of one rank's memory")] = None
    launch_s: Annotated[float | None, Meta(description="time of a launch, s")] = None
    rates: Annotated[tuple[LinkRate, ...], Meta(description="collectives and merges")] = ()
    auto: Annotated[str, Meta(description="strategy that `auto` takes; empty: it was not asked")] = ""


class SentMessage(Part, frozen=True, kw_only=True):
    """One predicted collective."""

    kind: Annotated[Collective, Meta(description="kind of collective")]
    payload: Annotated[Prose, Meta(description="what is sent")]
    sent_bytes: Annotated[float, Meta(description="bytes")]
    alpha_ns: Annotated[float, Meta(description="latency, ns")]
    beta_ns: Annotated[float, Meta(description="time of its bytes at the link's bandwidth, ns")]


class WhatIf(Part, frozen=True, kw_only=True):
    """Predicted time of the whole call if the links were faster."""

    faster: Annotated[Literal["bandwidth", "latency"], Meta(description="what of the links is faster")]
    factor: Annotated[float, Meta(description="how many times")]
    total_ns: Annotated[float, Meta(description="the whole call, ns")]


class Prediction(Line, frozen=True, kw_only=True):
    """Predicted time of one strategy with the links as measured, and the parts it is made of."""

    variant: Annotated[str, Meta(description="variant")]
    total_ns: Annotated[float | None, Meta(description="whole call: local + messages - hidden + host, ns; null: not finite")]
    local_ns: Annotated[float | None, Meta(description="attention and merge by the roofline of one rank, ns; null: not finite")]
    bound: Annotated[Literal["flop", "memory"], Meta(description="which of the two roofs local attention is under")]
    hidden_ns: Annotated[float, Meta(description="communication that runs beside attention, ns")] = 0.0
    messages: Annotated[tuple[SentMessage, ...], Meta(description="collectives in order")] = ()
    what_if: Annotated[tuple[WhatIf, ...], Meta(description="the same call with faster links")] = ()
