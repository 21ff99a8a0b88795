"""What a handle, a probe and their words say when something is unusual: restored, lost, compiled, nothing sparse."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import strobe
from strobe.bench.probe import LayerProbe, PipelineProbe
from strobe.core.errors import ConfigError
from strobe.integrations import diffusers
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.forward import Pass
from tiny_pipelines import clip, gates, is_sparse, wan, wan_pipeline


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_restored_handle_leaves_the_pipeline_dense() -> None:
    case = wan(1)
    handle = sparsify(case.model, sparsity=0.7, gates=gates())
    with handle.dense():
        handle.restore()
    assert not is_sparse(case.model), "restored within dense()"
    uses: list[Callable[[], Any]] = [
        lambda: strobe.probe(handle, case.run),
        lambda: handle.dense().__enter__(),
        lambda: handle.recalls(4).__enter__(),
        handle.__enter__,
        handle.report,
        lambda: handle.report(grid=(5, 6, 7)),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match="restored; call sparsify again"):
            use()
    assert not is_sparse(case.model)


def test_a_lost_handle_is_restored_by_its_pipeline() -> None:
    pipe = wan_pipeline(experts=2)
    dense = set(pipe.transformer.state_dict())
    kept = sparsify(pipe, sparsity=0.5, gates={"transformer": gates()})
    with pytest.raises(ConfigError, match=r"transformer is sparse already; .*strobe.integrations.diffusers.restore\(pipe\)"):
        sparsify(pipe)
    diffusers.restore(pipe.transformer)
    assert not is_sparse(pipe.transformer) and is_sparse(pipe.transformer_2)
    with pytest.raises(ConfigError, match="restored"), kept.dense():
        pass
    del kept
    gc.collect()
    for _ in range(2):
        diffusers.restore(pipe)
        assert not is_sparse(pipe.transformer_2) and not pipe.transformer_2._forward_pre_hooks
        assert set(pipe.transformer.state_dict()) == dense
    with sparsify(pipe, sparsity=0.5):
        assert is_sparse(pipe.transformer)


@pytest.mark.parametrize("before", ["nothing", "a call", "the whole model"])
def test_a_probe_of_compiled_layers_measures_them_uncompiled(before: str) -> None:
    case = wan(1)
    model = case.model
    if before == "the whole model":
        model = torch.compile(model, backend="eager")
    else:
        model.compile_repeated_blocks(fullgraph=True, backend="eager")

    def run() -> None:
        with torch.no_grad():
            model(**case.arguments)

    with sparsify(model, sparsity=0.7) as handle:
        if before == "a call":
            run()
        found = strobe.probe(handle, run, rounds=1, device="cpu")
    assert found.compiled and "times of uncompiled layers: " in str(found)
    assert all(each.recall and each.sparse_ns > 0 and each.dense_ns > 0 for each in found.layers)


def test_nothing_sparse_is_said() -> None:
    pipe = wan_pipeline()
    with sparsify(pipe, sparsity=0.7, dense_steps=1) as handle:
        clip(pipe, 2)
        with handle.dense():
            clip(pipe, 1)
        assert "was dense" not in str(handle.report())
    with sparsify(pipe, sparsity=0.7, dense_steps=1) as handle:
        with handle.dense():
            clip(pipe, 2)
        assert "was dense" not in str(handle.report()), "diffusers' own layers ran, by request"
        found = strobe.probe(handle, lambda: clip(pipe, 1), rounds=1, device="cpu")
        wanted = "every step of the call was dense: nothing sparse was measured"
        assert wanted in str(found) and "recall: " not in str(found) and not found.compiled
        assert "every step so far was dense: no sparse layer has run" in str(handle.report())


def test_a_probe_says_what_its_rounds_allow() -> None:
    def made(*ratios: float) -> PipelineProbe:
        took = {"sparse_ns": 10**8, "dense_ns": 2 * 10**8}
        layer = LayerProbe(layer="attn1", recall=None, worst_recall=None, **took)
        return PipelineProbe(layers=(layer,), call_ratios=ratios, attention_ratios=ratios, compiled=False, **took)

    assert "2.00x: not proven, one round has no interval; give rounds=2 or more" in str(made(2.0))
    assert "2.00x [1.88, 2.13] faster" in str(made(1.95, 2.0, 2.05))
    assert "not proven, the interval holds 1" in str(made(0.72, 1.33, 1.1)) and "one round" not in str(made(0.72, 1.33, 1.1))
    case = wan(1)
    with sparsify(case.model, sparsity=0.7) as handle:
        found = strobe.probe(handle, case.run, rounds=2, device="cpu")
    assert len(found.call_ratios) == len(found.attention_ratios) == 2


def test_a_grid_that_is_none_is_refused() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.5) as handle:
        for wrong in (5, "5x6x7", (5, 6), (5, 6, 0), (5, 6, True)):
            for ask in (handle.report, partial(strobe.explain, case.model)):
                with pytest.raises(ConfigError, match=r"grid: got .*, expected three positive integers \(time, height, width\)"):
                    ask(grid=wrong)


def test_an_explained_pipeline_is_readable() -> None:
    pipe = wan_pipeline(experts=2)
    with sparsify(pipe, sparsity=0.5, dense_layers=[1]):
        found = strobe.explain(pipe, grid=(5, 6, 7))
    text = str(found)
    assert "Impl(" not in text and text.count("transformer.blocks.") == 3
    assert "transformer.blocks.0.attn1 (1) runs: cpu\n" in text and "transformer.blocks.1.attn1 (1) runs: " in text
    with sparsify(pipe, sparsity=0.5):
        text = str(strobe.explain(pipe, grid=(5, 6, 7)))
    assert text.startswith("transformer.blocks.0.attn1 to transformer.blocks.2.attn1 (3) runs: cpu\n")
    assert "\ntransformer_2.blocks.0.attn1 to transformer_2.blocks.2.attn1 (3) runs: cpu\n" in text


def test_too_many_forced_tiles_are_said_in_terms_of_sparsity() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.9, tile=(1, 6, 7), forced=strobe.Forced(own=True, first_frames=1)) as handle:
        wanted = "forced: 2 of 5 key tiles are forced, but sparsity=0.9 selects 1; give sparsity=0.6 or less, or force fewer"
        for use in (case.run, lambda: handle.report(grid=(5, 6, 7))):
            with pytest.raises(ConfigError, match=wanted):
                use()
    with sparsify(case.model, sparsity=0.6, tile=(1, 6, 7), forced=strobe.Forced(own=True, first_frames=1)):
        case.run()


def test_one_compiled_transformer_of_several_is_compiled() -> None:
    pipe = wan_pipeline(experts=2)
    with sparsify(pipe, sparsity=0.5) as handle:
        assert not handle.compiled
        pipe.transformer_2 = torch.compile(pipe.transformer_2, backend="eager")
        assert handle.compiled


def test_facts_of_a_pass_are_moved_with_their_tensors() -> None:
    one = Pass((1, 2, 3), (), dense=True, queries=4, recalls={})
    one.pair, one.rope = (torch.zeros(2), torch.ones(2)), (torch.zeros(3),)
    assert one.to("cpu") is one
    moved = one.to("meta")
    assert moved is not one and [each.device.type for each in (*moved.pair, *moved.rope)] == ["meta"] * 3
    assert (moved.grid, moved.dense, moved.queries) == ((1, 2, 3), True, 4) and one.pair[0].device.type == "cpu"
