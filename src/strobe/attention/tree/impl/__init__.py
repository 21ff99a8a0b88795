"""The specification, and local attention under a mask."""
