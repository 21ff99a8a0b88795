"""DISTS: distance by structure and texture of VGG-16's features."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, relu

from strobe.quality.clips import as_pair
from strobe.quality.learned.weights import DISTS, VGG16, read, tensor

_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)
_STAGES: Final = (
    ((0, 3), (2, 64)),
    ((5, 64), (7, 128)),
    ((10, 128), (12, 256), (14, 256)),
    ((17, 256), (19, 512), (21, 512)),
    ((24, 512), (26, 512), (28, 512)),
)
"""Convolutions of a stage: place in `features`, channels that go in."""
_WIDTHS: Final = (3, 64, 128, 256, 512, 512)
_STABLE: Final = 1e-6
_SMOOTH: Final = (0.25, 0.5, 0.25)
"""Hanning window of the pooling."""
_CHUNK: Final = 2


class Dists:
    """The DISTS metric on VGG-16.

    D = 1 - sum_lc (alpha_lc t_lc + beta_lc s_lc), where `t` compares the means of a feature map and `s` its covariance with the
    reference's, over the picture and the last outputs of VGG-16's five stages, pooled by the root of a smoothed square.

    Args:
        folder: with the weights, see `weights.FILES`.
        device: where it runs.

    Raises:
        WeightsError: the files hold other tensors.

    Source: Ding, Ma, Wang, Simoncelli, "Image quality assessment: unifying structure and texture similarity", 2020.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        trunk, weighed = read(VGG16, folder), read(DISTS, folder)
        self._stages = []
        for stage, width in zip(_STAGES, _WIDTHS[1:], strict=True):
            convs = []
            for at, given in stage:
                weight = tensor(trunk, f"features.{at}.weight", (width, given, 3, 3), VGG16).to(device)
                convs.append((weight, tensor(trunk, f"features.{at}.bias", (width,), VGG16).to(device)))
            self._stages.append(convs)
        shape = (1, sum(_WIDTHS), 1, 1)
        alpha, beta = (tensor(weighed, name, shape, DISTS).to(device).double() for name in ("alpha", "beta"))
        whole = alpha.sum() + beta.sum()
        self._alpha, self._beta = ((each / whole)[0, :, 0, 0].split(_WIDTHS) for each in (alpha, beta))
        self._device = device

    def __call__(self, frames: Tensor, reference: Tensor) -> Tensor:
        """Compute the distance of each frame, float64 `[F]`; 0 for equal frames. Clips as in `clips.as_pair`.

        Raises:
            ShapeError: the clips differ in length or size.
        """
        pairs = zip(*(torch.split(clip, _CHUNK) for clip in as_pair(frames, reference)), strict=True)
        with torch.no_grad():
            return torch.cat([self._distance(x.to(self._device), y.to(self._device)) for x, y in pairs]).cpu()

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        alike = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for at, (a, b) in enumerate(zip(self._features(x), self._features(y), strict=True)):
            a, b = a.double().flatten(2), b.double().flatten(2)  # [F, C, Y X]
            mean_a, mean_b = a.mean(2), b.mean(2)
            var_a, var_b = a.var(2, correction=0), b.var(2, correction=0)
            covariance = (a * b).mean(2) - mean_a * mean_b
            texture = (2 * mean_a * mean_b + _STABLE) / (mean_a.square() + mean_b.square() + _STABLE)
            structure = (2 * covariance + _STABLE) / (var_a + var_b + _STABLE)
            alike += (self._alpha[at] * texture + self._beta[at] * structure).sum(1)
        return 1 - alike

    def _features(self, picture: Tensor) -> list[Tensor]:
        found = [picture]
        here = (picture - _row(_MEAN, picture)) / _row(_STD, picture)
        for at, stage in enumerate(self._stages):
            here = _pooled(here) if at else here
            for weight, bias in stage:
                here = relu(conv2d(here, weight, bias, padding=1))
            found.append(here)
        return found


def _pooled(features: Tensor) -> Tensor:
    """Pool features to half the height and width, by the root of squares under a window of three."""
    row = torch.tensor(_SMOOTH, device=features.device)
    window = (row[:, None] * row[None, :])[None, None].expand(features.shape[1], 1, -1, -1)
    squares = conv2d(features.square(), window, stride=2, padding=1, groups=features.shape[1])
    return (squares + 1e-12).sqrt()


def _row(values: tuple[float, ...], picture: Tensor) -> Tensor:
    return torch.tensor(values, device=picture.device)[None, :, None, None]
