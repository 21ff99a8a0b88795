"""Dense attention."""

from strobe.attention.dense.api import dense_attention, explain

__all__ = ["dense_attention", "explain"]
