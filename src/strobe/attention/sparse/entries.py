"""What the entries of a selection hold: looked at on a CPU, harmless on a GPU.

On a CPU every entry is checked before a call. On a GPU nothing waits to look: there an index that names no key block reads
nothing. The Triton kernels pass over it; what a caller selected is cleaned on the device before a library sees it. With
`STROBE_CHECK=1` in the environment every device is checked like a CPU, and each call then waits for the device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection
from strobe.core.errors import ShapeError
from strobe.core.settings import read_settings


def check_entries(selection: BlockSelection, num_kv: int | Tensor) -> None:
    """Check what indices, counts and sizes hold, on a CPU, or anywhere with `STROBE_CHECK=1`.

    Not while a compiler traces, nor while a CUDA graph is recorded: there is nothing to look at then.

    Args:
        selection: of whose tensors the shapes are checked.
        num_kv: key blocks there are, or how many each query block may name, `[N_q, 1]`.

    Raises:
        ShapeError: names the entry, what it holds and what is allowed.
    """
    indices, counts, most = selection.indices, selection.counts, selection.indices.shape[-1]
    if not looks(indices):
        return
    told = selection.uniform_count
    if told is not None and bool((counts != told).any()):
        low, high = counts.aminmax()
        raise ShapeError(f"known_count: got {told}, but counts holds {int(low)} to {int(high)}; leave known_count out")
    wrong = (counts < 0) | (counts > most)
    if bool(wrong.any()):
        where = _first(wrong)
        raise ShapeError(f"counts: {_row(where)} holds {int(counts[where])}, expected 0 to {most}, the entries of a row")
    counted = torch.arange(most, device=indices.device) < counts.unsqueeze(-1)
    outside = counted & ((indices < 0) | (indices >= num_kv))
    if bool(outside.any()):
        where = _first(outside)
        there = int(num_kv) if isinstance(num_kv, int) else int(num_kv[where[2], 0])
        allowed = f"0 to {there - 1}, the key blocks it may see" if there else "none: there is no key block for it to see"
        raise ShapeError(f"indices: {_row(where[:3])} names key block {int(indices[where])}, expected {allowed}")
    if selection.index_bound is None:
        spare = -1 - torch.arange(most, dtype=indices.dtype, device=indices.device)  # no entry holds these, nor one another's
        twice = torch.where(counted, indices, spare).sort(dim=-1).values.diff(dim=-1) == 0
        if bool(twice.any()):
            raise ShapeError(f"indices: {_row(_first(twice)[:3])} names a key block twice, expected distinct ones")
    for name, sizes in (("q_sizes", selection.q_sizes), ("kv_sizes", selection.kv_sizes)):
        if sizes is not None and bool(((sizes < 0) | (sizes > selection.block)).any()):
            low, high = sizes.aminmax()
            raise ShapeError(f"{name}: got {int(low)} to {int(high)} tokens in a block, expected 0 to {selection.block}")


def looks(tensor: Tensor) -> bool:
    """Whether what a tensor holds is to be looked at."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or tensor.is_meta:
        return False
    if tensor.device.type == "cpu":
        return True
    return _everywhere() and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


@cache
def _everywhere() -> bool:
    return read_settings().check


def sound(selection: BlockSelection, num_kv: int) -> BlockSelection:
    """The selection without the entries that name no key block; itself if the host knows that there are none. No host sync."""
    if selection.within(num_kv):
        return selection
    if selection.indices.is_cuda and not torch.compiler.is_compiling():
        from strobe.attention.sparse.impl.entries_triton import kept_on_gpu

        indices, counts = kept_on_gpu(selection.indices, selection.counts, num_kv)
    else:
        indices, counts = kept(selection.indices, selection.used(num_kv))
    return replace(selection, indices=indices, counts=counts, known_bound=num_kv)


def kept(indices: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The entries to keep moved to the front of each row in their order, int32, and how many they are, int32."""
    order = torch.sort(keep.to(torch.int8), dim=-1, descending=True, stable=True).indices
    return indices.gather(-1, order), keep.sum(dim=-1, dtype=torch.int32)


def _first(found: Tensor) -> tuple[int, ...]:
    return tuple(int(each) for each in found.nonzero()[0])


def _row(where: tuple[int, ...]) -> str:
    return "sample {}, head {}, query block {}".format(*where)
