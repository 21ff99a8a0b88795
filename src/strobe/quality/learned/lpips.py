"""LPIPS: distance of AlexNet's features, weighted by channel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from strobe.core.errors import ShapeError
from strobe.quality.clips import as_pair
from strobe.quality.learned.weights import ALEXNET, LPIPS_HEADS, read, tensor

SMALLEST: Final = 63
"""Pixels of the shorter side that the network needs."""
_SHIFT: Final = (-0.030, -0.088, -0.188)
_SCALE: Final = (0.458, 0.448, 0.450)
_LAYERS: Final = (
    ("features.0", (64, 3, 11, 11), 4, 2),
    ("features.3", (192, 64, 5, 5), 1, 2),
    ("features.6", (384, 192, 3, 3), 1, 1),
    ("features.8", (256, 384, 3, 3), 1, 1),
    ("features.10", (256, 256, 3, 3), 1, 1),
)
"""Name, shape of the weight, stride, padding; the second and third come after a pooling."""
_POOLED: Final = (1, 2)
_CHUNK: Final = 4
_EPS: Final = 1e-10


class Lpips:
    """The LPIPS metric, v0.1 with AlexNet.

    d = sum_l mean_yx sum_c w_lc (a_lc / |a_l| - b_lc / |b_l|)^2, over the outputs of AlexNet's five convolutions.

    Args:
        folder: with the weights, see `weights.FILES`.
        device: where it runs.

    Raises:
        WeightsError: the files hold other tensors.

    Source: Zhang, Isola, Efros, Shechtman, Wang, "The unreasonable effectiveness of deep features as a perceptual metric", 2018.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        trunk, heads = read(ALEXNET, folder), read(LPIPS_HEADS, folder)
        self._layers = [
            (
                tensor(trunk, f"{name}.weight", shape, ALEXNET).to(device),
                tensor(trunk, f"{name}.bias", shape[:1], ALEXNET).to(device),
                tensor(heads, f"lin{at}.model.1.weight", (1, shape[0], 1, 1), LPIPS_HEADS).to(device),
            )
            for at, (name, shape, _, _) in enumerate(_LAYERS)
        ]
        self._device = device

    def __call__(self, frames: Tensor, reference: Tensor) -> Tensor:
        """Compute the distance of each frame, float64 `[F]`; 0 for equal frames. Clips as in `clips.as_pair`.

        Raises:
            ShapeError: the clips differ in length or size, or are too small for the network.
        """
        first, second = as_pair(frames, reference)
        if min(first.shape[2:]) < SMALLEST:
            raise ShapeError(f"LPIPS needs frames of at least {SMALLEST}x{SMALLEST} pixels, given {list(first.shape[2:])}")
        pairs = zip(torch.split(first, _CHUNK), torch.split(second, _CHUNK), strict=True)
        with torch.no_grad():
            return torch.cat([self._distance(x.to(self._device), y.to(self._device)) for x, y in pairs]).cpu()

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        a, b = (((2 * picture - 1) - _row(_SHIFT, picture)) / _row(_SCALE, picture) for picture in (x, y))
        for at, ((weight, bias, head), (_, _, stride, padding)) in enumerate(zip(self._layers, _LAYERS, strict=True)):
            a, b = (_step(picture, at, weight, bias, stride, padding) for picture in (a, b))
            change = (_unit(a) - _unit(b)).square() * head
            total += change.sum(1).double().mean((1, 2))
        return total


def _step(picture: Tensor, at: int, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    pooled = max_pool2d(picture, 3, 2) if at in _POOLED else picture
    return relu(conv2d(pooled, weight, bias, stride=stride, padding=padding))


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + _EPS)


def _row(values: tuple[float, ...], picture: Tensor) -> Tensor:
    return torch.tensor(values, device=picture.device)[None, :, None, None]
