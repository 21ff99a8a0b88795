"""FLIP against values of its authors' implementation, and against a direct float64 computation written here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from published_metrics import disturbed, waves
from strobe.quality.flip import flip

PUBLISHED = {0.02: 0.019475100561976433, 0.2: 0.23985761404037476}
"""Mean LDR-FLIP of `waves` against `disturbed` by flip-evaluator 1.7, float32."""


@pytest.mark.parametrize("strength", PUBLISHED)
def test_flip_equals_the_authors_implementation(strength: float) -> None:
    reference = waves()
    found = flip(disturbed(reference, strength).float(), reference.float())
    assert found.tolist() == pytest.approx([PUBLISHED[strength]], rel=2e-5)


def test_flip_equals_its_definition() -> None:
    reference = waves(33, 41, 2)
    frames = disturbed(reference, 0.1)
    expected = [numpy_flip(test.numpy(), wanted.numpy()) for test, wanted in zip(frames, reference, strict=True)]
    assert flip(frames, reference).tolist() == pytest.approx(expected, rel=1e-4)


def test_flip_by_construction() -> None:
    green, blue = torch.zeros(1, 3, 24, 24), torch.zeros(1, 3, 24, 24)
    green[:, 1], blue[:, 2] = 1, 1
    assert flip(green, blue).item() == pytest.approx(1.0, abs=1e-5), "the largest difference there is"
    assert flip(green, green).item() == 0.0


# Straight from the paper: two-dimensional filters, one pixel's neighbourhood at a time.

M = np.array(
    [
        [10135552 / 24577794, 8788810 / 24577794, 4435075 / 24577794],
        [2613072 / 12288897, 8788810 / 12288897, 887015 / 12288897],
        [1425312 / 73733382, 8788810 / 73733382, 70074185 / 73733382],
    ]
)
WHITE = M @ np.ones(3)
PPD = 0.7 * 3840 / 0.7 * math.pi / 180


def filtered(plane: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    radius = kernel.shape[0] // 2
    padded = np.pad(plane, radius, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape)
    return np.asarray((windows * kernel[::1, ::1]).sum((2, 3)))


def lab_of(linear: np.ndarray) -> np.ndarray:
    ratio = np.einsum("ij,jyx->iyx", M, linear) / WHITE[:, None, None]
    x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * (29 / 6) ** 2 / 3 + 4 / 29)
    light = 116 * y - 16
    return np.stack((light, 500 * (x - y) * 0.01 * light, 200 * (y - z) * 0.01 * light))


def hyab(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(a[0] - b[0]) + np.hypot(a[1] - b[1], a[2] - b[2]))


def features(brightness: np.ndarray) -> list[np.ndarray]:
    deviation = 0.5 * 0.082 * PPD
    radius = math.ceil(3 * deviation)
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(float)
    bell = np.exp(-(x**2 + y**2) / (2 * deviation**2))
    found = []
    for kernel in (-x * bell, (x**2 / deviation**2 - 1) * bell):
        scaled = np.where(kernel < 0, kernel / -kernel[kernel < 0].sum(), kernel / kernel[kernel > 0].sum())
        found.append(np.hypot(filtered(brightness, scaled), filtered(brightness, scaled.T)))
    return found


def numpy_flip(test: np.ndarray, reference: np.ndarray) -> float:
    colours, edges = [], []
    radius = math.ceil(3 * math.sqrt(0.04 / (2 * math.pi**2)) * PPD)
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1] / PPD
    square = x**2 + y**2
    for picture in (test, reference):
        linear = np.where(picture > 0.04045, ((picture + 0.055) / 1.055) ** 2.4, picture / 12.92)
        xn, yn, zn = np.einsum("ij,jyx->iyx", M, linear) / WHITE[:, None, None]
        opponent = [116 * yn - 16, 500 * (xn - yn), 200 * (yn - zn)]
        for at, (a1, b1, a2, b2) in enumerate(((1, 0.0047, 0, 1e-5), (1, 0.0053, 0, 1e-5), (34.1, 0.04, 13.5, 0.025))):
            bell = a1 * math.sqrt(math.pi / b1) * np.exp(-(math.pi**2) * square / b1)
            bell = bell + a2 * math.sqrt(math.pi / b2) * np.exp(-(math.pi**2) * square / b2)
            opponent[at] = filtered(opponent[at], bell / bell.sum())
        light = (opponent[0] + 16) / 116
        xyz = np.stack((opponent[1] / 500 + light, light, light - opponent[2] / 200)) * WHITE[:, None, None]
        colours.append(lab_of(np.clip(np.einsum("ij,jyx->iyx", np.linalg.inv(M), xyz), 0, 1)))
        edges.append(features(yn))
    ends = [lab_of(np.array(end, float)[:, None, None]) for end in ((0, 1, 0), (0, 0, 1))]
    largest = hyab(*ends).item() ** 0.7
    power = hyab(*colours) ** 0.7
    knee = 0.4 * largest
    colour = np.where(power < knee, power * 0.95 / knee, 0.95 + (power - knee) / (largest - knee) * 0.05)
    change = np.maximum(*(np.abs(a - b) for a, b in zip(*edges, strict=True)))
    return float((colour ** (1 - np.sqrt(change / math.sqrt(2)))).mean())
