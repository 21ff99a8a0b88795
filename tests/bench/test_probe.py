"""A sparse pipeline measured against the same one dense: recall and time of every layer, and nothing left behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import strobe
from strobe.bench.probe import probe
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.integrations.diffusers import sparsify
from tiny_pipelines import GRID, selected_tokens, wan


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quality not measured")
        yield


def test_a_probe_tells_recall_and_time_of_every_layer() -> None:
    case = wan(1)
    dense, calls = case.run(), []

    def call() -> None:
        calls.append((case.run() - dense).abs().max() < tolerance("transformer", "float32"))

    with sparsify(case.model, sparsity=0.7, tile=(3, 2, 4), dense_layers=[1]) as handle:
        hooks = sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in case.model.modules())
        found = probe(handle, call, queries=210, rounds=2, device="cpu")
        assert sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in case.model.modules()) == hooks
    assert calls == [False, True, *[True, False, False, True] * 2]
    assert [each.layer for each in found.layers] == [f"blocks.{number}.attn1" for number in range(3)]
    assert [each.recall is None for each in found.layers] == [False, True, False]
    assert all(0 < each.sparse_ns < found.sparse_ns and 0 < each.dense_ns < found.dense_ns for each in found.layers)
    assert len(found.rows()) == 3 and "recall: " in str(found) and "<table>" in found._repr_html_()
    assert found.layers[0].recall == pytest.approx(_recall_of_the_first_layer(), abs=1e-4)
    assert found.layers[0].worst_recall <= found.layers[0].recall


def _recall_of_the_first_layer() -> float:
    """Mass of the dense softmax in the selected tiles, by the mask of pairs."""
    case, caught = wan(1), []
    hook = case.model.blocks[0].attn1.register_forward_pre_hook(lambda attn, args: caught.append((attn, args[0], args[3])))
    case.run()
    hook.remove()
    attn, hidden, (cos, sin) = caught[0]

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(2, (2, -1)).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos[..., 0::2], sin[..., 1::2])).flatten(-2)

    q, k = turned(attn.norm_q(attn.to_q(hidden))), turned(attn.norm_k(attn.to_k(hidden)))
    seen = selected_tokens(q, k, strobe.tile_layout(GRID, (3, 2, 4)), 0.7)
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights * seen).sum(-1).mean().item()


def test_a_probe_refuses_what_it_cannot_measure() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.7) as handle:
        with pytest.raises(ConfigError, match="got rounds=0 and queries=64, expected at least 1"):
            probe(handle, case.run, rounds=0)
        with pytest.raises(ConfigError, match=r"the call never reached blocks.0.attn1; give a call that runs every transformer"):
            probe(handle, lambda: None, rounds=1)
