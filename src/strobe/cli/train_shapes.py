"""`strobe train-shapes`: training of the bundled model from random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strobe.cli.console import OUT, Output


def train_shapes(
    *,
    out: Annotated[Path, Parameter(alias=OUT)] = Path("shapes-weights"),
    scale: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    output: Output = Output(),
) -> None:
    """Train the bundled model in three stages: autoencoder, teacher, few-step student. At most 25 minutes on one H200.

    ```
    strobe train-shapes --out my-shapes  # gpu
    strobe train-shapes --out trial --scale 0.1  # gpu
    strobe generate "a red circle moving left" --model my-shapes  # needs-files
    ```

    Run the same command again to continue where it was interrupted.

    Args:
        out: the folder for weights, checkpoints and training log; made if absent.
        scale: length of every stage relative to the full training; 0.1 is a trial.
        seed: of data and noise.
        device: auto, cpu, cuda or cuda:N; a CPU takes days.
    """
    with output.progress("training") as advance:
        from strobe.core.device import resolve_device
        from strobe.core.errors import ConfigError
        from strobe.models.shapes.train.run import train

        if scale <= 0:
            raise ConfigError(f"--scale {scale:g} is not positive; 1 is the full training, 0.1 a trial")
        last = {}
        for now in train(out, device=resolve_device(device), scale=scale, seed=seed):
            figures = ", ".join(f"{name} {value:.4g}" for name, value in now.values.items())
            advance(now.step, now.total, f"{now.stage} {figures}")
            last[now.stage] = {"step": now.step, "seconds": round(now.seconds, 1), **now.values}
    output.show(*(f"{stage}: {figures}" for stage, figures in last.items()), f"weights: {out}")
    output.emit({"folder": str(out), "stages": last})
