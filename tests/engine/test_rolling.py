"""Several frame blocks in a pass, against the algorithm of Rolling Forcing written out plainly in float64.

The reference follows the windows of the official loop one by one and keeps, of every finished frame, its keys before RoPE and its
values in a dictionary; what a window sees of them is listed frame by frame. It is written from the description: the official
code's own output was not available.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from past_streams import FIVE, SHAPE, close, streamed, with_past
from plain_wan import attend, embed_text, passed, turn
from strobe.cache.rings import AheadRing
from strobe.core.errors import ConfigError
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.denoise import draw
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.parallel.rank import on_several
from strobe.engine.presets import preset
from strobe.engine.resolve import resolve
from strobe.engine.session import Session


@pytest.fixture(scope="module")
def model(tiny: Model) -> Model:
    return with_past(tiny, "rolling")


class Reference:
    """`held[layer][frame]` is the pair (keys before RoPE, values) of a finished frame."""

    def __init__(self, model: Model, most: int) -> None:
        self.model, self.most = model, most  # latent frames that are attended at most
        self.weights = {name: tensor.double() for name, tensor in model.dit.state_dict().items()}
        self.held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(model.dit.config.num_layers)]

    def run(self, x: Tensor, told: Sequence[float], text: Tensor, first: int, seen: dict[int, int], keep: bool) -> Tensor:
        """A pass over frames from `first` on that see each other and finished ones, each at a place in time."""
        heads, size = self.model.dit.config.num_heads, (SHAPE[1] // 2, SHAPE[2] // 2)
        own = range(first, first + len(x))

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            queries, keys = (
                torch.cat([turn(part, place, size, heads) for place, part in zip(own, z.chunk(len(x)), strict=True)])
                for z in (q, k)
            )
            held = self.held[layer]
            before = [turn(held[frame][0], place, size, heads) for frame, place in seen.items()]
            if keep:
                held.update(zip(own, zip(k.chunk(len(x)), v.chunk(len(x)), strict=True), strict=True))
            values = [*(held[frame][1] for frame in seen), v]
            return attend(queries, torch.cat([*before, keys]), torch.cat(values), heads)

        return passed(self.weights, self.model.dit.config, x, told, text, attention)


@torch.no_grad()
def reference(
    model: Model,
    number: int,
    *,
    timesteps: Sequence[float] = FIVE,
    window: int = 24,
    sample: int = 0,
    switch: tuple[int, str] = (1000, ""),
) -> Tensor:
    """x0 [F, C, Y, X] of the first `number` frame blocks of a stream without end."""
    stream, steps, size = Reference(model, window - 3), len(timesteps), 3
    sigmas = [5 * t / (1000 + 4 * t) for t in timesteps]
    s = torch.linspace(1, 0, 1001)[[1000 - int(t) for t in timesteps]]
    table = (1000 * (5 * s / (1 + 4 * s))).tolist()  # in float32, as the transformer is told
    text = {word: embed_text(stream.weights, model.text.encode([word])[0].double()) for word in ("red circle", "blue square")}
    noisy: dict[int, Tensor] = {}
    done = []

    def noise(block: int, step: int) -> Tensor:
        return draw(0, sample, block, step, torch.empty(size, *SHAPE)).double()

    for index in range(number + steps - 1):  # windows
        start = max(0, index - steps + 1)
        prompt = text["blue square" if start >= switch[0] else "red circle"]
        noisy[index] = noise(index, 0)
        blocks = [*range(start, index + 1)]
        levels = [index - block for block in blocks]
        x = torch.cat([noisy[block] for block in blocks])
        told = [table[level] for level in levels for _ in range(size)]
        first, end = start * size, (index + 1) * size
        if start == 0:
            seen = {}  # the official code attends to nothing but the window
        else:
            recent = range(max(3, end - stream.most + 3), first)
            seen = {frame: first - len(recent) - 3 + frame for frame in range(3)} | {frame: frame for frame in recent}
        flow = stream.run(x, told, prompt, first, seen, keep=False)
        for block, level, part, v in zip(blocks, levels, x.split(size), flow.split(size), strict=True):
            x0 = part - sigmas[level] * v
            if level + 1 < steps:
                noisy[block] = (1 - sigmas[level + 1]) * x0 + sigmas[level + 1] * noise(block, level + 1)
            elif block == start:
                kept = {frame: frame for frame in range(max(0, first + size - stream.most), first)}
                stream.run(x0, [0.0] * size, prompt, first, kept, keep=True)
                done.append(x0)
    return torch.cat(done)[: number * size]


@pytest.mark.parametrize("knobs", [Knobs(), replace_knobs(preset("baseline").knobs, ring_cache=True)], ids=["all", "none"])
def test_a_stream_is_what_the_description_says(build: Callable[..., Session], model: Model, knobs: Knobs) -> None:
    close(streamed(build(preset=EngineConfig(knobs=knobs)), 12)[0], reference(model, 12))


@pytest.mark.parametrize(
    ("window", "timesteps"), [(12, (1000, 500)), (9, (1000,)), (18, (1000, 600, 200)), (15, (1000, 600, 200))]
)
def test_other_numbers_of_steps_and_windows(
    build: Callable[..., Session], model: Model, window: int, timesteps: tuple[float, ...]
) -> None:
    session = build(preset=EngineConfig(window=window, timesteps=timesteps), samples=(0, 4))
    found = streamed(session, 8)
    for row, sample in enumerate((0, 4)):
        close(found[row], reference(model, 8, timesteps=timesteps, window=window, sample=sample))


def test_a_soft_switch_acts_on_all_frame_blocks_under_way(build: Callable[..., Session], model: Model) -> None:
    session = build()
    before = streamed(session, 3)
    session.prompt("blue square", mode="soft")
    found = torch.cat([before, streamed(session, 3)], dim=1)[0]
    close(found, reference(model, 6, switch=(3, "blue square")))
    session.prompt("red circle", mode="recache")
    assert torch.isfinite(streamed(session, 2)).all()


def test_a_frame_block_that_failed_is_made_again(build: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = streamed(build(), 10)
    session = build()
    found = [streamed(session, 8)]
    past = session._stream._past
    close_block = past.close

    def fails(*given: Any) -> None:
        close_block(*given)
        raise RuntimeError("after the last pass")

    monkeypatch.setattr(past, "close", fails)
    with pytest.raises(RuntimeError, match="after the last pass"):
        streamed(session, 1)
    monkeypatch.setattr(past, "close", close_block)
    found.append(streamed(session, 2))
    assert torch.equal(torch.cat(found, dim=1), expected)


def test_a_stream_may_begin_with_latents(build: Callable[..., Session]) -> None:
    start = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    found = streamed(build(start=start), 4)
    assert torch.equal(found[0, :6], start.double())
    assert torch.isfinite(found).all()
    with pytest.raises(ConfigError, match="first_block 1"):
        build(start=start[:1])


def test_memory_and_calls(model: Model) -> None:
    config = resolve(EngineConfig(), model.defaults, torch.device("cpu"))
    assert config.calls_per_block == {"denoise_step": 1, "commit": 1}
    assert config.pass_frames == {3, 6, 9, 12, 15, 24}
    names = {part.name: part.num_bytes for part in predict(model, config)}
    dit = model.dit.config
    assert names["modulation tables"] == (6 + 45) * (6 * dit.num_layers + 2) * dit.dim * 4


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("turbo", "turbo has window 8, and this model denoises 3 frame blocks of 3 at once: it needs a window of 15"),
        ("sparse", "sparse has sparsity 0.8"),
        ("low_memory", "kv_format 'int8'"),
        ("baseline", "knob ring_cache off"),
        ("ultra", "window 6 and sink 1"),
    ],
)
def test_what_does_not_go_together_is_refused(model: Model, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(replace(preset(name), simulate=True), model.defaults, torch.device("cpu"))
    with pytest.raises(ConfigError, match="past that is rolling runs on one device"):
        on_several(resolve(EngineConfig(), model.defaults, torch.device("cpu")))


def test_a_look_back_that_does_not_fit(build: Callable[..., Session]) -> None:
    cache = build()._stream._cache
    assert isinstance(cache, AheadRing)
    with pytest.raises(ConfigError, match="12 latent frames and a sink of 0 do not fit into a window of 9"):
        cache.look(12, 9)
