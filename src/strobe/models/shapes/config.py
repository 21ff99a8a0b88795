"""Sizes and defaults of the bundled model `shapes`."""

from __future__ import annotations

from strobe.models.shapes.picture import SIZE
from strobe.models.vae.tiny import TinyVAEConfig
from strobe.models.wan.config import WanConfig

FRAME_SIZE = (SIZE, SIZE)
FPS = 16
"""Pixel frames per second the model was trained at."""

FRAME_BLOCK = 3
"""Latent frames of one autoregressive step."""

TIMESTEPS = (1000.0, 750.0, 500.0, 250.0)
SHIFT = 2.0
"""Nominal timesteps of the few-step schedule and their shift: noise levels 1, 0.857, 0.667, 0.4."""

WAN = WanConfig(dim=192, ffn_dim=768, freq_dim=64, text_dim=64, text_len=24, latent_channels=8, num_heads=3, num_layers=8)
VAE = TinyVAEConfig(latent_channels=WAN.latent_channels)
