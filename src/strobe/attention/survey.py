"""Every implementation on one device: where it passed its gate, that nobody tested it there, or what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from strobe.attention.dense.api import IMPLS as DENSE
from strobe.attention.gates import gate_of
from strobe.attention.impls import Impl
from strobe.attention.sparse.impls import IMPLS as SPARSE
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionSpec

State = Literal["gated", "runs", "untested", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImplState:
    """What one implementation is on one device.

    Args:
        operator: `dense` or `sparse`.
        name: of the implementation.
        state: `gated`: it runs and passed its tests on such a device; `runs`: it runs and needs no gate; `untested`: it runs if
            named; `missing`: it does not run.
        detail: the record of the gate, with what is installed in another version than it ran with; or the reason; empty for
            `runs`.
    """

    operator: str
    name: str
    state: State
    detail: str


def survey(device: torch.device) -> tuple[ImplState, ...]:
    """Ask every implementation about a plain call on a device: bfloat16 on a GPU, head_dim 128, blocks of 64, no gradient."""
    dense = AttentionSpec(
        batch=1,
        q_len=1024,
        kv_len=1024,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        device=device,
        softmax_scale=128**-0.5,
        return_lse=False,
        needs_grad=False,
    )
    sparse = SparseSpec.of(dense, block=64, most_selected=4, ragged=False, uniform=False, deterministic=False)
    asked: list[tuple[str, Impl[Any], AttentionSpec]] = [("dense", impl, dense) for impl in DENSE]
    asked += [("sparse", impl, sparse) for impl in SPARSE]
    return tuple(_state(*each) for each in asked)


def _state(operator: str, impl: Impl[Any], spec: AttentionSpec) -> ImplState:
    gate = gate_of(operator, impl.name, spec.device)
    state: State = "runs"
    detail = ""
    if reason := impl.refuses(spec):
        state, detail = "missing", reason
    elif gate is not None:
        drift = gate.drift()
        state, detail = "gated", str(gate) + (f"; not with what is here: {drift}" if drift else "")
    elif reason := impl.untested(spec.device):
        state, detail = "untested", reason
    return ImplState(operator=operator, name=impl.name, state=state, detail=detail)
