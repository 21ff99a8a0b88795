"""What one rank of a session on several devices will hold, worked out before anything is allocated."""

from __future__ import annotations

from dataclasses import replace

import torch

from strobe.engine.config import ResolvedConfig
from strobe.engine.load import Parts
from strobe.engine.memory import MemoryPart, predict
from strobe.engine.parallel.layout import Layout

SHARED = "keys and values"
LEADERS = ("autoencoder weights", "decoder memories")
LARGEST = "largest pass"


def predict_rank(parts: Parts, config: ResolvedConfig, layout: Layout, batch: int = 1) -> tuple[MemoryPart, ...]:
    """Memory of one rank of a session of `batch` samples: whole weights and text, its share of the cache, rank 0's decoder.

    Args: as of `strobe.engine.memory.predict`, and
        layout: of the rank.
    """
    bare = replace(config, decode_device=torch.device("meta"))  # decodes elsewhere
    together = replace(config, knobs=replace(config.knobs, late_frames=True))
    whole, alone, both = ({part.name: part for part in predict(parts, each, batch)} for each in (config, bare, together))
    transformer = _pass(alone[LARGEST].num_bytes, layout)
    decoder = both[LARGEST].num_bytes - alone[LARGEST].num_bytes if layout.rank == 0 else 0
    largest = transformer + decoder if config.knobs.late_frames else max(transformer, decoder)
    (first, last), (low, high) = layout.kept(), layout.heads()
    share, everything = (last - first) * (high - low), layout.tokens_per_frame * layout.num_heads
    held = {SHARED: whole[SHARED].num_bytes * share // everything, LARGEST: largest}
    held |= {} if layout.rank == 0 else dict.fromkeys(LEADERS, 0)
    return tuple(replace(part, num_bytes=held.get(part.name, part.num_bytes)) for part in whole.values())


def _pass(num_bytes: int, layout: Layout) -> int:
    """Of one device's largest pass: this rank's tokens, and queries, results and messages of all tokens for its heads."""
    mine = num_bytes * layout.counts[layout.rank] / layout.tokens_per_frame
    messages = num_bytes / 4 / layout.degrees.ulysses if layout.degrees.num_ranks > 1 else 0
    return int(mine + messages)
