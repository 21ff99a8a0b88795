"""Released weights, in every spelling they come in."""

from strobe.models.wan.weights.checkpoint import Checkpoint, OpenCheckpoint, open_checkpoint, read_checkpoint
from strobe.models.wan.weights.loras import read_lora

__all__ = ["Checkpoint", "OpenCheckpoint", "open_checkpoint", "read_checkpoint", "read_lora"]
