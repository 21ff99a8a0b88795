"""A past that is recomputed, against the algorithm of krea's server written out plainly in float64.

The reference keeps nothing between two frame blocks but latents and pixel frames. In every frame block it lays the clean latents
of the past and the noisy ones of the frame block in one row and runs them through the transformer together, under a mask and
with a bias; there is no cache, and keys of the past are computed again in every step. It is written from the description: the
official code's own output was not available.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from past_streams import SHAPE, close, streamed, with_past
from plain_wan import attend, embed_text, passed, turn
from strobe.core.errors import ConfigError
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.denoise import draw
from strobe.engine.load import check_past
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.parallel.rank import on_several
from strobe.engine.presets import preset
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.models.vae.taew import TaewConfig, random_taew

NONE = preset("baseline").knobs


@pytest.fixture(scope="module")
def model(tiny: Model) -> Model:
    return with_past(tiny, "recomputed")


class Reference:
    """One stream: `latents` [F, C, Y, X] and `pixels` [F', 3, Y, X] in [0, 1] of all that was made."""

    def __init__(self, model: Model, kept: int, weight: float) -> None:
        self.model, self.kept, self.weight = model, kept, weight
        self.weights = {name: tensor.double() for name, tensor in model.dit.state_dict().items()}
        self.latents = torch.zeros(0, *SHAPE, dtype=torch.float64)

    def text(self, prompt: str) -> Tensor:
        return embed_text(self.weights, self.model.text.encode([prompt])[0].double())

    def context(self) -> Tensor:
        """Clean latents that come before the next frame block."""
        made, count = self.latents, min(len(self.latents), self.kept)
        if count == 0:
            return made
        behind = made[1:][len(made) - count :] if count > 1 else made[:0]
        if len(made) - 3 < self.kept:
            return torch.cat((made[:1], behind))
        frames = self.decoded()
        before = frames[-(1 + 4 * (count - 1))]  # the oldest of as many pixel frames as `count` latents are of a video
        again = self.model.vae.encode(before.float()[None, None])[0].double()
        return torch.cat((again, behind))

    def decoded(self) -> Tensor:
        """All pixel frames, decoded from the start in one go."""
        frames, _ = self.model.vae.decode_piece(self.latents.float()[None], self.model.vae.empty_memories(), first=True)
        return frames[0]

    def flow(self, context: Tensor, noisy: Tensor, timestep: float, text: Tensor) -> Tensor:
        past, new, size = len(context), len(noisy), (SHAPE[1] // 2, SHAPE[2] // 2)
        tokens = size[0] * size[1]
        block = [frame // 3 for frame in range(past)] + [past] * new  # frames of one number see each other
        see = torch.tensor([[b <= a for b in block] for a in block]).repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
        bias = torch.zeros(see.shape, dtype=torch.float64).masked_fill(~see, -math.inf)
        bias[past * tokens :, tokens : past * tokens] += math.log(self.weight)
        heads = self.model.dit.config.num_heads

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = (torch.cat([turn(part, place, size, heads) for place, part in enumerate(z.chunk(past + new))]) for z in (q, k))
            return attend(q, k, v, heads, bias)

        both, told = torch.cat((context, noisy)), [0.0] * past + [timestep] * new
        return passed(self.weights, self.model.dit.config, both, told, text, attention)[past:]

    def make(self, block: int, size: int, prompt: str, steps: Sequence[tuple[float, float]], sample: int = 0) -> None:
        """Denoise a frame block by pairs of timestep, as the transformer is told, and noise level."""
        context, text = self.context(), self.text(prompt)
        x = draw(0, sample, block, 0, torch.empty(size, *SHAPE)).double()
        for step, (told, sigma) in enumerate(steps):
            x0 = x - sigma * self.flow(context, x, told, text)
            if step + 1 < len(steps):
                after = steps[step + 1][1]
                x = (1 - after) * x0 + after * draw(0, sample, block, step + 1, torch.empty(size, *SHAPE)).double()
        self.latents = torch.cat((self.latents, x0))


SIGMAS = (1.0, 0.9375, 5 / 6, 0.625)
STEPS = tuple((1000 * sigma, sigma) for sigma in SIGMAS)
LAST = (0.0, 0.005 / 1.004)
"""A step that is told 0; the noise is that of the last row of a table of 1000: s = 0.001 under shift 5."""


@torch.no_grad()
def reference(
    model: Model,
    sizes: Sequence[int],
    *,
    kept: int = 3,
    weight: float = 0.3,
    steps: Any = STEPS,
    sample: int = 0,
    prompts: Any = (),
) -> Tensor:
    stream = Reference(model, kept, weight)
    for block, size in enumerate(sizes):
        stream.make(block, size, prompts[block] if prompts else "red circle", steps, sample)
    return stream.latents


@pytest.mark.parametrize("knobs", [Knobs(), NONE, replace_knobs(NONE, ring_cache=True)], ids=["all", "none", "ring"])
def test_a_stream_is_what_the_description_says(build: Callable[..., Session], model: Model, knobs: Knobs) -> None:
    close(streamed(build(preset=EngineConfig(knobs=knobs)), 6)[0], reference(model, [3] * 6))


@pytest.mark.parametrize("window", [4, 5, 7, 9, 12])
def test_any_number_of_frames_may_be_recomputed(build: Callable[..., Session], model: Model, window: int) -> None:
    found = streamed(build(preset=EngineConfig(window=window, past_weight=0.5)), 6)[0]
    close(found, reference(model, [3] * 6, kept=window - 3, weight=0.5))


def test_a_last_step_at_timestep_0(build: Callable[..., Session], model: Model) -> None:
    config = EngineConfig(timesteps=(1000, 750, 500, 250, 0))
    assert build(preset=config).config.calls_per_block == {"denoise_step": 5, "recache": 1}
    close(streamed(build(preset=config), 4)[0], reference(model, [3] * 4, steps=(*STEPS, LAST)))


def test_the_first_frame_is_encoded_again(build: Callable[..., Session], model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session, seen = build(), []
    encode = session._stream._decoder.encode
    monkeypatch.setattr(session._stream._decoder, "encode", lambda frames: seen.append(frames) or encode(frames))
    made = torch.cat([block.samples for block in session.stream(5)], dim=1)
    assert len(seen) == 3, "of the frame blocks after the first two"
    for block, frame in zip((2, 3, 4), seen, strict=True):
        end = 9 + 12 * (block - 1)
        assert torch.equal((frame * 255).round().to(torch.uint8).permute(0, 2, 3, 1), made[:, end - 9])


def test_batches_first_blocks_and_prompts(build: Callable[..., Session], model: Model) -> None:
    session = build(preset=EngineConfig(first_block=1), samples=(0, 4))
    found = []
    for block in range(5):
        if block == 3:
            session.prompt("blue square", mode="recache")
        found.append(streamed(session, 1))
    prompts = ["red circle"] * 3 + ["blue square"] * 2
    for index, sample in enumerate((0, 4)):
        close(torch.cat(found, dim=1)[index], reference(model, [1, 3, 3, 3, 3], sample=sample, prompts=prompts))


def test_a_prepared_prompt_changes_nothing(build: Callable[..., Session]) -> None:
    plain, ahead = build(), build()
    for session in (plain, ahead):
        streamed(session, 3)
        session.prompt("blue square", mode="recache")
    ahead.prepare()
    assert torch.equal(streamed(plain, 2), streamed(ahead, 2))


def test_eight_bits_are_near(build: Callable[..., Session]) -> None:
    native, eight = (streamed(build(preset=EngineConfig(kv_format=kv)), 6) for kv in ("native", "int8"))
    assert 0 < (eight - native).abs().max() < 1


def test_frames_are_never_late_and_memory_is_counted(model: Model) -> None:
    config = resolve(preset("speed"), model.defaults, torch.device("cpu"))
    state = next(state for state in config.knob_states if state.name == "late_frames")
    assert not state.on
    assert "derived from the frames" in state.reason
    kept = resolve(preset("speed"), replace(model.defaults, past="kept", past_weight=1.0), torch.device("cpu"))
    names = {part.name: part.num_bytes for part in predict(model, config)}
    assert names.keys() - {part.name for part in predict(model, kept)} == {"frames to encode again"}
    assert names["frames to encode again"] == 3 * 3 * 32 * 32 * 4
    assert config.pass_frames == {3} and kept.pass_frames == {3, 6}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EngineConfig(sink=3, window=8), "so its sink is 1; custom has 3: give sink 1"),
        (EngineConfig(sparsity=0.5), "does not go with a past that is recomputed"),
        (EngineConfig(window=3), "smallest window with sink 1: 4"),
    ],
)
def test_what_does_not_go_together_is_refused(model: Model, config: EngineConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(config, model.defaults, torch.device("cpu"))


def test_a_weight_needs_such_a_past_and_is_a_factor(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="past_weight 0.5 is for models whose past is recomputed"):
        resolve(EngineConfig(past_weight=0.5), tiny.defaults, torch.device("cpu"))
    with pytest.raises(ConfigError, match="past_weight 0 is not valid"):
        EngineConfig(past_weight=0)


def test_an_autoencoder_that_only_decodes_is_refused(model: Model) -> None:
    check_past(model.defaults, model.vae)
    with pytest.raises(ConfigError, match="a tiny autoencoder only decodes"):
        check_past(model.defaults, random_taew(TaewConfig(), 0))


def test_several_devices_are_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match="runs on one device"):
        on_several(resolve(EngineConfig(), model.defaults, torch.device("cpu")))
