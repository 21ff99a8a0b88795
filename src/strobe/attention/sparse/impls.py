"""The implementations of block-sparse attention, best first, with the reasons for which each refuses a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from strobe.attention.impls import MISSING, Choice, Impl, hash_of, no_card_for, plugged, select, short
from strobe.attention.sparse import custom_ops
from strobe.attention.sparse.impl import reference
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput, traced
from strobe.core.errors import ImplUnavailableError
from strobe.core.settings import read_settings

_ATOMICS = "its gradients are added with atomics and differ from run to run"


def _refuses_triton(spec: SparseSpec) -> str | None:
    interpreted = spec.device.type == "cpu" and read_settings().triton_interpret
    if reason := (None if interpreted else no_card_for(spec, "sparse", "triton")) or MISSING["triton"]:
        return reason
    if spec.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it computes bfloat16, float16 and float32, not {short(spec.dtype)}"
    if spec.head_dim not in (32, 64, 128):
        return f"it has head_dim 32, 64 and 128, not {spec.head_dim}"
    return None


def _refuses_library(spec: SparseSpec, widths: tuple[int, ...]) -> str | None:
    """Return the reason for which cuDNN's and FA4's kernels for compute capability 9.0 both refuse a call, or None."""
    if spec.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes bfloat16 and float16, not {short(spec.dtype)}"
    if spec.block not in (64, 128):
        return f"it has blocks of 64 and 128 tokens, not {spec.block}"
    if spec.head_dim not in widths:
        return f"it has head_dim {', '.join(map(str, widths))}, not {spec.head_dim}"
    if spec.softmax_scale <= 0:
        return f"it takes a positive softmax_scale, not {spec.softmax_scale}"
    if spec.needs_grad and spec.deterministic:
        return _ATOMICS
    return None


def _refuses_cudnn(spec: SparseSpec) -> str | None:
    if reason := no_card_for(spec, "sparse", "cudnn") or MISSING["cudnn"] or _refuses_library(spec, (64, 96, 128)):
        return reason
    if not spec.needs_grad:
        return None
    if spec.return_lse:
        return "its backward takes no gradient through the lse"
    if spec.dtype != torch.bfloat16:
        return f"its backward computes bfloat16, not {short(spec.dtype)}"
    if spec.head_dim != 128:
        return f"its backward has head_dim 128, not {spec.head_dim}"
    if spec.num_heads != spec.num_kv_heads:
        return f"its backward needs as many key heads as query heads, not {spec.num_kv_heads} and {spec.num_heads}"
    return None


def _refuses_fa4(spec: SparseSpec) -> str | None:
    if reason := no_card_for(spec, "sparse", "fa4") or MISSING["fa4"] or _refuses_library(spec, (64, 128)):
        return reason
    if spec.needs_grad and spec.block != 128:
        return f"its backward has blocks of 128 tokens, not {spec.block}"
    return None


def _refuses_flex(spec: SparseSpec) -> str | None:
    if spec.device.type not in ("cpu", "cuda"):
        return f"it runs on a CPU and on CUDA, the tensors are on {spec.device}"
    if spec.device.type == "cuda" and (reason := no_card_for(spec, "sparse", "flex") or MISSING["triton"]):
        return reason
    if spec.needs_grad:
        return "it has no gradients: FlexAttention has none on a CPU, and found no kernel for these blocks on a GPU"
    if spec.batch * max(spec.q_len * spec.num_heads, spec.kv_len * spec.num_kv_heads) * spec.head_dim >= 2**31:
        return "its kernels address tensors of fewer than 2^31 elements"
    if 0 in (spec.batch, spec.q_len, spec.kv_len, spec.most_selected):
        return "it takes at least one query and one selected block"
    if spec.dtype == torch.float64:
        return "it computes float32 and the 16-bit types, not float64"
    return None


def _run_flex(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, spec: SparseSpec) -> AttentionOutput:
    from strobe.attention.sparse.impl import flex

    return flex.run(q, k, v, selection, spec)


def _operator(name: str, refuses: Callable[[SparseSpec], str | None], *beside: str, portable: bool = False) -> Impl[SparseSpec]:
    """Describe an impl that is a custom operator, with its kernels in a module of its name and in those `beside` it."""
    return Impl(
        name=name,
        refuses=refuses,
        run=partial(custom_ops.run, name),
        prepare=partial(custom_ops.prepare, name) if name in custom_ops.PREPARING else None,
        operator="sparse",
        kernel=hash_of(*(f"sparse/{each}.py" for each in (f"impl/{name}", "padding", *beside))),
        portable=portable,
    )


_OURS: Final[tuple[Impl[SparseSpec], ...]] = (
    _operator("cudnn", _refuses_cudnn, "entries", "impl/entries_triton", "impl/padding_triton"),
    _operator("fa4", _refuses_fa4, "entries", "lists", "impl/entries_triton", "impl/padding_triton"),
    _operator("triton", _refuses_triton, "launch", portable=True),
    Impl(
        name="cpu",
        refuses=lambda spec: None if spec.device.type == "cpu" else f"it runs on a CPU, the tensors are on {spec.device}",
        run=partial(custom_ops.run, "cpu"),
        operator="sparse",
    ),
    Impl(
        name="flex",
        refuses=_refuses_flex,
        run=_run_flex,
        operator="sparse",
        kernel=hash_of("sparse/impl/flex.py", "sparse/entries.py", "sparse/lists.py", "sparse/padding.py"),
        slow=True,
    ),
    reference.IMPL,
)
PLUGGED: Final = plugged("sparse", _OURS)
IMPLS: Final = (*_OURS, *PLUGGED)


_FEW_ROWS, _FEW_BLOCKS = 12 * 1024, 8
"""Queries of all heads, and key blocks of each. With so many, a video call takes the GPU 28 to 30 us with Triton's kernel and 26
to 28 with cuDNN's, and the host 36 and 57 (H200, head_dim 128)."""


def _is_small(spec: SparseSpec) -> bool:
    """Whether a call keeps the host longer than the GPU; not asked while a compiler traces, whose graph serves any batch."""
    if traced():
        return False
    rows = spec.batch * spec.num_heads * spec.q_len
    return rows <= _FEW_ROWS and rows * spec.most_selected <= _FEW_ROWS * _FEW_BLOCKS


def ranked(spec: SparseSpec) -> tuple[Impl[SparseSpec], ...]:
    """Order the implementations for this call, the fastest first, as measured on an H200 (benchmarks/attention-h200).

    Few rows without gradients: Triton, which the host launches in the least time, for there the GPU waits for the host. Else
    blocks of 64: cuDNN, but for gradients with padding, which it must clear first. Blocks of 128: FA4 where every block is whole,
    else cuDNN for one number of key blocks that the host knows and Triton for any; gradients by cuDNN.
    """
    best = "cudnn"
    if spec.block == 128 and not spec.needs_grad:
        best = "fa4" if not spec.ragged else "cudnn" if spec.uniform else "triton"
    elif spec.block == 64 and (spec.ragged if spec.needs_grad else _is_small(spec)):
        best = "triton"
    return tuple(sorted(IMPLS, key=lambda impl: impl.name != best))


def choose(spec: SparseSpec, name: str) -> Choice[SparseSpec]:
    """Choose the named implementation, or the fastest; on a GPU never the reference, which computes every pair of tokens.

    Raises:
        ConfigError: no implementation has that name.
        ImplUnavailableError: none that is fit, or the named one cannot run this call.
    """
    choice = select(spec, ranked(spec), name)
    if name == "auto" and choice.impl is reference.IMPL and spec.device.type != "cpu":
        reasons = "; ".join(f"{other}: {why}" for other, why in choice.passed_over)
        able = [impl.name for impl in IMPLS if impl.refuses(spec) is None]
        raise ImplUnavailableError("auto", f"only the reference is left, which forms every pair of tokens ({reasons})", able)
    return choice
