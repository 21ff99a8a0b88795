"""Two clips compared frame by frame, as values that fit into a record."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from strobe.quality import psnr, ssim, temporal
from strobe.quality.clips import as_pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """One metric of a clip against its reference. JSON has no infinity: the PSNR of equal frames is None, `identical` says why.

    Args:
        metric: its name in `available.METRICS`.
        definition: what exactly was computed.
        value: the clip's value, or None (PSNR of identical clips; a temporal metric of one frame).
        identical: whether every pixel of the two clips is equal.
        curve: the drift curve, the value of each frame in order (temporal metrics start at the second frame); None for no value.
    """

    metric: str
    definition: str
    value: float | None
    identical: bool
    curve: tuple[float | None, ...]


def compare(frames: Tensor, reference: Tensor) -> tuple[Fidelity, ...]:
    """PSNR, SSIM and temporal difference of a clip against a reference, frame i against frame i.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip it should equal, in either layout.

    Raises:
        ShapeError: the clips differ in length or size, or are smaller than the SSIM window.
        DataError: a pixel is NaN or infinite.
    """
    pair = as_pair(frames, reference)
    errors = psnr.squared_error(*pair)
    identical = bool((errors == 0).all())
    similarity = ssim.ssim(*pair)
    changes = temporal.temporal_difference(*pair)
    return (
        Fidelity(
            metric="psnr",
            definition=psnr.DEFINITION,
            value=_finite(psnr.decibels(errors.mean()).item()),
            identical=identical,
            curve=_curve(psnr.decibels(errors)),
        ),
        Fidelity(
            metric="ssim",
            definition=ssim.DEFINITION,
            value=similarity.mean().item(),
            identical=identical,
            curve=_curve(similarity),
        ),
        Fidelity(
            metric="temporal_difference",
            definition=temporal.DEFINITION,
            value=_finite(changes.mean().item()),
            identical=identical,
            curve=_curve(changes),
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(values: Tensor) -> tuple[float | None, ...]:
    return tuple(_finite(value) for value in values.tolist())
