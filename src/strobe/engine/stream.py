"""The loop body: a frame block from prompt to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, CacheState, KVCache, RingCache
from strobe.cache.rolling import RollingCache
from strobe.core.errors import SessionError, ShapeError
from strobe.core.shapes import LatentShape
from strobe.core.spans import DRAW, FRAME_BLOCK, RECACHE, TEXT, span
from strobe.engine.config import ModelDefaults, ResolvedConfig
from strobe.engine.decode import FrameDecoder
from strobe.engine.denoise import commit, denoise
from strobe.engine.load import Model
from strobe.engine.noise import BlockNoise, draw_block
from strobe.engine.prompts import Blend, Change
from strobe.engine.state import StreamState
from strobe.engine.transformer import TextContext, Transformer
from strobe.models.wan.config import WanConfig
from strobe.models.wan.rope import rotate_temporal


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameBlock:
    """What a stream yields.

    Args:
        index: number of the frame block, from 0.
        samples: pixel frames of every sample, uint8 [B, F, Y, X, 3] on the CPU.
        latents: clean latents [B, F, C, Y, X], float32 on the stream's device.
        prompts: one per sample.
        elapsed_ns: from the start of its work until its frames were there.
    """

    index: int
    samples: Tensor
    latents: Tensor
    prompts: tuple[str, ...]
    elapsed_ns: int

    @property
    def frames(self) -> Tensor:
        """Pixel frames of the only sample, uint8 [F, Y, X, 3].

        Raises:
            ShapeError: there are several samples.
        """
        if self.samples.shape[0] != 1:
            raise ShapeError(f"this frame block has {self.samples.shape[0]} samples; use .samples[i]")
        return self.samples[0]

    @property
    def prompt(self) -> str:
        """The prompt of the only sample; several samples: each different prompt once, one per line."""
        return "\n".join(dict.fromkeys(self.prompts))


class Stream:
    """One stream of frame blocks, or several in lockstep. Between two frame blocks it is its `state` and its cache.

    A frame block that fails half-way leaves `state` as it was: `advance` makes it again.

    Args:
        model: what to run.
        config: how to run it.
        seed: of all noise.
        samples: numbers of the streams in lockstep; each draws noise of its own.
        parts: transformer and decoder of another stream with the same model and configuration, to share their weights.
    """

    def __init__(
        self,
        model: Model,
        config: ResolvedConfig,
        *,
        seed: int,
        samples: Sequence[int],
        parts: tuple[Transformer, FrameDecoder] | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.seed = seed
        self.samples = tuple(samples)
        self.latent_shape = latent_shape(model.defaults, model.dit.config)
        block_tokens = self.latent_shape.token_grid(model.dit.config.patch).num_tokens
        self._dit, self._decoder = parts or (Transformer(model.dit, config, block_tokens), FrameDecoder(model.vae, config))
        self._cache = new_cache(model.dit.config, self.latent_shape, config, len(self.samples))
        self._text: tuple[Blend, TextContext] | None = None
        self._half_way = False  # the cache has moved on from `state`
        history = torch.zeros(len(self.samples), 0, *self._block_shape[1:], device=config.device)
        self.state = StreamState(next_block=0, prompts=(), blend=None, history=history, decoder=self._decoder.state())

    @torch.inference_mode()
    def advance(self, change: Change | None = None) -> FrameBlock:
        """Make the next frame block, under new prompts if there is a change.

        Raises:
            SessionError: there is no prompt yet.
        """
        began, index = perf_counter_ns(), self.state.next_block
        with span(FRAME_BLOCK, index):
            blend, text = self._read(change)
            self._half_way = True
            noise, cache = self._draw(index), self._cache.at(index * self.latent_shape.frames, self.latent_shape.frames)
            latents = denoise(self._dit, noise, text, cache, self.config.schedule)
            decoding = self._decoder.start(latents, self.state.decoder)
            try:
                commit(self._dit, latents, text, cache)
            finally:
                frames, decoder = decoding()
        prompts = self.state.prompts if change is None else change.prompts
        history = torch.cat([self.state.history, latents], dim=1)[:, -self.config.policy.window :]
        self.state = StreamState(next_block=index + 1, prompts=prompts, blend=blend, history=history, decoder=decoder)
        self._half_way = False
        return FrameBlock(index=index, samples=frames, latents=latents, prompts=prompts, elapsed_ns=perf_counter_ns() - began)

    def snapshot(self) -> tuple[StreamState, CacheState]:
        """Copy state and cache.

        Raises:
            SessionError: the last frame block failed half-way, so the cache is not that of `state`.
        """
        if self._half_way:
            raise SessionError(f"frame block {self.state.next_block} was given up half-way; generate it, then take the snapshot")
        return self.state, self._cache.snapshot()

    def restore(self, state: StreamState, cache: CacheState) -> None:
        """Return to a snapshot of a stream with the same model and configuration, maybe on another device."""
        self._half_way = True
        self._cache.restore(cache)
        history, decoder = state.history.to(self.config.device), self._decoder.adopt(state.decoder)
        self.state = replace(state, history=history, blend=state.blend and state.blend.to(self.config.device), decoder=decoder)
        self._half_way = False

    def fork(self) -> Stream:
        """Return a second stream that goes on from here on its own; weights are shared.

        Raises: see `snapshot`.
        """
        state, cache = self.snapshot()
        parts = (self._dit, self._decoder.share())
        other = Stream(self.model, self.config, seed=self.seed, samples=self.samples, parts=parts)
        other.restore(state, cache)
        return other

    def close(self) -> None:
        """Let the decoder's worker go."""
        self._decoder.close()

    @property
    def _block_shape(self) -> tuple[int, int, int, int]:
        shape = self.latent_shape
        return shape.frames, shape.channels, shape.height, shape.width

    def _draw(self, index: int) -> BlockNoise:
        with span(DRAW):
            num_steps = len(self.config.schedule.timesteps)
            return draw_block(self.seed, self.samples, index, num_steps, self._block_shape, self.config.device)

    def _read(self, change: Change | None) -> tuple[Blend, TextContext]:
        """Work out this frame block's text; after a hard switch, the past under it too."""
        with span(TEXT):
            blend = self._blend(change)
            if self._text is None or self._text[0] is not blend:
                self._text = blend, self._dit.read(blend.text)
            text = self._text[1]
        if change is not None and change.mode == "recache" and self.state.next_block > 0:
            self._half_way = True
            with span(RECACHE):
                end = self.state.next_block * self.latent_shape.frames
                cache = self._cache.rewrite(end, keep_sink=self.config.keep_sink)
                self._dit.write(self.state.history, text, cache)
        return blend, text

    def _blend(self, change: Change | None) -> Blend:
        before = self.state.blend
        if change is None:
            if before is None:
                raise SessionError("there is no prompt yet; call prompt(...) first")
            return before if before.finished else before.advance()
        target = self.model.text.encode(change.prompts).to(self.config.device)
        if change.mode == "interpolate" and before is not None:
            return Blend(start=before.text, target=target, done=1, total=change.over)
        return Blend(start=target, target=target, done=1, total=1)


def latent_shape(defaults: ModelDefaults, config: WanConfig) -> LatentShape:
    """Latents of one frame block of a model."""
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    return LatentShape(frames=defaults.frame_block, channels=config.latent_channels, height=height, width=width)


def new_cache(dit: WanConfig, latents: LatentShape, config: ResolvedConfig, batch: int) -> KVCache:
    """An empty cache for `batch` streams."""
    kind = RingCache if config.knobs.ring_cache else RollingCache
    shape = CacheShape(
        num_layers=dit.num_layers,
        batch=batch,
        tokens_per_frame=latents.token_grid(dit.patch).tokens_per_frame,
        num_heads=dit.num_heads,
        head_dim=dit.head_dim,
    )
    return kind(
        shape,
        config.policy,
        device=config.device,
        dtype=config.dtype,
        positions=config.positions,
        rotate=partial(rotate_temporal, dit),
    )
