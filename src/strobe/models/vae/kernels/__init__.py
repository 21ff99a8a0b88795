"""Convolutions of video decoders with what surrounds them: `reference` in PyTorch, `triton` fused."""
