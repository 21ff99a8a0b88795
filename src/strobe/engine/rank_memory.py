"""Prediction of the memory of one rank of a session on several devices, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from strobe.engine.memory import CACHED, LARGEST, WEIGHTS, MemoryPart, check, free_bytes, predict
from strobe.engine.model import ModelParts
from strobe.engine.parallel.layout import Layout
from strobe.engine.resolve import ResolvedConfig

LEADERS = ("autoencoder weights", "decoder memories")


def check_room(parts: ModelParts, config: ResolvedConfig, layout: Layout | None, batch: int, *, there: bool = False) -> None:
    """Check that the memory that a session of `batch` samples needs is free on its device.

    Args: as of `strobe.engine.memory.predict`, and
        layout: of this rank; None: the session has one device.
        there: the weights are on the device already, for another session.

    Raises:
        StrobeError: it does not; says what is the largest and what to lower.
    """
    held = predict(parts, config, batch) if layout is None else predict_rank(parts, config, layout, batch)
    needed = tuple(part for part in held if not (there and part.name in WEIGHTS))
    check(needed, free_bytes(config.device), config.device)


def predict_rank(parts: ModelParts, config: ResolvedConfig, layout: Layout, batch: int = 1) -> tuple[MemoryPart, ...]:
    """Predict the memory of one rank of a session of `batch` samples: all weights, its share of the cache, rank 0's decoder.

    Args: as of `strobe.engine.memory.predict`, and
        layout: of the rank.
    """
    return predict_ranks(parts, config, [layout], batch)[0]


def predict_ranks(
    parts: ModelParts, config: ResolvedConfig, layouts: Sequence[Layout], batch: int = 1
) -> list[tuple[MemoryPart, ...]]:
    """Predict the memory of several ranks, as `predict_rank` does, from one look at the model."""
    bare = replace(config, decode_device=torch.device("meta"))  # decodes elsewhere
    together = replace(config, knobs=replace(config.knobs, late_frames=True))
    whole, alone, both = ({part.name: part for part in predict(parts, each, batch)} for each in (config, bare, together))
    transformer, largest = alone[LARGEST].num_bytes, both[LARGEST].num_bytes
    found = []
    for layout in layouts:
        own, decoder = _pass(transformer, layout), largest - transformer if layout.rank == 0 else 0
        (first, last), (low, high) = layout.kept(), layout.heads()
        share, everything = (last - first) * (high - low), layout.tokens_per_frame * layout.num_heads
        held = {CACHED: whole[CACHED].num_bytes * share // everything}
        held[LARGEST] = own + decoder if config.knobs.late_frames else max(own, decoder)
        held |= {} if layout.rank == 0 else dict.fromkeys(LEADERS, 0)
        found.append(tuple(replace(part, num_bytes=held.get(part.name, part.num_bytes)) for part in whole.values()))
    return found


def _pass(num_bytes: int, layout: Layout) -> int:
    """Return a rank's share of one device's largest pass: its tokens, and messages of all tokens for its heads."""
    mine = num_bytes * layout.counts[layout.rank] / layout.tokens_per_frame
    messages = num_bytes / 4 / layout.degrees.ulysses if layout.degrees.num_ranks > 1 else 0
    return int(mine + messages)
