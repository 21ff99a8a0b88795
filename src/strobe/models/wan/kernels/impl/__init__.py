"""The kernels: `reference` in PyTorch, `triton` fused. Each has the same functions of the same arguments, already checked."""
