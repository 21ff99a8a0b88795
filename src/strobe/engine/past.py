"""The past that a frame block sees, by the cache policy of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor

from strobe.cache.kv import CacheStep, KVCache
from strobe.cache.rings import AheadRing, ShotRing
from strobe.core.spans import COMMIT, DENOISE_STEP, KV_OPEN, RECACHE, RENOISE, span
from strobe.engine.decode import FrameDecoder
from strobe.engine.denoise import BlendedText, BlockNoise, denoise
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.snapshot import StreamState
from strobe.engine.start import noised
from strobe.engine.transformer import TextContext, Transformer
from strobe.models.wan.flow import add_noise, to_x0
from strobe.models.wan.layers import FadedStep

Draw = Callable[[int], BlockNoise]
"""All noise of a frame block, by its number."""
Ask = Callable[[], None]
"""Called before each denoise step; what it raises ends the work."""
Made = tuple[Tensor, Tensor | None]
"""Clean latents of a frame block, and noisy ones of those after it that are under way (`StreamState.ahead`)."""


class KeptPast:
    """What is in a stream's cache when a frame block is denoised, and what stays there afterwards.

    Here keys and values stay once a pass at timestep 0 has written them; a recache over the window renews them. Of a stream in
    shots the first frames of each shot stay as a sink of their own until the next one, and there is no recache, without which
    these models were trained: a new prompt is followed from its frame block on, the past as it is.

    Args:
        cache: of the stream.
        config: of the stream.

    Source: Self-Forcing (Huang et al. 2025); LongLive 1, `pipeline/interactive_causal_inference.py` for the recache; LongLive 2,
    see `strobe.cache.policy.ShotPolicy`.
    """

    def __init__(self, cache: KVCache, config: ResolvedConfig) -> None:
        self._cache, self._config = cache, config
        self._step: CacheStep | None = None

    def open(self, dit: Transformer, text: TextContext, frames: range, state: StreamState, *, cut: bool) -> None:
        """Open the next latent frames in a cache that has their past; with `cut` they begin a shot, if this past has shots."""
        with span(KV_OPEN):
            if isinstance(self._cache, ShotRing):
                self._step = self._cache.at(frames.start, len(frames), cut=cut)
            else:
                self._step = self._cache.at(frames.start, len(frames))

    def sample(
        self, dit: Transformer, text: BlendedText, index: int, draw: Draw, ahead: Tensor | None, given: Tensor | None, ask: Ask
    ) -> Made:
        """Make the clean latents of frame block `index`, in the cache that was opened for it.

        Args:
            ahead: see `StreamState`.
            given: latents [B, F, C, Y, X] to make anew with the strength of the configuration; None: it is made of noise alone.
        """
        assert self._step is not None
        return denoise(dit, *noised(draw(index), self._config, given), text, self._step, ask), None

    def close(self, dit: Transformer, text: TextContext, latents: Tensor) -> None:
        """Take in the clean latents of a frame block, in one pass at timestep 0."""
        assert self._step is not None
        with span(COMMIT):
            dit.write(latents, text, self._step)

    def renew(self, dit: Transformer, text: TextContext, end: int, state: StreamState) -> None:
        """Derive what is kept of the frames before `end` again, under another text or with other weights."""
        if isinstance(self._cache, ShotRing):
            return
        with span(RECACHE):
            dit.write(state.history, text, self._cache.rewrite(end, keep_sink=self._config.keep_sink))

    def warm_up(self, dit: Transformer, text: TextContext, draw: Draw) -> None:
        """Run every kind of pass once, until the window is full, and leave the cache empty."""
        window, made = self._config.policy.window, draw(0).initial[:, :0]
        for index in count():
            frames, latents = self._config.latents_of(index), draw(index).initial
            self._passes(dit, text, frames, latents, made)
            made = torch.cat([made, latents], dim=1)[:, -window:]
            if frames.start >= window:
                break
        if self._config.past in ("kept", "rolling"):
            dit.write(made, text, self._cache.rewrite(keep_sink=self._config.keep_sink))
        self._cache.reset()

    def _passes(self, dit: Transformer, text: TextContext, frames: range, latents: Tensor, made: Tensor) -> None:
        """Run every kind of pass of a frame block; `made` are the latents before it that are attended."""
        step = self._cache.at(frames.start, len(frames))
        dit.flow(latents, self._config.schedule.warped[0], text, step)
        dit.write(latents, text, step)


class RecomputedPast(KeptPast):
    """Keys and values of the past are derived in every frame block from clean latents, at positions from 0; none are kept.

    These are N latent frames, the window without the frame block. As long as frame blocks since the first fit beside them, they
    are the first latent frame and the last N - 1. From then on the first one is the pixel frame before those N - 1, encoded
    again as a video of its own: it stands where the autoencoder has a video begin, and errors of the latents do not add up. The
    passes at timestep 0 go frame block by frame block, each attending to those before it. While a frame block is denoised, what
    lies between that first frame and itself may count for less (`past_weight`).

    The text of these passes is that of the frame block to come. (krea's server still has that of the one before.)

    Args:
        cache: of the stream; empty between two frame blocks.
        config: of the stream.
        decoder: encodes pixel frames.

    Source: krea realtime-video, `release_server.py` (54e011d: recompute_kv_cache, get_clean_context_frames) and
    `wan/modules/causal_model.py` (1079e2e); Scope, `krea_realtime_video/modules/causal_model.py` (0b33dbc) for the weight.
    """

    def __init__(self, cache: KVCache, config: ResolvedConfig, decoder: FrameDecoder) -> None:
        super().__init__(cache, config)
        self._decoder = decoder

    def open(self, dit: Transformer, text: TextContext, frames: range, state: StreamState, *, cut: bool) -> None:
        with span(RECACHE):
            self._step = self._derived(dit, text, self._context(frames.start, state), len(frames))

    def close(self, dit: Transformer, text: TextContext, latents: Tensor) -> None:
        self._cache.reset()

    def renew(self, dit: Transformer, text: TextContext, end: int, state: StreamState) -> None:
        """Do nothing: the next frame block derives everything."""

    def _passes(self, dit: Transformer, text: TextContext, frames: range, latents: Tensor, made: Tensor) -> None:
        step = self._derived(dit, text, made[:, : self._config.num_recomputed], len(frames))
        dit.flow(latents, self._config.schedule.warped[0], text, step)

    def _context(self, start: int, state: StreamState) -> Tensor:
        """Return the clean latents [B, min(start, N), C, Y, X] that come before frame `start`."""
        behind = min(start, self._config.num_recomputed) - 1
        if start < self._config.policy.window:  # so long the history has all frames
            first = state.history[:, :1]
        else:
            assert state.ends is not None
            first = self._decoder.encode(state.ends[:, 0])
        return torch.cat((first, state.history[:, 1:][:, -behind:]), dim=1) if behind > 0 else first

    def _derived(self, dit: Transformer, text: TextContext, context: Tensor, num_frames: int) -> CacheStep:
        """Write the keys and values of clean latents into an empty cache and open the frames behind them."""
        self._cache.reset()
        done = 0
        for piece in context.split(self._config.frame_block, dim=1) if context.shape[1] else ():
            dit.write(piece, text, self._cache.at(done, piece.shape[1]))
            done += piece.shape[1]
        step, weight = self._cache.at(done, num_frames), self._config.past_weight
        return step if done < 2 or weight == 1 else FadedStep(step=step, weight=weight, first=1)


class RollingPast(KeptPast):
    """Keys and values stay in the cache, and a pass denoises as many frame blocks as there are timesteps, each at its own.

    A window of S frame blocks moves on by one with every pass: its first is at the last timestep and is finished, its last is
    pure noise. They see the sink, right before the window in time, the last finished frames, and each other without a mask. The
    first frame block of a stream takes S passes, over 1 to S frame blocks. A finished one is written at timestep 0; it sees the
    frames that the cache keeps behind the sink, at their own positions, the sink only while it is one of them.

    In a recache all frames that are kept see each other, as in models whose past is kept.

    While a prompt goes over to another, a pass has the nearer one, for its frame blocks are at different steps.

    The official code ends a clip with windows that grow shorter; a stream has no end, so its last frame blocks differ from those.

    Args:
        cache: of the stream.
        config: of the stream.

    Source: Rolling Forcing (Liu et al. 2025, arXiv 2509.25161), `pipeline/rolling_forcing_inference.py` as in AusteChen/RF at
    8e5e15c, `wan/modules/causal_model.py` as in winbeau/RollingForcing-fork at d8d4693 (both copies of TencentARC's).
    """

    def __init__(self, cache: AheadRing, config: ResolvedConfig) -> None:
        super().__init__(cache, config)
        self._ring = cache
        self._noises: dict[int, BlockNoise] = {}  # of the frame blocks under way, which need it pass by pass

    def open(self, dit: Transformer, text: TextContext, frames: range, state: StreamState, *, cut: bool) -> None:
        """A frame block that was given up half-way may have been finished: it is forgotten."""
        if self._cache.end != frames.start:
            self._ring.take_back(frames.start)

    def sample(
        self, dit: Transformer, text: BlendedText, index: int, draw: Draw, ahead: Tensor | None, given: Tensor | None, ask: Ask
    ) -> Made:
        steps, size = len(self._config.schedule.timesteps), self._config.frame_block
        self._noises = {number: self._noises.get(number) or draw(number) for number in range(index, index + steps)}
        noises = [*self._noises.values()]
        if ahead is not None:
            x = torch.cat((ahead, noises[-1].initial), dim=1)
        else:
            x = noises[0].initial
            for number in range(1, steps):
                ask()
                x = torch.cat((self._renoised(self._x0(dit, text.kept, x), noises), noises[number].initial), dim=1)
        ask()
        x0 = self._x0(dit, text.kept, x)
        return x0[:, :size], self._renoised(x0[:, size:], noises[1:]) if steps > 1 else None

    def close(self, dit: Transformer, text: TextContext, latents: Tensor) -> None:
        with span(KV_OPEN):
            self._step = self._ring.finish(self._cache.end, latents.shape[1])
        super().close(dit, text, latents)

    def _passes(self, dit: Transformer, text: TextContext, frames: range, latents: Tensor, made: Tensor) -> None:
        number = len(self._config.schedule.timesteps)
        for blocks in range(number if frames.start else 1, number + 1):
            self._x0(dit, text, torch.cat([latents] * blocks, dim=1))
        self.close(dit, text, latents)

    def _x0(self, dit: Transformer, text: TextContext, x: Tensor) -> Tensor:
        """Predict the clean latents of the frame blocks under way; the last of them is pure noise."""
        schedule, size = self._config.schedule, self._config.frame_block
        levels = range(x.shape[1] // size - 1, -1, -1)
        with span(DENOISE_STEP, 0):
            step = self._ring.look(x.shape[1], self._config.policy.window - size)
            told = tuple(schedule.warped[level] for level in levels for _ in range(size))
            flow = dit.flow(x, told, text, step)
            with span(RENOISE):
                parts = zip(x.split(size, dim=1), flow.split(size, dim=1), levels, strict=True)
                return torch.cat([to_x0(part, v, schedule.sigmas[level]) for part, v, level in parts], dim=1)

    def _renoised(self, x0: Tensor, noises: Sequence[BlockNoise]) -> Tensor:
        """Bring clean latents of frame blocks, the last of them after its first timestep, to the noise of their next ones."""
        schedule, size = self._config.schedule, self._config.frame_block
        blocks = x0.split(size, dim=1)
        found = []
        for number, (block, noise) in enumerate(zip(blocks, noises, strict=False)):
            level = len(blocks) - number  # of its next timestep
            found.append(add_noise(block, noise.renoise[level - 1], schedule.sigmas[level]))
        return torch.cat(found, dim=1)


def new_past(cache: KVCache, config: ResolvedConfig, decoder: FrameDecoder) -> KeptPast:
    """Return the past of a stream, by the policy of its configuration."""
    if config.past == "recomputed":
        return RecomputedPast(cache, config, decoder)
    return RollingPast(cache, config) if isinstance(cache, AheadRing) else KeptPast(cache, config)
