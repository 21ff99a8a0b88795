"""A selection as the libraries of masked attention want it: whole blocks in one list, blocks with padding keys in another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from strobe.attention.sparse.entries import kept
from strobe.attention.sparse.selection import BlockSelection


class Lists(NamedTuple):
    """Full and partial blocks of each row: counts int32 `[B, H, R]`, indices int32 `[B, H, R, C]`."""

    full_counts: Tensor
    full: Tensor
    partial_counts: Tensor
    partial: Tensor


def key_lists(selection: BlockSelection) -> Lists:
    """Key blocks of each query block: whole ones, and those with padding keys; empty ones are dropped."""
    indices, counts = selection.indices.contiguous(), selection.counts.contiguous()
    if selection.kv_sizes is None:
        return Lists(counts, indices, torch.zeros_like(counts), indices[..., :1].contiguous())
    used = torch.arange(indices.shape[3], device=indices.device) < counts.unsqueeze(-1)
    known = indices.clamp(0, selection.kv_sizes.shape[0] - 1)  # entries past the count may hold anything
    sizes = selection.kv_sizes.index_select(0, known.flatten()).view(indices.shape)
    full, partial = used & (sizes == selection.block), used & (sizes > 0) & (sizes < selection.block)
    return Lists(*_compact(indices, full), *_compact(indices, partial))


def query_lists(selection: BlockSelection, num_kv: int) -> Lists:
    """The same turned around: query blocks of each key block, rows `N_kv`; a key block is full or partial for all of them."""
    seen_by = selection.mask(num_kv).transpose(2, 3)  # [B, H, N_kv, N_q]
    everyone = torch.arange(seen_by.shape[3], dtype=torch.int32, device=seen_by.device).expand(seen_by.shape)
    if selection.kv_sizes is None:
        counts, indices = _compact(everyone, seen_by)
        return Lists(counts, indices, torch.zeros_like(counts), indices[..., :1].contiguous())
    counts, indices = _compact(everyone, seen_by)
    whole, empty = selection.kv_sizes == selection.block, selection.kv_sizes == 0
    return Lists(counts.where(whole, 0), indices, counts.where(~(whole | empty), 0), indices)


def _compact(indices: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Counts, and the kept entries of each row moved to its front in their order."""
    entries, counts = kept(indices, keep)
    return counts, entries
