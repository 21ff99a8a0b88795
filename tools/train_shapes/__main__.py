"""Train the bundled model in three stages: autoencoder, teacher, few-step student. Each is boxed: 25 minutes at most in all.

`PYTHONPATH=tools python -m train_shapes --out my-shapes`; the same again goes on where it was interrupted. `--model my-shapes` of
`strobe` runs what it wrote.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from strobe.core.device import resolve_device
from train_shapes.run import train


def main(argv: list[str]) -> None:
    """Train into a folder; print a line for each step of the log."""
    parser = argparse.ArgumentParser(prog="train_shapes")
    parser.add_argument("--out", type=Path, default=Path("shapes-weights"), help="folder for weights, checkpoints and the log")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="steps and seconds of every stage; 1 is the full training, 0.1 a trial"
    )
    parser.add_argument("--seed", type=int, default=0, help="of data and noise")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; a CPU takes days")
    parser.add_argument("--begin", type=Path, help="folder of weights to begin from; their autoencoder is kept")
    asked = parser.parse_args(argv)
    if asked.scale <= 0:
        parser.error(f"--scale {asked.scale:g} is not positive; 1 is the full training, 0.1 a trial")
    for now in train(asked.out, device=resolve_device(asked.device), scale=asked.scale, seed=asked.seed, begin=asked.begin):
        figures = ", ".join(f"{name} {value:.4g}" for name, value in now.values.items())
        sys.stdout.write(f"{now.stage} {now.step} / {now.total}: {figures}\n")
    sys.stdout.write(f"weights: {asked.out}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
