"""Copies of a sparse model, models that are sharded or wrapped, pipelines that diffusers does not know, caches and backends."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from diffusers import FirstBlockCacheConfig, MagCacheConfig, PyramidAttentionBroadcastConfig, TaylorSeerCacheConfig
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import strobe
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers import restore, sparsify
from tiny_pipelines import Case, cosmos, gates, hunyuan, is_sparse, wan, wan_pipeline


@pytest.fixture
def _one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run(model: Any, case: Case, **changes: Any) -> Tensor:
    return Case(model, case.arguments, case.layers).run(**changes)


@pytest.mark.parametrize(
    "make", [partial(hunyuan, layers=1), lambda _: wan(1, layers=1), lambda _: cosmos(1)], ids=["hunyuan", "wan", "cosmos"]
)
def test_a_deep_copy_has_facts_of_its_own(make: Callable[[int], Case]) -> None:
    """As an average of the weights over training is kept: the copy runs another video and prompt than the original last did."""
    case, other = make(6), make(2)
    smaller = {"hidden_states": other.arguments["hidden_states"][:, :, :, :6]}
    dense = other.run(**smaller)
    sparsify(case.model, sparsity=0.5)
    wanted = run(case.model, other, **smaller)
    case.run()
    ema = copy.deepcopy(case.model)
    assert torch.equal(run(ema, other, **smaller), wanted)
    with torch.no_grad():
        ema.proj_out.weight.mul_(0)
    assert not torch.equal(run(ema, other, **smaller), wanted) and torch.equal(run(case.model, other, **smaller), wanted)
    restore(case.model)
    assert torch.equal(run(case.model, other, **smaller), dense)
    assert is_sparse(ema) and not is_sparse(case.model)
    restore(ema)
    assert not is_sparse(ema) and not ema._forward_pre_hooks and not ema.rope._forward_hooks


def test_a_sparse_pipeline_is_saved_and_loaded() -> None:
    pipe, case = wan_pipeline(), wan()
    dense = run(pipe.transformer, case)
    sparsify(pipe, sparsity=0.5, gates=gates(), dense_steps=1)
    wanted = run(pipe.transformer, case, attention_kwargs={"denoise_step": 1})
    file = io.BytesIO()
    torch.save(pipe, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(run(loaded.transformer, case, attention_kwargs={"denoise_step": 1}), wanted)
    assert len(strobe.explain(loaded)) == 3
    restore(loaded)
    assert torch.equal(run(loaded.transformer, case), dense) and not hasattr(loaded.transformer.blocks[0], "to_gate_compress")
    assert is_sparse(pipe.transformer)


def shard(model: Any, **options: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, **options)
    return model


def shard_whole(model: Any, **options: Any) -> Any:
    return fully_shard(shard(model, **options), **options)


def replicate(model: Any) -> Any:
    return DistributedDataParallel(model.requires_grad_(True))


def checkpoint(model: Any) -> Any:
    apply_activation_checkpointing(model, check_fn=lambda each: type(each).__name__ == "WanTransformerBlock")
    return model


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("wrap", [shard_whole, replicate, checkpoint])
def test_a_sparse_model_that_is_wrapped_is_restored_without_the_handle(wrap: Callable[[Any], Any]) -> None:
    """Sharding rewrites the name of the class, checkpointing those of the layers."""
    case = wan(1, layers=2)
    dense = case.run()
    wrapped = wrap(case.model) if wrap is replicate else None  # whose `.module` is made sparse
    handle = sparsify(case.model, sparsity=0.5, gates=gates(2))
    wanted = case.run()
    wrapped = wrapped or wrap(case.model)
    assert torch.equal(run(wrapped, case), wanted) and not torch.equal(wanted, dense)
    assert [row.runs for row in handle.report().layers] == ["sparse"] * 2
    for _ in range(2):  # then it is dense, and known all the same
        restore(wrapped)
        assert torch.equal(run(wrapped, case), dense)


@pytest.mark.usefixtures("_one_process")
def test_inputs_that_fully_shard_casts() -> None:
    case = wan(1, layers=1)
    with sparsify(case.model, sparsity=0.5):
        wanted = case.run()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        shard_whole(case.model, mp_policy=policy)
        assert (case.run() - wanted).norm() <= 0.02 * wanted.norm()


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (shard, "a WanTransformer3DModel, was sharded by fully_shard; sparsify before fully_shard"),
        (shard_whole, "a WanTransformer3DModel, was sharded by fully_shard; sparsify before fully_shard"),
        (replicate, "is a DistributedDataParallel around a WanTransformer3DModel; give its .module"),
    ],
)
def test_what_was_wrapped_before_is_refused(wrap: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sparsify(wrap(wan(1, layers=1).model), sparsity=0.5)


class _Like:
    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer


def test_an_object_with_a_transformer_is_a_pipeline() -> None:
    case = wan(1, layers=1)
    like = _Like(case.model)
    handle = sparsify(like, sparsity=0.5)
    case.run()
    assert str(handle.report()).splitlines()[1].startswith("  transformer: blocks.0.attn1 (1): sparse, cpu, ")
    assert set(strobe.explain(like)) == {"transformer.blocks.0.attn1"} == set(handle.layers)
    assert not handle.compiled
    restore(like)
    assert not is_sparse(case.model)
    with pytest.raises(ConfigError, match="found no transformer it knows among _Like; it knows Wan"):
        sparsify(_Like(None))


def test_processors_that_somebody_replaced_are_reported_and_stay() -> None:
    case = wan(1)
    handle = sparsify(case.model, sparsity=0.5)
    case.run()
    theirs = WanAttnProcessor()
    case.model.blocks[1].attn1.set_processor(theirs)
    case.run()  # to diffusers' own processor a pass is the pair (cos, sin)
    assert [row.runs for row in handle.report().layers] == ["sparse", "replaced", "sparse"]
    assert "  blocks.1.attn1 (1): not strobe's any more: a WanAttnProcessor was set since sparsify" in str(handle.report())
    assert set(strobe.explain(case.model)) == {"blocks.0.attn1", "blocks.2.attn1"}
    assert str(strobe.explain(case.model)).startswith("blocks.0.attn1 (1) runs: cpu\n")
    wanted = "1 of 3 layers are not sparse any more: other processors were set since sparsify, first a WanAttnProcessor in blocks"
    uses: list[Callable[[], Any]] = [
        lambda: strobe.probe(handle, case.run, device="cpu"),
        handle.dense().__enter__,
        handle.recalls(4).__enter__,
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=wanted):
            use()
    assert case.model.blocks[1].attn1.processor is theirs
    case.model.blocks[1].attn1.set_processor(theirs)
    handle.restore()
    assert case.model.blocks[1].attn1.processor is theirs


def test_what_is_set_within_dense_stays() -> None:
    case, theirs = wan(1), WanAttnProcessor()
    handle = sparsify(case.model, sparsity=0.5)
    with handle.dense(), pytest.raises(ConfigError, match="is sparse already"):
        sparsify(case.model, sparsity=0.5)
    with handle.dense():
        case.model.blocks[1].attn1.set_processor(theirs)
    assert case.model.blocks[1].attn1.processor is theirs
    assert [row.runs for row in handle.report(grid=(5, 6, 7)).layers] == ["sparse", "replaced", "sparse"]


def test_a_grid_of_few_tiles_is_said() -> None:
    model = wan(1).model
    with sparsify(model, sparsity=0.9, tile=(5, 3, 4)) as handle:
        assert str(handle.report(grid=(5, 6, 7))).endswith("(25.0%); asked to skip 90%, skips 75%: the grid has 4 tiles")
        assert "asked" not in str(handle.report(grid=(20, 48, 80)))


CACHES: dict[str, Callable[[], Any]] = {
    "FirstBlock": lambda: FirstBlockCacheConfig(threshold=10.0),
    "PAB": lambda: PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 10000),
        current_timestep_callback=lambda: 500,
        spatial_attention_block_identifiers=("blocks",),
    ),
    "MagCache": lambda: MagCacheConfig(mag_ratios=[1.0] * 4, num_inference_steps=4, retention_ratio=0.25, threshold=1.0),
    "TaylorSeer": lambda: TaylorSeerCacheConfig(
        cache_interval=3, disable_cache_before_step=1, max_order=1, cache_identifiers=["blocks.*attn1"]
    ),
}


def steps(case: Case, *ways: Callable[[Any], object]) -> Tensor:
    """Four steps of a loop after some things were done to the model."""
    for way in ways:
        way(case.model)
    latents = case.arguments["hidden_states"]
    for step in range(4):
        with case.model.cache_context("cond"):
            latents = latents - case.run(hidden_states=latents, timestep=torch.full((1,), 900 - 100 * step))
    return latents


@pytest.mark.parametrize("name", CACHES)
def test_caches_of_diffusers_before_and_after(name: str) -> None:
    def cache(model: Any) -> None:
        model.enable_cache(CACHES[name]())

    def sparse(model: Any) -> None:
        sparsify(model, sparsity=0.5)

    before, after = steps(wan(1, layers=2), cache, sparse), steps(wan(1, layers=2), sparse, cache)
    assert torch.equal(before, after)
    assert not torch.equal(before, steps(wan(1, layers=2), sparse)), "the cache skips something"
    assert not torch.equal(before, steps(wan(1, layers=2), cache)), "the rest is sparse"


@pytest.mark.parametrize("first", ["backend", "sparsify"])
def test_attention_backends_before_and_after(first: str) -> None:
    """A backend is that of the dense layers, also of those that restore() brings back."""
    case = wan(1, layers=1)
    if first == "backend":
        case.model.set_attention_backend("_native_math")
    with sparsify(case.model, sparsity=0.5):
        if first == "sparsify":
            case.model.set_attention_backend("_native_math")
        case.run()
    assert {each._attention_backend.value for each in case.model.attn_processors.values()} == {"_native_math"}
    case.model.set_attention_backend("native")
