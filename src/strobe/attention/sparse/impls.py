"""The implementations of block-sparse attention, best first, and what each refuses."""

from __future__ import annotations

import importlib.util
from functools import partial

import torch

from strobe.attention.impls import Impl
from strobe.attention.sparse import custom_ops
from strobe.attention.sparse.impl import reference
from strobe.attention.sparse.spec import SparseSpec
from strobe.core.settings import read_settings


def _refuses_cpu(spec: SparseSpec) -> str | None:
    return None if spec.device.type == "cpu" else f"it runs on a CPU, the tensors are on {spec.device}"


def _refuses_triton(spec: SparseSpec) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if spec.device.type != "cuda" and not (spec.device.type == "cpu" and read_settings().triton_interpret):
        return f"it runs on a GPU, the tensors are on {spec.device}"
    if spec.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it computes bfloat16, float16 and float32, not {str(spec.dtype).removeprefix('torch.')}"
    if spec.head_dim not in (32, 64, 128):
        return f"it has head_dim 32, 64 and 128, not {spec.head_dim}"
    return None


IMPLS = (
    Impl(
        name="triton",
        refuses=_refuses_triton,
        run=partial(custom_ops.run, "triton"),
        untested="no recorded green gate on a GPU yet",
    ),
    Impl(name="cpu", refuses=_refuses_cpu, run=partial(custom_ops.run, "cpu")),
    reference.IMPL,
)
