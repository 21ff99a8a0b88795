"""A model, and what of it is prepared for one configuration and device, shared by any number of streams."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakSet, WeakValueDictionary

from strobe.core.shapes import LatentShape
from strobe.engine.config import ModelDefaults
from strobe.engine.decode import FrameDecoder, VideoVAE
from strobe.engine.prompts import TextEncoder
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.transformer import Transformer
from strobe.models.lora import Lora
from strobe.models.wan import CausalWan
from strobe.models.wan.config import WanConfig


class PreparedModel:
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
        self.changed = False
        """The weights are no longer those of the model, because their one user has other LoRAs."""

    def parts(self) -> tuple[Transformer, FrameDecoder]:
        """Return transformer and decoder for one more stream."""
        transformer = self._transformer.share()
        self.joined(transformer)
        return transformer, self._decoder.share()

    def joined(self, user: Transformer) -> PreparedModel:
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
                self.changed = True
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
        self._held: WeakValueDictionary[ResolvedConfig, PreparedModel] = WeakValueDictionary()
        self._lock = threading.Lock()

    def holds(self, config: ResolvedConfig) -> bool:
        """Return whether a stream of this configuration would find the weights on their device."""
        found = self._held.get(_key(config))
        return found is not None and not found.changed

    def take(self, model: Model, config: ResolvedConfig) -> PreparedModel:
        """Return what was prepared for a configuration; prepare it if there is none."""
        with self._lock:
            found = self._held.get(_key(config))
            if found is None or found.changed:
                found = self._held[_key(config)] = PreparedModel(model, config)
            return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParts:
    """Sizes of a model's parts, from which its memory follows; nothing needs to be loaded.

    Args:
        dit: the transformer, on any device, the meta device included.
        vae: the autoencoder, likewise.
        defaults: frame size, frame block and stride.
        loras: updates of the transformer.
    """

    dit: CausalWan
    vae: VideoVAE
    defaults: ModelDefaults
    loras: tuple[Lora, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(ModelParts):
    """A model: everything that turns a prompt into frames. Its parts are on the CPU; a session copies what it changes.

    Args:
        name: "shapes", a size of Wan or the folder it was read from; says so if weights are random.
        hashed: returns `weights_hash`; may wait for a thread that reads the files.
        text: encodes prompts.
        loras: that sessions run with, those that belong to the weights first.
        random_weights: frames mean nothing, so quality must not be judged.
        notes: what a caller should be told about the choices that were made, a line each.
        shelf: what is on a device and in use; sessions of this model share it.
    """

    name: str
    hashed: Callable[[], str] = field(compare=False, repr=False)
    text: TextEncoder
    random_weights: bool = False
    notes: tuple[str, ...] = ()
    shelf: Shelf = field(default_factory=Shelf, init=False, compare=False, repr=False)

    @property
    def weights_hash(self) -> str:
        """sha256 over names and contents of the weight files, hexadecimal."""
        return self.hashed()


def _key(config: ResolvedConfig) -> ResolvedConfig:
    return replace(config, asked=replace(config.asked, name=""))


def latent_shape(defaults: ModelDefaults, config: WanConfig) -> LatentShape:
    """Return the latent shape of one frame block of a model, the first of a stream perhaps excepted."""
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    return LatentShape(frames=defaults.frame_block, channels=config.latent_channels, height=height, width=width)
