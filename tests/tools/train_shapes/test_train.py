"""Training at a toy size on the CPU: data, the pass over a clip, checkpoints, and whole runs."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.errors import WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.shapes import weights
from strobe.models.shapes.config import FRAME_BLOCK
from strobe.models.shapes.grammar import VOCABULARY, parse
from strobe.models.shapes.oracle import detect, floor_step, locate
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from train_shapes import autoencoder, student, teacher
from train_shapes.clips import FADE, HELD_OUT, SIZES, draw_radius, draw_scenes, measure
from train_shapes.run import LOG, train
from train_shapes.state import Progress, Trainer
from train_shapes.teacher import POLICIES, block_causal_mask, draw_clips, forward_clip
from train_shapes.world import PromptTable, draw_block, start_from_noise, switch_scenes

CPU = torch.device("cpu")
ALONE = torch.tensor([[*scene, -1, -1] for scene in itertools.product(*(range(size) for size in SIZES))])
TOGETHER = torch.cat((ALONE[:, :5], ALONE.flip(0)[:, :2]), dim=1)


def held_out(scenes: Tensor) -> int:
    """Scenes with a colour and a shape that training must not combine."""
    return sum(tuple(pair) in HELD_OUT for first in (0, 5) for pair in scenes[:, first : first + 2].tolist())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


def test_scenes_are_uniform_over_what_is_seen() -> None:
    scenes = draw_scenes(36_000, CPU)
    assert held_out(scenes) == 0
    pairs = torch.bincount(scenes[:, 0] * SIZES[1] + scenes[:, 1], minlength=40)
    seen = pairs[pairs > 0]
    assert len(seen) == 36 and (seen - 1000).abs().max() < 160  # five standard deviations of 1000
    for column, size in enumerate(SIZES[2:], start=2):
        counts = torch.bincount(scenes[:, column], minlength=size)
        assert len(counts) == size and (counts - 36_000 / size).abs().max() < 5 * (36_000 / size) ** 0.5
    two = scenes[scenes[:, 5] >= 0]
    assert abs(len(two) - 18_000) < 500 and (scenes[:, 5:].amin(1) >= 0).sum() == len(two)
    pairs = torch.bincount(two[:, 5] * SIZES[1] + two[:, 6], minlength=40)
    assert (pairs > 0).sum() == 36 and (pairs[pairs > 0] - 500).abs().max() < 130


def test_switches_change_the_share_asked_for_and_show_nothing_held_out() -> None:
    scenes = draw_scenes(20_000, CPU)
    assert torch.equal(switch_scenes(scenes, 0.0), scenes)
    switched = scenes
    for share in (1.0, 0.5, 1.0, 1.0):
        before, switched = switched, switch_scenes(switched, share)
        assert held_out(switched) == 0
        changed = (switched != before).any(dim=1).double().mean().item()
        assert 0.85 * share < changed <= share + 0.02  # some new prompts are the old one


def test_every_sentence_says_its_scene() -> None:
    text = WordEncoder(VOCABULARY)
    table = PromptTable(text, CPU, sentences=3)
    scenes = torch.cat((ALONE, TOGETHER))
    for row, scene in zip(table.draw(scenes).tolist(), scenes.tolist(), strict=True):
        sentence = " ".join(VOCABULARY[number - 1] for number in row if number)
        assert list(parse(sentence).attributes) == scene, sentence
        assert " a orange" not in f" {sentence}" and " an red" not in f" {sentence}", sentence
    many = table.draw(ALONE[:1].expand(4, 50, 7))
    assert many.shape == (4, 50, text.length) and len(many.flatten(0, 1).unique(dim=0)) == 3


def test_a_start_is_read_from_three_channel_means_of_any_size() -> None:
    noise = torch.randn(4, 3, 8, 16, 16)
    starts = place, _, radius = start_from_noise(noise)
    z = noise[:, :, :3].double().mean(dim=(1, 3, 4)) * (3 * 16 * 16) ** 0.5
    uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(z) - 1
    torch.testing.assert_close(place.double(), uniform[:, :2], rtol=0, atol=tolerance("world", "float32"))
    torch.testing.assert_close(radius.double(), 25 + 3 * uniform[:, 2], rtol=0, atol=tolerance("world", "float32"))
    shuffled = noise[:, :, [0, 1, 2, 7, 6, 5, 4, 3]].flip(3)
    for again, first in zip(start_from_noise(shuffled), starts, strict=True):
        torch.testing.assert_close(again, first)


@pytest.mark.parametrize("lengths", [(9, 12), (12, 12, 12)])
def test_a_stream_of_blocks_is_one_trajectory(lengths: tuple[int, ...]) -> None:
    scenes = torch.cat((ALONE[[3, 210]], TOGETHER[[777]]))
    start, radius = torch.tensor([[2.5, 30.0], [26.0, 3.0], [10.0, 27.5]]), draw_radius(3, CPU)
    place = torch.tensor([[0.2, -0.9], [1.0, -1.0], [-0.5, 0.5]])
    whole, end = draw_block(scenes, None, start, place, radius, sum(lengths))
    camera, parts = start, []
    for length in lengths:
        part, camera = draw_block(scenes, None, camera, place, radius, length)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=tolerance("moved picture", "float32"))
    torch.testing.assert_close(camera, end)
    pair, found, seen = locate(whole[:, -1])
    assert pair.tolist() == [False, False, True] and (found - place).abs().max() < 0.12
    assert floor_step(seen, end).abs().max() < 0.5
    assert torch.equal(detect(whole).labels[:, 0], scenes)
    assert floor_step(locate(whole[:, 0])[2], start).abs().amax(1).min() > 0.5  # the first frame has moved already


def test_the_old_look_fades_where_the_new_one_moves() -> None:
    old, new, start, radius = ALONE[[5]], TOGETHER[[900]], torch.tensor([[6.0, 6.0]]), torch.tensor([25.0])
    place = torch.zeros(1, 2)
    faded, camera = draw_block(new, old, start, place, radius, 9)
    plain, same_camera = draw_block(new, None, start, place, radius, 9)
    assert torch.equal(camera, same_camera)
    assert torch.equal(faded[:, len(FADE) :], plain[:, len(FADE) :])
    look = torch.cat((old[:, :2], new[:, 2:4], old[:, 4:]), dim=1)  # the old colours on the new path
    before, _ = draw_block(look, None, start, place, radius, 9)
    for frame, weight in enumerate((0.75, 0.5, 0.25)):
        torch.testing.assert_close(faded[:, frame], weight * before[:, frame] + (1 - weight) * plain[:, frame])


ELEMENT = tolerance("element", "float32")

BLOCKS, BATCH = 7, 2  # more frames than the largest window, so that every policy evicts
FRAMES = BLOCKS * FRAME_BLOCK
TOKENS = 2  # of a frame: latents of 2 x 4 cells
TINY = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=5, latent_channels=4, num_heads=2, num_layers=3)


def ids(policy: RingPolicy) -> str:
    return f"window {policy.window}, sink {policy.sink}"


@pytest.fixture(scope="module")
def dit() -> CausalWan:
    torch.manual_seed(5)
    model = CausalWan(TINY).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.5)  # so that history, prompts and noise levels show in the result
    return model


class Clip:
    """Inputs of both paths: every frame block has its own prompt and noise level."""

    def __init__(self) -> None:
        torch.manual_seed(6)
        self.clean = torch.randn(BATCH, FRAMES, 4, 2, 4)
        self.noisy = torch.randn(BATCH, FRAMES, 4, 2, 4)
        self.levels = torch.rand(BATCH, BLOCKS).repeat_interleave(FRAME_BLOCK, dim=1)
        self.text = torch.randn(BATCH, BLOCKS, 5, 12)

    def as_a_stream(self, dit: CausalWan, policy: RingPolicy) -> Tensor:
        """[B, F, C, Y, X] over the cache; each frame block's clean latents are committed at timestep 0 under its own prompt."""
        shape = CacheShape(num_layers=3, batch=BATCH, tokens_per_frame=TOKENS, num_heads=2, head_dim=24)
        cache = RingCache(shape, policy, device=torch.device("cpu"), dtype=torch.float32)
        cache.keys.fill_(torch.nan)  # what was not written must not be attended
        flows = []
        for block in range(BLOCKS):
            own = slice(block * FRAME_BLOCK, (block + 1) * FRAME_BLOCK)
            step = cache.at(own.start, FRAME_BLOCK)
            rope, text = dit.rope(step.positions, dit.grid(self.noisy[:, own])), dit.text_kv(self.text[:, block])
            flows.append(dit(self.noisy[:, own], dit.modulation(1000 * self.levels[:, own]), text, rope, step))
            dit.commit(self.clean[:, own], dit.modulation(torch.zeros(1, 1)), text, rope, step)
        return torch.cat(flows, dim=1)


@pytest.mark.parametrize("policy", POLICIES, ids=ids)
def test_training_pass_is_the_stream(dit: CausalWan, policy: RingPolicy) -> None:
    clip = Clip()
    streamed = clip.as_a_stream(dit, policy)
    assert streamed.isfinite().all() and streamed.std() > 0.1
    mask = block_causal_mask(policy, BLOCKS, TOKENS)
    in_one_pass = forward_clip(dit, clip.clean, clip.noisy, clip.levels, clip.text.flatten(0, 1), mask)
    torch.testing.assert_close(in_one_pass, streamed, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("policy", POLICIES, ids=ids)
def test_mask_is_a_list_that_drops_its_oldest(policy: RingPolicy) -> None:
    mask = block_causal_mask(policy, BLOCKS, 1)
    kept: list[int] = []
    for block in range(BLOCKS):
        own = list(range(block * FRAME_BLOCK, (block + 1) * FRAME_BLOCK))
        kept += own
        while len(kept) > policy.window:
            del kept[policy.sink]
        history = [frame for frame in kept if frame not in own]
        for frame in own:
            assert mask[frame].nonzero().flatten().tolist() == sorted(kept)
            noisy = sorted([*history, *(FRAMES + other for other in own)])
            assert mask[FRAMES + frame].nonzero().flatten().tolist() == noisy
    assert torch.equal(block_causal_mask(policy, BLOCKS, 3), mask.repeat_interleave(3, 0).repeat_interleave(3, 1))


def test_true_clips_start_where_their_noise_says() -> None:
    torch.manual_seed(3)
    vae = TinyVAE(TinyVAEConfig(widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    noise = torch.randn(3, 12, 8, 16, 16)
    torch.manual_seed(4)
    latents, scenes = draw_clips(vae, noise)
    assert latents.shape == noise.shape and scenes.shape == (3, 4, 7)
    torch.manual_seed(4)
    again, _ = draw_clips(vae, noise)
    assert torch.equal(again, latents)
    moved = noise.clone()
    moved[:, :FRAME_BLOCK, :2] += 0.02  # the mean of a channel over a frame block is what places the shapes
    assert (start_from_noise(moved[:, :FRAME_BLOCK])[0] - start_from_noise(noise[:, :FRAME_BLOCK])[0]).abs().min() > 0.04
    torch.manual_seed(4)
    assert not torch.equal(draw_clips(vae, moved)[0], latents)
    later = noise.clone()
    later[:, FRAME_BLOCK:] += 1
    torch.manual_seed(4)
    assert torch.equal(draw_clips(vae, later)[0], latents)


ENDLESS = 1e12
ROUNDING = tolerance("rounding", "float32")


def network(hidden: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 4))


def loss_at(trainer: Trainer) -> Tensor:
    """Loss on the batch of the trainer's step."""
    generator = torch.Generator().manual_seed(trainer.step)
    x = torch.randn(32, 8, generator=generator)
    return (trainer.model(x) - x[:, :4].sin()).square().mean()


def run(trainer: Trainer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = loss_at(trainer)
        losses.append(loss.item())
        trainer.update(loss)
    return losses


def new_trainer(hidden: int = 16) -> Trainer:
    return Trainer(network(hidden), total=200, seconds=ENDLESS, peak=1e-2)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole, stopped, resumed = new_trainer(), new_trainer(), new_trainer()
    run(whole, 60), run(stopped, 60)
    stopped.save(tmp_path / "stage.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["stage.safetensors"]
    nn.init.zeros_(resumed.params["0.weight"])
    resumed.load(tmp_path / "stage.safetensors")
    assert resumed.step == 60 and resumed.rate() == whole.rate()
    for name, average in whole.average.items():
        lag = (average - whole.params[name]).abs().max().item()
        torch.testing.assert_close(resumed.average[name], average, rtol=0, atol=lag / 100)  # the lag in bfloat16: 8 bits
    expected, found = run(whole, 20), run(resumed, 20)
    assert found[0] == expected[0]  # weights are kept exactly
    assert expected[-1] != expected[0]
    assert found == pytest.approx(expected, rel=2e-2)  # moments in bfloat16: 8 bits
    for trainer in (whole, resumed):
        trainer.use_average()
    for name, parameter in whole.params.items():
        torch.testing.assert_close(resumed.params[name], parameter, rtol=0, atol=tolerance("resumed weights", "bfloat16"))


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stage.safetensors"
    trainer = new_trainer()
    run(trainer, 2)
    trainer.save(path)
    tensors = load_file(path)

    def refused(trainer: Trainer, place: Path = path, said: str = "; delete it to start the stage anew") -> None:
        with pytest.raises(WeightsError, match=rf"\.safetensors is not a checkpoint of this stage: .*{said}"):
            trainer.load(place)

    refused(new_trainer(hidden=8))
    refused(Trainer(nn.Linear(8, 16), total=10, seconds=ENDLESS, peak=1e-2))
    deeper = Trainer(nn.Sequential(*network(), nn.Linear(4, 4)), total=10, seconds=ENDLESS, peak=1e-2)
    run(deeper, 1)
    deeper.save(path)
    refused(new_trainer(), said="it holds 24 tensors, expected 16")
    save_file(tensors, path)  # without its step
    refused(new_trainer())
    path.write_bytes(path.read_bytes()[:-100])
    refused(new_trainer())
    refused(new_trainer(), tmp_path / "another" / "stage.safetensors")
    weights.save(weights.build(), tmp_path)
    refused(new_trainer(), tmp_path / weights.FILE)


def test_the_rate_warms_up_and_decays() -> None:
    trainer = Trainer(network(), total=1000, seconds=ENDLESS, peak=2.0)
    rates = []
    for trainer.step in range(1000):
        rates.append(trainer.rate())
    assert rates[0] == 2.0 / 20 and rates[19] == rates[20] == 2.0
    middle = 2.0 * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert rates[510] == pytest.approx(middle)
    assert rates[-1] == pytest.approx(0.02, rel=1e-3)
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_a_stage_ends_with_its_seconds_over_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("train_shapes.state.time.monotonic", lambda: now[0])

    def begin() -> Trainer:
        return Trainer(network(), total=1000, seconds=100.0, peak=2.0)

    first = begin()
    run(first, 25)
    assert first.done() == 0.025 and first.rate() == pytest.approx(2.0, rel=1e-3)
    now[0] += 40
    assert first.done() == 0.4 and first.due(40) and not first.due(41)
    rate = first.rate()
    first.save(tmp_path / "stage.safetensors")
    assert not first.due(1)
    now[0] += 5000  # between two runs
    second = begin()
    second.load(tmp_path / "stage.safetensors")
    assert second.done() == 0.4 and second.rate() == rate
    now[0] += 59
    assert second.done() == 0.99 and second.rate() == pytest.approx(0.02, rel=0.05)
    now[0] += 1
    assert second.done() == 1 and second.progress("stage", {}).seconds == 100


def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    trainer = new_trainer()
    run(trainer, 3)
    before = {name: p.detach().clone() for name, p in trainer.params.items()}
    trainer.update(loss_at(trainer) * torch.inf)
    assert trainer.step == 4
    assert all(torch.equal(p, before[name]) for name, p in trainer.params.items())
    run(trainer, 1)
    assert all(p.isfinite().all() and not torch.equal(p, before[name]) for name, p in trainer.params.items())


def test_the_average_lags_behind_the_weights() -> None:
    trainer = new_trainer()
    start = trainer.params["0.weight"].detach().clone()
    by_hand = start.double()
    for step in range(30):
        trainer.update(loss_at(trainer))
        decay = (step + 1) / (step + 10)
        by_hand = decay * by_hand + (1 - decay) * trainer.params["0.weight"].detach().double()
    torch.testing.assert_close(trainer.average["0.weight"].double(), by_hand, rtol=0, atol=ROUNDING)
    assert not torch.equal(trainer.params["0.weight"], trainer.average["0.weight"])
    trainer.use_average()
    assert torch.equal(trainer.params["0.weight"], trainer.average["0.weight"])


STAGES = {"autoencoder": autoencoder, "teacher": teacher, "student": student}
CPU = torch.device("cpu")
STEPS = {"autoencoder": 2, "teacher": 2, "student": 3}


@pytest.fixture(autouse=True, scope="module")
def toy() -> Iterator[None]:
    """One stream of pictures at their real size, a model of a few thousand parameters."""
    wan = WanConfig(dim=24, ffn_dim=24, freq_dim=8, text_dim=16, text_len=24, latent_channels=8, num_heads=2, num_layers=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "WAN", wan)
        patch.setattr(weights, "VAE", TinyVAEConfig(latent_channels=8, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
        for name, stage in STAGES.items():
            patch.setattr(stage, "BATCH", 1)
            patch.setattr(stage, "STEPS", STEPS[name])
        patch.setattr(autoencoder, "measure", partial(measure, clips=1))
        for stage in (teacher, student):
            patch.setattr(stage, "PromptTable", partial(PromptTable, sentences=1))
        patch.setattr(student, "LENGTHS", (2,))
        patch.setattr(student, "SWITCH_RATE", 1.0)
        yield


@pytest.fixture(scope="module")
def whole(toy: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """A run without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, list(train(folder, device=CPU))


@pytest.fixture(autouse=True)
def precision_is_restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before


def test_every_stage_runs_and_is_logged(whole: tuple[Path, list[Progress]]) -> None:
    folder, progress = whole
    ends = [("autoencoder", STEPS["autoencoder"]), *STEPS.items()]  # the first is told how good it has become
    assert [(line.stage, line.step, line.total) for line in progress] == [(stage, steps, steps) for stage, steps in ends]
    assert set(progress[1].values) == {"psnr"}
    assert all(math.isfinite(value) for line in progress for value in line.values.values())
    log = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    assert [(line["stage"], line["values"]) for line in log] == [(line.stage, line.values) for line in progress]
    for part in weights.load(folder):
        assert all(tensor.isfinite().all() for tensor in part.state_dict().values())
    for stage in STAGES:  # each ends with its averaged weights: nothing is left between the two
        checkpoint = load_file(folder / f"{stage}.safetensors")
        assert all((tensor == 0).all() for name, tensor in checkpoint.items() if name.startswith("average."))


def test_a_run_goes_on_after_the_stages_that_are_finished(whole: tuple[Path, list[Progress]], tmp_path: Path) -> None:
    stopped = train(tmp_path, device=CPU)
    while next(stopped).stage != "teacher":
        pass
    stopped.close()
    assert not (tmp_path / weights.FILE).exists()
    assert [line.stage for line in train(tmp_path, device=CPU)] == ["teacher", "student"]
    assert (tmp_path / weights.FILE).read_bytes() == (whole[0] / weights.FILE).read_bytes()
    assert list(train(tmp_path, device=CPU)) == []  # all is finished
    assert (tmp_path / weights.FILE).read_bytes() == (whole[0] / weights.FILE).read_bytes()


def test_the_autoencoder_of_weights_to_begin_from_is_kept(whole: tuple[Path, list[Progress]], tmp_path: Path) -> None:
    assert [line.stage for line in train(tmp_path, device=CPU, begin=whole[0])] == ["teacher", "student"]
    before, after = weights.load(whole[0]), weights.load(tmp_path)
    assert all(
        torch.equal(old, new) for old, new in zip(before[2].state_dict().values(), after[2].state_dict().values(), strict=True)
    )
    assert not torch.equal(next(before[0].parameters()), next(after[0].parameters()))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_goes_on_from_its_last_checkpoint(
    name: str, whole: tuple[Path, list[Progress]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGES[name], "SAVE_EVERY", 0)
    for earlier in list(STAGES)[: list(STAGES).index(name)]:
        shutil.copy(whole[0] / f"{earlier}.safetensors", tmp_path)
    save = Trainer.save

    def save_once(trainer: Trainer, path: Path) -> None:
        """Write one checkpoint of the stage; the next attempt is a Ctrl-C."""
        if path.stem == name and path.exists():
            raise KeyboardInterrupt
        save(trainer, path)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Trainer, "save", save_once)
        list(train(tmp_path, device=CPU))
    updates: list[int] = []
    update = Trainer.update
    monkeypatch.setattr(Trainer, "update", lambda self, loss: (updates.append(self.step), update(self, loss)))
    rest = train(tmp_path, device=CPU)
    assert next(rest).stage == name
    rest.close()
    assert updates == list(range(1, STEPS[name]))
    if name == "student":
        return  # it begins with new streams
    list(train(tmp_path, device=CPU))
    found, expected = (load_file(folder / f"{name}.safetensors") for folder in (tmp_path, whole[0]))
    for key, tensor in expected.items():
        if key.startswith("weight."):
            torch.testing.assert_close(found[key], tensor, rtol=0, atol=tolerance("resumed weights", "float32"))


def test_the_seed_is_of_weights_and_data(whole: tuple[Path, list[Progress]], tmp_path: Path) -> None:
    other_seed = train(tmp_path, device=CPU, seed=1)
    losses = [[line.values["loss"] for line in lines if "loss" in line.values] for lines in (whole[1], other_seed)]
    assert all(one != other for one, other in zip(*losses, strict=True))


def test_a_checkpoint_of_something_else_stops_a_run_of_one_step_at_least(tmp_path: Path) -> None:
    progress = list(train(tmp_path, device=CPU, scale=0.01))
    assert [(line.step, line.total) for line in progress] == [(1, 1)] * 4
    (tmp_path / "autoencoder.safetensors").replace(tmp_path / "teacher.safetensors")
    with pytest.raises(WeightsError, match=r"teacher\.safetensors is not a checkpoint of this stage"):
        list(train(tmp_path, device=CPU, scale=0.01))


def test_rounds_mix_the_presets_windows_steps_and_lengths() -> None:
    rng = random.Random(0)
    rounds = [student.plan_round(rng) for _ in range(3000)]
    policies, schedules, lengths = zip(*rounds, strict=True)
    assert set(policies) == set(teacher.POLICIES) and set(lengths) == set(student.LENGTHS)
    assert {len(schedule) for schedule in schedules} == {4, 3, 2}
    own = sum(teacher.POLICIES.index(policy) == student.SCHEDULES.index(s) for policy, s in zip(policies, schedules, strict=True))
    assert own / len(rounds) == pytest.approx(0.5 + 0.5 / 3, abs=0.05)
