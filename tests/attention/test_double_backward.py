"""Second and forward-mode derivatives, torch.func and eight bits: right or refused, in every operator and impl.

The loss is a gradient penalty: `|d out / d q|^2` plus a term that reaches `x` without the operator. Gradients that are cut off
from q, k and v give the second term alone, without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
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
from strobe.attention.dense.api import dense_attention
from strobe.attention.dense.impl import fa3, fa4
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.packed import block_sparse_attention_varlen
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import video_sparse_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, AttentionSpec, check
from strobe.compat import video_sparse_attn
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

Operator = Callable[[Tensor, Tensor, Tensor, str], Tensor]
GRID = (3, 5, 6)


def _selection() -> BlockSelection:
    mask = torch.tensor([[[[1, 0], [1, 1]], [[0, 1], [0, 0]]]], dtype=torch.bool)
    return BlockSelection.from_mask(mask, block=64)


def _block_sparse(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    found = block_sparse_attention(q, k, v, _selection(), impl=impl, return_lse=True)
    return found.out.sum(dim=(2, 3)) + found.lse.clamp(min=-9).sum(dim=1)


def _varlen(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    cu = torch.tensor([0, 70, 128], dtype=torch.int32)
    indices = torch.tensor([[[0, 1], [1, 0], [0, 0], [0, 0]]] * 2, dtype=torch.int32)
    counts = torch.tensor([[2, 1, 1, 0]] * 2, dtype=torch.int32)
    return block_sparse_attention_varlen(q[0], k[0], v[0], indices, counts, cu, cu, block=64, impl=impl).out


def _video(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    angles = torch.linspace(0, 3, 90 * 4, dtype=q.dtype).view(90, 4)
    rows = (each[:, :90] for each in (q, k, v))
    rope = (angles.cos(), angles.sin())
    return video_sparse_attention(*rows, grid=GRID, topk=2, gate=q[:, :90] * 0.3, rope=rope, impl=impl).out


def _history(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    means = k.detach().unflatten(1, (2, 64)).mean(2).transpose(1, 2)
    past = History(keys=k, values=v, means=means, sizes=torch.tensor([64, 64], dtype=torch.int32), num_tiles=2, block=64)
    return history_attention(q[:, :90], [], past, q_tiles=tile_layout(GRID, 64), sparsity=0.5, impl=impl).out


def _dense(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    return dense_attention(q, k, v, impl=impl).out


def _dense_with_lse(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    found = dense_attention(q, k, v, impl=impl, return_lse=True)
    return found.out.sum(dim=(2, 3)) + found.lse.sum(dim=1)


def _merged(q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
    halves = [dense_attention(q, k[:, i : i + 64], v[:, i : i + 64], impl=impl, return_lse=True) for i in (0, 64)]
    found = merge(halves)
    return found.out.sum(dim=(2, 3)) + found.lse.sum(dim=1)


pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # torch's, of what vmap runs item by item
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # torch's forward-mode derivatives use it
]
OPERATORS: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "block_sparse_attention": (_block_sparse, ("reference", "cpu")),
    "block_sparse_attention_varlen": (_varlen, ("reference", "cpu")),
    "video_sparse_attention": (_video, ("reference", "cpu")),
    "history_attention": (_history, ("reference", "cpu")),
    "dense_attention": (_dense, ("reference", "sdpa")),
    "dense_attention with lse": (_dense_with_lse, ("reference", "cpu")),
    "merge": (_merged, ("reference", "cpu")),
}
THROUGH_LSE = ("block_sparse_attention", "dense_attention with lse", "merge")
"""The lse is float32, and so are its differences."""
CASES = [(name, impl) for name, (_, impls) in OPERATORS.items() for impl in impls]


def penalty(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The loss, with `x` reaching it through the gradient of the operator and in another way."""
    out = call(x)
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    return slope.square().sum() + (x**3).sum()


def of_x(operator: Operator, impl: str) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        return operator(x, x.roll(1, 1) * 0.7, x.roll(2, 1) + 0.1, impl)

    return call


@pytest.mark.parametrize(("name", "impl"), CASES)
def test_second_derivatives_are_right_or_refused(name: str, impl: str) -> None:
    call = of_x(OPERATORS[name][0], impl)
    x = torch.randn(1, 128, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    loss = penalty(call, x)
    if impl != "reference":
        with pytest.raises((ImplUnavailableError, RuntimeError), match="no gradients of their own|is not implemented"):
            torch.autograd.grad(loss, x)
        with pytest.raises((ImplUnavailableError, RuntimeError), match="no gradients of their own|is not implemented"):
            penalty(call, x).backward()
        return
    (found,) = torch.autograd.grad(loss, x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step, limit = (1e-3, 1e-3) if name in THROUGH_LSE else (1e-5, 1e-5)
    up, down = (penalty(call, (x.detach() + sign * step * direction).requires_grad_()) for sign in (1, -1))
    expected = (up - down) / (2 * step)
    torch.testing.assert_close((found * direction).sum(), expected.detach(), rtol=limit, atol=limit)


def test_the_error_names_what_can_be_differentiated_twice() -> None:
    x = torch.randn(1, 128, 2, 8, requires_grad=True)
    wanted = "double backward of 'block_sparse_attention' cannot run: its gradients .*; would run here: reference"
    with pytest.raises(ImplUnavailableError, match=wanted):
        torch.autograd.grad(penalty(of_x(_block_sparse, "cpu"), x), x)


def test_compiled_code_refuses_it_too() -> None:
    selection = _selection()
    call = lambda q: block_sparse_attention(q, q, q, selection, impl="cpu").out  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"does not currently support double backward|no gradients of their own"):
        penalty(compiled, torch.randn(1, 128, 2, 8, requires_grad=True)).backward()


def test_a_checkpoint_refuses_it_too() -> None:
    x, call = torch.randn(1, 128, 2, 8, requires_grad=True), of_x(_block_sparse, "cpu")
    with pytest.raises(ImplUnavailableError, match="no gradients of their own"):
        torch.autograd.grad(penalty(lambda each: checkpoint(call, each, use_reentrant=False), x), x)


def test_a_gradient_of_what_comes_in_is_refused() -> None:
    x = torch.randn(1, 128, 2, 8, requires_grad=True)
    out = of_x(_block_sparse, "cpu")(x)
    d_out = torch.ones_like(out).requires_grad_()
    (slope,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    with pytest.raises(ImplUnavailableError, match="no gradients of their own"):
        torch.autograd.grad(slope.sum(), d_out, retain_graph=True)
    (slope,) = torch.autograd.grad(out, x, d_out.detach(), create_graph=True)  # what comes in leads nowhere: what was saved does
    with pytest.raises(ImplUnavailableError, match="no gradients of their own"):
        torch.autograd.grad(slope.sum(), x)


@pytest.mark.parametrize("run", [fa3.run, fa4.run])
def test_the_dense_libraries_gradients_are_right_once_and_refused_twice(
    run: Callable[[Tensor, Tensor, Tensor, AttentionSpec], AttentionOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    flash_stand_in.install(monkeypatch)
    q, k, v = (torch.randn(1, 32, 2, 8, requires_grad=True) for _ in range(3))

    def attend(q: Tensor, k: Tensor, v: Tensor, _: str) -> Tensor:
        return run(q, k, v, check(q, k, v, None, return_lse=False)).out

    expected = dense_attention(q, k, v, impl="reference").out
    found = attend(q, k, v, "")
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ImplUnavailableError, match="double backward of 'dense_attention' cannot run"):
        torch.autograd.grad(penalty(of_x(attend, ""), q), q)


@needs_triton
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_triton_kernels_refuse_it(device: str) -> None:
    in_triton(Path(__file__), device)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["fa4", "fa3", "sdpa"])
@pytest.mark.parametrize("return_lse", [False, True])
def test_the_dense_kernels_of_a_gpu_refuse_it(impl: str, return_lse: bool) -> None:
    def attend(x: Tensor) -> Tensor:
        return dense_attention(x, x, x, impl=impl, return_lse=return_lse).out.float()

    x = torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    try:
        attend(x)
    except ImplUnavailableError as error:
        pytest.skip(error.reason)
    with pytest.raises((ImplUnavailableError, RuntimeError), match="no gradients of their own|is not implemented"):
        torch.autograd.grad(penalty(attend, x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["cudnn", "fa4"])
def test_the_sparse_libraries_refuse_it(impl: str) -> None:
    selection = BlockSelection.from_mask(torch.ones(1, 2, 2, 2, dtype=torch.bool, device="cuda"), block=128)

    def attend(x: Tensor) -> Tensor:
        return block_sparse_attention(x, x, x, replace(selection), impl=impl).out.float()

    x = torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    try:
        attend(x)
    except ImplUnavailableError as error:
        pytest.skip(error.reason)
    with pytest.raises(ImplUnavailableError, match="double backward of 'block_sparse_attention' cannot run"):
        torch.autograd.grad(penalty(attend, x), x)


TOKENS = 2 * 4 * 16
SELECTION = strobe.BlockSelection(
    indices=torch.tensor([[[[0], [1]]]], dtype=torch.int32).expand(1, 2, 2, 1).contiguous(),
    counts=torch.ones(1, 2, 2, dtype=torch.int32),
    block=64,
)
TRANSFORMED: dict[str, Callable[..., Tensor]] = {
    "dense": lambda q, k, v, impl: strobe.dense_attention(q, k, v, impl=impl).out,
    "sparse": lambda q, k, v, impl: strobe.block_sparse_attention(q, k, v, SELECTION, impl=impl).out,
    "video": lambda q, k, v, impl: strobe.video_sparse_attention(q, k, v, grid=(2, 8, 8), sparsity=0.5, impl=impl).out,
    "compat": lambda q, k, v, impl: video_sparse_attn(*(each.transpose(1, 2) for each in (q, k, v)), topk=1, impl=impl),
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, TOKENS, 2, 32, generator=generator) for _ in range(3))
    return q, k, v


def under_jvp(run: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    return torch.func.jvp(run, (q,), (q.cos(),))[1]


def dual(run: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(run(forward_ad.make_dual(q, q.cos()))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda run, q: torch.func.grad(lambda each: run(each).sin().sum())(q),
    "jvp": under_jvp,
    "forward mode": dual,
    "vmap": lambda run, q: torch.func.vmap(run)(torch.stack([q, -q])),
    "vmap of grad": lambda run, q: torch.func.vmap(torch.func.grad(lambda each: run(each).sin().sum()))(torch.stack([q, -q])),
}


@pytest.mark.parametrize("operator", TRANSFORMED)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_auto_is_right_or_names_the_reference(operator: str, transform: str) -> None:
    q, k, v = inputs()
    wanted = TRANSFORMS[transform](lambda each: TRANSFORMED[operator](each, k, v, "reference"), q)
    try:
        found = TRANSFORMS[transform](lambda each: TRANSFORMED[operator](each, k, v, "auto"), q)
    except ImplUnavailableError as error:
        said = str(error)
        assert 'give impl="reference"' in said and "\n" not in said and len(said) < 300
        assert "vmap" not in transform or "grad" in transform
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance("element", "float32"))


@pytest.mark.parametrize("operator", TRANSFORMED)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_name_the_reference_which_computes_them(operator: str, dtype: torch.dtype) -> None:
    q, k, v = (each.to(dtype) for each in inputs())
    for impl in ("auto", "cpu"):
        with pytest.raises(ImplUnavailableError, match=rf'computes {str(dtype)[6:]}; convert .* or give impl="reference"$'):
            TRANSFORMED[operator](q, k, v, impl)
    found = TRANSFORMED[operator](q, k, v, "reference")
    exact = TRANSFORMED[operator](*(each.float() for each in (q, k, v)), "reference")
    assert found.dtype == dtype and torch.equal(found.float(), exact.to(dtype).float())


@pytest.mark.parametrize("impl", ["triton", "cudnn", "fa4"])
def test_a_kernel_drops_no_tangent(impl: str) -> None:
    """It takes addresses, where there are no tangents: refused before it runs."""
    q, ran = inputs()[0], []
    refused = pytest.raises(ImplUnavailableError, match=r"no forward-mode derivative\); give impl=.reference")
    with refused, forward_ad.dual_level(), ambient(q, impl):
        ran.append(impl)
    with ambient(q, impl):
        ran.append("plain")
    with forward_ad.dual_level(), ambient(q, "reference"):
        ran.append("reference")
    assert ran == ["plain", "reference"]


if __name__ == "__main__":
    place = torch.device(sys.argv[1])
    every = BlockSelection.from_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place), block=64)
    leaf = torch.randn(1, 64, 1, 32, device=place, requires_grad=True)
    try:
        torch.autograd.grad(penalty(lambda x: block_sparse_attention(x, x, x, every, impl="triton").out, leaf), leaf)
    except ImplUnavailableError as error:
        assert "double backward of 'block_sparse_attention' cannot run" in str(error), error
    else:
        raise SystemExit("a double backward of the Triton kernels was not refused")
