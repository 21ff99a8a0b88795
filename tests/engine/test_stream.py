"""The loop of a stream, prompts made ready ahead of their frame block, and parts that streams share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.models.lora import Lora, LoraPair

NONE = Knobs(**{each.name: False for each in fields(Knobs)})


def play(session: Session, num_blocks: int, **options: Any) -> list[FrameBlock]:
    return list(session.stream(num_blocks, **options))


def latents(blocks: list[FrameBlock]) -> Tensor:
    return torch.cat([block.latents for block in blocks], dim=1)


def frames(blocks: list[FrameBlock]) -> Tensor:
    return torch.cat([block.samples for block in blocks], dim=1)


class TestFrames:
    @pytest.mark.parametrize(
        "knobs", [Knobs(), replace_knobs(Knobs(), block_decode=False), replace_knobs(Knobs(), overlap_decode=False)]
    )
    def test_streamed_frames_equal_one_decode_of_everything(
        self, make: Callable[..., Session], tiny: Model, knobs: Knobs
    ) -> None:
        blocks = play(make(preset=EngineConfig(knobs=knobs)), 5)
        whole = (tiny.vae.decode(latents(blocks)) * 255).round().permute(0, 1, 3, 4, 2)
        assert (frames(blocks).float() - whole).abs().max() <= 1  # a rounding step

    def test_seconds_count_from_here(self, make: Callable[..., Session]) -> None:
        session = make()
        assert sum(len(block.frames) for block in session.stream(seconds=1.0)) == 21
        assert sum(len(block.frames) for block in session.stream(seconds=1.5)) == 24


class TestCaches:
    def test_rebased_streams_stay_finite_far_out(self, make: Callable[..., Session]) -> None:
        """A stream that begins at frame 999,999 equals one that begins at frame 99: only distances count."""
        near, far = make(preset=EngineConfig(window=8, sink=3)), make(preset=EngineConfig(window=8, sink=3))
        results = []
        for session, block in ((near, 33), (far, 333_333)):
            play(session, 1)
            snapshot = session.snapshot()
            history = snapshot.state.history[:, [0] * 8]  # a full window, which nothing derives again here
            moved = replace(
                snapshot,
                state=replace(snapshot.state, next_block=block, history=history),
                cache=replace(snapshot.cache, end=3 * block),
            )
            session.restore(moved)
            stream = session._stream
            noise = stream._draw
            stream._draw = lambda index, noise=noise, block=block: noise(index - block)  # type: ignore[method-assign]
            results.append(latents(play(session, 6)))
        assert results[1].isfinite().all()
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=tolerance("stream far away", "float32"))


class TestKnobs:
    @pytest.mark.parametrize("knob", [each.name for each in fields(Knobs)])
    def test_no_knob_changes_the_result(self, make: Callable[..., Session], knob: str) -> None:
        on, off = (make(preset=EngineConfig(knobs=replace_knobs(NONE, **{knob: value}))) for value in (True, False))
        switch = [Switch(frame_block=5, prompt="blue square")]
        torch.testing.assert_close(
            latents(play(on, 7, switches=switch)),
            latents(play(off, 7, switches=switch)),
            rtol=0,
            atol=tolerance("stream", "float32"),
        )


class TestLockstep:
    def test_each_sample_is_the_stream_it_would_be_alone(self, make: Callable[..., Session]) -> None:
        prompts = ("red circle", "blue square", "green circle")
        together = play(make(prompts, samples=(0, 1, 7)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
        for index, sample in enumerate((0, 1, 7)):
            alone = play(make(prompts[index], samples=(sample,)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
            torch.testing.assert_close(latents(together)[index], latents(alone)[0], rtol=0, atol=tolerance("stream", "float32"))
        assert together[0].prompts == prompts and together[0].prompt == "red circle\nblue square\ngreen circle"
        with pytest.raises(ShapeError, match="3 samples"):
            _ = together[0].frames


Order = tuple[str, str, bool]  # text, mode, made ready at once

CONFIGS = {
    "balanced": EngineConfig(window=8, sink=3),
    "renewed sink": EngineConfig(window=6, sink=1, keep_sink=False),
    "late": EngineConfig(timesteps=(1000, 250), window=6, sink=1, knobs=Knobs(late_frames=True)),
    "rolling": EngineConfig(window=6, sink=2, knobs=Knobs(ring_cache=False)),
    "eight bits": EngineConfig(window=6, sink=2, kv_format="int8"),
}
ORDERS: dict[str, Sequence[Order]] = {
    "one": [("blue square", "recache", True)],
    "another instead": [("blue square", "recache", True), ("green circle", "recache", True)],
    "a soft one instead": [("blue square", "recache", True), ("green circle", "soft", False)],
    "soft": [("green circle", "soft", True)],
    "a hard one after a soft one": [("green circle", "soft", True), ("blue square", "recache", False)],
    "moving over": [("blue square", "recache", True), ("green circle", "interpolate", True)],
}


def follow(session: Session, orders: Sequence[Order], ready: bool, blocks: int) -> Tensor:
    """Latents of some frame blocks, orders, and four more."""
    found = [block.latents for block in session.stream(blocks)] if blocks else []
    for text, mode, ahead in orders:
        session.prompt(text, mode=mode, over=2)  # type: ignore[arg-type]
        if ahead and ready:
            session.prepare()
            session.prepare()  # once is enough
    return torch.cat([*found, *(block.latents for block in session.stream(4))], dim=1)


CASES: list[Any] = [("balanced", orders, 5) for orders in ORDERS] + [("balanced", "one", blocks) for blocks in (0, 2)]
CASES += [pytest.param("balanced", orders, 2, marks=pytest.mark.rest) for orders in ORDERS if orders != "one"]
CASES += [(name, orders, 5) for name in CONFIGS for orders in ("another instead", "a soft one instead") if name != "balanced"]


@pytest.mark.parametrize(("name", "orders", "blocks"), CASES)
def test_the_stream_is_the_same(make: Callable[..., Session], name: str, orders: str, blocks: int) -> None:
    """Before the first frame block, while the window fills, and after."""
    ready, plain = (follow(make(preset=CONFIGS[name]), ORDERS[orders], each, blocks) for each in (True, False))
    assert torch.equal(ready, plain)


def test_the_frame_block_begins_with_its_first_step(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    session = make()
    dit, passes = session._stream._dit, []
    write = dit.write
    monkeypatch.setattr(dit, "write", lambda latents, *rest: passes.append(latents.shape[1]) or write(latents, *rest))
    list(session.stream(4))
    session.prompt("blue square")
    session.prepare()
    assert passes == [3, 3, 3, 3, 12]
    list(session.stream(1))
    assert passes == [3, 3, 3, 3, 12, 3]


def test_what_breaks_off_is_undone(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    session = make()
    list(session.stream(5))
    session.prompt("blue square")
    layer: Any = session._stream._dit.dit.layers[1]
    with monkeypatch.context() as broken:
        broken.setattr(layer, "write_only", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.prepare()
    session.prompt("green circle", mode="soft")
    assert torch.equal(latents_of_next(session), follow(make(), [("green circle", "soft", False)], False, 5)[:, 15:])


PROMPTS = ("red circle", "blue square", "green circle moving")


@pytest.fixture
def model(tiny: Model) -> Model:
    """The tiny model, with nothing prepared of it yet."""
    return replace(tiny)


def addresses(session: Session) -> set[int]:
    stream = session._stream
    return {tensor.data_ptr() for part in (stream._dit.dit, stream._decoder._vae) for tensor in part.state_dict().values()}


def latents_of_next(session: Session, blocks: int = 4) -> Tensor:
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
    alone = [latents_of_next(make(prompt, model=replace(tiny), preset=preset, seed=seed)) for seed, prompt in enumerate(PROMPTS)]
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
    fifth = latents_of_next(make(PROMPTS[1], model=replace(tiny), preset=preset, seed=1), 5)[:, 12:]
    assert torch.equal(latents_of_next(sessions[1], 1), fifth)


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
    expected = latents_of_next(make(model=replace(model)), 6)
    found = [latents_of_next(second, 2)]
    third.use_lora(style(model))
    styled = latents_of_next(third)
    assert not addresses(third) & {p.data_ptr() for p in second._stream._dit.dit.parameters()}
    found.append(latents_of_next(second, 2))
    first.close()
    fourth = make(model=model)
    fourth.use_lora(style(model))
    assert torch.equal(latents_of_next(fourth), styled)
    found.append(latents_of_next(second, 2))
    assert torch.equal(torch.cat(found, dim=1), expected) and not torch.equal(styled, expected[:, : styled.shape[1]])


def test_alone_a_session_changes_its_weights_in_place_and_nobody_finds_them(make: Callable[..., Session], model: Model) -> None:
    session = make(model=model)
    before = addresses(session)
    session.use_lora(style(model))
    assert addresses(session) == before
    other = make(model=model)
    assert not addresses(other) & {p.data_ptr() for p in session._stream._dit.dit.parameters()}
    assert torch.equal(latents_of_next(other), latents_of_next(make(model=replace(model))))


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
