"""The Triton impl: its kernels in Triton's interpreter, its place among the impls anywhere."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forked import in_triton
from strobe.attention.impls import Impl, select
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impl.reference import token_mask
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput, check
from strobe.core.device import Card
from strobe.core.errors import ImplUnavailableError
from tiers import rest_while_gated

SCRIPT = Path(__file__).parents[2] / "support" / "triton_on_cpu.py"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@rest_while_gated("sparse", "triton")
@needs_triton
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_kernels_equal_the_reference(device: str) -> None:
    in_triton(SCRIPT, device)


def never_run(*_: object) -> AttentionOutput:
    raise AssertionError("choosing must not run anything")


def test_an_untested_impl_runs_by_name_alone() -> None:
    card = Card(vendor="nvidia", architecture="sm_90", capability=(9, 0))
    spec = replace(check(*[torch.zeros(1, 2, 3, 4)] * 3, softmax_scale=None, return_lse=False), card=card)
    new = Impl(name="new", refuses=lambda _: None, run=never_run, operator="sparse", kernel="0123")
    plain = Impl(name="plain", refuses=lambda _: None, run=never_run)
    choice = select(spec, (new, plain))
    assert choice.impl is plain and choice.passed_over[0][1].startswith("untested: its gate has not been run")
    assert select(spec, (new, plain), "new").impl is new


def test_on_a_cpu_it_says_why_it_cannot_run() -> None:
    q = torch.zeros(1, 64, 1, 32)
    selection = BlockSelection.from_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool), block=64)
    assert token_mask(selection, 1).all()
    with pytest.raises(ImplUnavailableError, match="(the tensors are on cpu|triton is not installed); would run"):
        block_sparse_attention(q, q, q, selection, impl="triton")
