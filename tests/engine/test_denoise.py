"""Noise is a pure function of its key, and UniPC goes on from its own latents as the official sampler does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, NoiseSchedule
from strobe.engine.denoise import BlendedText, BlockNoise, denoise, draw
from strobe.engine.model import Model
from strobe.engine.resolve import resolve
from tiny_model import Make, latents

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")


def test_noise_is_a_pure_function_of_its_key() -> None:
    torch.manual_seed(0)
    first = draw(3, 1, 7, 2, torch.empty(3, 4, 5, 5))
    torch.manual_seed(99)
    torch.randn(10)
    state = torch.random.get_rng_state()
    assert torch.equal(draw(3, 1, 7, 2, torch.empty(3, 4, 5, 5)), first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_noise_is_standard_normal_and_stays_what_it_was() -> None:
    noise = draw(0, 0, 0, 0, torch.empty(100_000))
    assert noise.dtype == torch.float32
    assert abs(noise.mean().item()) < 0.02 and abs(noise.std().item() - 1) < 0.02
    # frozen: a published clip must be the same in the next release
    torch.testing.assert_close(draw(1, 2, 3, 4, torch.empty(3)), torch.tensor(FROZEN), rtol=0, atol=ROUNDING)
    torch.testing.assert_close(draw(1, 2, 3, 4, torch.empty(4, 4))[:2], torch.tensor(FROZEN_MANY), rtol=0, atol=ELEMENT)


FROZEN = (1.7519546747207642, -0.849837601184845, -1.3468742370605469)
FROZEN_MANY = ((-1.642806, -0.051508, 0.646219, -1.031250), (0.796351, 0.837152, 0.066836, 0.879593))  # drawn another way


EXACT = tolerance("rounding", "float32")
"""Latents are float32 between steps."""


def schedule(steps: int, shift: float) -> NoiseSchedule:
    return NoiseSchedule(timesteps=tuple(1000 - 1000 * step / steps for step in range(steps)), shift=shift, sampler="unipc")


class Curved:
    """A flow that is no function of the level alone, so that every order of a step shows."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Any]] = []

    def flow(self, latents: Tensor, timestep: float, text: Any, cache: Any) -> Tensor:
        self.told.append((timestep, text))
        x = latents.double()
        return torch.tanh(1.3 * x + timestep / 1000 + 0.7 * x.roll(1, -1))


@pytest.mark.parametrize(("steps", "shift"), [(4, 5.0), (2, 5.0), (1, 5.0), (3, 8.0), (7, 1.0), (12, 5.0)])
def test_it_is_diffusers_unipc(steps: int, shift: float) -> None:
    own, dit = schedule(steps, shift), Curved()
    # in the words of `wan/utils/fm_solvers_unipc.py`: levels and whole timesteps, float64, then float32 and whole numbers
    sigmas = np.linspace(float(np.float32(1 - np.linspace(1, 1 / 1000, 1000)[-1])), 0, steps + 1)[:-1]
    sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    assert list(own.sigmas) == sigmas.astype(np.float32).tolist()
    assert [int(told) for told in own.warped] == (sigmas * 1000).astype(np.int64).tolist()
    theirs = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    theirs.set_timesteps(steps)
    theirs.sigmas = torch.tensor([*own.sigmas, 0.0], dtype=torch.float64)
    x = torch.randn(1, 2, 3, 5, 7, generator=torch.Generator().manual_seed(3))
    late = steps // 2
    text = BlendedText(first="old", last="new", num_last=late, kept="old")  # type: ignore[arg-type]
    found = denoise(dit, BlockNoise(initial=x, renoise=()), own, text, None, lambda: None)  # type: ignore[arg-type]
    assert dit.told == list(zip(own.warped, ["old"] * (steps - late) + ["new"] * late, strict=True))
    expected = x.double()
    for timestep, told in zip(theirs.timesteps, own.warped, strict=True):
        (expected,) = theirs.step(Curved().flow(expected, told, None, None), timestep, expected, return_dict=False)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=EXACT)


def test_a_stream_needs_no_fresh_noise_and_follows_prompts(make: Make, tiny: Model) -> None:
    other = replace(tiny, defaults=replace(tiny.defaults, sampler="unipc"))
    sessions = [make(model=other, preset=preset) for preset in ("quality", "baseline")]
    assert sessions[0]._stream._draw(0).renoise == ()
    first, second = (latents(session.stream(5)) for session in sessions)
    torch.testing.assert_close(first, second, rtol=0, atol=tolerance("stream", "float32"))
    renoised = latents(make().stream(5))
    assert (first - renoised).abs().max() > 0.1
    blended = make(model=other)
    [*blended.stream(1)]
    blended.prompt("blue square", mode="interpolate", over=4)
    (block,) = blended.stream(1)
    assert not torch.equal(block.latents, first[:, 3:6]) and block.latents.isfinite().all()


def test_what_does_not_go_with_it(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="UniPC has no step at timestep 0"):
        NoiseSchedule(timesteps=(1000, 500, 0), shift=5, sampler="unipc")
    rolling = replace(tiny.defaults, past="rolling", sampler="unipc", window=18)
    with pytest.raises(ConfigError, match="has sampler unipc, and this model denoises 4 frame blocks"):
        resolve(EngineConfig(), rolling, torch.device("cpu"))
    again = schedule(4, 5.0).below(0.9)
    assert (again.sampler, again.sigmas) == ("unipc", schedule(4, 5.0).sigmas[2:])
