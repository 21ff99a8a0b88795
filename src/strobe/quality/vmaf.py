"""VMAF, computed by an FFmpeg with libvmaf that runs as a separate program."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from strobe.core.errors import DataError, ShapeError, StrobeError
from strobe.core.libraries import broken, tried


@cache
def find_program() -> str | None:
    """Return an FFmpeg with libvmaf: that of the extra `vmaf`, else the one on the PATH; None if neither has it."""
    programs = []
    if not broken("imageio_ffmpeg"):
        import imageio_ffmpeg

        programs.append(tried(imageio_ffmpeg.get_ffmpeg_exe)[0])
    programs.append(shutil.which("ffmpeg"))
    return next((program for program in programs if program and _has_vmaf(program)), None)


def _has_vmaf(program: str) -> bool:
    try:
        listed = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return False
    return any(line.split()[1:2] == ["libvmaf"] for line in listed.stdout.splitlines())


def vmaf(frames: Tensor, reference: Tensor, program: str) -> Tensor:
    """Compute VMAF of each frame, float64 `[F]`, up to 100. Frames are paired by number, whatever times the file has.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]`.
        reference: the clip it should equal, of the same shape.
        program: an FFmpeg with libvmaf.

    Raises:
        ShapeError: the clips differ in shape, or are not uint8.
        StrobeError: the program failed.
    """
    if frames.shape != reference.shape or frames.dtype != torch.uint8 or reference.dtype != torch.uint8 or frames.ndim != 4:
        raise ShapeError(f"VMAF compares uint8 clips of one shape, given {list(frames.shape)} and {list(reference.shape)}")
    height, width = frames.shape[1:3]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, clip in (("clip", frames), ("reference", reference)):
            (folder / f"{name}.rgb").write_bytes(clip.cpu().contiguous().numpy().tobytes())
        raw = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", "1")
        inputs = [part for name in ("clip", "reference") for part in (*raw, "-i", f"{name}.rgb")]
        command = [program, "-nostdin", "-v", "error", *inputs, "-lavfi", _FILTERS, "-f", "null", "-"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        log = folder / "vmaf.json"
        if ran.returncode or not log.exists():
            said = ran.stderr.strip().splitlines()
            raise StrobeError(
                f"{program} could not compute VMAF (exit code {ran.returncode}): {said[-1] if said else 'no reason'}"
            )
        scores = _scores(log.read_bytes())
    if len(scores) != len(frames):
        raise StrobeError(f"{program} gave {len(scores)} VMAF scores for {len(frames)} frames")
    return torch.tensor(scores, dtype=torch.float64)


_FILTERS = "[0:v]format=yuv420p[a];[1:v]format=yuv420p[b];[a][b]libvmaf=log_fmt=json:log_path=vmaf.json"


def _scores(log: bytes) -> list[float]:
    try:
        return [float(frame["metrics"]["vmaf"]) for frame in json.loads(log)["frames"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the VMAF log has no score for every frame: {error!r}") from error
