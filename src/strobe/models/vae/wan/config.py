"""Sizes of the Wan video autoencoders, and the statistics that normalise their latents to zero mean and unit variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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

WAN22_MEAN = (
    *(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891),
    *(0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502),
    *(-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723),
    *(-0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
)
"""Mean of each latent channel of Wan2.2's 4x16x16 autoencoder. Source: Wan2.2, `wan/modules/vae2_2.py` at bf69229."""

WAN22_STD = (
    *(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901),
    *(0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659),
    *(0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944),
    *(0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
)
"""Standard deviation of each latent channel of Wan2.2's 4x16x16 autoencoder; see `WAN22_MEAN`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WanVAEConfig:
    """Sizes of the autoencoder; defaults are those of Wan2.1.

    Args:
        width: channels at full frame size; 96, or 24 in the pruned "lightvae".
        decoder_width: the same of the decoder; None: `width`.
        patch: pixels, so many by so many, that enter and leave as one.
        latent_channels: channels of a latent frame.
        multipliers: channels of each resolution, times `width`, from full size down; each further one halves height and width.
        num_blocks: residual blocks of an encoder stage; a decoder stage has one more.
        halve_time: whether each halving of the frame size halves the frame rate too.
        residual: each stage has a skip around it, and changes resolution without changing channels (Wan2.2).
        mean, std: of each latent channel as the encoder gives it.
    """

    width: int = 96
    decoder_width: int | None = None
    patch: int = 1
    latent_channels: int = 16
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    num_blocks: int = 2
    halve_time: tuple[bool, ...] = (False, True, True)
    residual: bool = False
    mean: tuple[float, ...] = WAN21_MEAN
    std: tuple[float, ...] = WAN21_STD

    @property
    def stride(self) -> VaeStride:
        return VaeStride(time=2 ** sum(self.halve_time), space=self.patch * 2 ** len(self.halve_time))

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each resolution of the encoder, from full frame size down."""
        return tuple(self.width * multiplier for multiplier in self.multipliers)

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """Channels of each resolution of the decoder, from full frame size down."""
        return tuple((self.decoder_width or self.width) * multiplier for multiplier in self.multipliers)


WAN22: Final = WanVAEConfig(
    width=160, decoder_width=256, patch=2, latent_channels=48, residual=True, mean=WAN22_MEAN, std=WAN22_STD
)
"""The 4x16x16 autoencoder of Wan2.2 TI2V 5B. Source: Wan2.2, `wan/modules/vae2_2.py` at bf69229."""
