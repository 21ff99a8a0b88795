"""All three stages at a toy size on the CPU: every line of training code runs, is logged, and resumes to the same weights."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from strobe.core.errors import WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.shapes import weights
from strobe.models.vae.tiny import TinyVAEConfig
from strobe.models.wan.config import WanConfig
from train_shapes import autoencoder, student, teacher
from train_shapes.clips import measure
from train_shapes.run import LOG, train
from train_shapes.state import Progress, Trainer
from train_shapes.world import PromptTable

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
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Trainer, "save", save_once(name, Trainer.save))
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


def save_once(stage: str, save: Callable[[Trainer, Path], None]) -> Callable[[Trainer, Path], None]:
    """Stand in for `Trainer.save`: one checkpoint of the stage is written, the next attempt is a Ctrl-C."""

    def write(trainer: Trainer, path: Path) -> None:
        if path.stem == stage and path.exists():
            raise KeyboardInterrupt
        save(trainer, path)

    return write


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
