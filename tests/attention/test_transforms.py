"""Eight-bit tensors, torch.func and forward-mode derivatives: right, or one line that names what does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import strobe
from strobe.attention.around import ambient
from strobe.compat import video_sparse_attn
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # torch's, of what vmap runs item by item
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # torch's forward-mode derivatives use it
]
TOKENS = 2 * 4 * 16
SELECTION = strobe.BlockSelection(
    indices=torch.tensor([[[[0], [1]]]], dtype=torch.int32).expand(1, 2, 2, 1).contiguous(),
    counts=torch.ones(1, 2, 2, dtype=torch.int32),
    block=64,
)
OPERATORS: dict[str, Callable[..., Tensor]] = {
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


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_auto_is_right_or_names_the_reference(operator: str, transform: str) -> None:
    q, k, v = inputs()
    wanted = TRANSFORMS[transform](lambda each: OPERATORS[operator](each, k, v, "reference"), q)
    assert isinstance(wanted, Tensor)
    try:
        found = TRANSFORMS[transform](lambda each: OPERATORS[operator](each, k, v, "auto"), q)
    except ImplUnavailableError as error:
        said = str(error)
        assert 'give impl="reference"' in said and "\n" not in said and len(said) < 300
        assert "vmap" not in transform or "grad" in transform
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance("element", "float32"))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_name_the_reference_which_computes_them(operator: str, dtype: torch.dtype) -> None:
    q, k, v = (each.to(dtype) for each in inputs())
    for impl in ("auto", "cpu"):
        with pytest.raises(ImplUnavailableError, match=rf'computes {str(dtype)[6:]}; convert .* or give impl="reference"$'):
            OPERATORS[operator](q, k, v, impl)
    found = OPERATORS[operator](q, k, v, "reference")
    exact = OPERATORS[operator](*(each.float() for each in (q, k, v)), "reference")
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
