"""The pointwise work of a causal Wan layer, fused: norms, modulation, gates, rotary embedding, cache writes, quantisation."""
