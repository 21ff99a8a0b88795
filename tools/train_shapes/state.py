"""State that all training stages share: the optimiser with its average, checkpoints that fit in 60 MB, and the log."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from strobe.core.errors import WeightsError
from strobe.core.files import write_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One log line of a stage: its progress and its metrics."""

    stage: str
    step: int
    total: int
    seconds: float
    values: dict[str, float]


class Trainer:
    """AdamW with cosine decay and an exponential moving average of the weights, for so many steps or seconds.

    Args:
        model: what is trained.
        total: most optimiser steps of the stage.
        seconds: after which the stage is over, those before the last checkpoint included. A slow device takes fewer steps.
        peak: highest learning rate, reached after 2 % of the stage; it decays to a hundredth.
        decay: of the moving average.
    """

    def __init__(self, model: nn.Module, *, total: int, seconds: float, peak: float, decay: float = 0.999) -> None:
        self.model = model
        self.total = total
        self.peak = peak
        self.decay = decay
        self.seconds = seconds
        self.step = 0
        self.spent = 0.0
        """Seconds of the stage before `began`."""
        self.began = self.saved = time.monotonic()
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        fused = next(iter(self.params.values())).device.type == "cuda"
        self.optimiser = torch.optim.AdamW(self.params.values(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
        self.average = {name: p.detach().clone() for name, p in self.params.items()}

    def elapsed(self) -> float:
        """Return the seconds of the stage so far."""
        return self.spent + time.monotonic() - self.began

    def done(self) -> float:
        """Return the share of the stage that is done, in [0, 1]; a stage takes one step at least."""
        if self.step == 0:
            return 0.0
        return min(1.0, max(self.step / self.total, self.elapsed() / self.seconds))

    def progress(self, stage: str, values: dict[str, float]) -> Progress:
        """Return a line for the log."""
        return Progress(stage=stage, step=self.step, total=self.total, seconds=self.elapsed(), values=values)

    def due(self, every: float) -> bool:
        """Return whether the last checkpoint is so many seconds old."""
        return time.monotonic() - self.saved >= every

    def rate(self) -> float:
        """Return the learning rate of the current step."""
        warm = max(1, self.total // 50)
        if self.step < warm:
            return self.peak * (self.step + 1) / warm
        progress = (self.done() - 0.02) / 0.98
        return self.peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))

    def update(self, loss: Tensor) -> None:
        """Take one optimiser step on the loss; a gradient that is not finite is skipped."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.params.values(), 1.0, error_if_nonfinite=False)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        if torch.isfinite(norm):
            self.optimiser.step()
        decay = min(self.decay, (self.step + 1) / (self.step + 10))
        torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in self.params.values()], 1 - decay)
        self.step += 1

    @torch.no_grad()
    def use_average(self) -> None:
        """Put the averaged weights into the model: the stage's result."""
        for name, p in self.params.items():
            p.copy_(self.average[name])

    def save(self, path: Path) -> None:
        """Write a checkpoint to resume from: float32 weights, the rest in bfloat16."""
        tensors = {f"weight.{name}": p.detach() for name, p in self.params.items()}
        for name, p in self.params.items():
            tensors[f"average.{name}"] = (self.average[name] - p.detach()).bfloat16()
            for moment in ("exp_avg", "exp_avg_sq"):
                if p in self.optimiser.state:
                    tensors[f"{moment}.{name}"] = self.optimiser.state[p][moment].bfloat16()
        notes = {"step": str(self.step), "seconds": str(self.elapsed())}
        write_whole(path, save({name: t.contiguous().cpu() for name, t in tensors.items()}, notes))
        self.saved = time.monotonic()

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            WeightsError: the file is not a checkpoint of this stage.
        """
        try:
            with safe_open(path, "pt") as file:
                if len(file.keys()) != 4 * len(self.params):
                    raise WeightsError(f"it holds {len(file.keys())} tensors, expected {4 * len(self.params)}")
                notes = file.metadata() or {}
                self.step, self.spent, self.began = int(notes["step"]), float(notes["seconds"]), time.monotonic()
                for name, p in self.params.items():
                    p.copy_(file.get_tensor(f"weight.{name}"))
                    self.average[name].copy_(p + file.get_tensor(f"average.{name}").to(p))
                    self.optimiser.state[p] = {
                        "step": torch.tensor(float(self.step), device=p.device),
                        "exp_avg": file.get_tensor(f"exp_avg.{name}").to(p),
                        "exp_avg_sq": file.get_tensor(f"exp_avg_sq.{name}").to(p),
                    }
        except (SafetensorError, KeyError, OSError, RuntimeError) as error:
            raise WeightsError(f"{path} is not a checkpoint of this stage: {error}; delete it to start the stage anew") from error


def append_log(path: Path, progress: Progress) -> None:
    """Add one JSON line to the training log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(progress)) + "\n")
