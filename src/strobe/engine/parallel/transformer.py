"""The transformer of one rank: an ordinary one on this rank's tokens, and one message that gathers the flow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.core.errors import ConfigError
from strobe.engine.config import Knobs
from strobe.engine.graphs import Mode
from strobe.engine.model import Model
from strobe.engine.parallel.cache import SharedStep
from strobe.engine.parallel.group import DeviceGroup
from strobe.engine.parallel.layout import Layout, cut, join, rows
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.transformer import CLEAN, TextContext, Timestep, Transformer

NOT_SHARED = {
    "memory_pool": "a session on several devices has messages that are not recorded, and torch keeps their memory",
}
"""Knobs that do nothing in a session on several devices, and why."""


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


def on_several(config: ResolvedConfig) -> ResolvedConfig:
    """Turn off the knobs that do nothing on several devices, with the reason.

    Raises:
        ConfigError: the past is not simply kept, or attention is in eight bits.
    """
    if config.past != "kept":
        raise ConfigError(f"a past that is {config.past} runs on one device; leave --devices out, or take another recipe")
    if config.attention_format != "native":
        raise ConfigError("attention in eight bits runs on one device; leave --devices out, or use attention_format 'native'")
    states = tuple(
        replace(state, on=False, reason=NOT_SHARED[state.name]) if state.on and state.name in NOT_SHARED else state
        for state in config.knob_states
    )
    return replace(config, knobs=Knobs(**{state.name: state.on for state in states}), knob_states=states)
