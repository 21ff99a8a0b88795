"""The loop of a stream: a frame block from prompt to pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns

import torch
from torch import Tensor

from strobe.attention.impls import load_ahead
from strobe.cache.kv import CacheState
from strobe.core.device import upload
from strobe.core.errors import SessionError, ShapeError
from strobe.core.spans import DRAW, FRAME_BLOCK, TEXT, span
from strobe.engine.caches import new_cache
from strobe.engine.decode import Decoded, FrameDecoder
from strobe.engine.denoise import BlendedText, BlockNoise, draw_block, read_blend
from strobe.engine.graphs import Runner
from strobe.engine.model import Model, latent_shape
from strobe.engine.parallel.rank import RankContext
from strobe.engine.past import new_past
from strobe.engine.prompts import Blend, Change, encode_prompts
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.snapshot import StreamState, check_state
from strobe.engine.transformer import Transformer
from strobe.models.lora import Lora


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class FrameBlock:
    """Pixel frames of every sample with their latents and prompts.

    Args:
        index: number of the frame block, from 0.
        samples: pixel frames of every sample, uint8 [B, F, Y, X, 3] on the CPU.
        latents: clean latents [B, F, C, Y, X], float32 on the stream's device.
        prompts: one per sample.
        elapsed_ns: work of the stream from the frame block before until these frames were there. With knob `late_frames` that is
            mostly the next frame block's: the sum over a stream is all its work either way.
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

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{name}={str(each.dtype).removeprefix('torch.')} {list(each.shape)} on {each.device}"
            for name, each in (("samples", self.samples), ("latents", self.latents))
        )
        return f"FrameBlock(index={self.index}, {tensors}, prompts={self.prompts}, elapsed_ns={self.elapsed_ns})"


@dataclass(kw_only=True, slots=True)
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
    made: list[Tensor] = field(default_factory=list)
    num_done: int = 0


class GivenUpError(SessionError):
    """A frame block was given up between two denoise steps, because its maker was asked to."""


class Stream:
    """One stream of frame blocks, or several in lockstep; between two of them it is its `state` and its cache.

    `advance` makes a frame block and `deliver` hands it out. With knob `late_frames` the one before is handed out only after
    `advance` was called again, so that its frames are decoded meanwhile; never are two decoded at a time.

    A frame block that fails half-way leaves `state` as it was: `advance` makes it again. If decoding fails, `deliver` does.

    Args:
        model: what to run.
        config: how to run it.
        seed: of all noise.
        samples: numbers of the streams in lockstep; each draws noise of its own.
        start: clean latents [B, F, C, Y, X] that the first frame blocks are made of, see `strobe.engine.start`.
        parts: transformer and decoder of another stream with the same model and configuration, to share their weights.
        share: this process's of a stream on several devices.

    Raises:
        CollectiveError: the processes of a stream on several devices do not open the same; while it runs: one of them is gone.
    """

    def __init__(
        self,
        model: Model,
        config: ResolvedConfig,
        *,
        seed: int,
        samples: Sequence[int],
        start: Tensor | None = None,
        parts: tuple[Transformer, FrameDecoder] | None = None,
        share: RankContext | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.seed = seed
        self.samples = tuple(samples)
        self.share = share
        self.latent_shape = latent_shape(model.defaults, model.dit.config)
        loaded = load_ahead(config.device)
        self._prepared = model.shelf.take(model, config) if parts is None and share is None else None
        if parts is not None:
            self._dit, self._decoder = parts
        elif self._prepared is not None:
            self._dit, self._decoder = self._prepared.parts()
        else:
            assert share is not None
            self._dit, self._decoder = share.parts(model, config, self.latent_shape.token_grid(model.dit.config.patch).num_tokens)
        if parts is None:
            batch = len(self.samples)
            self._decoder.warm_up([(batch, len(config.latents_of(index)), *self._frame_shape) for index in range(2)])
        self._cache = new_cache(model.dit.config, self.latent_shape, config, len(self.samples), share)
        self._past = new_past(self._cache, config, self._decoder)
        self._draws_ahead = config.device.type == "cuda"  # the CPU draws noise while the GPU is at the frame block before
        self._shared = parts is not None  # another stream runs with the same weights
        self._changed_hash: str | None = None  # of other LoRAs than the model's
        self._begin(start if start is None else start.to(config.device))
        if share is not None:
            share.open(model, config, f"seed {seed}, samples {self.samples}")
        loaded()

    def _begin(self, start: Tensor | None) -> None:
        """Return to before the first frame block, with nothing in hand beside state and cache."""
        history = torch.zeros(len(self.samples), 0, *self._frame_shape, dtype=torch.float32, device=self.config.device)
        decoder = self._decoder.state()
        self.state = StreamState(next_block=0, prompts=(), blend=None, history=history, decoder=decoder, start=start)
        self._text: tuple[Blend, BlendedText] | None = None  # of the frame block to come, for the prompts it was read for
        self._half_way = False  # the cache has moved on from the state
        self._decoding: Decoding | None = None  # the last frame block; the state's decoder is that before what is left of it
        self._ready: FrameBlock | None = None  # decoded, not handed out
        self._worked_ns = 0  # since the last frame block was handed out
        self._drawn: tuple[int, BlockNoise] | None = None  # number and noise of the frame block to come

    def restart(self, seed: int) -> None:
        """Begin again with the noise of another seed, without prompt or start; memory and recorded passes stay.

        Raises:
            SessionError: other LoRAs run than the model's, or the stream runs on several devices.
        """
        if self.share is not None or self._changed_hash is not None:
            raise SessionError("a stream on several devices or with LoRAs of its own does not begin again; open another session")
        self._cache.reset(erase=True)
        self._past = new_past(self._cache, self.config, self._decoder)
        self.seed = seed
        self._begin(None)

    @property
    def weights_hash(self) -> str:
        """Hash of the model's weights, and of LoRAs of this stream's own."""
        return self._changed_hash or self.model.weights_hash

    @property
    def next_block(self) -> int:
        """Number of the next frame block to hand out; `state.next_block` is the next one to make."""
        return self.state.next_block - (self._ready is not None) - (self._decoding is not None)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record all passes; see `Session.warm_up`."""
        assert not self.state.next_block, "it empties the cache"
        text = self._dit.read(torch.zeros(len(self.samples), 1, self.model.dit.config.text_dim))
        self._past.warm_up(self._dit, text, self._draw)

    @torch.inference_mode()
    def advance(
        self, change: Change | None = None, encoded: Tensor | None = None, give_up: Callable[[], bool] | None = None
    ) -> None:
        """Make the next frame block, under new prompts if there is a change. At most one may be waiting to be handed out.

        Args:
            change: new prompts.
            encoded: their text [B, L, text_dim]; None: it is encoded here.
            give_up: asked before each denoise step and before the clean-context pass.

        Raises:
            SessionError: there is no prompt yet.
            GivenUpError: `give_up` said so; the frame block is made anew by the next call.
        """
        began, index = perf_counter_ns(), self.state.next_block
        assert self._ready is None or self._decoding is None, "hand frame blocks out before making more"
        with span(FRAME_BLOCK, index):
            if self.share is not None:
                change = self.share.devices.follow(f"frame block {index}, weights {self.weights_hash[:12]}", change)
            blend, text = self._derive(change, encoded)
            self._half_way = True
            frames, rest = self.config.latents_of(index), self.state.start
            if self.config.num_recomputed:
                self._settle()  # what could not be decoded before
            cut = change is not None and change.mode == "shot" and index > 0
            self._past.open(self._dit, text.kept, frames, self.state, cut=cut)
            latents, rest = (None, None) if rest is None else (rest[:, : len(frames)], rest[:, len(frames) :])
            ahead = None
            if latents is None or self.config.again is not None:
                latents, ahead = self._past.sample(
                    self._dit, text, index, self._noise, self.state.ahead, latents, partial(self._before_step, give_up)
                )
            self._settle()  # its memory goes into this one's
            self._before_step(give_up)
            pieces = self._decoder.start(latents, self.state.decoder)
            self._past.close(self._dit, text.kept, latents)
            prompts = self.state.prompts if change is None else change.prompts
            history = torch.cat([self.state.history, latents], dim=1)[:, -self.config.policy.window :]
            start = None if rest is None or not rest.shape[1] else rest
            made = replace(self.state, next_block=index + 1, prompts=prompts, blend=blend, history=history)
            self.state = replace(made, start=start, ahead=ahead, stale=False)
            del made  # or the decoder's memories before this one would be held too
            self._decoding = Decoding(index=index, latents=latents, prompts=prompts, pieces=pieces)
            self._half_way = False
            del pieces  # or they would outlive what is settled
            if self._draws_ahead:
                coming = index + 1 + self.config.num_ahead // self.config.frame_block
                self._drawn = coming, self._draw(coming)
            if not self.config.knobs.late_frames:
                self._settle()
        self._worked_ns += perf_counter_ns() - began

    def _before_step(self, give_up: Callable[[], bool] | None) -> None:
        if give_up is not None and give_up():
            raise GivenUpError(f"frame block {self.state.next_block} was given up")

    def deliver(self) -> FrameBlock:
        """Hand out the oldest frame block that was made; wait for its frames."""
        began = perf_counter_ns()
        if self._ready is None:
            self._settle()
        block, self._ready = self._ready, None
        assert block is not None, "advance() first"
        worked_ns, self._worked_ns = self._worked_ns + perf_counter_ns() - began, 0
        return replace(block, elapsed_ns=worked_ns)

    def _settle(self) -> None:
        """Wait for the frames being decoded, and put the decoder's memories into `state`."""
        waiting = self._decoding
        if waiting is None:
            return
        pieces, left = waiting.pieces, waiting.latents[:, waiting.num_done :]
        waiting.pieces = None
        for frames, num, decoder, ends in pieces or (self._decoder.start(left, self.state.decoder) if left.shape[1] else ()):
            if ends is not None:  # the last pixel frames of latent frames that the next frame block may need
                held = [] if self.state.ends is None else [self.state.ends]
                ends = torch.cat([*held, ends], dim=1)[:, -self.config.num_recomputed :]
            state, made, done = replace(self.state, decoder=decoder, ends=ends), [*waiting.made, frames], waiting.num_done + num
            self.state, waiting.made, waiting.num_done = state, made, done  # all or none
        with torch.inference_mode(False):  # so that their owner may draw on them
            pixels = waiting.made[0] if len(waiting.made) == 1 else torch.cat(waiting.made, dim=1)
        block = FrameBlock(index=waiting.index, samples=pixels, latents=waiting.latents, prompts=waiting.prompts, elapsed_ns=0)
        self._ready, self._decoding = block, None

    def snapshot(self) -> tuple[StreamState, CacheState]:
        """Copy state and cache.

        Raises:
            SessionError: the last frame block failed half-way, so the cache is not that of `state`.
        """
        if self._half_way:
            raise SessionError(f"frame block {self.state.next_block} was given up half-way; generate it, then go on")
        self._settle()
        frames = None if self._ready is None else self._ready.samples.clone()  # its owner may draw on it
        return replace(self.state, undelivered=frames, decoder=self._decoder.copied(self.state.decoder)), self._cache.snapshot()

    def restore(self, state: StreamState, cache: CacheState) -> None:
        """Return to a snapshot of a stream with the same model and configuration, maybe on another device.

        Raises:
            SessionError: state and cache do not go together, or not with this stream, which stays as it is.
        """
        check_state(state, cache, self.config, (len(self.samples), *self._frame_shape), self.model.dit.config.text_dim)
        decoder, before, device = self._decoder.adopt(state.decoder), self._half_way, self.config.device
        self._half_way = True
        try:
            self._cache.restore(cache)
        except ShapeError as error:
            self._half_way = before
            raise SessionError(f"this snapshot contradicts itself: {error}; take it again, or restore another one") from error
        self._decoding = None  # nobody waits for what was being made
        held = {name: getattr(state, name) for name in ("history", "blend", "ahead", "ends", "start")}
        moved = {name: each.to(device) for name, each in held.items() if each is not None}
        self.state = replace(state, undelivered=None, decoder=decoder, **moved)
        self._ready = None
        if state.undelivered is not None:
            index, samples = state.next_block - 1, state.undelivered.cpu().clone()
            latents = self.state.history[:, -len(self.config.latents_of(index)) :]
            self._ready = FrameBlock(index=index, samples=samples, latents=latents, prompts=state.prompts, elapsed_ns=0)
        self._worked_ns, self._half_way = 0, False

    @property
    def loras(self) -> tuple[Lora, ...]:
        """LoRAs that run, those of the model first."""
        return self._dit.loras

    def use_loras(self, loras: Sequence[Lora]) -> None:
        """Use these LoRAs from the next frame block on, which recomputes the window.

        Raises:
            SessionError: a fork shares the weights.
            WeightsError: a LoRA is not one of this model's.
        """
        if self._shared:
            raise SessionError("forks share their weights, so the LoRA cannot change; open another session for it")
        if self._prepared is not None:
            shared, self._dit = self._dit, self._prepared.alone(self._dit)
            self._prepared = self._prepared if self._dit is shared else None
        self._dit.use_loras(loras)
        what = ", ".join(f"{lora.weights_hash} at {lora.strength}" for lora in self.loras) or "no LoRA"
        own = self.loras == self.model.loras
        self._changed_hash = None if own else hashlib.sha256(f"{self.model.weights_hash}, {what}".encode()).hexdigest()
        self._text, self.state = None, replace(self.state, stale=True)

    @contextmanager
    def launched(self) -> Iterator[None]:
        """Run passes kernel by kernel inside this context; recorded passes are kept for afterwards."""
        runner, self._dit.runner = self._dit.runner, Runner()
        try:
            yield
        finally:
            self._dit.runner = runner

    def fork(self) -> Stream:
        """Return a second stream that goes on from here independently; weights are shared.

        Raises: see `snapshot`.
        """
        state, cache = self.snapshot()
        parts = (self._dit.share(), self._decoder.share())
        other = Stream(self.model, self.config, seed=self.seed, samples=self.samples, parts=parts, share=self.share)
        other.restore(state, cache)
        if self._prepared is not None:
            other._prepared = self._prepared.joined(other._dit)
        other._changed_hash, self._shared = self._changed_hash, True
        return other

    def close(self) -> None:
        """Shut down the decoder's worker, and free what only this stream holds: recorded passes, cache, decoder memories."""
        self._decoder.close()
        self._dit.runner.reset()
        if self._prepared is not None:
            self._prepared.release(self._dit)
        for name in ("_cache", "_past"):
            vars(self).pop(name, None)
        if self._decoding is not None:
            self._decoding.pieces = None
        self.state = replace(self.state, decoder=(False, ()))

    @property
    def _frame_shape(self) -> tuple[int, int, int]:
        shape = self.latent_shape
        return shape.channels, shape.height, shape.width

    def _noise(self, index: int) -> BlockNoise:
        drawn, self._drawn = self._drawn, None
        return drawn[1] if drawn is not None and drawn[0] == index else self._draw(index)

    def _draw(self, index: int) -> BlockNoise:
        with span(DRAW):
            shape = (len(self.config.latents_of(index)), *self._frame_shape)
            return draw_block(self.seed, self.samples, index, self.config.schedule.draws, shape, self.config.device)

    def _derive(self, change: Change | None, encoded: Tensor | None) -> tuple[Blend, BlendedText]:
        """Derive this frame block's text; after a hard switch, recompute the cached past under it too."""
        with span(TEXT):
            blend = self._blend(change, encoded)
            if self._text is None or self._text[0] is not blend:
                self._text = blend, read_blend(self._dit, blend, len(self.config.schedule.timesteps))
        switched = change is not None and change.mode == "recache"
        if (switched or self.state.stale) and self.state.next_block > 0:
            self._half_way, self.state = True, replace(self.state, stale=True)  # until this frame block is made
            before = blend if switched or change is None or self.state.blend is None else self.state.blend
            text = self._text[1] if before is blend else read_blend(self._dit, before, len(self.config.schedule.timesteps))
            self._past.renew(self._dit, text.kept, self.config.latents_of(self.state.next_block).start, self.state)
        return self._text

    def _blend(self, change: Change | None, encoded: Tensor | None) -> Blend:
        before = self.state.blend
        if change is None:
            if before is None:
                raise SessionError("there is no prompt yet; call prompt(...) first")
            return before if before.finished else before.advance()
        text = encode_prompts(self.model.text, change.prompts) if encoded is None else encoded
        target = upload(text, self.config.device)
        if change.mode == "interpolate" and before is not None:
            return Blend(start=before.text, target=target, done=1, total=change.over)
        return Blend(start=target, target=target, done=1, total=1)
