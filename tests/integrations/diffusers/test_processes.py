"""Context parallelism in two processes over gloo: the same result as in one, whatever diffusers would have used to exchange."""

from __future__ import annotations

import datetime
import json
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from diffusers import ContextParallelConfig, FlowMatchEulerDiscreteScheduler

from strobe.core.errors import ConfigError
from strobe.integrations.diffusers import calibrate, sparsify
from strobe.integrations.diffusers.processors import HeadExchange
from tiny_pipelines import Case, gates, hunyuan, ltx2, wan

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


def told() -> dict[str, Any]:
    """The first step of one, as a caller of a transformer tells it."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(1)
    return {"attention_kwargs": {"denoise_step": scheduler}}


def kept(folder: Path) -> torch.Tensor:
    """Calibrate, give the two heads very different numbers, and compute in one process."""
    case, file = wan(1), folder / "kept.json"
    calibrate(case.model, lambda: case.run(**told()), keep=0.5, tile=(3, 2, 4), file=file)
    document = json.loads(file.read_text())
    document["selected"][""]["0"] = dict.fromkeys(document["selected"][""]["0"], (1, 9))
    file.write_text(json.dumps(document))
    with sparsify(case.model, keep=file):
        return case.run(**told())


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
        case = wan(1)
        with sparsify(case.model, keep=Path(folder) / "kept.json"):
            case.model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
            found["kept"] = case.run(**told())
        three = wan(1, heads=3, head_dim=8)
        three.model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
        with sparsify(three.model, **OPTIONS), pytest.raises(ConfigError, match="3 heads cannot be divided among 2 processes"):
            three.run()
        exchange = HeadExchange(dist.group.WORLD, 5, 2)  # five tokens in two processes: all tokens of one head
        here = TOKENS.tensor_split(2, dim=1)[dist.get_rank()].clone().requires_grad_()
        heads = exchange.scatter_heads(here)
        out = exchange.gather_heads(heads * WEIGHTS)
        found["heads"], found["gradients"] = heads.detach(), torch.autograd.grad(out.square().sum(), here)[0]
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


TOKENS = torch.arange(5 * 2 * 3.0).view(1, 5, 2, 3)
WEIGHTS = torch.arange(5.0).view(1, 5, 1, 1)


@pytest.mark.rest
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    kept_in_one = kept(tmp_path)
    processes.spawn(_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert all((found["kept"] - kept_in_one).abs().max() <= 1e-5 for found in results)
    for name, (make, _, options) in SPLITS.items():
        case = make()
        dense = case.run()
        with sparsify(case.model, **options):
            wanted = case.run()
        for found in results:
            assert (found[name] - wanted).abs().max() <= 1e-5, name
            assert (found.get(name + ", restored", dense) - dense).abs().max() <= 1e-5, name
    assert torch.equal(torch.cat([found["heads"] for found in results], dim=2), TOKENS)
    assert torch.equal(torch.cat([found["gradients"] for found in results], dim=1), 2 * TOKENS * WEIGHTS**2)


def test_joint_attention_in_several_processes_is_refused() -> None:
    case = hunyuan(4)
    config = mock.Mock(context_parallel_config=mock.Mock())
    with sparsify(case.model, sparsity=0.5):
        for processor in case.model.attn_processors.values():
            if hasattr(processor, "replaced"):
                processor._parallel_config = config
        with pytest.raises(ConfigError, match="joint attention over several processes is not supported"):
            case.run()
