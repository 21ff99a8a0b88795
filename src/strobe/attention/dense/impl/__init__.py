"""Implementations of dense attention, best first in `api.IMPLS`."""
