"""Table of the declared effort of building each optimisation; it is not measured."""

from __future__ import annotations

from typing import Final

SCALE: Final = (
    "1: a value in a configuration; 2: one function; 3: one module and its tests; 5: several modules; 8: a kernel, a compiler's "
    "path or a new number format."
)

EFFORT: Final[dict[str, int]] = {
    "window": 1, "sink": 1, "steps": 1, "positions": 1, "shift": 1, "keep_sink": 1, "first_block": 1, "dtype": 1, "preset": 1,
    "batch": 1, "switch_at": 1,
    "block_decode": 2, "commit_kv_only": 2, "fused_qkv": 2, "text_once": 2, "rope_table": 2, "modulation_table": 2,
    "merge_lora": 3, "syncs": 3, "late_frames": 3,
    "ring_cache": 5, "overlap_decode": 5,
    "compile": 8, "sparsity": 8,
}  # fmt: skip
"""Declared effort by factor, on the scale above; an undeclared factor is not ranked."""


def effort(changes: dict[str, str]) -> int | None:
    """Return the sum of the declared efforts of the changes; None if one of them is not declared."""
    known = [EFFORT.get(name) for name in changes]
    return None if not known or None in known else sum(each for each in known if each is not None)
