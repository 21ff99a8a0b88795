"""Caches of keys and values as a configuration asks for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from strobe.cache.ahead import AheadRing
from strobe.cache.eightbit_ring import EightBitRing
from strobe.cache.kv import CacheShape, KVCache, RingCache
from strobe.cache.quantized import QuantizedRing
from strobe.cache.rolling import RollingCache
from strobe.cache.shots import ShotRing
from strobe.core.errors import ImplUnavailableError
from strobe.core.shapes import LatentShape, TokenGrid
from strobe.engine.attention_format import without_kernel
from strobe.engine.parallel.rank_context import RankContext
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.sparsity import history_tiles
from strobe.models.wan.config import WanConfig
from strobe.models.wan.kernels.api import turn_keys
from strobe.models.wan.rope import rotate_temporal, temporal_turns


def cache_shape(dit: WanConfig, grid: TokenGrid, batch: int) -> CacheShape:
    """Return the shape of the cache of `batch` streams for a token grid."""
    return CacheShape(
        num_layers=dit.num_layers,
        batch=batch,
        tokens_per_frame=grid.tokens_per_frame,
        num_heads=dit.num_heads,
        head_dim=dit.head_dim,
    )


def new_cache(
    dit: WanConfig, latents: LatentShape, config: ResolvedConfig, batch: int, share: RankContext | None = None
) -> KVCache:
    """Create an empty cache for `batch` streams, or this process's share of one."""
    return prepare_cache(dit, latents, config, batch, share)()


def prepare_cache(
    dit: WanConfig, latents: LatentShape, config: ResolvedConfig, batch: int, share: RankContext | None = None
) -> Callable[[], KVCache]:
    """Prepare what outlives a cache, such as tables of tiles, and return a function that makes the cache.

    Args, and what is made: see `new_cache`.

    Raises:
        ImplUnavailableError: attention in eight bits does not run on this device, or not with heads of this size.
    """
    grid = latents.token_grid(dit.patch)
    shape = cache_shape(dit, grid, batch)
    if config.attention_format != "native" and (reason := without_kernel(config.device, config.dtype, dit.head_dim)):
        raise ImplUnavailableError(config.attention_format, reason, ("attention_format 'native'",), what="attention_format")
    kind: Callable[..., KVCache]
    if config.past == "rolling":
        kind = AheadRing
    elif not config.knobs.ring_cache:
        kind = RollingCache
    elif config.attention_format == "int8":
        kind = EightBitRing
    elif config.kv_format == "native":
        kind = partial(RingCache, tiles=history_tiles(grid, config))
    else:
        kind = partial(QuantizedRing, to=config.kv_format)

    def make() -> KVCache:
        cache = kind(
            shape if share is None else share.shape(shape),
            config.policy,
            device=config.device,
            dtype=config.dtype,
            positions=config.positions,
            rotate=partial(_rotate_by_kernel if config.knobs.fused_kernels else rotate_temporal, dit),
        )
        if config.past == "shots":
            assert isinstance(cache, (RingCache, QuantizedRing)) and share is None, "the configuration was checked"
            return ShotRing(cache)
        return cache if share is None else share.cache(cache)

    return make


def _rotate_by_kernel(dit: WanConfig, keys: Tensor, frames: int, out: Tensor) -> None:
    """Rotate keys in time as `rotate_temporal`, in one launch."""
    turn_keys(keys, temporal_turns(dit, frames, keys.device), out, impl="triton")
