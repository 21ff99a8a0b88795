"""Acceptance of a model with its weights: checks against facts that need no official code, and a comparison with `quality`."""
