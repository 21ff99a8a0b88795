"""Documented names of other packages, with their argument order and tensor layout, on top of this package's operators."""

from strobe.compat.video_sparse import video_sparse_attn

__all__ = ["video_sparse_attn"]
