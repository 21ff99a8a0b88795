"""Dense attention."""

from strobe.attention.dense.api import dense_attention

__all__ = ["dense_attention"]
