"""The fine stage and the fused stages around it equal the reference, and a GPU's compiler takes every launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forked import in_triton, needs_triton, run
from strobe.attention.sparse import tiled
from tiers import rest_while_gated

SCRIPT = Path(__file__).parents[2] / "support" / "stages_on_cpu.py"


@pytest.mark.parametrize(
    ("device", "cases"),
    [("cpu", ["two"]), pytest.param("cpu", [], marks=pytest.mark.rest), pytest.param("cuda", [], marks=pytest.mark.gpu)],
    ids=["two", "cpu", "cuda"],
)
@needs_triton
def test_fused_stages_equal_the_reference(device: str, cases: list[str]) -> None:
    in_triton(SCRIPT, device, *cases)


@needs_triton
def test_a_compiler_for_a_gpu_takes_every_launch() -> None:
    script = SCRIPT.with_name("launches_without_a_gpu.py")
    done = run(script, environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
def test_which_head_dims_the_fused_stages_are_for() -> None:
    gpu = torch.device("cuda")
    assert [size for size in range(1, 257) if tiled.fuses(gpu, torch.bfloat16, size)] == [32, 64, 128]
    assert not tiled.fuses(gpu, torch.float64, 64)


@rest_while_gated("sparse", "triton")
@needs_triton
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_kernels_equal_the_reference(device: str) -> None:
    in_triton(SCRIPT.with_name("triton_on_cpu.py"), device)
