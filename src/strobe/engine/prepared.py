"""A model prepared for one configuration and device, shared by any number of streams."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from strobe.core.shapes import LatentShape
from strobe.engine.config import ModelDefaults, ResolvedConfig
from strobe.engine.decode import FrameDecoder
from strobe.engine.transformer import Transformer
from strobe.models.wan.config import WanConfig

if TYPE_CHECKING:
    from strobe.engine.load import Model


class Prepared:
    """Transformer and decoder of a model on their devices, in the dtype and with the knobs of a configuration.

    Streams run copies that share the weights. What a stream records, remembers and caches is its own.

    Args:
        model: weights; left as they are.
        config: what to prepare for.
    """

    def __init__(self, model: Model, config: ResolvedConfig) -> None:
        self._model, self._config = model, config
        self._transformer, self._decoder = self._made(), FrameDecoder(model.vae, config)
        self._users: WeakSet[Transformer] = WeakSet()
        self._lock = threading.Lock()
        self._changed = False

    @property
    def changed(self) -> bool:
        """Whether the weights are no longer those of the model, because their one user has other LoRAs."""
        return self._changed

    def parts(self) -> tuple[Transformer, FrameDecoder]:
        """Return transformer and decoder for one more stream."""
        transformer = self._transformer.share()
        self.joined(transformer)
        return transformer, self._decoder.share()

    def joined(self, user: Transformer) -> Prepared:
        """Note a transformer that shares the weights, and return this object."""
        with self._lock:
            self._users.add(user)
        return self

    def release(self, user: Transformer) -> None:
        """Note that a stream has ended."""
        with self._lock:
            self._users.discard(user)

    def alone(self, user: Transformer) -> Transformer:
        """Return a transformer whose weights the stream may change: its own, or a copy if others use the weights too.

        The copy has the same runner, which has to record its passes anew.
        """
        with self._lock:
            if {*self._users} <= {user}:
                self._changed = True
                return user
            self._users.discard(user)
        copy = self._made().share(user.runner)
        copy.runner.reset()
        return copy

    def _made(self) -> Transformer:
        shape = latent_shape(self._model.defaults, self._model.dit.config)
        block_tokens = shape.token_grid(self._model.dit.config.patch).num_tokens
        return Transformer(self._model.dit, self._config, block_tokens, self._model.loras)


class Shelf:
    """Prepared parts of one model, kept for as long as a stream or a caller holds them."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[ResolvedConfig, Prepared] = WeakValueDictionary()
        self._lock = threading.Lock()

    def holds(self, config: ResolvedConfig) -> bool:
        """Return whether a stream of this configuration would find the weights on their device."""
        found = self._held.get(_key(config))
        return found is not None and not found.changed

    def take(self, model: Model, config: ResolvedConfig) -> Prepared:
        """Return what was prepared for a configuration; prepare it if there is none."""
        with self._lock:
            found = self._held.get(_key(config))
            if found is None or found.changed:
                found = self._held[_key(config)] = Prepared(model, config)
            return found


def _key(config: ResolvedConfig) -> ResolvedConfig:
    """Return a configuration without its name."""
    return replace(config, asked=replace(config.asked, name=""))


def latent_shape(defaults: ModelDefaults, config: WanConfig) -> LatentShape:
    """Return the latent shape of one frame block of a model, the first of a stream perhaps excepted."""
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    return LatentShape(frames=defaults.frame_block, channels=config.latent_channels, height=height, width=width)
