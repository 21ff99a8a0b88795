"""Regions inside what may be compiled: there they do not exist, so that no graph is compiled for a recorder."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from strobe.core.spans import span


def piece(name: str) -> AbstractContextManager[object]:
    """Mark a piece of a pass (`strobe.core.spans.PIECES`); nothing while `torch.compile` reads the code."""
    return nullcontext() if torch.compiler.is_compiling() else span(name)
