"""Report of what the layers of a sparse pipeline run, without running anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from strobe.core.notebook import html_table

_WORTH_SAYING: Final = 0.01
"""As tiles are whole, fewer keys are skipped than was asked; a report says it from this share on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReport:
    """The attention of one layer, as it would run.

    Args:
        component: name of the transformer in its pipeline; empty without a pipeline.
        layer: name of its attention module.
        runs: `sparse` or `dense`, in the steps that are not dense as a whole; `replaced` where another processor was set since.
        impl: of the fine stage, or of dense attention; empty while no grid is known; the class of a processor set since.
        tile: tokens of a tile in (time, height, width); None for a dense layer, or while no grid is known.
        selected: key tiles that every query tile sees, with `keep` in the mean of heads and steps; None likewise.
        tiles: key tiles that there are; None likewise.
        gated: the coarse output is added, weighed by a trained gate.
        sparsity: share of the key tiles that was asked to be skipped; 0 for a dense layer.
    """

    component: str
    layer: str
    runs: str
    impl: str
    tile: tuple[int, int, int] | None
    selected: float | None
    tiles: int | None
    gated: bool
    sparsity: float

    @property
    def share(self) -> float | None:
        """Share of the key tiles that a query tile sees; 1 for a dense layer, None while it is not known."""
        if self.runs == "dense":
            return 1.0
        return None if self.selected is None or not self.tiles else self.selected / self.tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseReport:
    """The attention of every layer of a pipeline that `sparsify` changed.

    Args:
        layers: in order.
        grid: tokens in time, height and width; None before the first forward.
        dense_steps: denoise steps, counted from 0, in which every layer is dense.
        dense_frames: frames of tokens whose queries attend to every token in the sparse layers too.
        quality: what is known of it.
    """

    layers: tuple[LayerReport, ...]
    grid: tuple[int, int, int] | None
    dense_steps: tuple[int, ...]
    dense_frames: tuple[int, ...]
    quality: str

    def rows(self) -> list[dict[str, object]]:
        return [
            {
                "component": each.component,
                "layer": each.layer,
                "runs": each.runs,
                "impl": each.impl,
                "tile": "" if each.tile is None else "x".join(map(str, each.tile)),
                "key tiles": "" if each.selected is None else f"{each.selected:g} of {each.tiles}",
                "share": each.share,
                "gate": "trained" if each.gated else "",
            }
            for each in self.layers
        ]

    def __str__(self) -> str:
        grid = "no forward yet" if self.grid is None else f"grid {self.grid} of tokens in (time, height, width)"
        steps = f"; dense in steps {', '.join(map(str, self.dense_steps))}" if self.dense_steps else ""
        frames = f"; queries of frames {', '.join(map(str, self.dense_frames))} see every key" if self.dense_frames else ""
        lines = [f"{grid}{steps}{frames}; quality: {self.quality}"]
        for _, alike in groupby(self.layers, key=lambda each: replace(each, layer="")):  # neighbours that differ in their name
            rows = list(alike)
            first, last = rows[0], rows[-1]
            name = first.layer if len(rows) == 1 else f"{first.layer} to {last.layer}"
            where = f"{first.component}: {name}" if first.component else name
            if first.runs == "replaced":
                lines.append(f"  {where} ({len(rows)}): not strobe's any more: a {first.impl} was set since sparsify")
                continue
            seen = "every key" if first.runs == "dense" else "unknown share of the key tiles"
            if first.share is not None and first.tile is not None:
                tile = "x".join(map(str, first.tile))
                seen = f"{first.selected:g} of {first.tiles} key tiles of {tile} ({first.share:.1%})"
            runs = f"{first.runs}, {first.impl}" if first.impl else first.runs
            less = ", trained gate" if first.gated else ""
            if first.runs == "sparse" and first.share is not None and first.sparsity - (1 - first.share) >= _WORTH_SAYING:
                less += f"; asked to skip {first.sparsity:.0%}, skips {1 - first.share:.0%}: the grid has {first.tiles} tiles"
            lines.append(f"  {where} ({len(rows)}): {runs}, {seen}{less}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(f"Layers; quality: {self.quality}", self.rows())
