"""The cache of one rank: its heads of its share of every latent frame, and the messages that attention over all of them takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strobe.attention.tree.comm import Call
from strobe.attention.tree.local import Shard, local_attention
from strobe.attention.tree.placement import Mask, Segment
from strobe.attention.tree.wire import merge_messages, pack_state
from strobe.cache.kv import CacheShape, CacheState, CacheStep, KVCache
from strobe.cache.rows import Signature
from strobe.cache.tiled import Reach
from strobe.core.errors import ShapeError
from strobe.core.spans import ATTENTION_KERNEL, span
from strobe.engine.parallel.group import DeviceGroup
from strobe.engine.parallel.layout import Layout
from strobe.models.wan.layers import Attend


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedStep:
    """One pass over a `SharedCache`: `step` is that of this rank's cache, `call` what its messages belong to."""

    layout: Layout
    step: CacheStep
    call: Call

    @property
    def positions(self) -> tuple[int, ...]:
        """Temporal RoPE index of each frame of the pass."""
        return self.step.positions

    @property
    def reach(self) -> Reach | None:
        """Of this rank's cache."""
        return self.step.reach

    @property
    def signature(self) -> Signature | None:
        """Of this rank's cache: its messages are the same wherever its pass is. A recorded pass sends those of the `call` it was
        recorded in, whose number nobody reads.
        """
        return self.step.signature

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """Of this rank's cache."""
        return self.step.buffers(layer)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store this rank's k and v `[B, F * n, H, D]` where they are kept; return what this rank's cache keeps."""
        both = torch.stack((k, v), dim=2)  # [B, F * n, 2, H, D]
        nothing = both[:0]
        sends = [both[:, :, :, slice(*self.layout.heads(rank))] if rank in self.layout.row else nothing for rank in self._ranks]
        shapes = [self._shape(rank, both.shape[0], 2, both.shape[4]) if rank in self.layout.row else (0,) for rank in self._ranks]
        arrived = self.call.exchange(sends, shapes).wait()
        new = self._whole([arrived[rank] for rank in self.layout.row])
        return self.step.write(layer, new[:, :, 0], new[:, :, 1])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Attention of this rank's tokens, all heads, over what all ranks keep; k and v are stored first.

        Two messages: queries of the heads of a column go to all ranks of it, with keys and values to the one that keeps them;
        then partial results come back with their lse, and merge where the tokens are.

        Args:
            layer: number of the layer.
            q, k, v: of this rank's tokens `[B, F * n, H, D]`, q and k after RoPE.
            attend: attention over what a cache keeps; used where one rank keeps all keys of its heads.
        """
        q, new = self._out(q, k, v)
        kept = self.step.write(layer, *new)
        if self.layout.degrees.tree == 1:
            return self._back(attend(q, new, kept, self.step.reach, layer))
        with span(ATTENTION_KERNEL):
            keys = Shard(k=kept[0], v=kept[1], segments=(Segment(start=0, length=kept[0].shape[1]),))
            part = local_attention(q, keys, Mask(), (0, q.shape[1]), q.shape[3] ** -0.5)
        packed = self._back(pack_state(part))  # [B, F * n, T * H, W]
        return merge_messages(packed.chunk(self.layout.degrees.tree, dim=2), q.shape[3]).out

    def gather(self, part: Tensor) -> list[Tensor]:
        """Every rank's part `[B, F, C, ph, n * pw]` of a flow, on every rank."""
        own, counts = self.layout.counts[self.layout.rank], self.layout.counts
        width = part.shape[4] // own
        return self.call.gather(part, [(*part.shape[:4], count * width) for count in counts])

    @property
    def _ranks(self) -> range:
        return range(self.layout.degrees.num_ranks)

    def _shape(self, rank: int, batch: int, number: int, width: int) -> tuple[int, ...]:
        """What a rank sends: `number` tensors of its tokens, this rank's heads."""
        start, stop = self.layout.heads()
        return batch, len(self.positions) * self.layout.counts[rank], number, stop - start, width

    def _out(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Queries of all tokens, keys and values of the tokens kept here, this rank's heads."""
        three = torch.stack((q, k, v), dim=2)  # [B, F * n, 3, H, D]
        numbers = [3 if rank in self.layout.row else 1 for rank in self._ranks]
        sends = [three[:, :, :number, slice(*self.layout.heads(rank))] for rank, number in enumerate(numbers)]
        shapes = [self._shape(rank, q.shape[0], number, q.shape[3]) for rank, number in enumerate(numbers)]
        arrived = self.call.exchange(sends, shapes).wait()
        new = self._whole([arrived[rank][:, :, 1:] for rank in self.layout.row])
        return self._whole([each[:, :, 0] for each in arrived]), (new[:, :, 0], new[:, :, 1])

    def _back(self, out: Tensor) -> Tensor:
        """From all tokens, this rank's heads `[B, F * N, h, W]`, to this rank's tokens, the heads of all ranks, in rank order."""
        frames = out.unflatten(1, (len(self.positions), -1))
        sends = [each.flatten(1, 2) for each in frames.split(self.layout.counts, dim=2)]
        own = tuple(sends[self.layout.rank].shape)
        return torch.cat(self.call.exchange(sends, [own] * len(sends)).wait(), dim=2)

    def _whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Tokens of some ranks `[B, F * n_r, ...]`, frame by frame in rank order."""
        frames = len(self.positions)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in parts], dim=2).flatten(1, 2)


class SharedCache:
    """A cache that is spread over ranks: each has an ordinary one for its share, and nobody holds what another owns.

    A snapshot is the whole cache on every rank, as one device would have it, and may be restored by any number of ranks.

    Args:
        cache: of this rank, in the shape of `share_shape`.
        layout: who has what.
        devices: the ranks.
    """

    def __init__(self, cache: KVCache, layout: Layout, devices: DeviceGroup) -> None:
        self._cache = cache
        self._layout = layout
        self._devices = devices

    @property
    def end(self) -> int:
        """Frame number after the last frame written."""
        return self._cache.end

    def at(self, first_frame: int, num_frames: int) -> SharedStep:
        """See `RingCache.at`."""
        step = self._cache.at(first_frame, num_frames)
        return self._step(step, f"latent frames {first_frame}..{first_frame + num_frames - 1}")

    def rewrite(self, end: int | None = None, *, keep_sink: bool) -> SharedStep:
        """See `RingCache.rewrite`."""
        step = self._cache.rewrite(end, keep_sink=keep_sink)
        return self._step(step, f"window before latent frame {step.positions[-1] + 1} again")

    def reset(self) -> None:
        """Forget every frame."""
        self._cache.reset()

    def snapshot(self) -> CacheState:
        """The whole cache, gathered; all ranks call it.

        Raises:
            CollectiveError: a rank does not come, or is gone.
        """
        state = self._cache.snapshot()
        call = self._devices.begin("snapshot")
        whole = _each(state, lambda part: self._gather(call, part))
        self._devices.settle()
        return whole

    def restore(self, state: CacheState) -> None:
        """Keep this rank's share of a snapshot of the whole cache.

        Raises:
            ShapeError: the snapshot has another shape.
        """
        self._cache.restore(_each(state, self._share))

    def _step(self, step: CacheStep, what: str) -> SharedStep:
        return SharedStep(layout=self._layout, step=step, call=self._devices.begin(what))

    def _gather(self, call: Call, part: Tensor) -> Tensor:
        """A tensor `[L, B, rows, h, D]` of every rank, to that of one device."""
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
        """The way back of `_gather`."""
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
        """Tokens of a frame that each rank keeps."""
        return [stop - start for start, stop in map(self._layout.kept, range(self._layout.degrees.num_ranks))]


def share_shape(shape: CacheShape, layout: Layout) -> CacheShape:
    """The shape of a rank's own cache."""
    (first, last), (low, high) = layout.kept(), layout.heads()
    return replace(shape, tokens_per_frame=last - first, num_heads=high - low)


def _each(state: CacheState, change: Callable[[Tensor], Tensor]) -> CacheState:
    return replace(state, keys=change(state.keys), values=change(state.values), sink_keys=change(state.sink_keys))
