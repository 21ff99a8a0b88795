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
    """Implementation that is measured in a cell of a grid, and the computation that it performs."""

    work: Annotated[
        Work,
        Meta(
            description="`dense`: dense attention; `fine`: fine stage of sparse attention for a given selection; `whole`: "
            "whole sparse operator"
        ),
    ]
    impl: Annotated[str, Meta(description="name of the implementation")]
    peer: Annotated[bool, Meta(description="true: the implementation belongs to another library")] = False
    raster: Annotated[
        bool, Meta(description="true: a whole sparse operator that takes its tokens in raster order, not in tile order")
    ] = False


class AttentionCell(Line, frozen=True, kw_only=True):
    """One cell of the attention grid."""

    shape: Annotated[str, Meta(description="name of the tensor shape")]
    sparsity: Annotated[float | None, Meta(description="share of the key tiles skipped, 0 to 1; null where `topk` is given")]
    topk: Annotated[int | None, Meta(description="number of key tiles selected; null where `sparsity` is given")]
    block: Annotated[int, Meta(description="number of tokens in an attention block")]
    backward: Annotated[bool, Meta(description="true: the backward pass is measured; false: the forward pass")]

    @property
    def budget(self) -> str:
        """Short name of the cell's budget on pages: `s0.9` (sparsity) or `k64` (top k)."""
        return f"s{self.sparsity:g}" if self.topk is None else f"k{self.topk}"

    @property
    def direction(self) -> str:
        """Direction that is timed: `forward` or `backward`."""
        return "backward" if self.backward else "forward"


class Surroundings(Line, frozen=True, kw_only=True):
    """State of the machine during a cell: busy cores, lost machines, and a rank that was delayed on purpose."""

    busy_cores: Annotated[
        float | None, Meta(description="number of CPU cores that were busy before the ranks began; null: not known")
    ] = None
    lost_machines: Annotated[int, Meta(description="number of machines that were lost while the cell ran on them")] = 0
    delayed_rank: Annotated[int | None, Meta(description="rank that was delayed on purpose before each call; null: none")] = None
    delay_ms: Annotated[float, Meta(description="delay of that rank before each call, ms")] = 0.0


class LinkRate(Part, frozen=True, kw_only=True):
    """Latency, bandwidth and host time of one kind of collective; null where the measurement gave no finite value."""

    kind: Annotated[Collective, Meta(description="kind of collective; `merge`: merging of partial results")]
    alpha_s: Annotated[float | None, Meta(description="latency (alpha), s")] = None
    bytes_per_s: Annotated[float | None, Meta(description="bandwidth, bytes per second")] = None
    host_s: Annotated[float | None, Meta(description="time that the host takes to start one on a GPU, s; 0 on a CPU")] = None


class Links(Line, frozen=True, kw_only=True):
    """Measured rates of these ranks' links, compute and memory, and the strategy that `auto` chooses with them."""

    flops_per_s: Annotated[float | None, Meta(description="compute rate of one rank in dense attention, FLOP per second")] = None
    memory_bytes_per_s: Annotated[float | None, Meta(description="memory bandwidth of one rank, bytes per second")] = None
    launch_s: Annotated[
        float | None, Meta(description="time that the host takes to start a local pass on a GPU, s; 0 on a CPU")
    ] = None
    rates: Annotated[tuple[LinkRate, ...], Meta(description="rates of each kind of collective and of merging")] = ()
    auto: Annotated[str, Meta(description="strategy that `auto` chooses with these rates; empty: `auto` was not asked")] = ""


class SentMessage(Part, frozen=True, kw_only=True):
    """One predicted collective."""

    kind: Annotated[Collective, Meta(description="kind of collective")]
    payload: Annotated[Prose, Meta(description="content of the message in words")]
    sent_bytes: Annotated[float, Meta(description="bytes sent by the rank that sends most")]
    alpha_ns: Annotated[float, Meta(description="latency, ns")]
    beta_ns: Annotated[float, Meta(description="transfer time of these bytes at the bandwidth of the link, ns")]


class WhatIf(Part, frozen=True, kw_only=True):
    """Predicted time of a call if the links were faster."""

    faster: Annotated[Literal["bandwidth", "latency"], Meta(description="property of the links that is faster")]
    factor: Annotated[float, Meta(description="factor by which it is faster")]
    total_ns: Annotated[float, Meta(description="predicted time of the whole call, ns")]


class Prediction(Line, frozen=True, kw_only=True):
    """Predicted time of one strategy with the links as measured, and its components."""

    variant: Annotated[str, Meta(description="name of the strategy")]
    total_ns: Annotated[
        float | None, Meta(description="predicted time of the whole call: local + messages - hidden + host, ns; null: not finite")
    ]
    local_ns: Annotated[
        float | None,
        Meta(description="predicted time of local attention and merging by the roofline of one rank, ns; null: not finite"),
    ]
    bound: Annotated[
        Literal["flop", "memory"],
        Meta(description="roofline limit of local attention: compute (`flop`) or memory bandwidth (`memory`)"),
    ]
    hidden_ns: Annotated[float, Meta(description="communication time hidden behind attention, ns")] = 0.0
    messages: Annotated[tuple[SentMessage, ...], Meta(description="predicted collectives in order")] = ()
    what_if: Annotated[tuple[WhatIf, ...], Meta(description="predictions of the same call with faster links")] = ()
