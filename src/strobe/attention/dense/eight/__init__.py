"""Attention in eight bits, to all keys or to the best blocks of them."""

from strobe.attention.dense.eight.api import attend_rounded, best_blocks, eightbit_attention, round_keys, store_rounded
from strobe.eightbit.rounded import RoundedKeys

__all__ = ["RoundedKeys", "attend_rounded", "best_blocks", "eightbit_attention", "round_keys", "store_rounded"]
