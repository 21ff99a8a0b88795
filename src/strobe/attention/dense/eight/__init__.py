"""Dense attention in eight bits."""

from strobe.attention.dense.eight.api import attend_rounded, eightbit_attention, round_keys, store_rounded
from strobe.eightbit.rounded import RoundedKeys

__all__ = ["RoundedKeys", "attend_rounded", "eightbit_attention", "round_keys", "store_rounded"]
