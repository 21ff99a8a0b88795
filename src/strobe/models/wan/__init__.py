"""Causal Wan: a block-wise autoregressive video diffusion transformer."""

from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

__all__ = ["CausalWan", "WanConfig"]
