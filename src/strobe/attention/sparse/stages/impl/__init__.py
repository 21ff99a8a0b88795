"""The stages: `reference` in PyTorch, `triton` fused."""
