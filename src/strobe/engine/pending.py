"""Work of a stream that spans two frame blocks: decoding, and changes prepared ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from strobe.cache.kv import CacheState
from strobe.engine.blended import BlendedText
from strobe.engine.decode import Decoded
from strobe.engine.prompts import Blend, Change


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """A frame block that is still being decoded.

    Args:
        latents: all of its.
        pieces: yields the frames that are not there; None: decoding failed, and is begun again where it did.
        made: frames that are there.
        num_done: latent frames that they are of.
    """

    index: int
    latents: Tensor
    prompts: tuple[str, ...]
    pieces: Iterator[Decoded] | None
    made: tuple[Tensor, ...] = ()
    num_done: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedChange:
    """A change prepared ahead of its frame block.

    Args:
        change: as it was asked for.
        kept: the cache as it was before; None: it was left alone.
        ready: the text; None: making it ready broke off.
    """

    change: Change
    kept: CacheState | None
    ready: tuple[Blend, BlendedText] | None = None
