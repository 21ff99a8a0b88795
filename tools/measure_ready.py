"""Measure how soon a Wan model is ready to stream from files in the page cache, and the main memory it takes.

Weights are drawn and written once, in Wan's own names and in bfloat16.
The text encoder is left out: its weights are read at the first prompt.
Each run is a process of its own. Memory of the process itself and of mapped files is read from /proc every 10 ms.

Usage: python tools/measure_ready.py FOLDER [--model wan-1.3b] [--vae tiny] [--preset balanced] [--device cuda]
       [--size 480x832] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from strobe.cli.model import parse_size
from strobe.engine import load
from strobe.engine.family import Weights
from strobe.engine.session import Session
from strobe.models.vae import taew
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import key_names, random_wan_vae
from strobe.models.wan.config import SIZES
from strobe.models.wan.random_init import PromptNoise, random_transformer
from strobe.models.wan.recipes import RECIPES

FILE: Final = "diffusion_pytorch_model.safetensors"
VAES: Final = {"tiny": "autoencoder/taew2_1.safetensors", "wan": "autoencoder/Wan2.1_VAE.safetensors"}
PROMPT: Final = "a fox in the snow"
HELD: Final = ("RssAnon", "RssFile")


def write(folder: Path, model: str, vae: str) -> None:
    """Write drawn weights of transformer and autoencoder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / FILE).exists():
        recipe = RECIPES.get(model)
        dit = random_transformer(SIZES[model if recipe is None else recipe.size])
        before = "model." if model == "krea" else ""  # a recipe that is told by its names
        save_file({before + name: tensor for name, tensor in dit.state_dict().items()}, folder / FILE)
    if not (folder / VAES[vae]).exists():
        (folder / VAES[vae]).parent.mkdir(exist_ok=True)
        if vae == "tiny":
            names, drawn = taew.key_names(taew.TaewConfig()), taew.random_taew(taew.TaewConfig(), 0)
        else:
            names, drawn = key_names(WanVAEConfig())[0], random_wan_vae(WanVAEConfig(), 0)
        save_file({names[name]: tensor.contiguous() for name, tensor in drawn.state_dict().items()}, folder / VAES[vae])


def warm(folder: Path) -> int:
    """Read every file once; return their bytes."""
    total = 0
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                total += len(piece)
    return total


def since_start() -> float:
    """Return the seconds since this process started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / 100


def watch(peak: dict[str, int], done: threading.Event) -> None:
    """Keep the largest values of `HELD`, kB."""
    while not done.wait(0.01):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in HELD:
                peak[name] = max(peak.get(name, 0), int(value.split()[0]))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Load, open a session and make six frame blocks.

    Returns:
        seconds since the process began until each stage was over, of the longest frame block after the first, CPU seconds, peaks.
    """
    peak: dict[str, int] = {}
    done = threading.Event()
    threading.Thread(target=watch, args=(peak, done), daemon=True).start()
    at = {"imported": since_start()}
    named = options.model in RECIPES
    recipe, size = (options.model, RECIPES[options.model].size) if named else ("causal-wan", options.model)
    weights = Weights(path=folder, vae=str(folder / VAES[options.vae]), frame_size=parse_size(options.size), recipe=recipe)
    with patch.object(load, "text_encoder", lambda *_: PromptNoise(SIZES[size])), patch.object(load, "Umt5Files"):
        model = load.load(options.model, weights)
    at["loaded"] = since_start()
    with Session(PROMPT, preset=options.preset, model=model, device=options.device) as session:
        if options.device != "cpu":
            torch.cuda.synchronize()
        at["opened"] = since_start()
        frames = iter(session.stream(6))
        next(frames)
        at["first_frames"] = since_start()
        ends = [at["first_frames"], *(since_start() for _ in frames)]
    done.set()
    at["longest_after"] = max(end - begin for begin, end in pairwise(ends))
    return {**at, "cpu": time.process_time(), **{f"peak_{name}_gb": peak[name] * 1024 / 1e9 for name in HELD}}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, run the processes and print each run and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="wan-1.3b")
    parser.add_argument(
        "--vae", choices=VAES, default="tiny", help="autoencoder: the tiny one, or Wan's, which is compiled first"
    )
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.inside:
        sys.stdout.write(json.dumps(measure(options.folder, options)) + "\n")
        return 0
    write(options.folder, options.model, options.vae)
    what = "Seconds since the process began, CPU seconds, GB in memory"
    sys.stdout.write(f"{warm(options.folder) / 1e9:.2f} GB of files, read once. {what}:\n")
    words = [sys.executable, __file__, *(argv or sys.argv[1:]), "--inside"]
    said = [subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout for _ in range(options.runs)]
    runs = [json.loads(each.splitlines()[-1]) for each in said]
    for name in runs[0]:
        values = [run[name] for run in runs]
        each = ", ".join(f"{value:.2f}" for value in values)
        sys.stdout.write(f"{name:18} {statistics.median(values):8.2f}   ({each})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
