"""Sessions against a causal Wan written out plainly in float64: no cache, no slots, no fused rows, frame by frame.

The plain model keeps keys before RoPE in a dictionary by frame number and turns them to their place when they are attended:
the sink, and the last ``window - sink`` frames with the current ones among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plain_wan import PlainWan
from strobe.core.errors import ConfigError, DataError, ShapeError
from strobe.core.shapes import VaeStride
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, replace_knobs
from strobe.engine.denoise import BlockNoise, draw
from strobe.engine.model import Model
from strobe.engine.prompts import Switch, TextEncoder, blocks_for, parse_switch
from strobe.engine.session import Session
from strobe.engine.start import fitted
from strobe.engine.transformer import Transformer
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from tiny_model import Make, latents

SHAPE = (4, 4, 4)  # C, Y, X of the tiny model's latents
SIGMAS = {5.0: (1.0, 0.9375, 5 / 6, 0.625), 8.0: (1.0, 0.96, 8 / 9, 8 / 11)}


@torch.no_grad()
def plain_stream(
    model: Model,
    config: EngineConfig,
    sizes: Sequence[int],
    start: Tensor | None = None,
    sample: int = 0,
    told: Sequence[Sequence[str]] = (),
) -> Tensor:
    """x0 [F, C, Y, X] of frame blocks of these sizes; the first frames are `start`, if given, or made from it with a strength.

    `told` has the prompt of every pass of every frame block, the commit pass last; all are "red circle" without.
    """
    plain = PlainWan(model)
    sigmas = SIGMAS[config.shift or 5.0]
    sink, window = config.sink or 0, config.window or 0
    done = torch.zeros(0, *SHAPE, dtype=torch.float64)
    for block, size in enumerate(sizes):
        frames = range(len(done), len(done) + size)
        shift = max(0, frames.stop - window) if config.positions == "rebased" else 0
        seen = [frame for frame in range(frames.stop) if frame < sink or frame >= frames.stop - window + sink]
        places = {frame: frame + (shift if frame < sink else 0) for frame in seen}
        prompts = told[block] if told else ["red circle"] * (len(sigmas) + 1)
        given = None if start is None or frames.stop > len(start) else start[frames.start : frames.stop].double()
        if given is not None and not config.strength:
            x = given
        else:
            x = draw(0, sample, block, 0, torch.empty(size, *SHAPE)).double()
            first = 0 if given is None else sum(sigma > config.strength for sigma in sigmas)
            if given is not None:
                x = (1 - sigmas[first]) * given + sigmas[first] * x
            for step, sigma in [*enumerate(sigmas)][first:]:
                x0 = x - sigma * plain.flow(x, [1000 * sigma] * size, plain.text(prompts[step]), places, frames)
                after = sigmas[step + 1] if step + 1 < len(sigmas) else 0.0
                noise = draw(0, sample, block, step + 1, torch.empty(size, *SHAPE)) if after else torch.zeros_like(x0)
                x = (1 - after) * x0 + after * noise.double()
        plain.flow(x, [0.0] * size, plain.text(prompts[-1]), places, frames)
        done = torch.cat((done, x))
    return done


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance("stream", "float32"))


@pytest.mark.parametrize("positions", ["absolute", "rebased"])
@pytest.mark.parametrize(
    ("window", "sink"),
    [
        (12, 3),
        (10, 3),
        (7, 2),
        (6, 3),
        (4, 0),
        *(pytest.param(*each, marks=pytest.mark.rest) for each in ((8, 3), (6, 1), (5, 2), (3, 0))),
    ],
)
def test_windows_are_counted_frame_by_frame(make: Make, tiny: Model, window: int, sink: int, positions: Any) -> None:
    config = EngineConfig(window=window, sink=sink, positions=positions)
    close(latents(make(preset=config).stream(6))[0], plain_stream(tiny, config, [3] * 6))


@pytest.mark.parametrize("shift", [5.0, 8.0])
@pytest.mark.parametrize("preset", ["quality", "baseline"])
def test_shifts_first_blocks_and_batches(make: Make, tiny: Model, shift: float, preset: str) -> None:
    from strobe.engine.presets import PRESETS

    config = replace(PRESETS[preset](), window=8, sink=3, positions="rebased", shift=shift, first_block=1)
    blocks = [*make(preset=config, samples=(0, 4)).stream(5)]
    assert [block.samples.shape[1] for block in blocks] == [1, 12, 12, 12, 12]
    for index, sample in enumerate((0, 4)):
        close(latents(blocks)[index], plain_stream(tiny, config, [1, 3, 3, 3, 3], sample=sample))


@pytest.mark.parametrize("given", [1, 3, 4, 7])
def test_a_stream_may_begin_with_latents(make: Make, tiny: Model, given: int) -> None:
    start = torch.randn(given, *SHAPE, generator=torch.Generator().manual_seed(given))
    config, first = EngineConfig(window=8, sink=3, positions="rebased"), 3 if given == 3 else 1
    session = make(preset=config, start=start)
    blocks = [*session.stream(5)]
    expected = plain_stream(tiny, config, [first, 3, 3, 3, 3], start=start)
    close(latents(blocks)[0], expected)
    assert torch.equal(latents(blocks)[0, :given], start)
    assert (expected[given:] - plain_stream(tiny, config, [first, 3, 3, 3, 3])[given:]).abs().max() > 0.1


@pytest.mark.parametrize(("strength", "steps"), [(0.625, 1), (0.9, 2), (0.95, 3), (1.0, 4)])
def test_a_stream_may_follow_latents(make: Make, tiny: Model, strength: float, steps: int) -> None:
    start = torch.randn(7, *SHAPE, generator=torch.Generator().manual_seed(5))
    config = EngineConfig(window=8, sink=3, positions="rebased", strength=strength)
    session = make(preset=config, start=start)
    assert session.config.again is not None and len(session.config.again.sigmas) == steps
    found = latents(session.stream(5))[0]
    close(found, plain_stream(tiny, config, [1, 3, 3, 3, 3], start=start))
    free = plain_stream(tiny, replace(config, strength=0.0, first_block=1), [1, 3, 3, 3, 3])
    assert (found[:7] - start).abs().max() > 0.1
    if strength == 1.0:
        close(found, free)  # nothing of it is left
    else:
        assert (found[:7] - free[:7]).abs().max() > 0.1


def test_a_clip_is_fitted_to_the_frame_and_to_whole_groups_of_frames(tiny: Model) -> None:
    ramp = torch.arange(64).mul(4).to(torch.uint8)
    clip = ramp.view(1, 1, 64, 1).expand(12, 32, 64, 3)  # twice as wide as the frame
    for given, kept in ((clip, clip[:9, :, 16:48]), (clip.transpose(1, 2), clip[:9, :, 16:48].transpose(1, 2))):
        assert torch.equal(fitted(given, (32, 32), tiny.defaults.stride), kept)  # as much sticks out on either side
    larger = fitted(clip[:1], (64, 64), tiny.defaults.stride)
    assert larger.shape == (1, 64, 64, 3) and larger[0, 0, 0, 0] < larger[0, 0, -1, 0]
    flat = torch.full((6, 50, 70, 3), 77, dtype=torch.uint8)
    assert torch.equal(fitted(flat, (32, 32), tiny.defaults.stride), torch.full((5, 32, 32, 3), 77, dtype=torch.uint8))
    with pytest.raises(DataError, match="the clip has 99999x1 pixels, too long and narrow"):
        fitted(torch.zeros(1, 1, 99_999, 3, dtype=torch.uint8), (32, 32), tiny.defaults.stride)


def test_interpolation_gives_the_last_denoise_steps_to_the_new_prompt_first(make: Make, tiny: Model) -> None:
    config = EngineConfig(window=8, sink=3, positions="rebased")
    switch = Switch(frame_block=1, prompt="blue square", mode="interpolate", over=4)
    old, new = "red circle", "blue square"
    told = [
        [old] * 5,
        [old, old, old, new, old],  # a quarter of the way: keys and values are those of the old prompt
        [old, old, new, new, new],
        [old, new, new, new, new],
        [new] * 5,
        [new] * 5,
    ]
    found = latents(make(preset=config).stream(6, switches=[switch]))[0]
    close(found, plain_stream(tiny, config, [3] * 6, told=told))
    soft = latents(make(preset=config).stream(6, switches=[replace(switch, mode="soft")]))[0]
    close(soft, plain_stream(tiny, config, [3] * 6, told=[told[0], *[told[4]] * 5]))
    assert (found[3:] - soft[3:]).abs().max() > 1e-3


def test_an_image_is_the_first_frame(make: Make, tiny: Model) -> None:
    image = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    blocks = [*make(start=image, samples=(0, 1)).stream(3)]
    encoded = tiny.vae.encode(image.permute(0, 3, 1, 2).unsqueeze(0).float() / 255)
    from_latents = [*make(start=encoded[0], samples=(0, 1)).stream(3)]
    assert [block.samples.shape[1] for block in blocks] == [1, 12, 12]
    assert torch.equal(latents(blocks), latents(from_latents))
    assert torch.equal(blocks[0].latents[1], encoded[0]) and not torch.equal(blocks[1].latents[0], blocks[1].latents[1])


@pytest.mark.parametrize(
    ("start", "config", "said"),
    [
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), {}, r"expected torch.uint8 \[1 \+ 4 n, 32, 32, 3\]"),
        (torch.zeros(1, 4, 4, 5), {}, r"expected \[F, 4, 4, 4\]"),
        (torch.full((1, *SHAPE), float("nan")), {}, "hold NaN or infinity"),
        (torch.zeros(2, *SHAPE), {"first_block": 3}, "give first_block=2, or leave it out"),
        (None, {"first_block": 0}, "first_block 0"),
        (
            torch.zeros(3, *SHAPE),
            {"strength": 0.5},
            r"strength 0.5 leaves no denoise step: .* noise levels 1, 0.938, 0.833, 0.625; give 0.625 or more, or 0",
        ),
        (None, {"strength": -0.1}, r"strength -0.1 is not valid: give 0 \(the clip as it is\) to 1"),
        (None, {"strength": 1.5}, r"strength 1.5 is not valid"),
    ],
)
def test_starts_that_do_not_fit(make: Make, start: Tensor | None, config: dict[str, Any], said: str) -> None:
    with pytest.raises((ShapeError, DataError, ConfigError), match=said):
        make(preset=EngineConfig(**config), start=start)


def test_a_short_first_block_moves_every_time(tiny: Model) -> None:
    """Frame block b >= 1 begins at latent frame 1 + 3 (b - 1), which is pixel frame 1 + 12 (b - 1)."""
    for number in range(1, 6):
        began = 1 + 12 * (number - 1)
        assert blocks_for(began / 16, tiny.defaults, first_block=1) == number
        assert blocks_for((began + 1) / 16, tiny.defaults, first_block=1) == number + 1
        assert parse_switch(f"{began / 16}s:x", tiny.defaults, first_block=1).frame_block == number
    assert blocks_for(1.0, tiny.defaults, first=1, first_block=1) == 2


DATA = Path(__file__).parents[1] / "data" / "causal_wan_tiny.safetensors"
WAN = WanConfig(dim=48, ffn_dim=128, freq_dim=32, text_dim=24, text_len=12, num_heads=2, num_layers=2, latent_channels=16)
DEFAULTS = ModelDefaults(
    frame_size=(32, 64), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0, 750.0, 500.0, 250.0), shift=5.0
)
OFF = Knobs(**{each.name: False for each in fields(Knobs)})
BLOCKS, TOKENS = 7, 8


@cache
def golden() -> dict[str, Tensor]:
    return load_file(DATA)


class GoldenText(TextEncoder):
    """A text encoder that knows two prompts: the names of two tensors of the golden."""

    def check(self, prompts: Sequence[str]) -> None:
        assert all(prompt in golden() for prompt in prompts)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        return torch.cat([golden()[prompt] for prompt in prompts])

    def ready(self, prompts: Sequence[str]) -> bool:
        return True

    def place(self, device: torch.device) -> None:
        pass


@cache
def official() -> Model:
    dit = CausalWan(WAN)
    weights = {name.removeprefix("model."): tensor for name, tensor in golden().items() if name.startswith("model.")}
    dit.load_state_dict(weights, strict=True)
    vae = TinyVAE(TinyVAEConfig(latent_channels=16, widths=(4, 4, 4), encoder_widths=(4, 4, 4)))
    return Model(name="golden", hashed=lambda: "0" * 64, dit=dit, text=GoldenText(), vae=vae, defaults=DEFAULTS)


@dataclass(kw_only=True)
class Recorded:
    """What a run left: x0 [1, 21, C, Y, X], all flows, and the last layer's keys after each frame block, in the order of time."""

    x0: Tensor
    flows: list[Tensor]
    keys: list[Tensor]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stream seven frame blocks with the golden's noise: `run(config, switch before frame block)`."""
    data, flows = golden(), []
    plain = Transformer.flow

    def noise(_seed: int, _samples: Sequence[int], index: int, num_steps: int, *_: Any) -> BlockNoise:
        drawn = data["noise"][:, 3 * index : 3 * index + 3], *data["renoise"][index]
        assert num_steps == len(drawn)
        return BlockNoise(initial=drawn[0], renoise=drawn[1:])

    def flow(self: Transformer, *arguments: Any) -> Tensor:
        flows.append(plain(self, *arguments))
        return flows[-1]

    monkeypatch.setattr("strobe.engine.stream.draw_block", noise)
    monkeypatch.setattr(Transformer, "flow", flow)

    def play(config: EngineConfig, switch: int | None = None) -> Recorded:
        flows.clear()
        switches = [] if switch is None else [Switch(frame_block=switch, prompt="text_after_switch")]
        latents, keys = [], []
        with Session("text", preset=config, model=official(), device="cpu") as session:
            for block in session.stream(BLOCKS, switches=switches):
                latents.append(block.latents)
                keys.append(keys_in_time(session))
        return Recorded(x0=torch.cat(latents, dim=1), flows=list(flows), keys=keys)

    return play


def keys_in_time(session: Session) -> Tensor:
    """The last layer's keys of the frames kept, sink first, then the others in the order of time."""
    held: Any = session._stream._cache
    keys = held.keys[-1].unflatten(1, (-1, TOKENS))
    if session.config.knobs.ring_cache:
        kept = sorted(held.policy.frames(held.end))
        return torch.stack([keys[:, held.policy.slot(frame)] for frame in kept], dim=1)
    return keys[:, : held.policy.filled(held.end)].clone()


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**({"window": 12, "sink": 3, "positions": "absolute", "dtype": "float32"} | changes))


def close_to_golden(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance("element", "float32"))


KNOBS = pytest.mark.parametrize("knobs", [Knobs(), OFF, replace_knobs(OFF, ring_cache=True)], ids=["all", "none", "ring"])


@KNOBS
def test_every_flow_and_key_of_the_official_code(run: Any, knobs: Knobs) -> None:
    found, data = run(config(knobs=knobs)), golden()
    close_to_golden(torch.stack(found.flows), data["flows"])
    for keys, expected in zip(found.keys, data["last_layer_k_after_block"], strict=True):
        close_to_golden(keys, expected.unflatten(1, (-1, TOKENS))[:, : keys.shape[1]])
    assert [keys.shape[1] for keys in found.keys] == [3, 6, 9, 12, 12, 12, 12]


@KNOBS
@pytest.mark.parametrize(
    ("switch", "keep_sink", "name"),
    [
        (None, True, "x0"),
        (2, True, "x0_switch2"),  # the same either way
        (2, False, "x0_switch2"),
        (5, True, "x0_switch5_gs1"),
        (5, False, "x0_switch5_gs0"),
    ],
)
def test_x0_of_the_official_code(run: Any, switch: int | None, keep_sink: bool, name: str, knobs: Knobs) -> None:
    begun = golden()["x0"]  # before a switch a stream is the one without, and only what follows is stored
    expected = begun if switch is None else torch.cat((begun[:, : 3 * switch], golden()[name]), dim=1)
    close_to_golden(run(config(keep_sink=keep_sink, knobs=knobs), switch).x0, expected)
