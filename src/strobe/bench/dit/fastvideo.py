"""FastVideo's video sparse attention in a Wan transformer of diffusers, as a peer to measure against.

The layer does what FastVideo's own does: rotary embedding in PyTorch, tokens into tiles of 4 x 4 x 4 by an index, the whole
operator of `fastvideo_kernel`, and back. It selects as many tiles as strobe's layer does.

Source: fastvideo-kernel 0.3.2, `ops.video_sparse_attn`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from torch import Tensor

from strobe.attention.sparse.coarse import budget
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.stages.impl.reference import rotate
from strobe.attention.types import AttentionOutput
from strobe.bench.attention.peers import fastvideo_kernels, version_of
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.integrations.diffusers import SparseHandle
from strobe.integrations.diffusers.forward import Pass, Rope
from strobe.integrations.diffusers.processors import WanProcessor

OPERATORS: Final = "fastvideo_kernel.ops"
"""Module of the peer's operators; its `block_sparse_attn` is the fine stage."""
TILE: Final = (4, 4, 4)
"""Tokens of its tiles in time, height and width."""


class FastVideoProcessor(WanProcessor):
    """Self-attention of Wan with FastVideo's operator in place of strobe's.

    Without a trained gate the coarse output is computed, as FastVideo does, and weighted by 0.
    """

    def _sparse(
        self, q: Tensor, k: Tensor, v: Tensor, running: Pass, gate: Tensor | None, rope: Rope | None, return_lse: bool
    ) -> AttentionOutput:
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        layout = tile_layout(running.grid, TILE)
        sizes = layout.sizes(q.device)
        tiled = [layout.to_tiles(each).transpose(1, 2).contiguous() for each in (q, k, v)]
        weight = q.new_zeros(()) if gate is None else layout.to_tiles(gate).transpose(1, 2)
        found = _operators().video_sparse_attn(
            *tiled,
            sizes,
            sizes,
            budget(None, self.sparsity_in(running), 1, layout.num_tiles)[0],
            block_size=TILE,
            compress_attn_weight=weight,
        )
        return AttentionOutput(out=layout.to_raster(found.transpose(1, 2)), lse=None)


def _operators() -> Any:
    return importlib.import_module(OPERATORS)


def install(handle: SparseHandle) -> str:
    """Give FastVideo's operator to the layers that `sparsify` has made sparse; return the name of what runs.

    Raises:
        ConfigError: the model is not Wan, of which alone FastVideo's path is known.
        ImplUnavailableError: fastvideo-kernel is not installed.
    """
    found: list[Any] = list(handle.layers.values())
    if not all(type(attn.processor) is WanProcessor for attn in found):
        raise ConfigError("--attention fastvideo: FastVideo's path is there for Wan's transformers; leave it out for this model")
    try:
        _operators()
    except ImportError as error:
        why = f"fastvideo-kernel cannot be imported: {str(error).splitlines()[0]}"
        raise ImplUnavailableError("fastvideo", why, ["leave fastvideo out"], what="attention") from error
    for attn in found:
        ours = attn.processor
        peer = FastVideoProcessor(ours.name, ours.replaced, ours.options, ours.seen, dense=ours.dense)
        peer.gate_owner = ours.gate_owner
        attn.set_processor(peer)
    return f"fastvideo-kernel {version_of('fastvideo-kernel')}, {fastvideo_kernels()}"
