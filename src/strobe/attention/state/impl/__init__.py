"""Merging: `reference` in PyTorch, `triton` in one pass."""
