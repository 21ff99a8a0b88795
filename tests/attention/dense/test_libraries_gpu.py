"""The libraries' dense kernels on a GPU, against the reference in float32 on the same rounded inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.explain import explain
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

pytestmark = pytest.mark.gpu

IMPLS = ("fa4", "fa3", "sdpa")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = [(1, 1), (1, 63), (63, 100), (100, 1), (7, 2000), (2000, 129)]
HEADS = [(3, 3), (4, 2), (5, 1)]


def draw(lengths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * lengths[0] + 10 * lengths[1] + heads[1])
    shapes = [(2, lengths[0], heads[0], width)] + [(2, lengths[1], heads[1], width)] * 2
    return [torch.randn(shape, generator=generator).to(dtype).cuda() for shape in shapes]


def usable(inputs: list[Tensor], impl: str, *, return_lse: bool, needs_grad: bool = False) -> None:
    try:
        explain(*(tensor.detach().requires_grad_(needs_grad) for tensor in inputs), impl=impl, return_lse=return_lse)
    except ImplUnavailableError as error:
        pytest.skip(f"{impl}: {error.reason}")


def near(found: Tensor, expected: Tensor, dtype: torch.dtype, name: str) -> None:
    limit = tolerance("element of a library", dtype) * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(
        found.float(), expected, atol=limit, rtol=tolerance("element of a library", dtype), msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_output_and_lse(lengths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, width: int, impl: str) -> None:
    inputs = draw(lengths, heads, dtype, width)
    expected = dense_attention(*(tensor.float() for tensor in inputs), impl="reference", return_lse=True)
    assert expected.lse is not None
    for return_lse in (False, True):
        usable(inputs, impl, return_lse=return_lse)
        found = dense_attention(*inputs, impl=impl, return_lse=return_lse)
        assert found.out.dtype == dtype
        near(found.out, expected.out, dtype, "out")
        if return_lse:
            assert found.lse is not None and found.lse.dtype == torch.float32 and found.lse.shape == expected.lse.shape
            near(found.lse, expected.lse, torch.float16 if dtype != torch.float32 else dtype, "lse")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("through_lse", [False, True])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients(
    lengths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, width: int, through_lse: bool, impl: str
) -> None:
    inputs = draw(lengths, heads, dtype, width)
    usable(inputs, impl, return_lse=through_lse, needs_grad=True)
    generator = torch.Generator().manual_seed(3)
    d_out = torch.randn(inputs[0].shape, generator=generator).to(dtype).cuda()
    d_lse = torch.randn(2, heads[0], lengths[0], generator=generator).cuda()
    results = []
    for name, tensors in ((impl, inputs), ("reference", [tensor.float() for tensor in inputs])):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        found = dense_attention(*leaves, impl=name, return_lse=through_lse)
        outs, grads = [found.out], [d_out.to(found.out.dtype)]
        if through_lse:
            assert found.lse is not None
            outs, grads = [*outs, found.lse], [*grads, d_lse]
        results.append(torch.autograd.grad(outs, leaves, grads))
    for name, mine, theirs in zip(("dq", "dk", "dv"), *results, strict=True):
        near(mine, theirs, dtype, name)


@pytest.mark.parametrize("impl", IMPLS)
def test_views_of_a_larger_buffer(impl: str) -> None:
    q, k, v = draw((63, 100), (4, 4), torch.bfloat16, 64)
    usable([q, k, v], impl, return_lse=True)
    expected = dense_attention(q, k, v, impl=impl, return_lse=True)
    buffer = torch.full((2, 300, 4, 64), torch.nan, dtype=torch.bfloat16, device="cuda")
    keys, values = buffer[:, 7:107], buffer.clone()[:, 20:120]
    keys.copy_(k), values.copy_(v)
    outside = q.transpose(1, 2).contiguous().transpose(1, 2)
    found = dense_attention(outside, keys, values, impl=impl, return_lse=True)
    assert torch.equal(found.out, expected.out) and torch.equal(found.lse, expected.lse)  # type: ignore[arg-type]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("return_lse", [False, True])
def test_nothing_waits_for_the_device_and_a_graph_captures_it(return_lse: bool, impl: str) -> None:
    inputs, others = draw((63, 100), (4, 4), torch.bfloat16, 128), draw((63, 100), (4, 1), torch.bfloat16, 128)
    usable(inputs, impl, return_lse=return_lse)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for strict in ("default", "error"):  # the first run compiles
            torch.cuda.set_sync_debug_mode(strict)
            try:
                dense_attention(*inputs, impl=impl, return_lse=return_lse)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = dense_attention(*inputs, impl=impl, return_lse=return_lse)
    for mine, theirs in zip(inputs, others, strict=True):
        mine.copy_(theirs)
    graph.replay()
    expected = dense_attention(*(tensor.float() for tensor in inputs), impl="reference")
    near(found.out, expected.out, torch.bfloat16, "out")


@pytest.mark.parametrize("impl", IMPLS)
def test_it_compiles_without_a_graph_break(impl: str) -> None:
    inputs = draw((63, 100), (4, 4), torch.bfloat16, 128)
    usable(inputs, impl, return_lse=True, needs_grad=False)
    compiled = torch.compile(dense_attention, fullgraph=True, backend="aot_eager")
    expected = dense_attention(*inputs, impl=impl, return_lse=True)
    found = compiled(*inputs, impl=impl, return_lse=True)
    assert torch.equal(found.out, expected.out) and torch.equal(found.lse, expected.lse)


@pytest.mark.parametrize("impl", ["fa4"])
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("q_len", [1, 1560, 4680])
def test_a_last_wave_over_parts_of_the_keys(q_len: int, return_lse: bool, impl: str) -> None:
    """As near to float32 as all queries over all keys, and the same in a graph; keys are a leading slice of a ring."""
    generator = torch.Generator().manual_seed(q_len)
    q, *ring = (torch.randn(1, n, 12, 128, generator=generator).cuda().bfloat16() for n in (q_len, 20000, 20000))
    k, v = (each[:, :18720] for each in ring)
    usable([q, k, v], impl, return_lse=return_lse)
    from flash_attn.cute import flash_attn_func

    expected = dense_attention(q.float(), k.float(), v.float(), impl="reference", return_lse=True)
    found = dense_attention(q, k, v, impl=impl, return_lse=return_lse)
    whole, _ = flash_attn_func(q, k, v)
    near(found.out, expected.out, torch.bfloat16, "out")
    error, before = ((each.float() - expected.out).square().mean().sqrt().item() for each in (found.out, whole))
    assert error <= 1.25 * before and not torch.equal(found.out, whole)
    if return_lse:
        assert found.lse is not None and expected.lse is not None
        assert torch.allclose(found.lse, expected.lse, rtol=0, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dense_attention(q, k, v, impl=impl, return_lse=return_lse)
    graph.replay()
    assert torch.equal(captured.out, found.out) and (found.lse is None or torch.equal(captured.lse, found.lse))
