"""Names that the records of a cell use, for who writes them and who reads them."""

from __future__ import annotations

from typing import Final

MATMUL: Final = "matmul"
"""Variant and span: the matrix product that is timed beside the contestants, the measured peak."""
HOST: Final = "host_call"
"""Span: until one call returned to its caller."""
STAGE: Final = "stage:"
"""Prefix of the spans of an operator's stages."""
WHOLE: Final = "whole call"
"""Stage: all of the call that the other stages were taken in."""
SELECTION: Final = "the same selection"
APPROXIMATION: Final = "full dense attention"
RECALL: Final = "recall"
TEMPORARY: Final = "temporary memory"
PEAK: Final = "peak memory"
SAVED: Final = "saved memory"
COSINE: Final = "cosine similarity"
L1: Final = "L1 relative error"
RMSE: Final = "RMSE"
LSE: Final = "LSE error"
CELLS: Final = "cells"
"""Folder of the cells' run folders in that of the run."""
