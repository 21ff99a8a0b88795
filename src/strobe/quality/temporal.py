"""What only a video can get wrong: flicker between frames and drift along the clip."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.quality.clips import as_pair

DEFINITION = (
    "temporal_difference(mean |dI_t - dI_t_ref| over RGB in [0, 1], dI_t = I_t - I_(t-1); a clip's value is the mean over t)"
)


def temporal_difference(frames: Tensor, reference: Tensor) -> Tensor:
    """How differently two clips change from frame to frame, float64 `[F - 1]`: mean |dI_t - dI_t_ref| over pixels and channels.

    A constant offset between the clips costs nothing, flicker in one of them does; nothing is warped along the motion.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip it should equal.

    Raises:
        ShapeError: the clips differ in length or size.
    """
    first, second = as_pair(frames, reference)
    return (first - second).double().diff(dim=0).abs().mean((1, 2, 3))


def drift(curve: Sequence[float | None], window: int) -> float | None:
    """Change of a metric along a clip: its mean over the last `window` frames minus that over the first.

    Args:
        curve: the metric frame by frame, as in `fidelity.Fidelity.curve`.
        window: frames averaged at either end.

    Returns:
        The change in the metric's own unit, or None where a value in one of the windows is None (equal frames have no PSNR).

    Raises:
        ShapeError: the two windows do not fit into the curve side by side.
    """
    if not 1 <= window <= len(curve) // 2:
        raise ShapeError(f"drift: window {window} must lie in 1 .. {len(curve) // 2}, half of the {len(curve)} values given")
    head = [value for value in curve[:window] if value is not None]
    tail = [value for value in curve[-window:] if value is not None]
    if len(head) < window or len(tail) < window:
        return None
    return sum(tail) / window - sum(head) / window
