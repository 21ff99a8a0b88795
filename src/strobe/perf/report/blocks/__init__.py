"""Blocks that several pages are made of."""
