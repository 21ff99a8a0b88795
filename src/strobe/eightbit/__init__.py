"""Rows of numbers in eight bits, with one scale per row, and the way back."""
