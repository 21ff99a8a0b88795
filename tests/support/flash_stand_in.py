"""The functions of the dense libraries in plain PyTorch, where no GPU is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, return_lse: bool = True, **into: Tensor | None
) -> tuple[Tensor, Tensor, None]:
    """Attend as FA4 does, by the textbook; `out` and `lse` of `into` get what is returned."""
    scores = torch.einsum("bshd,bthd->bhst", q, k) * softmax_scale
    found = {"out": torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v).contiguous(), "lse": scores.logsumexp(-1).float()}
    for name, target in into.items():
        if target is not None:
            target.copy_(found[name])
    return found["out"], found["lse"], None


def backward(*tensors: Tensor, softmax_scale: float, dlse: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v, given those of out and lse."""
    q, k, v, out, d_out, lse = tensors
    weights = torch.exp(torch.einsum("bshd,bthd->bhst", q, k) * softmax_scale - lse.unsqueeze(-1))
    delta = (out * d_out).sum(-1).transpose(1, 2) - dlse
    d_scores = weights * (torch.einsum("bshd,bthd->bhst", d_out, v) - delta.unsqueeze(-1)) * softmax_scale
    dq, dk = torch.einsum("bhst,bthd->bshd", d_scores, k), torch.einsum("bhst,bshd->bthd", d_scores, q)
    return dq, dk, torch.einsum("bhst,bshd->bthd", weights, d_out)


def install(monkeypatch: pytest.MonkeyPatch, forward: Callable[..., tuple[Tensor, Tensor, None]] = forward) -> None:
    """Put them where FA4's modules would be."""
    package, cute, interface = (ModuleType(name) for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"))
    vars(interface).update(_flash_attn_fwd=forward, _flash_attn_bwd=backward)
    vars(cute)["interface"] = interface
    for module in (package, cute, interface):
        monkeypatch.setitem(sys.modules, module.__name__, module)
