"""Functions under the names, argument orders and layouts that other packages document, on this package's operators."""

from strobe.compat.tree_attn import tree_attn_decode
from strobe.compat.video_sparse import video_sparse_attn

__all__ = ["tree_attn_decode", "video_sparse_attn"]
