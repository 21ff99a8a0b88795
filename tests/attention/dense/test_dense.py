"""Dense attention against the textbook in float64, and every implementation against the reference, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.attention.dense import api, dense_attention
from strobe.attention.dense.impl.waves import Split, split_last_wave
from strobe.attention.explain import explain
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

THROUGH_LSE = tolerance("gradient through an lse", "float32")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
LENGTHS = [(1, 1), (1, 63), (63, 100), (100, 1), (7, 2000)]
HEADS = [(3, 3), (4, 2), (5, 1)]


def draw(lengths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype = torch.float32, dim: int = 24) -> list[Tensor]:
    """q, k, v of two samples, deterministic, as leaves with gradients."""
    generator = torch.Generator().manual_seed(1000 * lengths[0] + 10 * lengths[1] + heads[1])
    shapes = [(2, lengths[0], heads[0], dim)] + [(2, lengths[1], heads[1], dim)] * 2
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def textbook(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> tuple[Tensor, Tensor]:
    """`softmax(q k^T * scale) v` and the log of the denominator, all in float64; query head h reads kv head h // group."""
    group = q.shape[2] // k.shape[2]
    kv_head = [head // group for head in range(q.shape[2])]
    q, k, v = q.double(), k.double()[:, :, kv_head], v.double()[:, :, kv_head]
    scores = torch.einsum("bshd,bthd->bhst", q, k) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    return torch.einsum("bhst,bthd->bshd", torch.softmax(scores, dim=-1), v), torch.logsumexp(scores, dim=-1)


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    limit = tolerance("element", dtype)
    torch.testing.assert_close(found.double(), expected.double(), rtol=limit, atol=limit)


@pytest.mark.parametrize("impl", ["reference", "sdpa", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_output_lse_and_gradients_are_the_textbook_s(
    lengths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, impl: str
) -> None:
    """The lse comes when it is asked for: the log of the denominator, float32 even of bfloat16 inputs."""
    inputs = draw(lengths, heads, dtype)
    out, lse = textbook(*inputs)
    with torch.no_grad():
        both = dense_attention(*inputs, impl=impl, return_lse=True)
    found = dense_attention(*inputs, impl=impl, return_lse=impl == "cpu")
    assert both.lse.dtype == torch.float32 and (found.lse is None) == (impl != "cpu")
    assert_near(both.lse, lse, torch.float32)
    for each in (both, found):
        assert each.out.dtype == dtype
        assert_near(each.out, out, dtype)
    if dtype.itemsize < 4:
        return
    weight = torch.linspace(-2, 2, out.numel(), dtype=dtype).view_as(out)
    for with_lse in (False, True) if impl == "reference" else (impl == "cpu",):
        found = dense_attention(*inputs, impl=impl, return_lse=with_lse)
        parts = ((found.out, found.lse), textbook(*inputs))
        losses = [(out * weight).sum() + (lse.double().square().sum() if with_lse else 0) for out, lse in parts]
        for mine, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
            if with_lse:
                limit = THROUGH_LSE * max(1.0, theirs.abs().max().item())
                torch.testing.assert_close(mine.double(), theirs.double(), rtol=THROUGH_LSE, atol=limit)
            else:
                assert_near(mine, theirs, dtype)


def test_long_sequences_with_gradients_through_the_lse_never_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference holds every pair of tokens; over few keys `auto` may take it where nothing else runs."""
    inputs = draw((2100, 2100), (1, 1), dim=8)  # blocks of 256, the last one ragged
    assert explain(*inputs, return_lse=True).impl.name == "cpu"
    found, expected = dense_attention(*inputs, return_lse=True), textbook(*inputs)
    assert_near(found.lse, expected[1], torch.float32)
    both = (each[0].sum() + each[1].sum() for each in ((found.out, found.lse), expected))
    for mine, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in both), strict=True):
        assert_near(mine, theirs, torch.float32)

    monkeypatch.setattr(api, "IMPLS", tuple(impl for impl in api.IMPLS if impl.name != "cpu"))
    monkeypatch.setattr(api, "_choose", api.choose)
    short = [tensor[:, :1024] for tensor in inputs]
    assert explain(*short, return_lse=True).impl.name == "reference"
    wanted = (
        r"impl 'auto' cannot run: only the reference is left, which holds all 2100 x 2100 pairs .*sdpa: torch's flash kernel has "
        r"no gradient through the lse; triton: .*would run here: reference"
    )
    with pytest.raises(ImplUnavailableError, match=wanted):
        dense_attention(*inputs, return_lse=True)
    assert explain(*inputs, return_lse=True, impl="reference").impl.name == "reference"  # by name it runs


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("softmax_scale", [0.0, 0.01, 40.0])
def test_any_scale(softmax_scale: float, impl: str) -> None:
    q, k, v = draw((63, 100), (4, 2))  # at 40, scores reach about 1000: an unguarded exp would overflow
    out = dense_attention(q, k, v, softmax_scale=softmax_scale, impl=impl).out
    torch.testing.assert_close(out.double(), textbook(q, k, v, softmax_scale)[0], rtol=0, atol=tolerance("any scale", "float32"))


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_views_of_a_larger_buffer_are_read_in_place(impl: str) -> None:
    buffer = torch.full((2, 200, 3, 24), torch.nan)
    q, k, v = draw((63, 100), (3, 3))
    with torch.no_grad():
        keys, values = buffer[:, :100], buffer.clone()[:, 20:120]
        keys.copy_(k), values.copy_(v)
        assert_near(dense_attention(q, keys, values, impl=impl).out, textbook(q, k, v)[0], torch.float32)


def test_no_keys_give_zeros_and_minus_infinity() -> None:
    q, k, v = draw((63, 0), (4, 2))
    output = dense_attention(q, k, v, return_lse=True)
    assert torch.equal(output.out, torch.zeros_like(q))
    assert torch.equal(output.lse, torch.full((2, 4, 63), -torch.inf))
    assert explain(q, k, v).impl.name == "reference"


def test_explain_says_what_runs_and_why_not_and_a_named_implementation_runs_or_refuses() -> None:
    inputs = draw((5, 7), (2, 2))
    choice = explain(*inputs)
    assert choice.impl.name == "sdpa" and choice.passed_over[0] == ("fa4", "it runs on a GPU, the tensors are on cpu")
    assert [name for name, _ in choice.passed_over[1:]] == ["triton", "cpu", "reference"]
    assert dict(choice.passed_over)["cpu"] == dict(choice.passed_over)["reference"] == "sdpa comes first"
    choice = explain(*inputs, return_lse=True)
    assert choice.impl.name == "cpu" and str(choice).startswith("runs: cpu\n")
    assert dict(choice.passed_over)["sdpa"] == "torch's flash kernel has no gradient through the lse"
    assert explain(*(tensor.detach() for tensor in inputs), return_lse=True).impl.name == "sdpa"
    with torch.no_grad():
        assert explain(*inputs, return_lse=True).impl.name == "sdpa"
    choice = explain(*inputs, impl="reference")
    assert choice.impl.name == "reference" and dict(choice.passed_over)["sdpa"] == "reference was asked for by name"

    with pytest.raises(ImplUnavailableError, match="'sdpa' cannot run: .* no gradient through the lse; would run here: cpu, ref"):
        dense_attention(*inputs, impl="sdpa", return_lse=True)
    with pytest.raises(ImplUnavailableError, match="over no keys"):
        dense_attention(*draw((5, 0), (2, 2)), impl="sdpa")
    with pytest.raises(ConfigError, match=r"'sdap' \(did you mean 'sdpa'\?\); allowed: auto, fa4, sdpa, triton, cpu, ref"):
        dense_attention(*inputs, impl="sdap")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 5, 4), (2, 7, 4, 8), (2, 7, 4, 8)), r"q: got shape \(2, 5, 4\), expected \[B, S, H, D\]"),
        (((2, 5, 4, 8), (2, 7, 4, 8), (2, 6, 4, 8)), r"v: got shape \(2, 6, 4, 8\), expected \(2, 7, 4, 8\) like k"),
        (((2, 5, 4, 8), (1, 7, 4, 8), (1, 7, 4, 8)), r"k: got shape \(1, 7, 4, 8\), expected batch 2 and head_dim 8 like q"),
        (((2, 5, 4, 8), (2, 7, 4, 16), (2, 7, 4, 16)), r"k: got shape \(2, 7, 4, 16\), expected batch 2 and head_dim 8 like q"),
        (((2, 5, 4, 8), (2, 7, 3, 8), (2, 7, 3, 8)), r"k: got 3 heads, expected a divisor of q's 4"),
        (((2, 5, 4, 8), (2, 7, 0, 8), (2, 7, 0, 8)), r"k: got 0 heads, expected a divisor of q's 4"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        dense_attention(*(torch.zeros(shape) for shape in shapes))


def test_dtypes_and_devices_that_differ_are_named() -> None:
    q, k, v = draw((5, 7), (2, 2))
    with pytest.raises(ShapeError, match=r"k: got torch.float64 on cpu, expected torch.float32 on cpu like q"):
        dense_attention(q, k.double(), v)
    with pytest.raises(ShapeError, match=r"v: got torch.float32 on meta, expected torch.float32 on cpu like q"):
        dense_attention(q, k, v.to("meta"))


@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"),
    [
        (4680, 18720, Split(first=33 * 128, parts=2)),  # 444 programs: three waves of 132, then 48 as 96 of half the length
        (1560, 18720, Split(first=11 * 128, parts=4)),  # 156: one wave, then 24 as 96 of a quarter
        (32768, 32768, None),  # 3,072: 24 waves, the last one a third full, which is little of the whole
        (4680, 512, None),  # a merge would take longer than it saves
        (11 * 128, 18720, None),  # one full wave
        (4680, 18719, None),  # keys that cannot be cut evenly: 18719 is prime
    ],
)
def test_twelve_heads_on_132_multiprocessors(q_len: int, kv_len: int, expected: Split | None) -> None:
    assert split_last_wave(q_len, kv_len, 12, 128, 132) == expected
