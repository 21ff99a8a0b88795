"""Work of a stream that spans two frame blocks: decoding, changes prepared ahead, and all that a stream has in hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.cache.kv import CacheState
from strobe.engine.blended import BlendedText
from strobe.engine.decode import Decoded
from strobe.engine.frame_block import FrameBlock
from strobe.engine.noise import BlockNoise
from strobe.engine.prompts import Blend, Change
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.state import StreamState


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


@dataclass(frozen=True, kw_only=True, slots=True)
class InHand:
    """Everything that a stream has in hand beside its state and its cache; a stream that begins has none of it.

    Args:
        text: of the frame block to come, for the prompts it was read for.
        half_way: the cache has moved on from the state.
        decoding: the last frame block made; the state's decoder is that before what is left of it.
        ready: decoded, not handed out.
        worked_ns: time worked since the last frame block was handed out, ns.
        ahead: a change made ready before its frame block.
        drawn: number and noise of the frame block to come.
    """

    text: tuple[Blend, BlendedText] | None = None
    half_way: bool = False
    decoding: Decoding | None = None
    ready: FrameBlock | None = None
    worked_ns: int = 0
    ahead: PreparedChange | None = None
    drawn: tuple[int, BlockNoise] | None = None


def joined_ends(held: Tensor | None, new: Tensor | None, config: ResolvedConfig) -> Tensor | None:
    """Return the last pixel frames of latent frames that the next frame block may need."""
    if new is None:
        return None
    return torch.cat([*([] if held is None else [held]), new], dim=1)[:, -config.num_recomputed :]


def undelivered(state: StreamState, config: ResolvedConfig) -> FrameBlock | None:
    """Return the frame block of a snapshot that was made but not handed out; None: there is none."""
    if state.undelivered is None:
        return None
    index = state.next_block - 1
    latents = state.history[:, -len(config.latents_of(index)) :]
    samples = state.undelivered.cpu().clone()
    return FrameBlock(index=index, samples=samples, latents=latents, prompts=state.prompts, elapsed_ns=0)
