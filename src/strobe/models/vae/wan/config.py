"""Sizes of a Wan2.1 video autoencoder, and the statistics that normalise its latents to zero mean and unit variance."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.core.errors import ConfigError
from strobe.core.shapes import VaeStride

WAN21_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
"""Mean of each latent channel of Wan2.1. Checkpoints do not hold it. Source: the official `wan/modules/vae.py`."""

WAN21_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
"""Standard deviation of each latent channel of Wan2.1; see `WAN21_MEAN`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WanVAEConfig:
    """Sizes of the autoencoder; defaults are those of Wan2.1.

    Args:
        width: channels at full frame size; 96, or 24 in the pruned "lightvae".
        latent_channels: channels of a latent frame.
        multipliers: channels of each resolution, times `width`, from full size down; each further one halves height and width.
        num_blocks: residual blocks of an encoder stage; a decoder stage has one more.
        halve_time: whether each halving of the frame size halves the frame rate too.
        mean, std: of each latent channel as the encoder gives it.

    Raises:
        ConfigError: the lengths do not fit each other.
    """

    width: int = 96
    latent_channels: int = 16
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    num_blocks: int = 2
    halve_time: tuple[bool, ...] = (False, True, True)
    mean: tuple[float, ...] = WAN21_MEAN
    std: tuple[float, ...] = WAN21_STD

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.latent_channels:
            raise ConfigError(
                f"{self.latent_channels} latent channels with {len(self.mean)} means and {len(self.std)} deviations; "
                "give one of each per channel"
            )
        if len(self.halve_time) != len(self.multipliers) - 1:
            raise ConfigError(
                f"{len(self.multipliers)} resolutions have {len(self.multipliers) - 1} halvings; halve_time must too"
            )

    @property
    def stride(self) -> VaeStride:
        """Pixels and frames per latent."""
        return VaeStride(time=2 ** sum(self.halve_time), space=2 ** len(self.halve_time))

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each resolution, from full frame size down."""
        return tuple(self.width * multiplier for multiplier in self.multipliers)
