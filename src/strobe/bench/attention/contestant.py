"""One implementation of a cell, ours or a peer's, with the interface that gate and timer use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection
from strobe.bench.attention.inputs import Inputs
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.records import grids

Kind = Literal["dense", "fine", "tiled", "raster"]
"""Computations: dense attention; the fine stage for a given selection; the whole operator, from tile or raster order."""


PEER: Final = "peer"
"""Group of contestants of other libraries."""


def group_and_impl(name: str) -> tuple[str, str]:
    """Split the name of a contestant: `kind:impl`, or `peer:name`."""
    group, _, impl = name.partition(":")
    return group, impl


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Result of a call: `out` in the contestant's layout; `lse` `[B, H, S]`, natural log; the selection, if it made its own."""

    out: Tensor
    lse: Tensor | None = None
    selection: BlockSelection | None = None


class Call(Protocol):
    """Function that computes from the contestant's leaves; `lse`: also return the log-sum-exp."""

    def __call__(self, *leaves: Tensor, lse: bool) -> Found: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contestant:
    """An implementation bound to the tensors of a cell.

    Args:
        name: `kind:impl`, or `peer:name`.
        kind: its computation; the gate compares it with the oracle of that kind.
        impl: implementation with its version.
        leaves: tensors that the call takes: q, k, v and, where the coarse output has one, its gate; in the contestant's layout.
        call: the implementation.
        heads_first: its layout is `[B, H, S, D]`, not `[B, S, H, D]`.
        tiled: its rows are in tile order.
        coarse: the coarse output is added, weighted by the fourth leaf if there is one.
        close: its own selection is not known, so that ties may differ: checked for similarity, not within rounding.
        gradient: the gradients of q, k, v from an upstream gradient, where autograd does not give them: called once with what the
            forward pass found, it returns what is timed.
        reason: why the others were passed over, where the choice was automatic.
    """

    name: str
    kind: Kind
    impl: str
    leaves: tuple[Tensor, ...]
    call: Call
    heads_first: bool = False
    tiled: bool = False
    coarse: bool = False
    close: bool = False
    gradient: Callable[[Found, Tensor], Callable[[], tuple[Tensor, ...]]] | None = None
    reason: str = ""

    @property
    def line(self) -> grids.Contestant:
        """Record of the contestant: its work, impl, peer and raster flags."""
        group, impl = group_and_impl(self.name)
        work: grids.Work = self.kind if self.kind in ("dense", "fine") else "whole"
        return grids.Contestant(work=work, impl=impl, peer=group == PEER, raster=self.kind == "raster")

    @property
    def span(self) -> str:
        """Span name in the records: the kernel alone or the section around it."""
        return ATTENTION_KERNEL if self.kind in ("dense", "fine") else ATTENTION

    @torch.no_grad()
    def forward(self) -> Tensor:
        """Compute the timed forward call and return its output."""
        return self.call(*self.leaves, lse=False).out

    def backward(self, inputs: Inputs, upstream: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        """Run forward once and return the timed backward call: the gradients of all leaves, in the contestant's layout.

        Args:
            upstream: gradient of the output in raster order `[B, S, H, D]`.
        """
        given = self.as_own(upstream, inputs)
        if self.gradient is not None:
            with torch.no_grad():
                return self.gradient(self.call(*self.leaves, lse=True), given)
        leaves = tuple(leaf.detach().requires_grad_() for leaf in self.leaves)
        out = self.call(*leaves, lse=False).out
        return lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)

    def as_own(self, raster: Tensor, inputs: Inputs) -> Tensor:
        """Convert `[B, S, H, D]` in raster order into the contestant's layout."""
        rows = inputs.tiles.to_tiles(raster) if self.tiled else raster
        return rows.transpose(1, 2).contiguous() if self.heads_first else rows

    def as_raster(self, own: Tensor, inputs: Inputs) -> Tensor:
        """Convert a tensor in the contestant's layout to `[B, S, H, D]` in raster order."""
        rows = own.transpose(1, 2) if self.heads_first else own
        return rows.index_select(1, inputs.tiles.rows(own.device)) if self.tiled else rows

    def lse_rows(self, lse: Tensor, inputs: Inputs) -> Tensor:
        """Return the lse of the checked rows, `[B, H, R]`."""
        rows = inputs.tiles.rows(lse.device)[inputs.checked] if self.tiled else inputs.checked
        return lse.index_select(2, rows)
