"""Released weights, in every spelling they come in."""

from strobe.models.wan.weights.checkpoint import Checkpoint, read_checkpoint, read_lora

__all__ = ["Checkpoint", "read_checkpoint", "read_lora"]
