"""A ring whose finished frames are seen by frames that are not: those are never stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, Positions, RingCache, RingStep, Rotate, Signature, TokenRows
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AheadStep:
    """A pass over frames that are not finished: they see some of the cache and each other, and nothing is stored.

    Args:
        cache: the ring.
        positions: see `strobe.cache.kv.CacheStep`.
        sink: keys of the sink `[L, B, S, H, D]`, turned to their place for this pass.
        rows: rows of the ring behind the sink that are seen, int64 on its device.
    """

    cache: RingCache
    positions: tuple[int, ...]
    sink: Tensor
    rows: Tensor
    reach: None = None

    @property
    def signature(self) -> Signature:
        """See `strobe.cache.kv.CacheStep`."""
        return id(self.cache), len(self.positions), self.sink.shape[2], len(self.rows)

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """See `strobe.cache.kv.CacheStep`."""
        return self.cache.keys[layer], self.cache.values[layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that are seen, those of this pass last; the cache stays as it is."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        sink = self.sink[layer]
        return (
            torch.cat((sink, keys.index_select(1, self.rows), k), dim=1),
            torch.cat((values[:, : sink.shape[1]], values.index_select(1, self.rows), v), dim=1),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LocalStep:
    """A pass of a ring that stores its frames and does not see the sink."""

    step: RingStep
    skipped: int
    reach: None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """See `strobe.cache.kv.CacheStep`."""
        return self.step.positions

    @property
    def signature(self) -> Signature:
        """See `strobe.cache.kv.CacheStep`."""
        return *self.step.signature, self.skipped

    def buffers(self, layer: int) -> tuple[Tensor, ...]:
        """See `strobe.cache.kv.CacheStep`."""
        return self.step.buffers(layer)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v; return what is attended, the first `skipped` rows of the cache left out."""
        keys, values = self.step.write(layer, k, v)
        return keys[:, self.skipped :], values[:, self.skipped :]


class AheadRing(RingCache):
    """A ring at absolute positions for streams that denoise several frame blocks in one pass.

    Finished frames are stored by `finish`. What is not finished yet looks back by `look`: to the sink, whose keys are turned so
    that it stands right before the window, and to the last frames.

    Args: as of `RingCache`, but for `tiles`.

    Raises:
        ConfigError: there is a sink and no `rotate`.

    Source: Rolling Forcing (Liu et al. 2025, arXiv 2509.25161); `wan/modules/causal_model.py` as in winbeau/RollingForcing-fork
    at d8d4693.
    """

    def __init__(
        self,
        shape: CacheShape,
        policy: RingPolicy,
        *,
        device: torch.device,
        dtype: torch.dtype,
        positions: Positions = "absolute",
        rotate: Rotate | None = None,
    ) -> None:
        super().__init__(shape, policy, device=device, dtype=dtype)
        if policy.sink and rotate is None:
            raise ConfigError("a sink that moves along needs `rotate`, the temporal RoPE rotation of the model")
        self._turn = rotate
        self._seen = TokenRows(shape.tokens_per_frame, device)

    def finish(self, first_frame: int, num_frames: int) -> RingStep | LocalStep:
        """Open the next finished frames: they see the frames that fit behind the sink, itself only where it is one of those."""
        step = self.at(first_frame, num_frames)
        assert isinstance(step, RingStep)
        return step if self.end <= self.policy.local else LocalStep(step=step, skipped=self._sink_rows)

    def take_back(self, end: int) -> None:
        """Forget the frames from `end` on, which a frame block that was given up has written."""
        self._go_to(self._origin, end)

    def look(self, num_frames: int, window: int) -> AheadStep:
        """Open the frames behind the last finished one for a look back within `window` latent frames, themselves included.

        Raises:
            ConfigError: they and the sink do not fit into the window.
        """
        first, end = self.end, self.end - self._origin + num_frames  # the latter counted from the sink's first frame
        sink = min(self.policy.sink, end - num_frames)
        recent = range(max(sink, end - window + sink), end - num_frames)
        if sink + len(recent) + num_frames > window:
            raise ConfigError(f"{num_frames} latent frames and a sink of {sink} do not fit into a window of {window}")
        turned = self._sink_keys[:, :, : sink * self.shape.tokens_per_frame]
        if sink:
            kept = self.keys[:, :, : turned.shape[2]]
            turned.copy_(kept)
            if (shift := max(0, end - window)) and self._turn is not None:
                self._turn(kept, shift, turned)
        rows = self._seen.fill(self.policy, recent.start if recent else 0, len(recent))  # which is empty
        return AheadStep(cache=self, positions=tuple(range(first, first + num_frames)), sink=turned, rows=rows)
