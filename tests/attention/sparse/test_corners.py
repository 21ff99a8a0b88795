"""Corners of the two front doors of sparse attention that once gave a wrong result, or an error nobody could read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.explain import explain
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Forced
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import VideoAttentionOutput, video_sparse_attention
from strobe.attention.sparse.video_plan import VideoOptions, written
from strobe.core.errors import ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")

GRID = (3, 5, 6)
SHARE = {"topk": None, "share": 0.6}


def draw(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*shape, generator=generator) for _ in range(3))
    return q, k, v


def video(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> VideoAttentionOutput:
    return video_sparse_attention(q, k, v, **{"grid": GRID, "topk": 2} | options)


def all_seen(batch: int, heads: int, blocks: int) -> BlockSelection:
    return BlockSelection.from_mask(torch.ones(batch, heads, blocks, blocks, dtype=torch.bool), block=64)


def test_no_queries_have_no_lse() -> None:
    q, k, v = torch.randn(2, 0, 1, 8), *(torch.randn(2, 4, 1, 8) for _ in range(2))
    found = dense_attention(q, k, v, return_lse=True)
    assert found.lse is not None and found.out.shape == q.shape and found.lse.shape == (2, 1, 0)


def test_an_empty_batch_gives_an_empty_result() -> None:
    q, k, v = draw(0, 64, 2, 16)
    assert block_sparse_attention(q, k, v, all_seen(0, 2, 1), return_lse=True).out.shape == q.shape
    q, k, v = draw(0, 90, 2, 16)
    assert video(q, k, v).out.shape == q.shape


def test_angles_alone_may_need_a_gradient() -> None:
    q, k, v = draw(1, 90, 2, 16)
    angles = torch.rand(90, 8, requires_grad=True)
    found = {}
    for impl in ("cpu", "reference"):
        out = video(q, k, v, rope=(angles.cos(), angles.sin()), impl=impl).out
        (found[impl],) = torch.autograd.grad(out.square().sum(), angles)
    torch.testing.assert_close(found["cpu"], found["reference"], atol=ELEMENT, rtol=ELEMENT)


@pytest.mark.parametrize("operator", [dense_attention, lambda q, k, v: block_sparse_attention(q, k, v, all_seen(1, 2, 1))])
def test_integers_are_refused(operator: Any) -> None:
    q = torch.ones(1, 64, 2, 16, dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"q: got torch.int32, expected a floating-point dtype"):
        operator(q, q, q)


def test_a_scale_is_its_value_not_its_tensor() -> None:
    q, k, v = draw(1, 90, 2, 16)
    scale = torch.tensor(0.1)
    before = video(q, k, v, softmax_scale=scale).out
    scale.fill_(3.0)
    after = video(q, k, v, softmax_scale=scale).out
    assert not torch.equal(before, after) and torch.equal(after, video(q, k, v, softmax_scale=3.0).out)


def test_inference_first_then_training() -> None:
    q, k, v = draw(1, 3 * 7 * 5, 2, 16)
    with torch.inference_mode():
        video(q, k, v, grid=(3, 7, 5))
        tile_layout((2, 7, 5), (4, 4, 4)).to_tiles(q[:, :70])
    q.requires_grad_()
    video(q, k, v, grid=(3, 7, 5)).out.sum().backward()
    tile_layout((2, 7, 5), (4, 4, 4)).to_tiles(q[:, :70]).sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()


def test_fake_tensors_first_then_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = video(*(torch.empty(1, 3 * 4 * 9, 2, 16) for _ in range(3)), grid=(3, 4, 9)).out
    assert fake.shape == (1, 108, 2, 16)
    assert type(video(*draw(1, 108, 2, 16), grid=(3, 4, 9)).out) is Tensor


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_autocast_changes_nothing(impl: str) -> None:
    q, k, v = draw(1, 90, 2, 16)
    expected = video(q, k, v, impl=impl, coarse=True, return_lse=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = video(q, k, v, impl=impl, coarse=True, return_lse=True)
    assert found.out.dtype == torch.float32 and torch.equal(found.out, expected.out)
    assert torch.equal(found.selection.indices, expected.selection.indices)


def test_a_default_dtype_of_16_bit_leaves_the_probe_inside() -> None:
    q, k, v = draw(1, 8 * 16 * 18, 1, 8)
    torch.set_default_dtype(torch.bfloat16)
    try:
        recall = video(q, k, v, grid=(8, 16, 18), probe=7).recall
    finally:
        torch.set_default_dtype(torch.float32)
    assert recall is not None and recall.isfinite().all()


def test_deterministic_algorithms_are_asked_for() -> None:
    q, k, v = draw(1, 64, 2, 16)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ImplUnavailableError):
            block_sparse_attention(q, k, v, all_seen(1, 2, 1), impl="cudnn")
        assert explain(q, k, v, all_seen(1, 2, 1), softmax_scale=-1.0).impl.name == "cpu"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("option", "values"), [("sparsity", (0.5, 0.75, 0.2)), ("softmax_scale", (0.1, 2.0, 0.5)), ("topk", (1, 2, 3))]
)
def test_a_compiled_call_takes_another_number(option: str, values: tuple[float, ...]) -> None:
    """The compiler makes a number symbolic at its second value; graphs of earlier values stay in use."""
    tensors = draw(1, 90, 2, 16)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def call(number: float) -> Tensor:
        return video(*tensors, **{"topk": None if option == "sparsity" else 2} | {option: number}).out

    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for value in values:
        torch.testing.assert_close(compiled(value), call(value))
    graphs = counter.frame_count
    for value in values:
        torch.testing.assert_close(compiled(value), call(value))
    assert counter.frame_count == graphs, "nothing is compiled again"
    assert (call(values[0]) - call(values[1])).abs().max() > 1e-3, "the number matters"
    torch._dynamo.reset()


@pytest.mark.few(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("options", [{}, {"tile": "auto"}, {"forced": Forced(own=True)}, {"coarse": True, "probe": 3}, SHARE])
def test_the_video_operator_compiles_without_a_graph_break(options: dict[str, Any], grad: bool) -> None:
    q, k, v = (tensor.requires_grad_(grad) for tensor in draw(1, 90, 2, 16))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return video(q, k, v, **options).out

    torch._dynamo.reset()
    found = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(found, call(q, k, v))
    if grad:
        found.square().sum().backward()
        assert q.grad is not None and q.grad.isfinite().all()


@pytest.mark.parametrize("topk", [[2], [1, 3]])
@pytest.mark.parametrize("gated", [False, True])
def test_the_operator_that_a_compiler_calls_says_what_it_returns(topk: list[int], gated: bool) -> None:
    q, k, v = draw(2, 90, 2, 16)
    angles = torch.linspace(0, 6, 90 * 8).reshape(90, 8)
    gate, cos, sin = (q.flip(1), angles.cos(), angles.sin()) if gated else (None, None, None)
    told = VideoOptions(
        grid=GRID, kv_grid=GRID, kv_tile=(4, 4, 4), topk=topk[0] if len(topk) == 1 else tuple(topk), coarse=gated,
        forced=Forced(own=True), softmax_scale=0.25, impl="reference", return_lse=gated,
    )  # fmt: skip
    arguments = (q, k, v, gate, cos, sin, written(told))
    operator: Any = torch.ops.strobe.video_sparse_attention.default
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, arguments, test_utils=checks)
    out, lse, indices = operator(*arguments)
    rope = None if cos is None or sin is None else (cos, sin)
    options: dict[str, Any] = {
        "gate": gate,
        "rope": rope,
        "forced": Forced(own=True),
        "softmax_scale": 0.25,
        "topk": topk[0] if len(topk) == 1 else topk,
    }
    expected = video(q, k, v, **options, impl="reference", return_lse=gated)
    assert torch.equal(out, expected.out) and torch.equal(indices, expected.selection.indices)
    assert lse.numel() == 0 if expected.lse is None else torch.equal(lse, expected.lse)
