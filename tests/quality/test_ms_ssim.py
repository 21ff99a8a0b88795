"""MS-SSIM against a float64 computation written here."""

from __future__ import annotations

import numpy as np
import pytest

from published_metrics import disturbed, waves
from strobe.core.errors import ShapeError
from strobe.quality.ms_ssim import ms_ssim


def means(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean SSIM and mean contrast-structure of one channel, moments of each window in float64."""
    axis = np.arange(11) - 5
    weight = np.exp(-(axis[:, None] ** 2 + axis[None, :] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    a, b = (np.lib.stride_tricks.sliding_window_view(plane, (11, 11)) for plane in (x, y))
    mean_a, mean_b = (a * weight).sum((2, 3)), (b * weight).sum((2, 3))
    var_a = ((a - mean_a[..., None, None]) ** 2 * weight).sum((2, 3))
    var_b = ((b - mean_b[..., None, None]) ** 2 * weight).sum((2, 3))
    both = ((a - mean_a[..., None, None]) * (b - mean_b[..., None, None]) * weight).sum((2, 3))
    structure = (2 * both + 9e-4) / (var_a + var_b + 9e-4)
    light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return float((light * structure).mean()), float(structure.mean())


def halved(plane: np.ndarray) -> np.ndarray:
    height, width = (side // 2 * 2 for side in plane.shape)
    return np.asarray(plane[:height, :width].reshape(height // 2, 2, width // 2, 2).mean((1, 3)))


def numpy_ms_ssim(x: np.ndarray, y: np.ndarray) -> float:
    product = 1.0
    for scale, weight in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        similar, structure = means(x, y)
        product *= (similar if scale == 4 else structure) ** weight
        x, y = halved(x), halved(y)
    return product


@pytest.mark.parametrize(("height", "width"), [(176, 176), (201, 187)])
def test_ms_ssim_equals_its_definition(height: int, width: int) -> None:
    reference = waves(height, width)
    frames = disturbed(reference, 0.15)
    expected = np.mean([numpy_ms_ssim(frames[0, c].numpy(), reference[0, c].numpy()) for c in range(3)])
    assert ms_ssim(frames, reference).tolist() == pytest.approx([expected], abs=2e-5)
    assert 0.2 < expected < 0.999


def test_equal_frames_are_equal_and_small_ones_refused() -> None:
    reference = waves(180, 176)
    assert ms_ssim(reference, reference).tolist() == pytest.approx([1.0])
    assert ms_ssim(1 - reference, reference).item() == 0.0, "negative structure counts as none"
    with pytest.raises(ShapeError, match="at least 176x176 pixels, given 176x175"):
        ms_ssim(reference[:, :, :175], reference[:, :, :175])
