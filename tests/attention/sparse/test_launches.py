"""Lists of launches: in C where it is known what the driver is given, else one by one."""

from __future__ import annotations

import importlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from forked import needs_triton, run
from strobe.attention.impls import MISSING
from strobe.attention.sparse import launches as lists
from strobe.attention.sparse import video_plan
from strobe.attention.sparse.coarse import Forced
from strobe.attention.sparse.video import VideoAttentionOutput, video_sparse_attention

SCRIPT = Path(__file__).parents[2] / "support" / "launches_in_c.py"


@needs_triton
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_driver_is_given_what_triton_gives_it(tmp_path: Path) -> None:
    done = run(SCRIPT, tmp_path, environment={"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]


def forgotten() -> None:
    """Let go of all plans, and with them of prepared calls."""
    video_plan._SEEN.clear()
    video_plan._kept.cache_clear()


def operands(seed: int, rows: int, heads: int, gated: bool) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    tensors = [torch.randn(2, rows, heads, 64, device="cuda", generator=generator).bfloat16() for _ in range(4)]
    angles = torch.rand(rows, 32, device="cuda", generator=generator) * 6
    q, k, v, gate = tensors
    return {"q": q, "k": k, "v": v, "gate": gate if gated else None, "rope": (angles.cos(), angles.sin())}


def equal(found: VideoAttentionOutput, expected: VideoAttentionOutput) -> bool:
    pairs = (found.out, expected.out), (found.lse, expected.lse), (found.selection.indices, expected.selection.indices)
    return all(torch.equal(got, want) for got, want in pairs if got is not None and want is not None)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["triton", "cudnn"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("grid", "forced"), [((5, 9, 10), Forced()), ((3, 7, 11), Forced(own=True))])
def test_a_call_in_c_has_the_bits_of_tritons_launcher(
    grid: tuple[int, int, int], forced: Forced, gated: bool, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called again, in a recorded graph, and on two threads with streams of their own."""
    if MISSING[impl] is not None:
        pytest.skip(f"{impl}: {MISSING[impl]}")
    prepared = importlib.import_module("strobe.attention.sparse.stages.impl.prepared")
    rows, made = grid[0] * grid[1] * grid[2], []

    def called(seed: int) -> VideoAttentionOutput:
        given = inputs[seed]
        return video_sparse_attention(**given, grid=grid, topk=3, forced=forced, impl=impl, return_lse=True)

    def noted(index: int, *steps: Any) -> Any:
        made.append(lists.launches(index, *steps))
        return made[-1]

    monkeypatch.setattr(prepared, "launches", noted)
    inputs = [operands(seed, rows, 3, gated) for seed in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(lists, "_KNOWN", ())
        forgotten()
        expected = [called(seed) for seed in (0, 0, 1)][1:]
        assert made and not any(isinstance(each, partial) for each in made), "Triton launches"
    forgotten()
    made.clear()
    found = [called(seed) for seed in (0, 0, 1)][1:]
    assert made and all(isinstance(each, partial) for each in made), "C launches"
    assert all(map(equal, found, expected))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = called(0)
    for place, tensor in enumerate(inputs[1][name] for name in "qkv"):
        inputs[0]["qkv"[place]].copy_(tensor)
    graph.replay()
    wanted = called(0)
    assert equal(recorded, wanted)
    inputs[0] = operands(0, rows, 3, gated)
    torch.cuda.synchronize()

    def many(seed: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            results = [called(seed) for _ in range(50)]
        stream.synchronize()
        return all(equal(each, expected[seed]) for each in results)

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(many, range(2)))
    forgotten()
