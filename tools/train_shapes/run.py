"""All three stages in a row, into one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from strobe.models.shapes import weights
from train_shapes import autoencoder, student, teacher
from train_shapes.state import Progress, append_log

LOG = "training_log.jsonl"


def train(
    folder: Path, *, device: torch.device, scale: float = 1.0, seed: int = 0, begin: Path | None = None
) -> Iterator[Progress]:
    """Train the bundled model into `folder`: `shapes.safetensors` and `training_log.jsonl`.

    A stage that was finished or begun in this folder goes on from its checkpoint, so the call can be repeated after any stop.

    Args:
        folder: made if it is missing.
        device: a GPU takes about 20 minutes for everything; a CPU is only good for a trial at a small scale.
        scale: share of the full number of steps, for trials.
        seed: of weights and data.
        begin: folder of weights to begin from instead of random ones; their autoencoder is kept as it is.

    Yields:
        progress, several times a minute; each is also a line of the log.

    Raises:
        WeightsError: a checkpoint in the folder belongs to something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    dit, text, vae = weights.build() if begin is None else weights.load(begin)
    for part in (dit, text, vae):
        part.to(device).requires_grad_(True).train()
    with _fast_products():
        for stage in (
            autoencoder.train(vae, folder, scale=scale, seed=seed) if begin is None else (),
            teacher.train(dit, text, vae, folder, scale=scale, seed=seed),
            student.train(dit, text, vae, folder, scale=scale, seed=seed),
        ):
            for progress in stage:
                append_log(folder / LOG, progress)
                yield progress
    weights.save((dit, text, vae), folder)


class _fast_products:
    """TF32 matrix products and tuned convolutions while training, as before afterwards."""

    def __enter__(self) -> None:
        self.before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self.before[0])
        torch.backends.cudnn.benchmark = self.before[1]
