"""The gate of every implementation: its cases against the reference, run on a card and recorded; pytest runs the same."""
