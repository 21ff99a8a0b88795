"""What else a pipeline has stays as it is: LoRA, offload, quantised layers, layerwise casting."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from accelerate import cpu_offload
from diffusers import ContextParallelConfig
from diffusers.hooks import apply_group_offloading
from peft import LoraConfig
from torch import Tensor, nn

import strobe
from strobe.core.errors import ConfigError
from strobe.core.libraries import install
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.exchange import HeadExchange
from tiny_pipelines import CASES, Case, gates, hunyuan, ltx2, wan

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


def goes_on(case: Case, name: str) -> None:
    """A quantised model becomes sparse; its gates are not quantised."""
    dense = case.run()
    with sparsify(case.model, sparsity=1e-12):
        assert (case.run() - dense).abs().max() <= 1e-5
    if name == "wan":
        with sparsify(case.model, sparsity=0.5, gates=gates()):
            case.run()
            assert case.model.blocks[0].to_gate_compress.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan", "cosmos"])
def test_layers_of_eight_bits(name: str) -> None:
    case = CASES[name]()
    for module in list(case.model.modules()):
        for key, child in list(module.named_children()):
            if type(child) is nn.Linear and key in ("to_q", "to_k", "to_v", "to_gate_logits", "0"):
                setattr(module, key, _Quantised(child))
    goes_on(case, name)


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan"])
def test_layers_that_torchao_quantised(name: str, config: str) -> None:
    quantization: Any = pytest.importorskip("torchao.quantization")
    case = CASES[name]()
    unquantised = case.run()
    quantization.quantize_(case.model, getattr(quantization, config)())
    assert (case.run() - unquantised).abs().max() > 1e-4, "nothing was quantised"
    goes_on(case, name)


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


def test_wrong_uses_say_what_to_do() -> None:
    model = wan(1).model
    for wrong, words in (
        ({"sparsity": 1.0}, "sparsity: got 1.0, expected 0"),
        ({"sparsity": "most"}, "sparsity: got 'most', expected 0"),
        ({"dense_layers": [3]}, "dense_layers: got 3, expected numbers below 3"),
        ({"dense_layers": -1}, "dense_layers: got -1, expected a number of them"),
        ({"dense_layers": "all"}, "dense_layers: got 'all', expected a number of them"),
        ({"forced": True}, "forced: got True, expected a strobe.Forced"),
    ):
        with pytest.raises(ConfigError, match=words) as error:
            sparsify(model, **wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(strobe.ShapeError, match="tile: got 'cube'"):
        sparsify(model, tile="cube")
    with pytest.raises(ConfigError, match="found no transformer it knows among Linear; it knows WanTransformer3DModel, LTX2"):
        sparsify(nn.Linear(2, 2))
    with sparsify(model, sparsity=0.5), pytest.raises(ConfigError, match="WanTransformer3DModel is sparse already; call restore"):
        sparsify(model, sparsity=0.5)


def test_wrong_calls_say_what_to_do() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.5, tile=(8, 4, 2)):
        with pytest.raises(strobe.ShapeError, match=r"tile: \(8, 4, 2\) is larger than the video's grid of \(5, 6, 7\) tokens"):
            case.run()
        with pytest.raises(ConfigError, match=r"blocks.0.attn1.processor: no grid of tokens is known; call the transformer"):
            case.model.blocks[0].attn1(torch.zeros(1, 210, 24))
    two = ltx2()
    with sparsify(two.model, sparsity=0.5):
        with pytest.raises(strobe.ShapeError, match=r"got 210 video tokens for a grid of \(4, 6, 7\), which has 168"):
            two.run(num_frames=4)
        with pytest.raises(ConfigError, match="video_self_attention_mask is given"):
            two.run(video_self_attention_mask=torch.ones(2, 210, 210))
        with pytest.raises(ConfigError, match="num_frames, height and width were not given"):
            two.run(num_frames=None, video_coords=two.model.rope.prepare_video_coords(2, 5, 6, 7, torch.device("cpu")))
    one = hunyuan(4)
    with sparsify(one.model, sparsity=0.5, impl="cudnn"), pytest.raises(strobe.ImplUnavailableError, match="cudnn"):
        one.run()


def test_explain_says_what_the_layers_run() -> None:
    case = hunyuan(4)
    with sparsify(case.model, sparsity=0.5):
        case.run()
        found = strobe.explain(case.model)
    assert set(found) == {f"transformer_blocks.{n}.attn" for n in range(2)} | {
        f"single_transformer_blocks.{n}.attn" for n in range(2)
    }
    assert {choice.impl.name for choice in found.values()} == {"cpu"}
    with pytest.raises(ConfigError, match="HunyuanVideoTransformer3DModel has no sparse layer"):
        strobe.explain(case.model)


OPTIONS: dict[str, Any] = {"sparsity": 0.6, "tile": (3, 2, 4)}


def alone() -> Case:
    """LTX-2 as far as diffusers' own plan for it goes: without text masks and without attention between video and audio."""
    case = ltx2()
    return Case(case.model, case.arguments | {"encoder_attention_mask": None, "isolate_modalities": True}, case.layers)


SPLITS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "wan, heads": (wan, {"ulysses_degree": 2}, OPTIONS),
    "wan, ring": (wan, {"ring_degree": 2}, OPTIONS),
    "wan, dense": (wan, {"ulysses_degree": 2}, {"sparsity": 0.0}),
    "wan, gates": (wan, {"ulysses_degree": 2}, OPTIONS | {"gates": gates()}),
    "wan, dense frames": (wan, {"ulysses_degree": 2}, OPTIONS | {"dense_frames": (0, -1)}),
    "ltx-2": (alone, {"ulysses_degree": 2}, OPTIONS),
}


def _rank(rank: int, store: str, folder: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    found: dict[str, Any] = {}
    with mock.patch("torch.accelerator.device_count", lambda: 1):  # what enable_parallelism counts; there is none here
        for name, (make, split, options) in SPLITS.items():
            case = make()
            if name == "wan, ring":  # before as well as after
                case.model.enable_parallelism(config=ContextParallelConfig(**split))
                handle = sparsify(case.model, **options)
            else:
                handle = sparsify(case.model, **options)
                case.model.enable_parallelism(config=ContextParallelConfig(**split))
            found[name] = case.run()
            handle.restore()
            if "ring_degree" not in split:  # diffusers has no ring on a CPU
                found[name + ", restored"] = case.run()
        three = wan(1, heads=3, head_dim=8)
        three.model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
        with sparsify(three.model, **OPTIONS), pytest.raises(ConfigError, match="3 heads cannot be divided among 2 processes"):
            three.run()
        found["heads"], found["gradients"] = _uneven()
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


TOKENS = torch.arange(5 * 2 * 3.0).view(1, 5, 2, 3)
WEIGHTS = torch.arange(5.0).view(1, 5, 1, 1)


def _uneven() -> tuple[torch.Tensor, torch.Tensor]:
    """Five tokens in two processes: all tokens of one head, and gradients of a sum of squares through both trades."""
    exchange = HeadExchange(dist.group.WORLD, 5, 2)
    here = TOKENS.tensor_split(2, dim=1)[dist.get_rank()].clone().requires_grad_()
    heads = exchange.scatter_heads(here)
    out = exchange.gather_heads(heads * WEIGHTS)
    return heads.detach(), torch.autograd.grad(out.square().sum(), here)[0]


@pytest.mark.rest
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    processes.spawn(_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    told = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, (make, _, options) in SPLITS.items():
        case = make()
        dense = case.run()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="quality not measured")
            with sparsify(case.model, **options):
                wanted = case.run()
        for found in told:
            assert (found[name] - wanted).abs().max() <= 1e-5, name
            assert (found.get(name + ", restored", dense) - dense).abs().max() <= 1e-5, name
    assert torch.equal(torch.cat([found["heads"] for found in told], dim=2), TOKENS)
    assert torch.equal(torch.cat([found["gradients"] for found in told], dim=1), 2 * TOKENS * WEIGHTS**2)


def test_joint_attention_in_several_processes_is_refused() -> None:
    case = hunyuan(4)
    config = mock.Mock(context_parallel_config=mock.Mock())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quality not measured")
        with sparsify(case.model, sparsity=0.5):
            for processor in case.model.attn_processors.values():
                if hasattr(processor, "replaced"):
                    processor._parallel_config = config
            with pytest.raises(ConfigError, match="joint attention over several processes is not supported"):
                case.run()
