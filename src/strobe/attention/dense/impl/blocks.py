"""Dense attention by the block-sparse kernels over all blocks: gradients through the lse where the dense kernels have none.

Rows are padded to whole blocks, and for Triton channels to a width that its kernels have; zeros change no score. Memory is that
of the inputs, whatever the number of pairs.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.impls import Impl
from strobe.attention.sparse.impls import IMPLS as SPARSE
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput, AttentionSpec

_LONG: Final = 2048
"""Rows from which blocks are large: their indices are few, and the padding of the last one is little."""
_WIDTHS: Final = {"triton": (32, 64, 128)}
"""Channels that kernels have; others have any."""


def _sparse(name: str, spec: AttentionSpec) -> SparseSpec:
    block = 64 if max(spec.q_len, spec.kv_len) < _LONG else 256
    num_q, num_kv = -(-spec.q_len // block), -(-spec.kv_len // block)
    return SparseSpec.of(
        spec,
        q_len=num_q * block,
        kv_len=num_kv * block,
        head_dim=next((width for width in _WIDTHS.get(name, ()) if width >= spec.head_dim), spec.head_dim),
        block=block,
        most_selected=num_kv,
        ragged=num_kv * block != spec.kv_len,
        uniform=True,
        deterministic=True,
    )


def _run(name: str, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    sparse, device = _sparse(name, spec), q.device
    num_q, num_kv = sparse.q_len // sparse.block, sparse.most_selected
    sizes = None
    if sparse.ragged:
        begins = torch.arange(0, sparse.kv_len, sparse.block, dtype=torch.int32, device=device)
        sizes = (spec.kv_len - begins).clamp(max=sparse.block)
    every = torch.arange(num_kv, dtype=torch.int32, device=device).expand(spec.batch, spec.num_heads, num_q, num_kv)
    selection = BlockSelection(
        indices=every,
        counts=torch.full((spec.batch, spec.num_heads, num_q), num_kv, dtype=torch.int32, device=device),
        block=sparse.block,
        kv_sizes=sizes,
        finite_padding=True,
        known_count=num_kv,
        known_bound=num_kv,
    )
    width = sparse.head_dim - spec.head_dim
    padded = [_padded(tensor, rows, width) for tensor, rows in ((q, sparse.q_len), (k, sparse.kv_len), (v, sparse.kv_len))]
    found = _BY_NAME[name].run(*padded, selection, sparse)
    lse = None if found.lse is None else found.lse[..., : spec.q_len]
    return AttentionOutput(out=found.out[:, : spec.q_len, :, : spec.head_dim], lse=lse)


def _padded(tensor: Tensor, rows: int, width: int) -> Tensor:
    missing = rows - tensor.shape[1]
    return F.pad(tensor, (0, width, 0, 0, 0, missing)) if missing or width else tensor


_BY_NAME: Final = {impl.name: impl for impl in SPARSE}


def _impl(name: str) -> Impl[AttentionSpec]:
    kernels = _BY_NAME[name]

    def refuses(spec: AttentionSpec) -> str | None:
        if 0 in (spec.batch, spec.q_len, spec.kv_len):
            return "it takes at least one query and one key"
        return kernels.refuses(_sparse(name, spec))

    def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
        return _run(name, q, k, v, spec)

    # the kernels are those of the sparse operator, and so is their gate
    return Impl(name=name, refuses=refuses, run=run, operator=kernels.operator, kernel=kernels.kernel, portable=kernels.portable)


TRITON: Final = _impl("triton")
CPU: Final = _impl("cpu")
