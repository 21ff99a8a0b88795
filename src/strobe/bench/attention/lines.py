"""Record lines of a cell of the attention benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from strobe.bench.attention.contestant import Contestant
from strobe.bench.attention.grid import GridCell
from strobe.bench.attention.inputs import Inputs
from strobe.bench.attention.oracle import Precision
from strobe.core import costs
from strobe.perf.records import record
from strobe.perf.records.grids import COSINE, L1, LSE, RECALL, RMSE, AttentionCell

BACKWARD_FLOPS: Final = 2.5
"""FLOPs of the backward pass / of the forward pass: five matrix products instead of two."""
_HIGHER: Final = (COSINE, RECALL)


def cell_line(cell: GridCell) -> AttentionCell:
    """Return the cell's place in the grid as a record."""
    return AttentionCell(shape=cell.shape.name, sparsity=cell.sparsity, topk=cell.topk, block=cell.block, backward=cell.backward)


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """Reference that a tensor of a call is compared with.

    Args:
        kind: attention to the same selection, or to all keys.
        dtype: dtype of the oracle.
    """

    kind: Literal["selection", "dense"]
    dtype: str

    @property
    def words(self) -> str:
        """Description for a reader."""
        return f"{'the same selection' if self.kind == 'selection' else 'full dense attention'}, {self.dtype}"


def number(
    variant: str, metric: str, value: float, definition: str, *, unit: str = "", against: Against | None = None, tensor: str = ""
) -> record.Quality:
    """Return a measured number as a record; one that is not finite has no value."""
    finite = abs(value) < float("inf")
    return record.Quality(
        variant=variant,
        metric=metric,
        value=value if finite else None,
        unit=unit,
        reference="" if against is None else against.words,
        definition=definition,
        n=1,
        better="higher" if metric in _HIGHER else "lower",
        note="" if finite else "not finite",
        tensor=tensor,
        against=None if against is None else against.kind,
    )


def quality(variant: str, against: Against, tensor: str, close: Precision) -> tuple[record.Quality, ...]:
    """Return three quality numbers of one tensor against its reference."""
    words = {
        COSINE: (close.cosine, "of all values as one vector"),
        L1: (close.l1, "sum of absolute differences / sum of absolute expected values"),
        RMSE: (close.rmse, "root of the mean squared difference"),
    }
    return tuple(
        number(variant, metric, value, f"{tensor}: {how}", against=against, tensor=tensor)
        for metric, (value, how) in words.items()
    )


def lse_error(variant: str, against: Against, error: float) -> record.Quality:
    """Return the largest absolute difference of the lse as a record."""
    return number(variant, LSE, error, "largest absolute difference", against=against, tensor="lse")


def settings(contestant: Contestant, inputs: Inputs) -> record.Variant:
    """Return the contestant's record: implementation, sizes and cost; FLOPs count selected token pairs without padding."""
    cell, tiles = inputs.cell, inputs.tiles
    batch, tokens, heads, width = inputs.q.shape
    dense = contestant.kind == "dense"
    per_pair = round(4 * width * (BACKWARD_FLOPS if cell.backward else 1))
    all_pairs = batch * heads * tokens * tokens
    pairs = all_pairs if dense else inputs.pairs
    moved = inputs.q.numel() * costs.element_bytes(str(inputs.q.dtype))
    spent = record.SpanCost(
        span=contestant.span,
        flops=per_pair * pairs,
        read_bytes=moved * (5 if cell.backward else 3),
        write_bytes=moved * (3 if cell.backward else 1),
        dense_flops=None if dense else per_pair * all_pairs,
    )
    sizes = {
        "batch": batch, "tokens": tokens, "heads": heads, "head_dim": width, "block": tiles.block,
        "rows": tokens if dense else tiles.num_rows, "blocks_in_all": tiles.num_tiles,
        "blocks_per_row": 0 if dense else cell.selected(tiles), "selected_blocks": 0 if dense else inputs.blocks,
        "padded_flops": per_pair * (all_pairs if dense else inputs.blocks * tiles.block**2),
    }  # fmt: skip
    sizes |= {f"grid_{axis}": size for axis, size in zip("thw", tiles.grid, strict=True)}
    sizes |= {f"tile_{axis}": size for axis, size in zip("thw", tiles.tile, strict=True)}
    return record.Variant(
        name=contestant.name,
        preset="custom",
        attention_impl=contestant.impl,
        attention_reason=contestant.reason,
        sparsity=1 - pairs / all_pairs,
        dtype=str(inputs.q.dtype).removeprefix("torch."),
        costs=(spent,),
        sizes=sizes,
        contestant=contestant.line,
    )
