"""Second and forward-mode derivatives, torch.func, eight bits, torch.compile: right or refused, in every operator and impl.

The loss of second derivatives is a gradient penalty: `|d out / d q|^2` plus a term that reaches `x` without the operator.
Gradients that are cut off from q, k and v give the second term alone, without a word. A graph break of compiled code is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import flash_stand_in
import strobe
from forked import in_triton, needs_triton
from strobe.attention.around import ambient
from strobe.attention.dense.impl import fa4
from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import check
from strobe.compat import video_sparse_attn
from strobe.core.errors import ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # torch's, of what vmap runs item by item
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # torch's forward-mode derivatives use it
]
GRID = (4, 5, 6)

Operator = Callable[..., tuple[Any, ...]]
"""Of q, k, v `[B, S, H, D]` and an impl: a function, and what to call it with."""


def dense(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    return lambda q, k, v: strobe.dense_attention(q, k, v, impl=impl).out, q, k, v


def summed(found: strobe.AttentionOutput) -> Tensor:
    """What is differentiated through the lse too, where it is not -inf."""
    assert found.lse is not None
    return found.out.sum(dim=(2, 3)) + found.lse.clamp(min=-9).sum(dim=1)


def dense_with_lse(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    return lambda *each: summed(strobe.dense_attention(*each, impl=impl, return_lse=True)), q, k, v


def selection_of(q: Tensor) -> BlockSelection:
    """Blocks of 64 for every head, and none for the last rows of the last head."""
    batch, blocks, heads = q.shape[0], q.shape[1] // 64, q.shape[2]
    mask = torch.arange(heads * blocks * blocks).view(1, heads, blocks, blocks) * 3 % 5 < 3
    mask[:, -1, -1] = False
    return BlockSelection.from_mask(mask.repeat(batch, 1, 1, 1), block=64)


def block_sparse(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    return lambda *each: strobe.block_sparse_attention(*each, impl=impl).out, q, k, v, selection_of(q)


def block_sparse_with_lse(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    return lambda *each: summed(strobe.block_sparse_attention(*each, impl=impl, return_lse=True)), q, k, v, selection_of(q)


def varlen(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    batch, rows, heads = q.shape[:3]
    cu = torch.tensor([0, rows // 3, rows] if batch < 3 else [0, 70, 71, rows], dtype=torch.int32)
    blocks = rows // 64 + cu.shape[0] - 1
    indices = torch.zeros(heads, blocks, 1, dtype=torch.int32)
    counts = (torch.arange(blocks) != 2).int().repeat(heads, 1)

    call = partial(strobe.block_sparse_attention_varlen, block=64, impl=impl)
    return lambda *each: call(*each).out, q[0], k[0], v[0], indices, counts, cu, cu


def video(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    def call(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, grid: tuple[int, int, int]) -> Tensor:
        return strobe.video_sparse_attention(q, k, v, grid=grid, topk=2, gate=gate, impl=impl).out

    q, k, v = (each[:, :120] for each in (q, k, v))
    return call, q, k, v, q.mean(dim=(2, 3), keepdim=True), GRID


def video_of_a_length(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    frames = q.shape[1] // 15
    angles = torch.linspace(0, 3, frames * 15 * (q.shape[3] // 2)).view(frames * 15, -1)

    def call(q: Tensor, k: Tensor, v: Tensor, rope: tuple[Tensor, Tensor], frames: int) -> Tensor:
        grid = (frames, 3, 5)
        return strobe.video_sparse_attention(q, k, v, grid=grid, tile="auto", sparsity=0.5, rope=rope, impl=impl).out

    return call, *(each[:, : frames * 15] for each in (q, k, v)), (angles.cos(), angles.sin()), frames


def history(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    keys, values = (torch.cat((each, each), dim=1)[:, :192] for each in (k, v))
    sizes = torch.tensor([64, 0, 64], dtype=torch.int32)
    means = pool(keys.detach(), sizes, 64)
    past = History(keys=keys, values=values, means=means, sizes=sizes, num_tiles=2, block=64)

    def call(q: Tensor, k: Tensor, v: Tensor, past: History) -> Tensor:
        return history_attention(q, [(k, v)], past, q_tiles=tile_layout(GRID, 64), sparsity=0.5, impl=impl).out

    return call, q[:, :120], k, v, past


def merge(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pairs = ((k[:, i:j], v[:, i:j]) for i, j in ((0, 64), (64, k.shape[1])))
        return summed(strobe.merge([strobe.dense_attention(q, *pair, impl=impl, return_lse=True) for pair in pairs]))

    return call, q, k, v


def foreign(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[Any, ...]:
    sizes = torch.full((q.shape[1] // 64,), 60, dtype=torch.int32)

    def call(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor) -> Tensor:
        return video_sparse_attn(q, k, v, sizes, sizes, topk=2, impl=impl)

    group = q.shape[2] // k.shape[2]
    q, k, v = (each.transpose(1, 2).contiguous() for each in (q, k.repeat(1, 1, group, 1), v.repeat(1, 1, group, 1)))
    return call, q, k, v, sizes


THROUGH_LSE = (block_sparse_with_lse, dense_with_lse, history, merge)
"""The lse is float32, and so are its differences."""
CASES = [
    (dense, "reference"),
    (dense, "sdpa"),
    *((each, impl) for each in (*THROUGH_LSE, varlen, video, video_of_a_length) for impl in ("reference", "cpu")),
]


def draw(batch: int, rows: int, heads: int, kv_heads: int, width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch + rows + heads)
    return [torch.randn(batch, rows, number, width, generator=generator) for number in (heads, kv_heads, kv_heads)]


def penalty(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The loss, with `x` reaching it through the gradient of the operator and in another way."""
    out = call(x)
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    return slope.square().sum() + (x**3).sum()


def of_x(operator: Operator, impl: str) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        call, *inputs = operator(x, x.roll(1, 1) * 0.7, x.roll(2, 1) + 0.1, impl)
        out: Tensor = call(*inputs)
        return out

    return run


REFUSED = r"no gradients of their own|is not implemented|does not currently support double backward"


@pytest.mark.parametrize(("operator", "impl"), CASES)
def test_second_derivatives_are_right_or_refused(operator: Operator, impl: str) -> None:
    call = of_x(operator, impl)
    x = torch.randn(1, 128, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    loss = penalty(call, x)
    if impl != "reference":
        with pytest.raises((ImplUnavailableError, RuntimeError), match=REFUSED):
            torch.autograd.grad(loss, x)
        with pytest.raises((ImplUnavailableError, RuntimeError), match=REFUSED):
            penalty(call, x).backward()
        return
    (found,) = torch.autograd.grad(loss, x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step, limit = (1e-3, 1e-3) if operator in THROUGH_LSE else (1e-5, 1e-5)
    up, down = (penalty(call, (x.detach() + sign * step * direction).requires_grad_()) for sign in (1, -1))
    expected = (up - down) / (2 * step)
    torch.testing.assert_close((found * direction).sum(), expected.detach(), rtol=limit, atol=limit)


SPARSE = of_x(block_sparse, "cpu")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (SPARSE, "double backward of 'block_sparse_attention' cannot run: its gradients .*; would run here: reference"),
        (lambda x: checkpoint(SPARSE, x, use_reentrant=False), "no gradients of their own"),
        (torch.compile(of_x(dense_with_lse, "cpu"), fullgraph=True, backend="aot_eager"), REFUSED),
    ],
    ids=["eager", "checkpoint", "compiled"],
)
def test_it_is_refused_with_what_can_be_differentiated_twice(call: Callable[[Tensor], Tensor], said: str) -> None:
    x = torch.randn(1, 128, 2, 8, requires_grad=True)
    with pytest.raises((ImplUnavailableError, RuntimeError), match=said):
        torch.autograd.grad(penalty(call, x), x)


def test_a_gradient_of_what_comes_in_is_refused() -> None:
    x = torch.randn(1, 128, 2, 8, requires_grad=True)
    out = SPARSE(x)
    d_out = torch.ones_like(out).requires_grad_()
    (slope,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    with pytest.raises(ImplUnavailableError, match="no gradients of their own"):
        torch.autograd.grad(slope.sum(), d_out, retain_graph=True)
    (slope,) = torch.autograd.grad(out, x, d_out.detach(), create_graph=True)  # what comes in leads nowhere: what was saved does
    with pytest.raises(ImplUnavailableError, match="no gradients of their own"):
        torch.autograd.grad(slope.sum(), x)


def test_fa4_s_gradients_are_right_once_and_refused_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_stand_in.install(monkeypatch)
    q, k, v = (torch.randn(1, 32, 2, 8, requires_grad=True) for _ in range(3))
    expected = strobe.dense_attention(q, k, v, impl="reference").out
    found = fa4.run(q, k, v, check(q, k, v, None, return_lse=False)).out
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ImplUnavailableError, match="double backward of 'dense_attention' cannot run"):
        torch.autograd.grad(penalty(lambda x: fa4.run(x, x, x, check(x, x, x, None, return_lse=False)).out, q), q)


@needs_triton
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_triton_kernels_refuse_it(device: str) -> None:
    in_triton(Path(__file__), device)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["fa4", "sdpa", "sparse cudnn", "sparse fa4"])
@pytest.mark.parametrize("return_lse", [False, True])
def test_the_kernels_of_a_gpu_refuse_it(impl: str, return_lse: bool) -> None:
    mask = torch.ones(1, 2, 2, 2, dtype=torch.bool, device="cuda")

    def attend(x: Tensor) -> Tensor:
        given: dict[str, Any] = {"impl": impl.removeprefix("sparse "), "return_lse": return_lse}
        if impl.startswith("sparse "):
            return strobe.block_sparse_attention(x, x, x, BlockSelection.from_mask(mask, block=128), **given).out.float()
        return strobe.dense_attention(x, x, x, **given).out.float()

    x = torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    try:
        attend(x)
    except ImplUnavailableError as error:
        pytest.skip(error.reason)
    with pytest.raises((ImplUnavailableError, RuntimeError), match=REFUSED):
        torch.autograd.grad(penalty(attend, x), x)


IN_EIGHT_BITS = (dense, block_sparse, video_of_a_length, foreign)


def dual(run: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(run(forward_ad.make_dual(q, q.cos()))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda run, q: torch.func.grad(lambda each: run(each).sin().sum())(q),
    "jvp": lambda run, q: torch.func.jvp(run, (q,), (q.cos(),))[1],
    "forward mode": dual,
    "vmap": lambda run, q: torch.func.vmap(run)(torch.stack([q, -q])),
    "vmap of grad": lambda run, q: torch.func.vmap(torch.func.grad(lambda each: run(each).sin().sum()))(torch.stack([q, -q])),
}


@pytest.mark.parametrize("operator", [*IN_EIGHT_BITS, varlen, history, merge])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_auto_is_right_or_names_the_reference(operator: Operator, transform: str) -> None:
    q, k, v = draw(1, 128, 2, 2, 32)

    def under(impl: str) -> Any:
        call, mine, *rest = operator(q, k, v, impl)
        return TRANSFORMS[transform](lambda each: call(each, *rest), mine)

    wanted = under("reference")
    try:
        found = under("auto")
    except ImplUnavailableError as error:
        said = str(error)
        assert 'give impl="reference"' in said and "\n" not in said and len(said) < 300
        assert "vmap" not in transform or "grad" in transform
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance("element", "float32"))


@pytest.mark.parametrize("operator", IN_EIGHT_BITS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_name_the_reference_which_computes_them(operator: Operator, dtype: torch.dtype) -> None:
    def run(tensors: Sequence[Tensor], impl: str) -> Tensor:
        call, *inputs = operator(*tensors, impl)
        out: Tensor = call(*inputs)
        return out

    tensors = [each.to(dtype) for each in draw(1, 128, 2, 2, 32)]
    for impl in ("auto", "cpu"):
        with pytest.raises(ImplUnavailableError, match=rf'computes {str(dtype)[6:]}; convert .* or give impl="reference"$'):
            run(tensors, impl)
    found, exact = run(tensors, "reference"), run([each.float() for each in tensors], "reference")
    assert found.dtype == dtype and torch.equal(found.float(), exact.to(dtype).float())


@pytest.mark.parametrize("operator", [varlen, history])
def test_what_packs_or_keeps_tiles_takes_no_eight_bits(operator: Operator) -> None:
    call, q, *rest = operator(*draw(1, 128, 2, 2), "reference")
    with pytest.raises(ShapeError, match="got shape .* torch.float8_e5m2, expected .* of over 8 bits"):
        call(q.to(torch.float8_e5m2), *rest)


@pytest.mark.parametrize("impl", ["triton", "cudnn", "fa4"])
def test_a_kernel_drops_no_tangent(impl: str) -> None:
    """It takes addresses, where there are no tangents: refused before it runs."""
    q, ran = draw(1, 128, 2, 2)[0], []
    refused = pytest.raises(ImplUnavailableError, match=r"no forward-mode derivative\); give impl=.reference")
    with refused, forward_ad.dual_level(), ambient(q, impl):
        ran.append(impl)
    with ambient(q, impl):
        ran.append("plain")
    with forward_ad.dual_level(), ambient(q, "reference"):
        ran.append("reference")
    assert ran == ["plain", "reference"]


OPERATORS = (dense, block_sparse, varlen, video, video_of_a_length, history, merge, foreign)
SHAPES = ((1, 128, 2, 2), (2, 192, 2, 2), (3, 320, 4, 2))
"""Batch, rows, heads, heads of the keys."""
REST = pytest.mark.rest
FIRST = [
    each if each not in (video, merge) else pytest.param(each, marks=REST) for each in OPERATORS
]  # others hold the same code


@pytest.mark.parametrize(
    ("dynamic", "shapes"),
    [(True, SHAPES[::2]), pytest.param(True, SHAPES, marks=REST), pytest.param(None, SHAPES, marks=REST)],
    ids=["True-2", "True", "None"],
)
@pytest.mark.parametrize("operator", FIRST)
def test_it_compiles_for_sizes_that_change(
    operator: Operator, dynamic: bool | None, shapes: Sequence[tuple[int, int, int, int]]
) -> None:
    torch._dynamo.reset()
    call = operator(*draw(*SHAPES[0]), "auto")[0]
    backend = "aot_eager" if operator in (dense, block_sparse) else "eager"  # other graphs are long, and of the same operations
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=dynamic)
    for shape in shapes:
        leaves = [each.requires_grad_() for each in draw(*shape)]
        expected, found = (run(*operator(*leaves, "auto")[1:]) for run in (call, compiled))
        torch.testing.assert_close(found, expected)
        weight = torch.linspace(-1, 1, found.numel()).view_as(found)
        mine, theirs = (torch.autograd.grad((out * weight).sum(), leaves) for out in (found, expected))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("operator", [dense, block_sparse, video])
def test_one_compilation_serves_any_batch(operator: Operator) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(operator(*draw(*SHAPES[0]), "auto")[0], fullgraph=True, backend=counter, dynamic=True)
    for batch in (3, 5, 7):  # no other size is one of these: a compiler takes equal sizes for the same one
        compiled(*operator(*draw(batch, 128, 2, 2), "auto")[1:])
    assert counter.frame_count == 1


if __name__ == "__main__":
    place = torch.device(sys.argv[1])
    every = BlockSelection.from_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place), block=64)
    leaf = torch.randn(1, 64, 1, 32, device=place, requires_grad=True)
    try:
        torch.autograd.grad(penalty(lambda x: strobe.block_sparse_attention(x, x, x, every, impl="triton").out, leaf), leaf)
    except ImplUnavailableError as error:
        assert "double backward of 'block_sparse_attention' cannot run" in str(error), error
    else:
        raise SystemExit("a double backward of the Triton kernels was not refused")
