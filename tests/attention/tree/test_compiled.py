"""torch.compile around tree attention: the call runs uncompiled between two graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter

import strobe
from tree_ranks import Runner


def around(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.tree_attention(q * 2, k, v).out * 2


def test_a_compiled_function_may_call_it(ranks: Runner) -> None:
    generator = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(1, rows, 4, 16, generator=generator) for rows in (8, 48, 48))
    torch._dynamo.reset()
    counter = CompileCounter()

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mine = slice(0, 32) if rank == 0 else slice(32, 48)
        given = q.clone().requires_grad_(), keys[:, mine], values[:, mine]
        plain, found = around(*given), torch.compile(around, backend=counter)(*given)
        gradients = [torch.autograd.grad(out.square().sum(), given[0])[0] for out in (plain, found)]
        return plain, found, *gradients

    for plain, found, gradient, compiled_gradient in ranks(2, work):
        assert torch.equal(plain, found) and torch.equal(gradient, compiled_gradient)
    assert counter.frame_count == 2  # before and after the call


def test_one_graph_is_refused_with_the_reason(ranks: Runner) -> None:
    torch._dynamo.reset()
    given = torch.ones(1, 4, 2, 16), torch.ones(1, 8, 2, 16), torch.ones(1, 8, 2, 16)
    compiled = torch.compile(around, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="tree attention waits for other processes"):
        ranks(1, lambda rank: compiled(*given))
