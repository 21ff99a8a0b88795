"""One rank's share of a session: its cache, transformer and decoder in place of those of one device."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from strobe.attention.tree.comm import CollectiveCall
from strobe.attention.tree.local import Shard, local_attention, merge_messages, pack_state
from strobe.attention.tree.placement import Mask, Segment
from strobe.cache.kv import CacheShape, CacheState, CacheStep, KVCache, RingStep, StepAround
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.spans import ATTENTION_KERNEL, span
from strobe.engine.decode import Decoded, DecoderState, FrameDecoder
from strobe.engine.graphs import Mode
from strobe.engine.model import Model, ModelParts, latent_shape
from strobe.engine.parallel.group import LOADING, DeviceGroup
from strobe.engine.parallel.layout import Layout, cut, degrees, join, rows
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.transformer import CLEAN, TextContext, Timestep, Transformer
from strobe.models.wan.layers import Attend


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedStep(StepAround):
    """One pass over a `SharedCache`. Its messages are the same in every pass of one signature.

    A recorded pass sends the messages of the `call` in which it was recorded; no receiver reads their number.

    Args:
        layout: who has what.
        step: of this rank's cache.
        call: what its messages belong to.
        by_rank: the step takes the tokens of all frames of one rank, then those of the next, as they arrive; else frame by frame.
    """

    layout: Layout
    call: CollectiveCall
    by_rank: bool

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Send k and v `[B, F * n, H, D]` to the ranks that keep them, store what comes in, and return what this rank keeps."""
        both = torch.stack((k, v), dim=2).transpose(0, 1)  # [F * n, B, 2, H, D]
        nothing = both[:0]
        sends = [both[:, :, :, slice(*self.layout.heads(rank))] if rank in self.layout.row else nothing for rank in self._ranks]
        shapes = [self._shape(rank, both.shape[1], 2, both.shape[4]) if rank in self.layout.row else (0,) for rank in self._ranks]
        arrived = self.call.exchange(sends, shapes).wait()
        keys, values = self._whole([arrived[rank].transpose(0, 1) for rank in self.layout.row]).unbind(2)
        return self._stored(layer, keys, values)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Attend from this rank's tokens, all heads, over the keys of all ranks; k and v are stored first.

        Two messages: queries of the heads of a column go to all ranks of it, with keys and values to the one that keeps them;
        then partial results come back with their lse, and merge where the tokens are.

        Args:
            layer: number of the layer.
            q, k, v: of this rank's tokens `[B, F * n, H, D]`, q and k after RoPE.
            attend: attention over what a cache keeps; used where one rank keeps all keys of its heads.
        """
        q, new = self._out(q, k, v)
        kept = self._stored(layer, *new)
        if self.layout.degrees.tree == 1:
            return self._back(attend(q, new, kept, self.step.reach, layer))
        with span(ATTENTION_KERNEL):
            keys = Shard(k=kept[0], v=kept[1], segments=(Segment(start=0, length=kept[0].shape[1]),))
            part = local_attention(q, keys, Mask(), (0, q.shape[1]), q.shape[3] ** -0.5)
        packed = self._back(pack_state(part))  # [B, F * n, T * H, W]
        return merge_messages(packed.chunk(self.layout.degrees.tree, dim=2), q.shape[3]).out

    def _stored(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        written = self.step.write(layer, k, v)
        assert isinstance(written, tuple), "the configuration was checked"
        return written

    def gather(self, part: Tensor) -> list[Tensor]:
        """Gather every rank's part `[B, F, C, ph, n * pw]` of a flow on every rank."""
        own, counts = self.layout.counts[self.layout.rank], self.layout.counts
        width = part.shape[4] // own
        return self.call.gather(part, [(*part.shape[:4], count * width) for count in counts])

    @property
    def _ranks(self) -> range:
        return range(self.layout.degrees.num_ranks)

    def _shape(self, rank: int, batch: int, number: int, width: int) -> tuple[int, ...]:
        """Return the shape of a message from a rank: `number` tensors of its tokens, this rank's heads."""
        start, stop = self.layout.heads()
        return self._tokens(rank), batch, number, stop - start, width

    def _tokens(self, rank: int) -> int:
        return len(self.positions) * self.layout.counts[rank]

    def _out(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Exchange q, k and v for queries of all tokens, and keys and values of the tokens kept here, of this rank's heads."""
        columns = self.layout.degrees.ulysses
        packed = q.new_empty(columns, q.shape[1], q.shape[0], 3, q.shape[2] // columns, q.shape[3])
        for place, each in enumerate((q, k, v)):
            packed[:, :, :, place] = each.unflatten(2, (columns, -1)).permute(2, 1, 0, 3, 4)
        numbers = [3 if rank in self.layout.row else 1 for rank in self._ranks]
        sends = [packed[rank % columns, :, :, :number] for rank, number in enumerate(numbers)]
        if self.by_rank and self.layout.degrees.tree == 1:  # messages lie as they are needed
            whole = q.new_empty(sum(map(self._tokens, self._ranks)), *packed.shape[2:])
            self.call.exchange(sends, into=whole.split([*map(self._tokens, self._ranks)])).wait()
            queries, keys, values = whole.transpose(0, 1).unbind(2)
            return queries, (keys, values)
        shapes = [self._shape(rank, q.shape[0], number, q.shape[3]) for rank, number in enumerate(numbers)]
        arrived = [each.transpose(0, 1) for each in self.call.exchange(sends, shapes).wait()]  # [B, F * n, number, h, D]
        keys, values = self._whole([arrived[rank][:, :, 1:] for rank in self.layout.row]).unbind(2)
        return self._whole([each[:, :, 0] for each in arrived]), (keys, values)

    def _back(self, out: Tensor) -> Tensor:
        """Exchange `[B, F * N, h, W]`, all tokens and this rank's heads, for this rank's tokens with all heads, in rank order."""
        if self.by_rank:
            sends = list(out.split([*map(self._tokens, self._ranks)], dim=1))
        else:
            frames = out.unflatten(1, (len(self.positions), -1))
            sends = [each.flatten(1, 2) for each in frames.split(self.layout.counts, dim=2)]
        own = tuple(sends[self.layout.rank].shape)
        return torch.cat(self.call.exchange(sends, [own] * len(sends)).wait(), dim=2)

    def _whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Join tokens of some ranks `[B, F * n_r, ...]` in the order that the step takes."""
        if self.by_rank:
            return torch.cat(list(parts), dim=1)
        frames = len(self.positions)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in parts], dim=2).flatten(1, 2)


class SharedCache:
    """A cache that is spread over ranks: each rank has an ordinary cache for its share.

    A snapshot is the whole cache on every rank, as one device would have it, and may be restored by any number of ranks.

    Args:
        cache: of this rank, in the shape of `RankContext.shape`.
        layout: who has what.
        devices: the ranks.
    """

    def __init__(self, cache: KVCache, layout: Layout, devices: DeviceGroup) -> None:
        self._cache = cache
        self._layout = layout
        self._devices = devices
        self._by_rank: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""
        return self._cache.end

    def at(self, first_frame: int, num_frames: int) -> SharedStep:
        step = self._cache.at(first_frame, num_frames)
        return self._step(step, f"latent frames {first_frame}..{first_frame + num_frames - 1}")

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> SharedStep:
        step = self._cache.rewrite(end, keep_sink=keep_sink)
        return self._step(step, f"window before latent frame {step.positions[-1] + 1} again")

    def reset(self, *, erase: bool = False) -> None:
        """Forget every frame; see `KVCache.reset`."""
        self._cache.reset(erase=erase)

    def snapshot(self) -> CacheState:
        """Gather the whole cache; all ranks call it.

        Raises:
            CollectiveError: a rank does not come, or is gone.
        """
        state = self._cache.snapshot()
        call = self._devices.begin("snapshot")
        whole = state.each(lambda part: self._gather(call, part))
        self._devices.settle()
        return whole

    def restore(self, state: CacheState) -> None:
        """Keep this rank's share of a snapshot of the whole cache.

        Raises:
            ShapeError: the snapshot has another shape.
        """
        self._cache.restore(state.each(self._share))

    def _step(self, step: CacheStep, what: str) -> SharedStep:
        call = self._devices.begin(what)
        if not isinstance(step, RingStep) or step.reach is not None or step.skipped:
            return SharedStep(layout=self._layout, step=step, call=call, by_rank=False)
        return SharedStep(layout=self._layout, step=replace(step, rows=self._rows(step)), call=call, by_rank=True)

    def _rows(self, step: RingStep) -> Tensor:
        """Return the cache rows of a step's tokens, ordered by rank; the tensor keeps its address for recorded passes."""
        frames = len(step.positions)
        held = self._by_rank.get(frames)
        if held is None:
            with torch.inference_mode(False):
                numbers = torch.arange(len(step.rows), device=step.rows.device).view(frames, -1)
                counts = [self._layout.counts[rank] for rank in self._layout.row]
                order = torch.cat([part.flatten() for part in numbers.split(counts, dim=1)])
                held = self._by_rank[frames] = order, torch.empty_like(step.rows)
        torch.index_select(step.rows, 0, held[0], out=held[1])
        return held[1]

    def _gather(self, call: CollectiveCall, part: Tensor) -> Tensor:
        """Gather a tensor `[L, B, rows, h, D]` of every rank into that of a single device."""
        layout = self._layout
        if not part.shape[2]:
            return part.new_empty(*part.shape[:3], layout.num_heads, part.shape[4])
        kept = self._kept() if layout.degrees.tree > 1 else [part.shape[2]] * layout.degrees.num_ranks
        frames = part.shape[2] // kept[layout.rank]
        parts = call.gather(part, [(*part.shape[:2], frames * number, *part.shape[3:]) for number in kept])
        across = layout.degrees.ulysses
        by_row = [torch.cat(parts[start : start + across], dim=3) for start in range(0, len(parts), across)]
        return torch.cat([each.unflatten(2, (frames, -1)) for each in by_row], dim=3).flatten(2, 3)

    def _share(self, whole: Tensor) -> Tensor:
        """Cut this rank's share from a tensor that `_gather` would return."""
        layout = self._layout
        mine = whole[:, :, :, slice(*layout.heads())]
        if layout.degrees.tree == 1:
            return mine
        if whole.shape[2] % layout.tokens_per_frame:
            raise ShapeError(
                f"snapshot has {whole.shape[2]} rows; this session takes multiples of {layout.tokens_per_frame} tokens a frame"
            )
        frames = mine.unflatten(2, (whole.shape[2] // layout.tokens_per_frame, layout.tokens_per_frame))
        kept: Tensor = frames[:, :, :, slice(*layout.kept())].flatten(2, 3)
        return kept

    def _kept(self) -> list[int]:
        return [stop - start for start, stop in map(self._layout.kept, range(self._layout.degrees.num_ranks))]


class SharedTransformer(Transformer):
    """A transformer with all weights on every rank, whose passes run on this rank's tokens of every latent frame.

    Latents go in and flows come out whole, with the same bits on every rank.

    Args:
        model: weights; left as they are.
        config: what to prepare for.
        block_tokens: tokens of a frame block on all ranks together.
        layout: who has what.
        devices: the ranks.
    """

    def __init__(self, model: Model, config: ResolvedConfig, block_tokens: int, layout: Layout, devices: DeviceGroup) -> None:
        frames = block_tokens // layout.tokens_per_frame
        super().__init__(model.dit, config, frames * layout.counts[layout.rank], model.loras)
        self._layout = layout
        self._devices = devices

    def flow(self, latents: Tensor, timestep: Timestep, text: TextContext, cache: CacheStep) -> Tensor:
        """See `Transformer.flow`; all ranks call it together.

        Raises:
            CollectiveError: a rank does not come, or is gone.
        """
        assert isinstance(cache, SharedStep)
        part = self._pass("flow", latents, timestep, text, cache)
        assert part is not None
        patch = self.dit.config.patch
        return join(cache.gather(part.contiguous()), patch, latents.shape[3] // patch[0])

    def write(self, latents: Tensor, text: TextContext, cache: CacheStep) -> None:
        """See `Transformer.write`; all ranks call it together.

        Raises:
            CollectiveError: a rank does not come, or is gone.
        """
        assert isinstance(cache, SharedStep)
        self._pass("write", latents, CLEAN, text, cache)
        self._devices.settle()

    def _pass(self, mode: Mode, latents: Tensor, timestep: Timestep, text: TextContext, cache: SharedStep) -> Tensor | None:
        """Run a pass on this rank's tokens of the latents. Messages of a recorded pass have no deadline but the replay's."""
        modulation, text_kv, rotations = self.conditions(latents, timestep, text, cache)
        local = cut(latents, self.dit.config.patch, self._layout.mine)
        conditions = modulation, text_kv, rows(rotations, len(cache.positions), self._layout.mine)
        self._devices.keep(self.runner)
        return self._run(mode, local, conditions, cache, partial(self._devices.watched, cache.call))


def check_several(config: ResolvedConfig) -> None:
    """Raise ConfigError if a stream cannot run on several devices: its past is not simply kept, or attention is in eight bits."""
    if config.past != "kept":
        raise ConfigError(f"a past that is {config.past} runs on one device; leave torchrun out, or take another recipe")
    if config.attention_format != "native":
        raise ConfigError("attention in eight bits runs on one device; leave torchrun out, or use attention_format 'native'")


class FramesElsewhere(FrameDecoder):
    """A decoder that returns no frames and holds no memory.

    Args:
        frame_size: height and width of the frames that there are not, in pixels.
    """

    def __init__(self, frame_size: tuple[int, int]) -> None:
        self._frame_size = frame_size

    def warm_up(self, pieces: Sequence[tuple[int, ...]]) -> None: ...

    def start(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        """Return no frames: uint8 [B, 0, Y, X, 3]."""
        none = torch.empty(latents.shape[0], 0, *self._frame_size, 3, dtype=torch.uint8)
        return iter([Decoded(none, latents.shape[1], state, None)])

    def state(self) -> DecoderState:
        return False, ()

    def adopt(self, state: DecoderState) -> DecoderState:
        return self.state()

    def share(self) -> FramesElsewhere:
        return self

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """The part of a session that one rank runs.

    Args:
        devices: the ranks.
        layout: which tokens, heads and keys.
    """

    devices: DeviceGroup
    layout: Layout

    @classmethod
    def of(cls, devices: DeviceGroup, parts: ModelParts, config: ResolvedConfig) -> RankContext:
        """Return this rank's share of a session.

        Raises:
            ConfigError: so many ranks cannot share this session; says why, and names the nearest numbers that can.
        """
        dit = parts.dit.config
        tokens = latent_shape(parts.defaults, dit).token_grid(dit.patch).tokens_per_frame
        grid = degrees(
            devices.size, num_heads=dit.num_heads, tokens_per_frame=tokens, sparse=config.sparsity > 0, ulysses=devices.ulysses
        )
        return cls(
            devices=devices, layout=Layout(degrees=grid, rank=devices.rank, num_heads=dit.num_heads, tokens_per_frame=tokens)
        )

    def parts(self, model: Model, config: ResolvedConfig, block_tokens: int) -> tuple[Transformer, FrameDecoder]:
        """Return transformer and decoder of this rank."""
        dit = SharedTransformer(model, config, block_tokens, self.layout, self.devices)
        if self.devices.leads:
            return dit, FrameDecoder(model.vae, config)
        return dit, FramesElsewhere(model.defaults.frame_size)

    def shape(self, whole: CacheShape) -> CacheShape:
        """Return the shape of this rank's cache."""
        (first, last), (low, high) = self.layout.kept(), self.layout.heads()
        return replace(whole, tokens_per_frame=last - first, num_heads=high - low)

    def open(self, model: Model, config: ResolvedConfig, what: str) -> None:
        """Check that all ranks open the same session; ranks may differ in loading time by some timeouts.

        Raises:
            CollectiveError: they do not; names the rank.
        """
        asked = zlib.crc32(repr(config.asked).encode())
        grid = f"{self.layout.degrees.tree} x {self.layout.degrees.ulysses}"
        whole = f"{config.name} ({asked:08x}), {config.dtype}, weights {model.weights_hash[:12]}, {what}, {grid} ranks"
        self.devices.agree(f"session: {whole}", patience=LOADING)
