"""Sizes of a causal Wan transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class WanConfig:
    """Sizes of the transformer; defaults are those of Wan2.1-T2V-1.3B.

    Args:
        dim: width of a token; `num_heads * head_dim`.
        ffn_dim: hidden width of the feed-forward.
        freq_dim: width of the sinusoidal timestep embedding.
        text_dim: width of a text token as the text encoder gives it.
        text_len: text tokens, padding included; padding is zeros and is attended.
        latent_channels: channels of the VAE's latents.
        patch: latent cells per token, height and width.
        eps: epsilon of every norm.
    """

    dim: int = 1536
    ffn_dim: int = 8960
    freq_dim: int = 256
    text_dim: int = 4096
    text_len: int = 512
    latent_channels: int = 16
    num_heads: int = 12
    num_layers: int = 30
    patch: tuple[int, int] = (2, 2)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.dim % self.num_heads or self.head_dim % 2:
            raise ConfigError(f"dim {self.dim} over {self.num_heads} heads must give an even head_dim")

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def rope_pairs(self) -> tuple[int, int, int]:
        """Numbers of rotary pairs of a head for time, height and width."""
        pairs = self.head_dim // 2
        side = pairs // 3
        return pairs - 2 * side, side, side


WAN_1_3B: Final = WanConfig()
WAN_14B: Final = WanConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
WIDE: Final = 48
"""Channels of the latents of Wan2.2 5B."""
WAN_5B: Final = WanConfig(dim=3072, ffn_dim=14336, num_heads=24, latent_channels=WIDE)
SIZES: Final[dict[str, WanConfig]] = {"wan-1.3b": WAN_1_3B, "wan-14b": WAN_14B, "wan-5b": WAN_5B}
"""Released sizes by name. Source: config.json of Wan2.1-T2V-1.3B and Wan2.1-T2V-14B; Wan2.2, `wan/configs/wan_ti2v_5B.py`."""
