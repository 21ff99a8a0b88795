"""Difference between two sides: the ledger, and the speedup at each level."""
