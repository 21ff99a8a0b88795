"""How the sink of a configuration's cache is turned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from strobe.cache.kv import CacheStep
from strobe.engine.caches import new_cache
from strobe.engine.config import EngineConfig
from strobe.engine.model import Model, latent_shape
from strobe.engine.resolve import resolve
from strobe.models.wan.kernels import custom_ops


class Kernels:
    """The reference in the place of Triton; notes what it is called with."""

    def __init__(self) -> None:
        self.reference, self.calls = custom_ops.home("reference"), list[tuple[str, tuple[int, ...]]]()

    def home(self, impl: str) -> Any:
        def turn_keys(keys: torch.Tensor, turns: torch.Tensor, out: torch.Tensor) -> None:
            self.calls.append((impl, tuple(keys.shape)))
            self.reference.turn_keys(keys, turns, out)

        return type("Home", (), {"turn_keys": staticmethod(turn_keys)})


def fill(step: CacheStep, layers: int, batch: int, tokens: int) -> None:
    for layer in range(layers):
        generator = torch.Generator().manual_seed(layer + 10 * step.positions[0])
        k, v = (torch.randn(batch, len(step.positions) * tokens, 2, 24, generator=generator) for _ in "kv")
        step.write(layer, k, v)


@pytest.mark.parametrize("kv_format", ["native", "int8"])
def test_with_fused_kernels_one_launch_turns_the_sink(tiny: Model, monkeypatch: pytest.MonkeyPatch, kv_format: Any) -> None:
    """Of all layers and samples, in eight bits of those that are turned at a time; the result is that of the plain path."""
    kernels = Kernels()
    monkeypatch.setattr(custom_ops, "home", kernels.home)
    config = resolve(EngineConfig(window=6, sink=2, kv_format=kv_format), tiny.defaults, torch.device("cpu"))
    assert not config.knobs.fused_kernels
    latents = latent_shape(tiny.defaults, tiny.dit.config)
    states = []
    for fused in (False, True):
        cache = new_cache(tiny.dit.config, latents, replace(config, knobs=replace(config.knobs, fused_kernels=fused)), batch=2)
        tokens = latents.token_grid(tiny.dit.config.patch).tokens_per_frame
        for block in range(4):
            fill(cache.at(3 * block, 3), layers=2, batch=2, tokens=tokens)
        states.append(cache.snapshot())
        assert kernels.calls == ([("triton", (2, 2, 2 * tokens, 2, 24))] * 2 if fused else [])
    plain, fused_state = states
    assert torch.equal(plain.keys, fused_state.keys) and torch.equal(plain.sink_keys, fused_state.sink_keys)
    assert not torch.equal(plain.keys[:, :, : plain.sink_keys.shape[2]], plain.sink_keys)
