"""Released weights, in every spelling they come in."""

from strobe.models.wan.weights.checkpoint import OpenCheckpoint, open_checkpoint
from strobe.models.wan.weights.loras import read_lora

__all__ = ["OpenCheckpoint", "open_checkpoint", "read_lora"]
