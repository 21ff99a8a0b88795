"""The algebra of partial attention."""

from strobe.attention.state.api import merge

__all__ = ["merge"]
