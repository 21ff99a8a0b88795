"""Regions inside code that may be compiled; under `torch.compile` they vanish, so that no graph depends on a recorder."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from strobe.core.spans import span


def region(name: str) -> AbstractContextManager[object]:
    """Mark a piece of a pass (`strobe.core.spans.PIECES`); does nothing while `torch.compile` traces."""
    return nullcontext() if torch.compiler.is_compiling() else span(name)
