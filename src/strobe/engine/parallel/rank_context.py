"""One rank's share of a session: its transformer, decoder and cache in place of those of one device."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from strobe.cache.kv import CacheShape, KVCache
from strobe.engine.decode import FrameDecoder
from strobe.engine.model import Model, ModelParts, latent_shape
from strobe.engine.parallel.cache import SharedCache, share_shape
from strobe.engine.parallel.decode import FramesElsewhere
from strobe.engine.parallel.degrees import degrees
from strobe.engine.parallel.group import LOADING, DeviceGroup
from strobe.engine.parallel.layout import Layout
from strobe.engine.parallel.transformer import SharedTransformer
from strobe.engine.prompts import Change
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.transformer import Transformer


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
            devices=devices,
            layout=Layout(degrees=grid, rank=devices.rank, num_heads=dit.num_heads, tokens_per_frame=tokens),
        )

    def parts(self, model: Model, config: ResolvedConfig, block_tokens: int) -> tuple[Transformer, FrameDecoder]:
        """Return transformer and decoder of this rank."""
        dit = SharedTransformer(model, config, block_tokens, self.layout, self.devices)
        if self.devices.leads:
            return dit, FrameDecoder(model.vae, config)
        return dit, FramesElsewhere(model.defaults.frame_size)

    def shape(self, whole: CacheShape) -> CacheShape:
        """Return the shape of this rank's cache."""
        return share_shape(whole, self.layout)

    def cache(self, own: KVCache) -> SharedCache:
        """Return the shared cache, of which this rank holds `own`."""
        return SharedCache(own, self.layout, self.devices)

    def open(self, model: Model, config: ResolvedConfig, what: str) -> None:
        """Check that all ranks open the same session; ranks may differ in loading time by some timeouts.

        Raises:
            CollectiveError: they do not; names the rank.
        """
        asked = zlib.crc32(repr(config.asked).encode())
        grid = f"{self.layout.degrees.tree} x {self.layout.degrees.ulysses}"
        whole = f"{config.name} ({asked:08x}), {config.dtype}, weights {model.weights_hash[:12]}, {what}, {grid} ranks"
        self.devices.agree(f"session: {whole}", patience=LOADING)

    def follow(self, index: int, weights: str, change: Change | None) -> Change | None:
        """Agree on the next frame block, and return the prompts of rank 0 for it.

        Raises:
            CollectiveError: a rank is about to do something else, is gone, or does not come.
        """
        return self.devices.follow(f"frame block {index}, weights {weights[:12]}", change)
