"""One prepared model, many sessions: they share weights, and nothing of one shows in another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.session import Session
from strobe.models.lora import Lora, LoraPair

PROMPTS = ("red circle", "blue square", "green circle moving")


@pytest.fixture
def model(tiny: Model) -> Model:
    """The tiny model, with nothing prepared of it yet."""
    return replace(tiny)


def addresses(session: Session) -> set[int]:
    stream = session._stream
    return {tensor.data_ptr() for part in (stream._dit.dit, stream._decoder._vae) for tensor in part.state_dict().values()}


def play(session: Session, blocks: int = 4) -> Tensor:
    return torch.cat([block.latents for block in session.stream(blocks)], dim=1)


def style(model: Model) -> Lora:
    weight = model.dit.get_parameter("blocks.0.ffn.0.weight")
    generator = torch.Generator().manual_seed(2)
    down, up = torch.randn(2, weight.shape[1], generator=generator), torch.randn(weight.shape[0], 2, generator=generator)
    return Lora(name="style", weights_hash="7" * 64, pairs={"blocks.0.ffn.0": LoraPair(down=down, up=up)})


@pytest.mark.parametrize("preset", ["baseline", "balanced", EngineConfig(linear_format="int8")])
def test_sessions_share_storage_and_make_what_they_would_alone(
    make: Callable[..., Session], tiny: Model, model: Model, preset: str | EngineConfig
) -> None:
    alone = [play(make(prompt, model=replace(tiny), preset=preset, seed=seed)) for seed, prompt in enumerate(PROMPTS)]
    sessions = [make(prompt, model=model, preset=preset, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    assert addresses(sessions[0]) == addresses(sessions[1]) == addresses(sessions[2])
    streams = [session.stream(4) for session in sessions]
    blocks: list[list[Tensor]] = [[], [], []]
    for _ in range(4):  # in turns
        for found, stream in zip(blocks, streams, strict=True):
            found.append(next(stream).latents)
    for found, expected in zip(blocks, alone, strict=True):
        assert torch.equal(torch.cat(found, dim=1), expected)
    sessions[0].close()
    assert torch.equal(play(sessions[1], 1), play_on(make, tiny, preset))


def play_on(make: Callable[..., Session], tiny: Model, preset: str | EngineConfig) -> Tensor:
    """The fifth frame block of the second session."""
    session = make(PROMPTS[1], model=replace(tiny), preset=preset, seed=1)
    play(session)
    return play(session, 1)


def test_another_configuration_has_weights_of_its_own(make: Callable[..., Session], model: Model) -> None:
    first, second = make(model=model, preset="balanced"), make(model=model, preset=EngineConfig(linear_format="int8"))
    assert not addresses(first) & addresses(second)
    third = make(model=model, preset=replace(EngineConfig(), name="another name"))
    assert addresses(first) == addresses(third)


@pytest.mark.parametrize("way", ["a session", "a fork"])
def test_a_lora_of_one_session_does_not_show_in_another(make: Callable[..., Session], model: Model, way: str) -> None:
    first = make(model=model)
    second = first.fork() if way == "a fork" else make(model=model)
    third = make(model=model)
    expected = play(make(model=replace(model)), 6)
    found = [play(second, 2)]
    third.use_lora(style(model))
    styled = play(third)
    assert not addresses(third) & {p.data_ptr() for p in second._stream._dit.dit.parameters()}
    found.append(play(second, 2))
    first.close()
    fourth = make(model=model)
    fourth.use_lora(style(model))
    assert torch.equal(play(fourth), styled)
    found.append(play(second, 2))
    assert torch.equal(torch.cat(found, dim=1), expected) and not torch.equal(styled, expected[:, : styled.shape[1]])


def test_alone_a_session_changes_its_weights_in_place_and_nobody_finds_them(make: Callable[..., Session], model: Model) -> None:
    session = make(model=model)
    before = addresses(session)
    session.use_lora(style(model))
    assert addresses(session) == before
    other = make(model=model)
    assert not addresses(other) & {p.data_ptr() for p in session._stream._dit.dit.parameters()}
    assert torch.equal(play(other), play(make(model=replace(model))))


def test_prompts_from_two_threads(make: Callable[..., Session], tiny: Model, model: Model) -> None:
    """Two sessions stream in threads of their own and are steered meanwhile; each film is the one it would be alone."""

    def film(session: Session, prompts: tuple[str, ...]) -> Tensor:
        found = []
        for prompt in prompts:
            session.prompt(prompt)
            found.append(play(session, 2))
        return torch.cat(found, dim=1)

    orders = (PROMPTS, PROMPTS[::-1])
    expected = [film(make(model=replace(tiny), seed=seed), order) for seed, order in enumerate(orders)]
    sessions = [make(model=model, seed=seed) for seed in range(2)]
    found: dict[int, Tensor] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: film(sessions[n], orders[n])}))
        for n in range(2)  # type: ignore[misc]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert addresses(sessions[0]) == addresses(sessions[1])
    assert all(torch.equal(found[number], expected[number]) for number in range(2))


def test_what_nobody_uses_is_let_go(make: Callable[..., Session], model: Model) -> None:
    session = make(model=model)
    config = session.config
    assert model.shelf.holds(config)
    session.close()
    del session
    gc.collect()
    assert not model.shelf.holds(config)


def test_room_is_asked_for_once(make: Callable[..., Session], model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second session needs no room for weights that are there."""
    asked: list[int] = []
    monkeypatch.setattr(
        "strobe.engine.memory.check", lambda parts, free, device: asked.append(sum(part.num_bytes for part in parts))
    )
    held = [make(model=model), make(model=model), make(model=replace(model))]
    weights = sum(parameter.nbytes for parameter in model.dit.parameters())
    assert len(held) == 3 and asked[0] == asked[2] and asked[0] - asked[1] >= weights > 0
