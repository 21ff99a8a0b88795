"""The state of a stream between two frame blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from strobe.cache.kv import CacheState
from strobe.core.errors import SessionError
from strobe.engine.config import EngineConfig
from strobe.engine.decode import DecoderState
from strobe.engine.prompts import Blend
from strobe.engine.resolve import ResolvedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamState:
    """The state of a stream between two frame blocks, except its cache. Replaced as a whole; its tensors are never written again.

    Args:
        next_block: number of the frame block that comes next.
        prompts: of the last frame block, one per sample.
        blend: text of the last frame block; None before the first.
        history: last clean latents [B, <= window, C, Y, X], float32: what a recache derives keys and values from.
        decoder: memory of the frame decoder.
        ends: last pixel frame [B, <= recomputed frames, 3, Y, X], float32 in [0, 1], of each of the last latent frames, where the
            past is recomputed; None elsewhere.
        ahead: noisy latents [B, F, C, Y, X] of the frame blocks that come after the next pass has finished one, each at a noise
            level of its own, where a pass denoises several; None elsewhere.
        start: given latents [B, F, C, Y, X] that the next frame blocks are made of; None: they are denoised.
        stale: the cache was written with other weights (`Stream.use_lora`); the next frame block derives the window again.
        undelivered: frames uint8 [B, F, Y, X, 3] of the last frame block, on the CPU, in a snapshot of a stream that has made it
            and not handed it out (knob `late_frames`).
    """

    next_block: int
    prompts: tuple[str, ...]
    blend: Blend | None
    history: Tensor
    decoder: DecoderState
    ends: Tensor | None = None
    ahead: Tensor | None = None
    start: Tensor | None = None
    stale: bool = False
    undelivered: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Model, weights, configuration and seed: streams of equal identity and prompts are bit-equal on one machine."""

    model: str
    weights_hash: str
    config: EngineConfig
    seed: int
    samples: tuple[int, ...]

    def check(self, other: Identity) -> None:
        """Check that a snapshot of identity `other` fits a session of this one.

        Raises:
            SessionError: it does not; names what differs.
        """
        pairs = {
            "weights": (self.weights_hash[:12], other.weights_hash[:12]),
            "configuration": (self._settings(other), other._settings(self)),
            "seed": (self.seed, other.seed),
            "samples": (self.samples, other.samples),
        }
        for what, (own, given) in pairs.items():
            if own != given:
                raise SessionError(
                    f"this snapshot has other {what}: {given}; the session has {own}; open one with Session.resume"
                )

    def _settings(self, other: Identity) -> dict[str, object]:
        """Return the settings of this identity, the name excepted, that differ in `other`."""
        own = {each.name: getattr(self.config, each.name) for each in fields(EngineConfig) if each.name != "name"}
        return {name: value for name, value in own.items() if value != getattr(other.config, name)}


def check_state(state: StreamState, cache: CacheState, config: ResolvedConfig, latents: tuple[int, ...], text_dim: int) -> None:
    """Check that a state fits its cache and a stream; shapes that the cache checks are left to it.

    Args:
        state, cache: as a snapshot holds them.
        config: of the stream.
        latents: batch, channels, height and width of its latent frames.
        text_dim: width of the transformer's text.

    Raises:
        SessionError: they do not; says which number or tensor contradicts which.
    """
    end, window, batch = config.latents_of(state.next_block).start, config.policy.window, latents[0]
    last_origin = 0 if config.keep_sink else max(0, end - window)
    begun, blend, undelivered = state.next_block > 0, state.blend, state.undelivered
    started, memories = state.decoder
    held = [memory for memory in memories if memory is not None]
    shown = None if undelivered is None else (undelivered.dtype, undelivered.shape[0], undelivered.dim(), begun)
    texts: tuple[Tensor, ...] = () if blend is None else (blend.start, blend.target)
    sound = {
        f"{len(state.prompts)} prompts at frame block {state.next_block}": len(state.prompts) == (batch if begun else 0),
        f"a cache that ends before frame {cache.end}": cache.end == (0 if config.num_recomputed else end),
        "noisy latents ahead of another shape": state.ahead is None
        or _are_latents(state.ahead, latents, range(config.num_ahead, config.num_ahead + 1)),
        "pixel frames of another shape": _are_ends(state.ends, batch, min(end, config.num_recomputed)),
        "shots, and this model has none": cache.shots is None or config.past == "shots",
        f"a sink from frame {cache.origin} on": 0 <= cache.origin <= last_origin,
        "a text without a frame block, or a frame block without a text": begun == (blend is not None),
        "a text of another shape": all(_is_text(text, texts[0], batch, text_dim) for text in texts),
        "a text that moves further than to its end": blend is None or 1 <= blend.done <= blend.total,
        "a history of another shape": _are_latents(state.history, latents, range(min(end, window), min(end, window) + 1)),
        "latents to start from of another shape": state.start is None or _are_latents(state.start, latents, range(1, 1 << 62)),
        "a decoder whose memories are not its own": all(
            memory.is_floating_point() and memory.dim() and memory.shape[0] == batch for memory in held
        )
        and (started or not held),
        "frames that were not handed out of another shape": shown in (None, (torch.uint8, batch, 5, True)),
    }
    wrong = next((what for what, right in sound.items() if not right), None)
    if wrong is not None:
        raise SessionError(f"this snapshot contradicts itself: it has {wrong}; take it again, or restore another one")


def _is_text(text: Tensor, like: Tensor, batch: int, width: int) -> bool:
    return text.is_floating_point() and text.shape == like.shape and text.dim() == 3 and text[:, 0].shape == (batch, width)


def _are_ends(ends: Tensor | None, batch: int, number: int) -> bool:
    """Return whether there are that many pixel frames, or none where none are expected."""
    if ends is None or not number:
        return ends is None and not number
    return ends.dtype == torch.float32 and ends.dim() == 5 and ends.shape[:3] == (batch, number, 3)


def _are_latents(tensor: Tensor, latents: tuple[int, ...], frames: range) -> bool:
    """Return whether `tensor` is float32 [B, F, C, Y, X] with a number of frames in `frames`."""
    if tensor.dtype != torch.float32 or tensor.dim() != 5:
        return False
    return tensor.shape[1] in frames and (tensor.shape[0], *tensor.shape[2:]) == latents
