"""Streams in shots, against the official buffer written out plainly in float64: frames in a list that rolls around pinned ones.

The reference keeps keys before RoPE and values of every finished frame for ever, each with its place in time. Which of them a
frame block sees is what lies in the official buffer; its steps are diffusers' UniPC. It is written from the description: the
official code's own output was not available.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UniPCMultistepScheduler
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fault_snapshots import resealed
from past_streams import FOUR, SHAPE, Cuts, close, streamed, with_past
from plain_wan import attend, embed_text, passed, turn
from strobe.cache.policy import ShotPolicy
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.engine.config import EngineConfig, NoiseSchedule
from strobe.engine.denoise import draw
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.parallel.rank import on_several
from strobe.engine.presets import preset
from strobe.engine.prompts import offered_modes
from strobe.engine.resolve import resolve
from strobe.engine.session import Session

SIZE, SINK, WINDOW = 3, 3, 12


class Buffer:
    """The official cache: frames in order, and where the pinned ones begin. It counts in frames, the official code in tokens."""

    def __init__(self, window: int = WINDOW, sink: int = SINK) -> None:
        self.window, self.sink = window, sink
        self.frames: list[int] = []
        self.start, self.length = -1, 0

    def insert(self, new: range) -> None:
        pinned = self.start >= 0 and self.length > 0
        safe = self.sink + self.length if pinned and self.start == self.sink else self.sink
        evicted = max(0, len(self.frames) + len(new) - self.window)
        self.frames = self.frames[:safe] + self.frames[safe + evicted :] + [*new]
        self.start -= evicted if pinned and self.start >= safe else 0

    def pin(self, count: int) -> None:
        self.start, self.length = len(self.frames) - count, min(self.sink, count)


@torch.no_grad()
def reference(model: Model, number: int, cuts: Cuts, soft: Cuts, sample: int = 0) -> Tensor:
    """x0 [F, C, Y, X] of the first frame blocks of a stream."""
    config, weights = model.dit.config, {name: tensor.double() for name, tensor in model.dit.state_dict().items()}
    held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(config.num_layers)]
    place: dict[int, int] = {}
    buffer, prompt, levels, done = Buffer(), "red circle", NoiseSchedule(timesteps=FOUR, shift=5, sampler="unipc"), []
    grid, heads = (SHAPE[1] // 2, SHAPE[2] // 2), config.num_heads

    def run(x: Tensor, told: float, own: range, text: Tensor, *, keep: bool) -> Tensor:
        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if keep:
                held[layer].update(zip(own, zip(k.chunk(SIZE), v.chunk(SIZE), strict=True), strict=True))
            now = held[layer] | dict(zip(own, zip(k.chunk(SIZE), v.chunk(SIZE), strict=True), strict=True))
            queries = torch.cat([turn(part, place[each], grid, heads) for each, part in zip(own, q.chunk(SIZE), strict=True)])
            keys = torch.cat([turn(now[each][0], place[each], grid, heads) for each in buffer.frames])
            return attend(queries, keys, torch.cat([now[each][1] for each in buffer.frames]), heads)

        return passed(weights, config, x, [told] * SIZE, text, attention)

    for index in range(number):
        prompt = (cuts | soft).get(index, prompt)  # type: ignore[operator]
        own = range(index * SIZE, (index + 1) * SIZE)
        place |= {frame: frame + SINK * sum(cut <= index for cut in cuts) for frame in own}
        text = embed_text(weights, model.text.encode([prompt])[0].double())
        buffer.insert(own)
        solver = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5)
        solver.set_timesteps(len(FOUR))
        solver.sigmas = torch.tensor([*levels.sigmas, 0.0], dtype=torch.float64)
        x = draw(0, sample, index, 0, torch.empty(SIZE, *SHAPE)).double()
        for step, told in zip(solver.timesteps, levels.warped, strict=True):
            (x,) = solver.step(run(x, told, own, text, keep=False), step, x, return_dict=False)
        run(x, 0.0, own, text, keep=True)
        if index in cuts:
            buffer.pin(SIZE)
        done.append(x)
    return torch.cat(done)


@pytest.fixture(scope="module")
def model(tiny: Model) -> Model:
    return with_past(tiny, "shots")


TWO_SHOTS = {3: "blue square", 4: "red square", 9: "green circle"}
"""The second one while the first is still young, the third when the second is alone at the front."""


@pytest.mark.parametrize("cuts", [{}, {1: "blue square"}, TWO_SHOTS], ids=["one shot", "two", "four"])
def test_a_stream_is_what_the_description_says(build: Callable[..., Session], model: Model, cuts: Cuts) -> None:
    session = build(samples=(0, 4))
    found = streamed(session, 13, cuts)
    for row, sample in enumerate((0, 4)):
        close(found[row], reference(model, 13, cuts, {}, sample))


def test_a_prompt_within_a_shot_leaves_the_past_alone(build: Callable[..., Session], model: Model) -> None:
    session = build()
    before = streamed(session, 3)
    session.prompt("blue square", mode="shot")
    middle = streamed(session, 2)
    session.prompt("green square")  # a recache, which these models do not have
    found = torch.cat([before, middle, streamed(session, 3)], dim=1)[0]
    close(found, reference(model, 8, {3: "blue square"}, {5: "green square"}))


def test_a_first_prompt_begins_no_second_shot(build: Callable[..., Session]) -> None:
    session = build(prompt=None)
    session.prompt("red circle", mode="shot")
    assert torch.equal(streamed(session, 4), streamed(build(), 4))


@given(cuts=st.sets(st.integers(1, 30)), sink=st.integers(0, 3), spare=st.integers(0, 3))
def test_slots_hold_what_the_buffer_holds(cuts: set[int], sink: int, spare: int) -> None:
    size = sink or 2
    policy, buffer = ShotPolicy(window=2 * sink + (1 + spare) * size, sink=sink), Buffer(2 * sink + (1 + spare) * size, sink)
    for index in range(32):
        own = range(index * size, (index + 1) * size)
        policy = policy.opened(own.start, size, cut=index in cuts)
        buffer.insert(own)
        assert not sink or not policy.fault(own.stop)
        kept = [frame for frame in buffer.frames if frame >= sink]
        assert sorted(frame for frame in policy.held if frame >= 0) == sorted(kept)
        assert {policy.slot(frame) for frame in buffer.frames} == set(range(policy.filled(own.stop)))
        if index in cuts and sink:
            buffer.pin(size)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda shots: shots["held"].pop(), "8 slots behind the sink"),
        (lambda shots: shots["held"].__setitem__(0, shots["held"][1]), "9 frames in them"),
        (lambda shots: shots["held"].__setitem__(0, -1), "8 frames in them"),
        (lambda shots: shots["held"].__setitem__(0, 21), "not written"),
        (lambda shots: shots["held"].__setitem__(0, 1), "not written, or are the sink's"),
        (lambda shots: shots["held"].__setitem__(shots["held"].index(20), 4), "no slot for a frame that stays"),
        (lambda shots: shots.update(pinned=[3, 3]), "no slot for a frame that stays"),
        (lambda shots: shots.update(pinned=[19, 3]), "3 frames pinned from frame 19 on"),
        (lambda shots: shots.update(cuts=0), "0 shots begun"),
        (lambda shots: shots.update(cuts=1 << 60), "shots begun"),
        (lambda shots: shots.update(sink=0), "does not say which frames of its shots lie where"),
        (lambda shots: shots.update(window=0), "no snapshot, or was damaged"),
    ],
)  # fmt: skip
def test_shots_of_a_file_are_held_to_its_frames(
    build: Callable[..., Session], tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    """Even if whoever wrote them made a digest."""
    session, path = build(), tmp_path / "stream.snapshot"
    streamed(session, 7, {1: "blue square", 3: "red square"})
    session.snapshot().save(path)
    Session.resume(path, model=session.model, device="cpu")
    path.write_bytes(resealed(path.read_bytes(), lambda body: change(body["shots"])))
    with pytest.raises(SessionError, match=words):
        Session.resume(path, model=session.model, device="cpu")


def test_shots_are_no_part_of_another_past(build: Callable[..., Session], make: Callable[..., Session]) -> None:
    own = EngineConfig(window=12, sink=3, positions="absolute", timesteps=FOUR)
    session, other = build(preset=own), make(preset=own)
    streamed(session, 2)
    taken = session.snapshot()
    lacking: Any = replace(taken, cache=replace(taken.cache, shots=None))
    with pytest.raises(SessionError, match="does not say which frames of its shots lie where"):
        session.restore(lacking)
    with pytest.raises(ShapeError, match="does not say"):
        session._stream._cache.restore(lacking.cache)
    with pytest.raises(SessionError, match="it has shots, and this model has none"):
        other.restore(replace(taken, identity=other.snapshot().identity))


def test_a_frame_block_that_failed_is_made_again(build: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as another one than it was going to be: no longer the first of a shot."""
    for mode in ("shot", "soft"):
        session, other = build(), build()
        first = streamed(session, 5, {2: "blue square"})
        assert torch.equal(streamed(other, 5, {2: "blue square"}), first)
        stream: Any = session._stream
        with monkeypatch.context() as broken:
            broken.setattr(stream._dit, "write", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
            session.prompt("green circle", mode="shot")
            with pytest.raises(RuntimeError, match="no"):
                streamed(session, 1)
        for each in (session, other):
            each.prompt("green circle", mode=mode)  # type: ignore[arg-type]
        assert torch.equal(streamed(session, 4), streamed(other, 4))


def test_prepared_shots_are_the_same(build: Callable[..., Session], model: Model) -> None:
    plain, ahead = build(), build()
    cuts = {3: "blue square", 4: "red square"}
    expected = streamed(plain, 5, cuts)
    found = [streamed(ahead, 3)]
    for at, prompt in cuts.items():
        ahead.prompt(prompt, mode="shot")
        ahead.prepare()
        assert ahead._stream._ahead.kept is None  # type: ignore[attr-defined]  # nothing is derived again, so nothing is copied
        found.append(streamed(ahead, 1))
        assert ahead.next_block == at + 1
    assert torch.equal(torch.cat(found, dim=1), expected)
    predicted = {part.name: part.num_bytes for part in predict(model, plain.config)}
    assert predicted["keys and values"] == plain._stream._cache.num_bytes  # type: ignore[attr-defined]


def test_the_modes_that_are_offered() -> None:
    assert list(offered_modes("shots")) == ["soft", "interpolate", "shot"]
    assert list(offered_modes("kept")) == list(offered_modes("recomputed")) == ["recache", "soft", "interpolate"]


def test_what_does_not_go_with_shots(make: Callable[..., Session], build: Callable[..., Session], model: Model) -> None:
    for config, words in (
        (EngineConfig(window=8), "has window 8; the shots .* so give a window of 9 or more for a sink of 3\\. "),
        (
            EngineConfig(name="turbo", window=4),
            "^turbo has window 4; the shots .* so give a window of 9 or more for a sink of 3\\. ",
        ),
        (EngineConfig(window=2), "^custom has window 2; the shots .* so give a window of 9 or more for a sink of 3\\. "),
        (EngineConfig(sink=0), "has sink 0; the shots .* so give a sink of 1 or more\\. "),
        (EngineConfig(positions="rebased", sparsity=0.5), "positions rebased and sparsity 0.5"),
        (preset("baseline"), "knob ring_cache off"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve(config, model.defaults, torch.device("cpu"))
    resolved = resolve(EngineConfig(), model.defaults, torch.device("cpu"))
    assert resolved.pass_frames == {SIZE}  # there is no recache
    with pytest.raises(ConfigError, match="past that is shots runs on one device"):
        on_several(resolved)
    other = make()
    for ask in (lambda: other.prompt("red", mode="shot"), lambda: streamed(other, 3, {1: "red"})):
        with pytest.raises(ConfigError, match="has no shots .*; switch by recache, soft or interpolate"):
            ask()
    ring: Any = build()._stream._cache
    with pytest.raises(SessionError, match="not derived again"):
        ring.rewrite(keep_sink=True)
