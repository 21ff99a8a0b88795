"""Sparse attention in pipelines of other projects."""
