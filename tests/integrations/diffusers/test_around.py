"""What else a pipeline has stays as it is (LoRA, offload, quantised layers), and what handles and probes say."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from diffusers.hooks import apply_group_offloading
from peft import LoraConfig
from torch import Tensor, nn
from torch.distributed.utils import _apply_to_tensors

import strobe
from strobe.bench.probe import LayerProbe, PipelineProbe
from strobe.core.errors import ConfigError
from strobe.core.libraries import install
from strobe.integrations import diffusers
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.forward import Pass
from tiny_pipelines import CASES, clip, gates, hunyuan, is_sparse, wan, wan_pipeline

SOURCES = str(Path(strobe.__file__).parents[1])


def add_lora(model: Any) -> None:
    torch.manual_seed(3)
    model.add_adapter(LoraConfig(r=2, lora_alpha=8, target_modules=["to_q", "to_k", "to_v"], init_lora_weights=False))


@pytest.mark.parametrize("name", ["wan", "ltx-2", "hunyuan 1.5", "cosmos"])
def test_a_lora_counts_whenever_it_was_loaded(name: str) -> None:
    case = CASES[name]()
    add_lora(case.model)
    dense = case.run()
    with sparsify(case.model, sparsity=0.6, tile=(3, 2, 4)):
        before = case.run()
    assert torch.equal(case.run(), dense)
    again = CASES[name]()
    plain = again.run()
    with sparsify(again.model, sparsity=0.6, tile=(3, 2, 4)):
        add_lora(again.model)
        assert torch.equal(again.run(), before)
    assert torch.equal(again.run(), dense), "it stays when the sparse layers go"
    again.model.delete_adapters("default")
    assert torch.equal(again.run(), plain)


def group_offload(model: nn.Module, kind: str) -> None:
    apply_group_offloading(model, onload_device="cpu", offload_device="cpu", offload_type=kind, num_blocks_per_group=1)


OFFLOADS: dict[str, Callable[[nn.Module], object]] = {
    "layer by layer": lambda model: cpu_offload(model, execution_device="cpu"),
    "blocks in groups": lambda model: group_offload(model, "block_level"),
    "leaves in groups": lambda model: group_offload(model, "leaf_level"),
}


@pytest.mark.parametrize("first", ["offload", "sparsify"])
@pytest.mark.parametrize("offload", OFFLOADS)
def test_offload_takes_the_gates_along(offload: str, first: str) -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.5, gates=gates()):
        wanted = case.run()
    steps = [lambda: OFFLOADS[offload](case.model), lambda: sparsify(case.model, sparsity=0.5, gates=gates())]
    for step in steps if first == "offload" else reversed(steps):
        found = step()
    assert torch.equal(case.run(), wanted)
    if first == "offload":
        found.restore()
        case.run()


class _Quantised(nn.Linear):
    """A stand-in for a layer whose weights are kept in eight bits: its weight has a dtype that nothing can compute in."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, device="meta")
        self.weight = nn.Parameter(plain.weight.to(torch.float8_e4m3fn), requires_grad=False)
        self.bias = plain.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


@pytest.mark.parametrize("config", ["", "Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan", "cosmos"])
def test_layers_of_eight_bits(name: str, config: str) -> None:
    """Those of the stand-in, and of torchao."""
    case = CASES[name]()
    unquantised = case.run()
    if config:
        quantization: Any = pytest.importorskip("torchao.quantization")
        quantization.quantize_(case.model, getattr(quantization, config)())
    else:
        for module in list(case.model.modules()):
            for key, child in list(module.named_children()):
                if type(child) is nn.Linear and key in ("to_q", "to_k", "to_v", "to_gate_logits", "0"):
                    setattr(module, key, _Quantised(child))
    dense = case.run()
    assert (dense - unquantised).abs().max() > 1e-4, "nothing was quantised"
    with sparsify(case.model, sparsity=1e-12):
        assert (case.run() - dense).abs().max() <= 1e-5
    if name == "wan":
        with sparsify(case.model, sparsity=0.5, gates=gates()):
            case.run()
            assert case.model.blocks[0].to_gate_compress.weight.dtype == torch.float32


def test_layerwise_casting() -> None:
    case = wan(1)
    case.model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    dense = case.run()
    with sparsify(case.model, sparsity=1e-12):
        assert (case.run() - dense).abs().max() <= 1e-5
    with sparsify(case.model, sparsity=0.5, gates=gates()):
        case.run()


def test_without_diffusers_it_says_how_to_install_it() -> None:
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'diffusers' else f(n, *a)"
    code = f"{hide}\nimport strobe.integrations.diffusers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": SOURCES})
    wanted = f"integration 'diffusers' cannot run: diffusers is not installed; {install('diffusers')} installs it"
    assert done.stderr.splitlines()[-1].endswith(wanted)


def test_a_restored_handle_leaves_the_pipeline_dense() -> None:
    case = wan(1)
    handle = sparsify(case.model, sparsity=0.7, gates=gates())
    with pytest.raises(ConfigError, match="WanTransformer3DModel is sparse already; call restore"):
        sparsify(case.model, sparsity=0.5)
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
        found = strobe.probe(handle, lambda: clip(pipe, 1), rounds=1, device="cpu")
    wanted = "every step of the call was dense: nothing sparse was measured"
    assert wanted in str(found) and "recall: " not in str(found) and not found.compiled


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
    with pytest.raises(ConfigError, match="HunyuanVideoTransformer3DModel has no sparse layer"):
        strobe.explain(hunyuan(4).model)


def test_one_compiled_transformer_of_several_is_compiled() -> None:
    pipe = wan_pipeline(experts=2)
    with sparsify(pipe, sparsity=0.5) as handle:
        assert not handle.compiled
        pipe.transformer_2 = torch.compile(pipe.transformer_2, backend="eager")
        assert handle.compiled


def test_facts_of_a_pass_are_moved_with_their_tensors() -> None:
    one = Pass(grid=(1, 2, 3), text_lengths=(), dense=True, queries=4, recalls={})
    one.pair, one.rope = (torch.zeros(2), torch.ones(2)), (torch.zeros(3),)
    assert one.to("cpu") is one and _apply_to_tensors(torch.Tensor.half, one) is one  # what FSDP casts
    moved = one.to("meta")
    assert moved is not one and [each.device.type for each in (*moved.pair, *moved.rope)] == ["meta"] * 3
    assert (moved.grid, moved.dense, moved.queries) == ((1, 2, 3), True, 4) and one.pair[0].device.type == "cpu"
