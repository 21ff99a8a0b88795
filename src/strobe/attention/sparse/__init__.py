"""Block-sparse and video-sparse attention."""

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, Forced
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import video_sparse_attention

__all__ = [
    "BlockSelection",
    "Estimator",
    "Forced",
    "TileLayout",
    "block_sparse_attention",
    "tile_layout",
    "video_sparse_attention",
]
