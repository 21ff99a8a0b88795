"""One block-sparse attention call, checked once at the api and then handed inward."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from strobe.attention.types import AttentionSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseSpec(AttentionSpec):
    """One block-sparse attention call, as far as the choice of an implementation depends on it.

    Args:
        block: tokens of a block.
        most_selected: key blocks that a query block may see at most.
        ragged: some blocks may hold fewer valid tokens than `block`.
        uniform: every query block sees the same number of key blocks, at least one, and the host knows it.
        deterministic: gradients must be the same bits in every run.
    """

    block: int
    most_selected: int
    ragged: bool
    uniform: bool
    deterministic: bool

    @classmethod
    def of(cls, call: AttentionSpec, **sparse: Any) -> SparseSpec:
        """Extend the spec of a dense call by the sparse fields; `sparse` may also replace fields of the dense one."""
        return cls(**{field.name: getattr(call, field.name) for field in fields(call)} | sparse)
