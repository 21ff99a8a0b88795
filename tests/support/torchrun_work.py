"""The work of each process under torchrun: `torchrun ... torchrun_work.py FOLDER DEVICE`.

The bundled model, streamed and saved by each; then the command line in the same processes, as it is, with a preset that so many
ranks cannot run, and with a degree that is not legal; at last rank 1 hangs amid a frame block, and in another group ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from shared_model import SHORT_S, bundled, six_heads
from strobe.attention.tree import CollectiveError
from strobe.cli.main import main
from strobe.engine.config import EngineConfig
from strobe.engine.parallel import DeviceGroup
from strobe.engine.session import Session


def work(folder: Path, device: str) -> None:
    """Stream the bundled model, run the command line, then let ranks fail."""
    with DeviceGroup.join(device, timeout_s=300 if device == "cpu" else 30) as devices:
        told = bundled(devices)
        torch.save(
            {"latents": told.latents.cpu(), "frames": told.frames, "cached": told.cached}, folder / f"rank{devices.rank}.pt"
        )
        command = ["generate", "a red circle moving left", "--device", device, "--blocks", "1", "-o", str(folder / "clip.mp4")]
        codes = [
            main([*command, "--preset", "turbo", "--json", "--ulysses", "1"]),
            main([*command, "--force", "--preset", "sparse"]),
            main([*command, "--force", "--ulysses", "3"]),
        ]
        (folder / f"codes{devices.rank}").write_text(repr(codes))
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for what, group in zip(("hangs", "ends"), groups, strict=True):
            fail(folder / what, DeviceGroup(group, device=devices.device, timeout_s=devices.timeout_s))
        if device == "cuda":
            os._exit(0)  # NCCL's own end would wait for the rank that has ended


def fail(told: Path, devices: DeviceGroup) -> None:
    """Let rank 1 leave amid its second frame block; rank 0 writes down the error that it gets."""
    config = EngineConfig(window=7, timesteps=(1000.0,))
    session = Session("red circle", preset=config, model=six_heads(), device=devices)
    stream = session.stream(3)
    next(stream)
    if devices.rank == 0 and (told.name == "hangs" or devices.device.type == "cuda"):  # NCCL does not see that a rank has ended
        devices.timeout_s = SHORT_S

    def leave(*_: object) -> torch.Tensor:
        while told.name == "hangs" and not told.exists():
            time.sleep(0.05)
        os._exit(0) if told.name == "ends" else None
        raise TimeoutError("hung long enough")

    if devices.rank == 1 and devices.device.type == "cuda":  # passes are recorded
        session._stream._dit.runner.run = leave  # type: ignore[method-assign]
    elif devices.rank == 1:
        session._stream._dit.dit.layers[-1].after = leave  # type: ignore[method-assign]
    try:
        list(stream)
    except (CollectiveError, TimeoutError) as error:
        if devices.rank == 0:
            told.with_suffix(".part").write_text(f"{getattr(error, 'ranks', ())} {error}")
            told.with_suffix(".part").rename(told)


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(Path(sys.argv[1]), sys.argv[2])
