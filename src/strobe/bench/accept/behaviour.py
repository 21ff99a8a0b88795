"""Checks of what a model makes: latents, frames, and how they follow the prompt. All are functions of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from strobe.bench.accept.verdict import judged, reported
from strobe.core.tolerances import tolerance
from strobe.perf.records.record import Check
from strobe.quality.clips import as_planes
from strobe.quality.temporal import border_jump

LATENT_STD: Final = (0.25, 4.0)
"""Bounds of the standard deviation of a clip's latents, whose autoencoder scales them to 1 over its data."""
LEAST_CONTRAST: Final = 2.0
LEAST_CORRELATION: Final = 0.5
LEAST_CHANGE: Final = 0.05
MOST_COHERENCE: Final = 0.5
_LEVELS: Final = 255


def check_latents(latents: Tensor) -> Iterator[Check]:
    """Check a clip's latents [F, C, Y, X]: finite, scaled as the autoencoder scales them; their spread along the clip.

    Args:
        latents: of at least 4 latent frames.
    """
    bad = (~latents.isfinite()).flatten(1).any(1)
    where = f"first in latent frame {int(bad.int().argmax())}" if bad.any() else ""
    yield judged(
        "latents",
        "latents_not_finite",
        int((~latents.isfinite()).sum()),
        "numbers of the clip's latents that are NaN or infinite",
        "fact: no picture has such a latent",
        bounds=(None, 0),
        detail=where,
    )
    latents = latents.double()
    per_channel = latents.std(dim=(0, 2, 3))
    yield judged(
        "latents",
        "latent_std",
        latents.std().item(),
        "standard deviation of the clip's latents",
        "fact: the autoencoder scales its latents to standard deviation 1 over its data; that one clip is within a factor of 4 "
        "is our bound",
        bounds=LATENT_STD,
        detail=f"channels from {per_channel.min().item():.3f} to {per_channel.max().item():.3f}",
    )
    yield reported("latents", "latent_mean", latents.mean().item(), "mean of the clip's latents; 0 over the autoencoder's data")
    quarter = len(latents) // 4
    yield reported(
        "latents",
        "latent_std_drift",
        (latents[-quarter:].std() / latents[:quarter].std()).item(),
        "standard deviation of the latents in the last quarter of the clip / in the first",
    )


def check_frames(frames: Tensor, unrelated: Tensor, starts: tuple[int, ...]) -> Iterator[Check]:
    """Check a clip's frames uint8 [F, Y, X, 3]: contrast, sharpness, motion, coherence, and their drift.

    Args:
        frames: at least 4.
        unrelated: frames of another prompt and seed, uint8 [F', Y, X, 3].
        starts: first frames of the frame blocks after the first.
    """
    planes = as_planes(frames).double()
    contrast = planes.std(dim=(2, 3)).mean(1) * _LEVELS  # [F]
    across = planes.diff(dim=3)
    sharpness = across.abs().mean((1, 2, 3)) * _LEVELS
    change = planes.diff(dim=0).abs().mean((1, 2, 3)) * _LEVELS  # [F - 1]
    yield judged(
        "frames",
        "contrast",
        contrast.mean().item(),
        "standard deviation of the pixels of a frame, mean over colours and frames",
        "ours: a picture of one colour has 0",
        bounds=(LEAST_CONTRAST, None),
        unit="of 255 levels",
    )
    variance = planes.var(dim=(2, 3)).mean().item()
    correlation = 1 - 0.5 * across.square().mean().item() / variance if variance else float("nan")
    yield judged(
        "frames",
        "neighbour_correlation",
        correlation,
        "1 - mean squared difference of horizontal neighbours / (2 variance of a frame's pixels)",
        "fact: white noise has 0, pictures of the world 0.9 and more (Field 1987: power falls as 1 / f^2); halfway is our bound",
        bounds=(LEAST_CORRELATION, None),
    )
    yield judged(
        "frames",
        "motion",
        change.mean().item(),
        "mean absolute change from frame to frame",
        "fact: a still picture has 0; a twentieth of a level is our bound",
        bounds=(LEAST_CHANGE, None),
        unit="of 255 levels",
        detail=f"largest {change.max().item():.3g}",
    )
    many = min(len(frames), len(unrelated))
    apart = (as_planes(frames[:many]) - as_planes(unrelated[:many])).abs().mean().item() * _LEVELS
    yield judged(
        "frames",
        "coherence",
        change.mean().item() / apart if apart else float("nan"),
        "change from frame to frame / difference to frames of another prompt and seed",
        "fact: frames that have nothing to do with each other have 1; half is our bound",
        bounds=(None, MOST_COHERENCE),
    )
    yield reported(
        "frames", "sharpness", sharpness.mean().item(), "mean absolute difference of horizontal neighbours", unit="of 255 levels"
    )
    quarter = len(frames) // 4
    for name, curve in (("sharpness_drift", sharpness), ("contrast_drift", contrast), ("motion_drift", change)):
        what = name.removesuffix("_drift")
        ratio = (curve[-quarter:].mean() / curve[:quarter].mean()).item()
        yield reported("frames", name, ratio, f"{what} in the last quarter of the clip / in the first")
    mean = planes.mean(dim=(2, 3))  # [F, 3]
    moved = (mean[-quarter:].mean(0) - mean[:quarter].mean(0)).abs().max().item() * _LEVELS
    yield reported(
        "frames",
        "colour_drift",
        moved,
        "largest change of a colour's mean from the first quarter of the clip to the last",
        unit="of 255 levels",
    )
    jump = border_jump(planes.float()[None], starts).item() if starts else float("nan")
    yield reported("frames", "border_jump", jump, "change into a frame block / change inside one; 1 is seamless")


def check_prompt(latents: Tensor, other_prompt: Tensor, other_seed: Tensor, dtype: torch.dtype) -> Iterator[Check]:
    """Check that the latents depend on prompt and seed: another one changes them by more than rounding does.

    Args:
        latents: of some frame blocks [F, C, Y, X].
        other_prompt: the same seed under another prompt.
        other_seed: the same prompt with another seed.
        dtype: of the stream.
    """
    least = tolerance("latents", dtype)
    source = (
        f"fact: a model that reads it gives another clip; two runs of one stream may differ by {least:g} (tolerance of {dtype})"
    )
    found = {name: _relative(other, latents) for name, other in (("prompt", other_prompt), ("seed", other_seed))}
    for name, value in found.items():
        yield judged(
            "prompt",
            f"{name}_sensitivity",
            value,
            f"root mean square of the change that another {name} makes / of the latents",
            source.replace("torch.", ""),
            bounds=(least, None),
        )
    share = found["prompt"] / found["seed"] if found["seed"] else float("nan")
    yield reported("prompt", "prompt_over_seed", share, "change by another prompt / change by another seed")


def _relative(other: Tensor, latents: Tensor) -> float:
    other, latents = other.double(), latents.double()
    return ((other - latents).square().mean().sqrt() / latents.square().mean().sqrt()).item()
