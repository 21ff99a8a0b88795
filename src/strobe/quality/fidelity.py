"""Comparison of two clips frame by frame: PSNR, SSIM at one scale and at five, and errors in time.

A clip and the reference that it should equal are uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`; if they differ in length or size,
it is a `ShapeError`.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from strobe.core.errors import DataError, ShapeError, StrobeError
from strobe.core.libraries import broken, tried
from strobe.quality.clips import as_pair, frames_at_once, weighed
from strobe.quality.flip import flip


def squared_error(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the mean squared error of each frame over its pixels and channels, float64 `[F]`."""
    first, second = as_pair(frames, reference)
    return (first - second).double().square().mean((1, 2, 3))


def psnr(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the PSNR of each frame in dB, float64 `[F]`: 10 log10(1 / MSE), +inf where the frames are equal."""
    return decibels(squared_error(frames, reference))


def decibels(error: Tensor) -> Tensor:
    """Convert mean squared errors to PSNR in dB at peak 1; +inf at 0."""
    return -10 * error.log10()


WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def ssim(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the mean SSIM of each frame, float64 `[F]`, 1 for equal frames.

    SSIM = (2 mu_x mu_y + C1)(2 cov_xy + C2) / ((mu_x^2 + mu_y^2 + C1)(var_x + var_y + C2)), with moments under a Gaussian window
    of 11x11 pixels and sigma 1.5, C1 = 0.01^2, C2 = 0.03^2, averaged over the three channels and all places where the whole
    window fits. Nothing is downsampled.

    Raises:
        ShapeError: the clips are smaller than the window.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004.
    """
    first, second = as_pair(frames, reference)
    height, width = first.shape[2:]
    if min(height, width) < WINDOW:
        raise ShapeError(f"SSIM needs frames of at least {WINDOW}x{WINDOW} pixels, given {width}x{height}")
    return torch.cat([(luminance * structure).mean((1, 2, 3)) for luminance, structure in terms(first, second)])


def terms(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the luminance term and the contrast-structure term at each place, some frames at a time; SSIM is their product.

    Args:
        first, second: float32 `[F, 3, Y, X]`, at least 11x11 pixels.

    Yields:
        two float64 tensors `[f, 3, Y - 10, X - 10]`.
    """
    place = torch.arange(-(WINDOW // 2), WINDOW // 2 + 1, dtype=torch.float64)
    weights = torch.exp(-place.square() / (2 * SIGMA**2))
    row, many = (weights / weights.sum()).tolist(), frames_at_once(first)
    for clips in zip(torch.split(first, many), torch.split(second, many), strict=True):
        x, y = (clip.double() for clip in clips)  # variances are small differences
        moments = torch.stack((x, y, x * x, y * y, x * y))
        mean_x, mean_y, square_x, square_y, product = weighed(weighed(moments, row, -2), row, -1)
        covariance = product - mean_x * mean_y
        variances = (square_x - mean_x * mean_x) + (square_y - mean_y * mean_y)  # rounds like 2 * covariance: equal frames give 1
        luminance = (2 * mean_x * mean_y + C1) / (mean_x * mean_x + mean_y * mean_y + C1)
        yield luminance, (2 * covariance + C2) / (variances + C2)


WEIGHTS: Final = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales, the finest first (Wang et al., table 1)."""
SMALLEST: Final = WINDOW * 2 ** (len(WEIGHTS) - 1)
"""Pixels of the shorter side that the coarsest scale needs for one window."""


def ms_ssim(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute multi-scale SSIM of each frame, float64 `[F]`, 1 for equal frames.

    MS-SSIM = l_5^w_5 prod_j cs_j^w_j, where `cs_j` is the mean of SSIM's contrast-structure term at scale j, `l_5 cs_5` the mean
    SSIM at the coarsest one, and each scale has half the pixels of the one before in both directions.

    Raises:
        ShapeError: the clips are smaller than 176x176 pixels, the coarsest window.

    Source: Wang, Simoncelli, Bovik, "Multiscale structural similarity for image quality assessment", 2003.
    """
    first, second = as_pair(frames, reference)
    height, width = first.shape[2:]
    if min(height, width) < SMALLEST:
        raise ShapeError(f"MS-SSIM needs frames of at least {SMALLEST}x{SMALLEST} pixels, given {width}x{height}")
    product = torch.ones(first.shape[:2], dtype=torch.float64, device=first.device)  # [F, 3]
    for scale, weight in enumerate(WEIGHTS):
        last = scale == len(WEIGHTS) - 1
        means = [((luminance * structure) if last else structure).mean((2, 3)) for luminance, structure in terms(first, second)]
        product *= torch.cat(means).clamp_min(0) ** weight
        if not last:
            first, second = avg_pool2d(first, 2), avg_pool2d(second, 2)
    return product.mean(1)


def temporal_difference(frames: Tensor, reference: Tensor) -> Tensor:
    """Compare the frame-to-frame change of two clips, float64 `[F - 1]`: mean |dI_t - dI_t_ref| over pixels and channels.

    A constant offset between the clips costs nothing, flicker in one of them does; nothing is warped along the motion.
    """
    first, second = as_pair(frames, reference)
    return (first - second).double().diff(dim=0).abs().mean((1, 2, 3))


def flicker_excess(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute a clip's flicker over its reference's, float64 `[F - 2]`: mean |second difference in time|, minus the reference's.

    Steady motion of a smooth picture and steady fading cost next to nothing, a frame that stands out costs twice its step.
    """
    first, second = (clip.double().diff(n=2, dim=0).abs().mean((1, 2, 3)) for clip in as_pair(frames, reference))
    return first - second


def border_jump(frames: Tensor, starts: tuple[int, ...]) -> Tensor:
    """Compute the ratio of the picture's change into a frame block to that inside one, float32 `[N]`; 1 is seamless.

    Ratio of the mean absolute difference to the frame before, over frames in `starts`, to that over all others.
    NaN where nothing changes inside the blocks.

    Args:
        frames: float `[N, F, 3, Y, X]`.
        starts: indices of the first frames of frame blocks, each in 1 .. F - 1, with at least one other frame left.

    Raises:
        ShapeError: an index is outside, or one of the two sides of the ratio is empty.
    """
    num_frames = frames.shape[1]
    inside = [index for index in range(1, num_frames) if index not in starts]
    if not starts or not inside or min(starts) < 1 or max(starts) >= num_frames:
        raise ShapeError(f"border_jump: starts {starts} must name some, not all, of the frames 1 .. {num_frames - 1}")
    change = frames.detach().float().diff(dim=1).abs().mean((2, 3, 4))  # [N, F - 1]
    at_border = change[:, [index - 1 for index in starts]].mean(1)
    elsewhere = change[:, [index - 1 for index in inside]].mean(1)
    return torch.where(elsewhere > 0, at_border / elsewhere, torch.nan)


def block_starts(num_frames: int, block_frames: int, first_block_frames: int | None = None) -> tuple[int, ...]:
    """Return the first frames of all frame blocks of a clip but the first one.

    Args:
        block_frames: of a frame block, at least 2.
        first_block_frames: of the first one, if it is shorter.

    Raises:
        ShapeError: a block of fewer than two frames, or the clip ends before the second block begins.
    """
    first = block_frames if first_block_frames is None else first_block_frames
    if block_frames < 2 or first < 1 or first >= num_frames:
        raise ShapeError(
            f"frame blocks of {block_frames} frames, the first of {first}, in a clip of {num_frames}: give at least 2, and a "
            "first block that is shorter than the clip"
        )
    return tuple(range(first, num_frames, block_frames))


DRIFT_SHARE: Final = 4
"""Late against early is the last such part of a clip against the first."""
Fidelity = tuple[float | None, str]
"""A metric of a clip against its reference, None where there is no finite value (equal frames have no PSNR, and a few frames no
temporal metric), and why there is none although the clips differ; empty otherwise."""


def _drift(curve: Tensor) -> float:
    """Subtract the mean of a metric over the first part of a clip from that over the last, in its own unit."""
    values: list[float] = curve.tolist()
    window = len(values) // DRIFT_SHARE
    return sum(values[-window:]) / window - sum(values[:window]) / window


_NO_DRIFT: Final = "frames at one end equal the reference"
_MEASURES: Final[dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor | float], str]]] = {
    "psnr": (squared_error, lambda errors: decibels(errors.mean()), ""),
    "ssim": (ssim, torch.mean, ""),
    "ms_ssim": (ms_ssim, torch.mean, ""),
    "flip": (flip, torch.mean, ""),
    "temporal_difference": (temporal_difference, torch.mean, "a single frame does not move"),
    "flicker_excess": (flicker_excess, torch.mean, "needs three frames"),
    "psnr_drift": (psnr, _drift, _NO_DRIFT),
    "ssim_drift": (ssim, _drift, _NO_DRIFT),
}
"""By metric: the value of each frame, how they become one number, and why that is not finite."""
COMPARED: Final = tuple(_MEASURES)
"""Metrics that need a clip and its reference and no more."""


def compare(frames: Tensor, reference: Tensor, only: Collection[str] = COMPARED) -> dict[str, Fidelity]:
    """Compare a clip with a reference, frame i with frame i, by the metrics of `available.METRICS` that need no more.

    Args:
        only: names of metrics, some of `COMPARED`; the others are not computed.

    Raises:
        ShapeError: the clips are smaller than the SSIM window.
        DataError: a pixel is NaN or infinite.
    """
    first, second = as_pair(frames, reference)
    curve = cache(lambda measure: measure(first, second))
    found: dict[str, Fidelity] = {}
    for name in (name for name in COMPARED if name in only):
        measure, reduced, none = _MEASURES[name]
        if measure is ms_ssim and min(first.shape[2:]) < SMALLEST:
            found[name] = None, f"needs frames of {SMALLEST} pixels and more, these have {min(first.shape[2:])}"
            continue
        values = curve(measure)
        if reduced is _drift and len(first) < DRIFT_SHARE:
            found[name] = None, f"a clip of {len(first)} frames is too short: give {DRIFT_SHARE} or more"
            continue
        value = float(reduced(values))
        found[name] = (value, "") if math.isfinite(value) else (None, none)
    return found


# VMAF, computed by an FFmpeg with libvmaf that runs as a separate program.


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
