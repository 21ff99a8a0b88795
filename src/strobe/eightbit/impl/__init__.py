"""Quantisation of rows: the reference, and Triton."""
