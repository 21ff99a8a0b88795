"""Comparison of two clips frame by frame, as values for a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from torch import Tensor

from strobe.quality import flip, ms_ssim, psnr, ssim, temporal
from strobe.quality.available import METRICS, metric
from strobe.quality.clips import as_pair

COMPARED: Final = tuple(each.name for each in METRICS if each.compares)
"""Metrics that need a clip and its reference and no more."""
DRIFT_SHARE: Final = 4
"""Late against early is the last such part of a clip against the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """One metric of a clip against its reference. JSON has no infinity: the PSNR of equal frames is None, and `identical` is set.

    Args:
        metric: its name in `available.METRICS`.
        definition: what exactly was computed.
        value: the clip's value, or None (PSNR of identical clips; a temporal metric of too few frames).
        identical: whether every pixel of the two clips is equal.
        curve: the value of each frame in order (temporal metrics start at the second or third frame); None for no value.
        note: why there is no value although the clips differ; empty otherwise.
    """

    metric: str
    definition: str
    value: float | None
    identical: bool
    curve: tuple[float | None, ...]
    note: str = ""


def compare(frames: Tensor, reference: Tensor, only: Collection[str] = COMPARED) -> tuple[Fidelity, ...]:
    """Compare a clip with a reference, frame i with frame i, by the metrics of `available.METRICS` that need no more.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip it should equal, in either layout.
        only: names of metrics, some of `COMPARED`; the others are not computed.

    Raises:
        ShapeError: the clips differ in length or size, or are smaller than the SSIM window.
        DataError: a pixel is NaN or infinite.
    """
    pair = _Pair(*as_pair(frames, reference))
    found = []
    for name in COMPARED:
        if name in only:
            curve, value, note = _MEASURES[name](pair)
            steps = () if curve is None else _curve(curve)
            definition = metric(name).definition
            found.append(
                Fidelity(metric=name, definition=definition, value=value, identical=pair.identical, curve=steps, note=note)
            )
    return tuple(found)


class _Pair:
    """Two clips, float32 `[F, 3, Y, X]`, with the values that several metrics need, computed once."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    @cached_property
    def errors(self) -> Tensor:
        """Mean squared error of each frame."""
        return psnr.squared_error(self.first, self.second)

    @property
    def identical(self) -> bool:
        """Whether every pixel is equal."""
        return bool((self.errors == 0).all())

    @property
    def psnr(self) -> Tensor:
        """PSNR of each frame, dB."""
        return psnr.decibels(self.errors)

    @cached_property
    def ssim(self) -> Tensor:
        """SSIM of each frame."""
        return ssim.ssim(self.first, self.second)


_Measured = tuple[Tensor | None, float | None, str]
"""Curve, value, and why there is no value."""
_Curve = Callable[[_Pair], Tensor]


def _psnr(pair: _Pair) -> _Measured:
    return pair.psnr, _finite(psnr.decibels(pair.errors.mean()).item()), ""


def _mean(measure: _Curve, few: str = "") -> Callable[[_Pair], _Measured]:
    def measured(pair: _Pair) -> _Measured:
        curve = measure(pair)
        value = _finite(curve.mean().item())
        return curve, value, few if value is None else ""

    return measured


def _of(measure: Callable[[Tensor, Tensor], Tensor]) -> _Curve:
    return lambda pair: measure(pair.first, pair.second)


def _ms_ssim(pair: _Pair) -> _Measured:
    shorter = min(pair.first.shape[2:])
    if shorter < ms_ssim.SMALLEST:
        return None, None, f"needs frames of {ms_ssim.SMALLEST} pixels and more, these have {shorter}"
    return _mean(_of(ms_ssim.ms_ssim))(pair)


def _drift(measure: _Curve) -> Callable[[_Pair], _Measured]:
    def measured(pair: _Pair) -> _Measured:
        curve = measure(pair)
        window = len(curve) // DRIFT_SHARE
        if not window:
            return None, None, f"a clip of {len(curve)} frames is too short: give {DRIFT_SHARE} or more"
        value = temporal.drift(_curve(curve), window)
        return None, value, "" if value is not None else "frames at one end equal the reference"

    return measured


_MEASURES: Final[dict[str, Callable[[_Pair], _Measured]]] = {
    "psnr": _psnr,
    "ssim": _mean(lambda pair: pair.ssim),
    "ms_ssim": _ms_ssim,
    "flip": _mean(_of(flip.flip)),
    "temporal_difference": _mean(_of(temporal.temporal_difference), "a single frame does not move"),
    "flicker_excess": _mean(_of(temporal.flicker_excess), "needs three frames"),
    "psnr_drift": _drift(lambda pair: pair.psnr),
    "ssim_drift": _drift(lambda pair: pair.ssim),
}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(values: Tensor) -> tuple[float | None, ...]:
    return tuple(_finite(value) for value in values.tolist())
