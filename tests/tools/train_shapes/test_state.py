"""The trainer resumes from a small checkpoint and refuses a wrong one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from strobe.core.errors import WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.shapes import weights
from train_shapes.state import Trainer

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
