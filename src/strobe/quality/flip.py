"""FLIP: the difference that an eye sees when two pictures alternate, for pictures of standard dynamic range."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from strobe.quality.clips import as_pair, frames_at_once, weighed

PIXELS_PER_DEGREE: Final = 3840 * math.pi / 180
"""A monitor of 3840 pixels, as wide as it is far away."""

_TO_XYZ: Final = (
    (10135552 / 24577794, 8788810 / 24577794, 4435075 / 24577794),
    (2613072 / 12288897, 8788810 / 12288897, 887015 / 12288897),
    (1425312 / 73733382, 8788810 / 73733382, 70074185 / 73733382),
)
_SENSITIVITY: Final = (((1.0, 0.0047),), ((1.0, 0.0053),), ((34.1, 0.04), (13.5, 0.025)))
"""Contrast sensitivity of the achromatic, red-green and blue-yellow channel: sums of `a sqrt(pi/b) exp(-pi^2 x^2 / b)`."""
_COLOUR_POWER, _FEATURE_POWER = 0.7, 0.5
_KNEE_AT, _KNEE_TO = 0.4, 0.95
_FEATURE_WIDTH: Final = 0.082
"""Degrees of visual angle that an edge detector is wide."""


def flip(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the mean FLIP error of each frame, float64 `[F]`: 0 for equal frames, at most 1.

    FLIP = dE_c^(1 - dE_f): the colour difference after the eye's contrast sensitivity, in Lab with the Hunt effect (HyAB
    distance), raised by the difference of edges and points.

    Clips as in `clips.as_pair`.

    Source: Andersson, Nilsson, Akenine-Moller, Oskarsson, Astrom, Fairchild, "FLIP: A Difference Evaluator for Alternating
        Images", 2020.
    """
    first, second = as_pair(frames, reference)
    many = frames_at_once(first)
    pairs = zip(torch.split(first, many), torch.split(second, many), strict=True)
    return torch.cat([error_map(x, y).double().mean((1, 2)) for x, y in pairs])


def error_map(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the FLIP error of each pixel, `[F, Y, X]`, of clips float `[F, 3, Y, X]`, sRGB."""
    test, expected = (_opponent(_linear(picture.clamp(0, 1))) for picture in (frames, reference))
    seen = (torch.cat([_sensed(each[:, at : at + 1], at) for at in range(3)], 1) for each in (test, expected))
    colours = [_hunt(_lab(_rgb(picture).clamp(0, 1))) for picture in seen]
    colour = _redistributed(_hyab(*colours) ** _COLOUR_POWER, _largest(frames))
    found, wanted = ([_length(picture, kernels) for kernels in _detectors(picture)] for picture in (test, expected))
    feature = torch.stack([(a - b).abs() for a, b in zip(found, wanted, strict=True)]).amax(0)
    error: Tensor = colour ** (1 - (feature / math.sqrt(2)) ** _FEATURE_POWER)
    return error


def _linear(picture: Tensor) -> Tensor:
    return torch.where(picture > 0.04045, ((picture + 0.055) / 1.055) ** 2.4, picture / 12.92)


def _matrix(picture: Tensor) -> Tensor:
    return torch.tensor(_TO_XYZ, dtype=torch.float64, device="cpu").to(picture)


def _times(matrix: Tensor, picture: Tensor) -> Tensor:
    return torch.einsum("ij,fjyx->fiyx", matrix, picture)


def _white(picture: Tensor) -> Tensor:
    """Return the XYZ of white, `[3, 1, 1]`."""
    return _matrix(picture).sum(1)[:, None, None]


def _opponent(picture: Tensor) -> Tensor:
    """Convert linear RGB to the linear opponent space YCxCz."""
    x, y, z = (_times(_matrix(picture), picture) / _white(picture)).unbind(1)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), 1)


def _rgb(picture: Tensor) -> Tensor:
    """Convert YCxCz to linear RGB."""
    first, second, third = picture.unbind(1)
    y = (first + 16) / 116
    xyz = torch.stack((y + second / 500, y, y - third / 200), 1) * _white(picture)
    return _times(_matrix(picture.double()).inverse().to(picture), xyz)


def _lab(picture: Tensor) -> Tensor:
    relative = _times(_matrix(picture), picture) / _white(picture)
    edge = 6 / 29
    x, y, z = torch.where(relative > edge**3, relative.clamp_min(1e-12) ** (1 / 3), relative / (3 * edge**2) + 4 / 29).unbind(1)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), 1)


def _hunt(lab: Tensor) -> Tensor:
    """Scale the colour of Lab by lightness (Hunt effect: colours look stronger where it is bright)."""
    return torch.cat((lab[:, :1], lab[:, 1:] * (0.01 * lab[:, :1])), 1)


def _hyab(first: Tensor, second: Tensor) -> Tensor:
    """Compute the HyAB distance, for large colour differences, `[F, Y, X]`."""
    change = first - second
    return change[:, 0].abs() + (change[:, 1].square() + change[:, 2].square()).sqrt()


def _largest(picture: Tensor) -> float:
    """Return the largest colour difference, which is between green and blue."""
    ends = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64, device=picture.device)[:, :, None, None]
    green, blue = _hunt(_lab(ends)).split(1)
    return float(_hyab(green, blue).item() ** _COLOUR_POWER)


def _redistributed(difference: Tensor, largest: float) -> Tensor:
    """Spread colour differences over [0, 1]: the lower 40 % of them over [0, 0.95]."""
    knee = _KNEE_AT * largest
    low = _KNEE_TO / knee * difference
    return torch.where(difference < knee, low, _KNEE_TO + (difference - knee) / (largest - knee) * (1 - _KNEE_TO))


def _sensed(channel: Tensor, at: int) -> Tensor:
    """Filter an opponent channel by the eye's contrast sensitivity, a normalised sum of Gaussians, `[F, 1, Y, X]`."""
    widest = max(b for each in _SENSITIVITY for _, b in each)
    radius = math.ceil(3 * math.sqrt(widest / (2 * math.pi**2)) * PIXELS_PER_DEGREE)
    place = torch.arange(-radius, radius + 1, device=channel.device, dtype=torch.float64) / PIXELS_PER_DEGREE
    padded = pad(channel, (radius,) * 4, mode="replicate")
    total, weight = torch.zeros_like(channel), 0.0
    for height, b in _SENSITIVITY[at]:
        row = torch.exp(-(math.pi**2) * place.square() / b)
        scale = height * math.sqrt(math.pi / b)
        total = total + scale * _separable(padded, row, row)
        weight += scale * row.sum().item() ** 2
    return total / weight


def _separable(padded: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return weighed(weighed(padded, down.tolist(), -2), across.tolist(), -1)


def _detectors(picture: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the filters for edges and for points, each as a one-dimensional kernel and its smoothing across."""
    spread = 0.5 * _FEATURE_WIDTH * PIXELS_PER_DEGREE
    radius = math.ceil(3 * spread)
    place = torch.arange(-radius, radius + 1, device=picture.device, dtype=torch.float64)
    smooth = torch.exp(-place.square() / (2 * spread**2))
    first, second = -place * smooth, (place.square() / spread**2 - 1) * smooth
    return (_balanced(first), smooth / smooth.sum()), (_balanced(second), smooth / smooth.sum())


def _balanced(kernel: Tensor) -> Tensor:
    """Scale positive weights to the sum 1 and negative ones to -1."""
    return torch.where(kernel > 0, kernel / kernel.clamp_min(0).sum(), kernel / -kernel.clamp_max(0).sum())


def _length(picture: Tensor, kernels: tuple[Tensor, Tensor]) -> Tensor:
    """Compute the strength of a feature at each pixel, in any direction, `[F, Y, X]`."""
    brightness = (picture[:, :1] + 16) / 116
    radius = len(kernels[0]) // 2
    padded = pad(brightness, (radius,) * 4, mode="replicate")
    across, down = _separable(padded, kernels[1], kernels[0]), _separable(padded, kernels[0], kernels[1])
    return (across.square() + down.square()).sqrt()[:, 0]
