"""Implementations of block-sparse attention, best first in `api.IMPLS`."""
