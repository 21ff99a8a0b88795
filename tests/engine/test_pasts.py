"""Streams whose past is another one than keys and values that are kept, against algorithms written out plainly in float64.

The references are written from the descriptions: the official codes' own output was not available.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from plain_wan import PlainWan
from ring_frames import stored_bytes
from strobe.cache.policy import ShotPolicy
from strobe.cache.rings import AheadRing
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, NoiseSchedule, replace_knobs
from strobe.engine.denoise import draw
from strobe.engine.graphs import Recorded
from strobe.engine.load import check_past
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.parallel.rank import check_several
from strobe.engine.presets import preset
from strobe.engine.prompts import Switch, offered_modes
from strobe.engine.resolve import ResolvedConfig, idle_knobs, resolve
from strobe.engine.session import Session
from strobe.models.vae.taew import TaewConfig, random_taew
from tiny_model import FIVE, FOUR, PASTS, Make, latents, with_past

SHAPE = (4, 4, 4)
Cuts = Mapping[int, str]
"""Prompt of each frame block that begins a shot."""
BASELINE = preset("baseline").knobs
RING = replace_knobs(BASELINE, ring_cache=True)


@pytest.fixture
def build(make: Make, tiny: Model) -> Make:
    """Make a session with a past and without a preset: `build(past, **options of Session)`."""
    return lambda past, **options: make(**({"model": with_past(tiny, past), "preset": EngineConfig()} | options))


def resolved(tiny: Model, past: str, config: EngineConfig = EngineConfig()) -> ResolvedConfig:  # noqa: B008
    return resolve(config, with_past(tiny, past).defaults, torch.device("cpu"))


def streamed(session: Session, number: int, cuts: Cuts | None = None) -> Tensor:
    switches = [Switch(frame_block=at, prompt=prompt, mode="shot") for at, prompt in (cuts or {}).items()]
    return latents(session.stream(number, switches=switches)).double()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance("recomputed past", "float32"))


def noise(sample: int, block: int, step: int, size: int = 3) -> Tensor:
    return draw(0, sample, block, step, torch.empty(size, *SHAPE)).double()


# ------------------------------------------------------------------------------------------------------------- every past


@pytest.mark.parametrize("past", PASTS)
def test_a_restarted_session_streams_what_a_new_one_does(build: Make, past: str) -> None:
    cuts = {2: "blue square"} if past == "shots" else {}
    session = build(past, seed=1)
    for number in (3, 5):
        streamed(session, number, cuts)
        session.restart("blue square", seed=2)
    assert torch.equal(streamed(session, 6, cuts), streamed(build(past, prompt="blue square", seed=2), 6, cuts))


@pytest.mark.parametrize("past", PASTS)
def test_recorded_passes_are_the_eager_ones(build: Make, past: str) -> None:
    eager, recorded = build(past), build(past)
    cuts = {3: "blue square", 4: "red square", 9: "green circle"} if past == "shots" else {}
    stream: Any = recorded._stream
    stream._dit = stream._dit.share(Recorded(64))
    stream.warm_up()
    known = len(stream._dit.runner)
    assert torch.equal(streamed(recorded, 11, cuts), streamed(eager, 11, cuts))
    assert len(stream._dit.runner) == known, "all passes were recorded while it warmed up"


SHOTS = "the shots .* so give"


@pytest.mark.parametrize(
    ("past", "config", "told"),
    [
        ("recomputed", EngineConfig(sink=3, window=8), "so its sink is 1; custom has 3: give sink 1"),
        ("recomputed", EngineConfig(sparsity=0.5), "does not go with a past that is recomputed"),
        ("recomputed", EngineConfig(window=3), "smallest window with sink 1: 4"),
        (
            "rolling",
            preset("turbo"),
            "turbo has window 8, and this model denoises 3 frame blocks of 3 at once: it needs a window",
        ),
        ("rolling", preset("sparse"), "sparse has sparsity 0.8"),
        ("rolling", preset("low_memory"), "kv_format 'int8'"),
        ("rolling", preset("baseline"), "knob ring_cache off"),
        ("rolling", preset("ultra"), "window 6 and sink 1"),
        ("rolling", EngineConfig(first_block=1), "first_block 1"),
        ("shots", EngineConfig(window=8), rf"has window 8; {SHOTS} a window of 9 or more for a sink of 3\. "),
        ("shots", EngineConfig(window=2), rf"^custom has window 2; {SHOTS} a window of 9 or more for a sink of 3\. "),
        ("shots", EngineConfig(sink=0), rf"has sink 0; {SHOTS} a sink of 1 or more\. "),
        ("shots", EngineConfig(positions="rebased", sparsity=0.5), "positions rebased and sparsity 0.5"),
        ("shots", preset("baseline"), "knob ring_cache off"),
    ],
)
def test_what_does_not_go_together_is_refused(tiny: Model, past: str, config: EngineConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolved(tiny, past, replace(config, simulate=True))


@pytest.mark.parametrize("past", PASTS)
def test_several_devices_are_refused(tiny: Model, past: str) -> None:
    with pytest.raises(ConfigError, match=f"past that is {past} runs on one device"):
        check_several(resolved(tiny, past))


# ------------------------------------------------------------------------------------------------- a past that is recomputed


class Recomputing:
    """The algorithm of krea's server. It keeps nothing between two frame blocks but `latents` [F, C, Y, X] of all that was made:
    in every frame block it lays the clean latents of the past and the noisy ones of the frame block in one row and runs them
    through the transformer together, under a mask and with a bias; keys of the past are computed again in every step."""

    def __init__(self, model: Model, kept: int, weight: float) -> None:
        self.plain, self.vae, self.kept, self.weight = PlainWan(model), model.vae, kept, weight
        self.latents = torch.zeros(0, *SHAPE, dtype=torch.float64)

    def context(self) -> Tensor:
        """Clean latents that come before the next frame block."""
        made, count = self.latents, min(len(self.latents), self.kept)
        if count == 0:
            return made
        behind = made[1:][len(made) - count :] if count > 1 else made[:0]
        if len(made) - 3 < self.kept:
            return torch.cat((made[:1], behind))
        frames = self.vae.decode_piece(made.float()[None], self.vae.empty_memories(), first=True)[0][0]  # all from the start
        before = frames[-(1 + 4 * (count - 1))]  # the oldest of as many pixel frames as `count` latents are of a video
        again = self.vae.encode(before.float()[None, None])[0].double()
        return torch.cat((again, behind))

    def flow(self, context: Tensor, noisy: Tensor, timestep: float, text: Tensor) -> Tensor:
        past, new = len(context), len(noisy)
        tokens = SHAPE[1] * SHAPE[2] // 4
        block = [frame // 3 for frame in range(past)] + [past] * new  # frames of one number see each other
        see = torch.tensor([[b <= a for b in block] for a in block]).repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
        bias = torch.zeros(see.shape, dtype=torch.float64).masked_fill(~see, -math.inf)
        bias[past * tokens :, tokens : past * tokens] += math.log(self.weight)
        both, told, own = torch.cat((context, noisy)), [0.0] * past + [timestep] * new, range(past + new)
        return self.plain.flow(both, told, text, dict(zip(own, own, strict=True)), own, keep=False, bias=bias)[past:]

    def make(self, block: int, size: int, prompt: str, steps: Sequence[tuple[float, float]], sample: int = 0) -> None:
        """Denoise a frame block by pairs of timestep, as the transformer is told, and noise level."""
        context, text = self.context(), self.plain.text(prompt)
        x = noise(sample, block, 0, size)
        for step, (told, sigma) in enumerate(steps):
            x0 = x - sigma * self.flow(context, x, told, text)
            if step + 1 < len(steps):
                after = steps[step + 1][1]
                x = (1 - after) * x0 + after * noise(sample, block, step + 1, size)
        self.latents = torch.cat((self.latents, x0))


STEPS = tuple((1000 * sigma, sigma) for sigma in (1.0, 0.9375, 5 / 6, 0.625))
LAST = (0.0, 0.005 / 1.004)
"""A step that is told 0; the noise is that of the last row of a table of 1000: s = 0.001 under shift 5."""


@torch.no_grad()
def recomputed(
    tiny: Model,
    sizes: Sequence[int],
    *,
    kept: int = 3,
    weight: float = 0.3,
    steps: Any = STEPS,
    sample: int = 0,
    prompts: Any = (),
) -> Tensor:
    stream = Recomputing(tiny, kept, weight)
    for block, size in enumerate(sizes):
        stream.make(block, size, prompts[block] if prompts else "red circle", steps, sample)
    return stream.latents


@pytest.mark.parametrize("knobs", [Knobs(), BASELINE, RING], ids=["all", "none", "ring"])
def test_a_past_is_recomputed_as_the_description_says(build: Make, tiny: Model, knobs: Knobs) -> None:
    close(streamed(build("recomputed", preset=EngineConfig(knobs=knobs)), 6)[0], recomputed(tiny, [3] * 6))


@pytest.mark.parametrize("window", [4, 5, 7, 9, 12])
def test_any_number_of_frames_may_be_recomputed(build: Make, tiny: Model, window: int) -> None:
    found = streamed(build("recomputed", preset=EngineConfig(window=window, past_weight=0.5)), 6)[0]
    close(found, recomputed(tiny, [3] * 6, kept=window - 3, weight=0.5))


def test_a_last_step_at_timestep_0(build: Make, tiny: Model) -> None:
    session = build("recomputed", preset=EngineConfig(timesteps=(1000, 750, 500, 250, 0)))
    assert session.config.calls_per_block == {"denoise_step": 5, "recache": 1}
    close(streamed(session, 4)[0], recomputed(tiny, [3] * 4, steps=(*STEPS, LAST)))


def test_the_first_frame_is_encoded_again(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    session, seen = build("recomputed"), []
    encode = session._stream._decoder.encode
    monkeypatch.setattr(session._stream._decoder, "encode", lambda frames: seen.append(frames) or encode(frames))
    made = torch.cat([block.samples for block in session.stream(5)], dim=1)
    assert len(seen) == 3, "of the frame blocks after the first two"
    for block, frame in zip((2, 3, 4), seen, strict=True):
        end = 9 + 12 * (block - 1)
        assert torch.equal((frame * 255).round().to(torch.uint8).permute(0, 2, 3, 1), made[:, end - 9])


def test_batches_first_blocks_and_prompts(build: Make, tiny: Model) -> None:
    session = build("recomputed", preset=EngineConfig(first_block=1), samples=(0, 4))
    found = [streamed(session, 3)]
    session.prompt("blue square", mode="recache")
    found.append(streamed(session, 2))
    prompts = ["red circle"] * 3 + ["blue square"] * 2
    for index, sample in enumerate((0, 4)):
        close(torch.cat(found, dim=1)[index], recomputed(tiny, [1, 3, 3, 3, 3], sample=sample, prompts=prompts))


def test_eight_bits_are_near(build: Make) -> None:
    native, eight = (streamed(build("recomputed", preset=EngineConfig(kv_format=kv)), 6) for kv in ("native", "int8"))
    assert 0 < (eight - native).abs().max() < 1


def test_frames_are_never_late_and_memory_is_counted(tiny: Model) -> None:
    model, late = with_past(tiny, "recomputed"), EngineConfig(knobs=Knobs(late_frames=True))
    config, kept = resolved(tiny, "recomputed", late), replace(model.defaults, past="kept", past_weight=1.0)
    idle = idle_knobs(config.asked, model.defaults, torch.device("cpu"))
    assert not config.knobs.late_frames and "derived from the frames" in idle["late_frames"]
    plain = resolve(late, kept, torch.device("cpu"))
    parts = predict(model, config)
    assert parts.keys() - predict(model, plain).keys() == {"frames to encode again"}
    assert parts["frames to encode again"] == 3 * 3 * 32 * 32 * 4
    assert config.pass_frames == {3} and plain.pass_frames == {3, 6}


def test_a_weight_needs_such_a_past_and_is_a_factor(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="past_weight 0.5 is for models whose past is recomputed"):
        resolve(EngineConfig(past_weight=0.5), tiny.defaults, torch.device("cpu"))
    with pytest.raises(ConfigError, match="past_weight 0 is not valid"):
        EngineConfig(past_weight=0)


def test_an_autoencoder_that_only_decodes_is_refused(tiny: Model) -> None:
    defaults = with_past(tiny, "recomputed").defaults
    check_past(defaults, tiny.vae)
    with pytest.raises(ConfigError, match="a tiny autoencoder only decodes"):
        check_past(defaults, random_taew(TaewConfig(), 0))


# --------------------------------------------------------------------------------------------- several frame blocks in a pass


@torch.no_grad()
def rolling(
    tiny: Model,
    number: int,
    *,
    timesteps: Sequence[float] = FIVE,
    window: int = 24,
    sample: int = 0,
    switch: tuple[int, str] = (1000, ""),
) -> Tensor:
    """x0 [F, C, Y, X] of the first `number` frame blocks of a stream without end, by the algorithm of Rolling Forcing.

    It follows the windows of the official loop one by one; what a window sees of finished frames is listed frame by frame.
    """
    plain, most, steps, size = PlainWan(tiny), window - 3, len(timesteps), 3  # most: latent frames that are attended at most
    sigmas = [5 * t / (1000 + 4 * t) for t in timesteps]
    s = torch.linspace(1, 0, 1001)[[1000 - int(t) for t in timesteps]]
    table = (1000 * (5 * s / (1 + 4 * s))).tolist()  # in float32, as the transformer is told
    noisy: dict[int, Tensor] = {}
    done = []
    for index in range(number + steps - 1):  # windows
        start = max(0, index - steps + 1)
        text = plain.text(switch[1] if start >= switch[0] else "red circle")
        noisy[index] = noise(sample, index, 0)
        blocks = [*range(start, index + 1)]
        levels = [index - block for block in blocks]
        x = torch.cat([noisy[block] for block in blocks])
        told = [table[level] for level in levels for _ in range(size)]
        first, end = start * size, (index + 1) * size
        if start == 0:
            seen = {}  # the official code attends to nothing but the window
        else:
            recent = range(max(3, end - most + 3), first)
            seen = {frame: first - len(recent) - 3 + frame for frame in range(3)} | {frame: frame for frame in recent}
        own = range(first, end)
        flow = plain.flow(x, told, text, seen | {frame: frame for frame in own}, own, keep=False)
        for block, level, part, v in zip(blocks, levels, x.split(size), flow.split(size), strict=True):
            x0 = part - sigmas[level] * v
            if level + 1 < steps:
                noisy[block] = (1 - sigmas[level + 1]) * x0 + sigmas[level + 1] * noise(sample, block, level + 1)
            elif block == start:
                places = {frame: frame for frame in range(max(0, first + size - most), first + size)}
                plain.flow(x0, [0.0] * size, text, places, own[:size])
                done.append(x0)
    return torch.cat(done)[: number * size]


@pytest.mark.parametrize("knobs", [Knobs(), RING], ids=["all", "none"])
def test_passes_over_several_frame_blocks_are_as_the_description_says(build: Make, tiny: Model, knobs: Knobs) -> None:
    close(streamed(build("rolling", preset=EngineConfig(knobs=knobs)), 12)[0], rolling(tiny, 12))


@pytest.mark.parametrize(
    ("window", "timesteps"), [(12, (1000, 500)), (9, (1000,)), (18, (1000, 600, 200)), (15, (1000, 600, 200))]
)
def test_other_numbers_of_steps_and_windows(build: Make, tiny: Model, window: int, timesteps: tuple[float, ...]) -> None:
    found = streamed(build("rolling", preset=EngineConfig(window=window, timesteps=timesteps), samples=(0, 4)), 8)
    for row, sample in enumerate((0, 4)):
        close(found[row], rolling(tiny, 8, timesteps=timesteps, window=window, sample=sample))


def test_a_soft_switch_acts_on_all_frame_blocks_under_way(build: Make, tiny: Model) -> None:
    session = build("rolling")
    before = streamed(session, 3)
    session.prompt("blue square", mode="soft")
    found = torch.cat([before, streamed(session, 3)], dim=1)[0]
    close(found, rolling(tiny, 6, switch=(3, "blue square")))
    session.prompt("red circle", mode="recache")
    assert torch.isfinite(streamed(session, 2)).all()


def test_a_stream_may_begin_with_latents(build: Make) -> None:
    start = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    found = streamed(build("rolling", start=start), 4)
    assert torch.equal(found[0, :6], start.double()) and torch.isfinite(found).all()


def test_memory_and_calls(tiny: Model) -> None:
    config, dit = resolved(tiny, "rolling"), tiny.dit.config
    assert config.calls_per_block == {"denoise_step": 1, "commit": 1}
    assert config.pass_frames == {3, 6, 9, 12, 15, 24}
    found = predict(with_past(tiny, "rolling"), config)["modulation tables"]
    assert found == (6 + 45) * (6 * dit.num_layers + 2) * dit.dim * 4


def test_a_look_back_that_does_not_fit(build: Make) -> None:
    cache = build("rolling")._stream._cache
    assert isinstance(cache, AheadRing)
    with pytest.raises(ConfigError, match="12 latent frames and a sink of 0 do not fit into a window of 9"):
        cache.look(12, 9)


# --------------------------------------------------------------------------------------------------------------------- shots

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
def in_shots(tiny: Model, number: int, cuts: Cuts, soft: Cuts, sample: int = 0) -> Tensor:
    """x0 [F, C, Y, X] of the first frame blocks of a stream. A frame block sees what lies in the official buffer, each frame at
    the place in time that it had; its steps are diffusers' UniPC."""
    plain, place, buffer, prompt, done = PlainWan(tiny), dict[int, int](), Buffer(), "red circle", []
    levels = NoiseSchedule(timesteps=FOUR, shift=5, sampler="unipc")
    for index in range(number):
        prompt = {**cuts, **soft}.get(index, prompt)
        own = range(index * SIZE, (index + 1) * SIZE)
        place |= {frame: frame + SINK * sum(cut <= index for cut in cuts) for frame in own}
        buffer.insert(own)
        text, places = plain.text(prompt), {frame: place[frame] for frame in buffer.frames}
        solver = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5)
        solver.set_timesteps(len(FOUR))
        solver.sigmas = torch.tensor([*levels.sigmas, 0.0], dtype=torch.float64)
        x = noise(sample, index, 0)
        for step, told in zip(solver.timesteps, levels.warped, strict=True):
            flow = plain.flow(x, [told] * SIZE, text, places, own, keep=False)
            (x,) = solver.step(flow, step, x, return_dict=False)
        plain.flow(x, [0.0] * SIZE, text, places, own)
        if index in cuts:
            buffer.pin(SIZE)
        done.append(x)
    return torch.cat(done)


TWO_SHOTS = {3: "blue square", 4: "red square", 9: "green circle"}
"""The second one while the first is still young, the third when the second is alone at the front."""


@pytest.mark.parametrize("cuts", [{}, {1: "blue square"}, TWO_SHOTS], ids=["one shot", "two", "four"])
def test_shots_are_as_the_description_says(build: Make, tiny: Model, cuts: Cuts) -> None:
    found = streamed(build("shots", samples=(0, 4)), 13, cuts)
    for row, sample in enumerate((0, 4)):
        close(found[row], in_shots(tiny, 13, cuts, {}, sample))


def test_a_prompt_within_a_shot_leaves_the_past_alone(build: Make, tiny: Model) -> None:
    session = build("shots")
    before = streamed(session, 3)
    session.prompt("blue square", mode="shot")
    middle = streamed(session, 2)
    session.prompt("green square")  # a recache, which these models do not have
    found = torch.cat([before, middle, streamed(session, 3)], dim=1)[0]
    close(found, in_shots(tiny, 8, {3: "blue square"}, {5: "green square"}))


def test_a_first_prompt_begins_no_second_shot(build: Make) -> None:
    session = build("shots", prompt=None)
    session.prompt("red circle", mode="shot")
    assert torch.equal(streamed(session, 4), streamed(build("shots"), 4))


@given(cuts=st.sets(st.integers(1, 30)), sink=st.integers(0, 3), spare=st.integers(0, 3))
def test_slots_hold_what_the_buffer_holds(cuts: set[int], sink: int, spare: int) -> None:
    size = sink or 2
    window = 2 * sink + (1 + spare) * size
    policy, buffer = ShotPolicy(window=window, sink=sink), Buffer(window, sink)
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
    build: Make, tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    """Even if whoever wrote them made a digest."""
    session, path = build("shots"), tmp_path / "stream.snapshot"
    streamed(session, 7, {1: "blue square", 3: "red square"})
    session.snapshot().save(path)
    Session.resume(path, model=session.model, device="cpu")
    path.write_bytes(resealed(path.read_bytes(), lambda body: change(body["shots"])))
    with pytest.raises(SessionError, match=words):
        Session.resume(path, model=session.model, device="cpu")


def test_shots_are_no_part_of_another_past(build: Make, make: Make) -> None:
    own = EngineConfig(window=12, sink=3, positions="absolute", timesteps=FOUR)
    session, other = build("shots", preset=own), make(preset=own)
    streamed(session, 2)
    taken = session.snapshot()
    lacking: Any = replace(taken, cache=replace(taken.cache, shots=None))
    with pytest.raises(SessionError, match="does not say which frames of its shots lie where"):
        session.restore(lacking)
    with pytest.raises(ShapeError, match="does not say"):
        session._stream._cache.restore(lacking.cache)
    with pytest.raises(SessionError, match="it has shots, and this model has none"):
        other.restore(replace(taken, identity=other.snapshot().identity))


def test_a_failed_frame_block_may_be_another_one_again(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer the first of a shot, or still."""
    for mode in ("shot", "soft"):
        session, other = build("shots"), build("shots")
        for each in (session, other):
            streamed(each, 5, {2: "blue square"})
        stream: Any = session._stream
        with monkeypatch.context() as broken:
            broken.setattr(stream._dit, "write", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
            session.prompt("green circle", mode="shot")
            with pytest.raises(RuntimeError, match="no"):
                streamed(session, 1)
        for each in (session, other):
            each.prompt("green circle", mode=mode)  # type: ignore[arg-type]
        assert torch.equal(streamed(session, 4), streamed(other, 4))


def test_memory_of_shots_is_predicted(build: Make) -> None:
    session = build("shots")
    predicted = predict(session.model, session.config)
    assert predicted["keys and values"] == stored_bytes(session._stream._cache)


def test_what_there_is_only_with_shots_or_without(make: Make, build: Make, tiny: Model) -> None:
    assert list(offered_modes("shots")) == ["soft", "interpolate", "shot"]
    assert list(offered_modes("kept")) == list(offered_modes("recomputed")) == ["recache", "soft", "interpolate"]
    assert resolved(tiny, "shots").pass_frames == {SIZE}  # there is no recache
    other = make()
    for ask in (lambda: other.prompt("red", mode="shot"), lambda: streamed(other, 3, {1: "red"})):
        with pytest.raises(ConfigError, match="has no shots .*; switch by recache, soft or interpolate"):
            ask()
    ring: Any = build("shots")._stream._cache
    with pytest.raises(SessionError, match="not derived again"):
        ring.rewrite(keep_sink=True)
