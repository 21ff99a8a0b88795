"""Blocks shared by several pages."""
