"""Attention in eight bits: the reference against float64, the kernels against the reference, and what is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import strobe
from forked import in_triton, run
from real_like import Shape, error, plain, real_like
from strobe.attention.dense.eight import best_blocks
from strobe.attention.dense.eight.api import IMPLS, choose
from strobe.attention.gates import eightbit
from strobe.attention.impls import MISSING, GateRun
from strobe.attention.types import AttentionSpec, check
from strobe.core.device import Card
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.eightbit.rounded import BlockBudget, hadamard
from strobe.eightbit.rounding import round_queries
from tiers import rest_while_gated

SUPPORT = Path(__file__).parents[3] / "support"
HOPPER = Card(vendor="nvidia", architecture="sm_90", capability=(9, 0), name="some card")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
SHAPE = Shape(frames=3, own=1, height=17, width=29, heads=3)


def exact(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> strobe.AttentionOutput:
    wide = (each.double() for each in (q, k, v))
    return strobe.dense_attention(*wide, softmax_scale=softmax_scale, impl="reference", return_lse=True)


def check_near(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> None:
    """Compare numbers without a pattern with float64."""
    found, expected = (
        strobe.eightbit_attention(q, k, v, softmax_scale=softmax_scale, return_lse=True),
        exact(q, k, v, softmax_scale),
    )
    assert error(found.out, expected.out) < tolerance("eight-bit attention of noise", q.dtype)
    assert lse_error(found, expected) < tolerance("lse in eight bits", q.dtype)


def lse_error(found: strobe.AttentionOutput, expected: strobe.AttentionOutput) -> float:
    assert found.lse is not None and expected.lse is not None and found.lse.dtype == torch.float32
    return (found.lse - expected.lse).square().mean().sqrt().item()


# -------------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("draw", "measure", "least"), [
    (real_like, "eight-bit attention", 2e-3), (plain, "eight-bit attention of noise", 2e-2),
])  # fmt: skip
def test_the_reference_is_near_float64(draw: Callable[..., list[Tensor]], measure: str, least: float, dtype: torch.dtype) -> None:
    q, k, v = (each.to(dtype) for each in draw(SHAPE))
    found, expected = strobe.eightbit_attention(q, k, v, return_lse=True), exact(q, k, v)
    assert found.out.dtype == dtype
    assert least < error(found.out, expected.out) < tolerance(measure, dtype)  # eight bits were computed, not more
    assert lse_error(found, expected) < tolerance("lse in eight bits", dtype)


@pytest.mark.parametrize("gap", [9.0, 10.5, 12.0])
def test_many_small_weights_count_beside_a_large_one(gap: float) -> None:
    """As beside an attention sink: together they are as large as it is, each alone is e^-gap of it."""
    q, k, v = torch.ones(1, 3, 1, 128), torch.zeros(1, 18720, 1, 128), torch.ones(1, 18720, 1, 128)
    k[:, 700], v[:, 700] = gap / 128**0.5, 0.0
    found, expected = strobe.eightbit_attention(q, k, v, return_lse=True), exact(q, k, v)
    assert error(found.out, expected.out) < 0.11  # levels round by 4 % and are up to 6 % too high: those of equal weights alike
    assert lse_error(found, expected) < tolerance("lse in eight bits", q.dtype)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 63), (63, 100), (100, 1), (7, 128), (2, 2000)])
def test_odd_sizes_samples_and_grouped_heads(q_len: int, kv_len: int) -> None:
    generator = torch.Generator().manual_seed(kv_len)
    q = torch.randn(2, q_len, 4, 32, generator=generator)
    k, v = (torch.randn(2, kv_len, 2, 32, generator=generator) + torch.randn(2, 32, generator=generator) for _ in range(2))
    check_near(q, k, v, 0.3)
    assert strobe.eightbit_attention(q, k, v).lse is None


@pytest.mark.parametrize("head_dim", [1, 7, 24, 96])
def test_channels_that_are_no_power_of_two(head_dim: int) -> None:
    """They are turned in groups; odd ones not at all."""
    generator = torch.Generator().manual_seed(head_dim)
    check_near(*(torch.randn(1, 65, 2, head_dim, generator=generator) for _ in range(3)))
    turn = hadamard(head_dim, torch.device("cpu"), torch.float32)
    assert torch.equal(turn @ turn, (head_dim & -head_dim) * torch.eye(head_dim))


def test_an_export_leaves_no_fake_matrix_behind() -> None:
    class InEightBits(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return strobe.eightbit_attention(q, q, q).out

    q = torch.randn(1, 9, 1, 28)  # a width of its own
    exported = torch.export.export(InEightBits(), (q,)).module()
    assert type(InEightBits()(q)) is torch.Tensor and torch.equal(exported(q), InEightBits()(q))


def test_a_mean_of_keys_and_values_costs_nothing() -> None:
    """Softmax does not see the first and the second is added back; the lse has both."""
    q, k, v = (each.double() for each in plain(SHAPE))
    found = strobe.eightbit_attention(q, k, v, return_lse=True)
    generator = torch.Generator().manual_seed(1)
    mean = 5 * torch.randn(2, 3, 128, dtype=torch.float64, generator=generator)
    moved = strobe.eightbit_attention(q, k + mean[0], v + mean[1], return_lse=True)
    assert error(moved.out - mean[1], found.out) < 5e-3  # rounded with the float32 constants of larger numbers
    assert moved.lse is not None and found.lse is not None
    shift = torch.einsum("bshd,hd->bhs", q, mean[0]) * 128**-0.5
    assert (moved.lse - found.lse - shift).abs().max() < 5e-3
    assert shift.abs().max() > 5


def test_without_keys_out_is_zero_and_the_lse_is_minus_infinity() -> None:
    q, k = torch.randn(1, 3, 2, 16), torch.zeros(1, 0, 2, 16)
    found = strobe.eightbit_attention(q, k, k, return_lse=True)
    assert found.lse is not None and found.lse.isneginf().all() and (found.out == 0).all()
    assert strobe.eightbit_attention(q[:, :0], q, q, return_lse=True).out.shape == (1, 0, 2, 16)


def test_keys_are_rounded_once_and_replaced_in_place() -> None:
    q, k, v = real_like(SHAPE)
    once = strobe.eightbit_attention(q, k, v, return_lse=True)
    kept = strobe.round_keys(k, v)
    again = strobe.attend_rounded(q, kept, return_lse=True)
    assert torch.equal(once.out, again.out) and torch.equal(once.lse, again.lse)

    with torch.inference_mode():
        other = strobe.round_keys(k.flip(1), v.flip(1))  # the same means and scales
    other = replace(other, **{name: getattr(kept, name) for name in ("key_mean", "key_scale", "value_mean", "value_scale")})
    for begin, end in ((0, 1), (1, 100), (100, k.shape[1])):
        strobe.store_rounded(other, k[:, begin:end], v[:, begin:end], begin)
    assert torch.equal(other.keys, kept.keys)
    assert torch.equal(other.values.view(torch.int8), kept.values.view(torch.int8))


def test_room_for_larger_keys_and_values() -> None:
    """What is beyond the scales is cut off; with room it is not."""
    q, k, v = real_like(SHAPE)
    errors = []
    for room in (1.0, 2.0):
        kept = strobe.round_keys(k, v, room=room)
        strobe.store_rounded(kept, 1.8 * k, 1.8 * v, 0)
        errors.append(error(strobe.attend_rounded(q, kept).out, exact(q, 1.8 * k, 1.8 * v).out))
    assert errors[1] < tolerance("eight-bit attention", q.dtype) < errors[0]


@pytest.mark.parametrize("number", [1, 3, 8])
def test_tiles_attend_to_their_own_blocks_of_keys(number: int) -> None:
    """Like attention in which each tile of 128 queries sees the keys of its blocks; of 1000 keys the last block has 104."""
    generator = torch.Generator().manual_seed(number)
    q, k, v = (torch.randn(2, length, 3, 32, generator=generator) for length in (300, 1000, 1000))
    blocks = torch.rand(2, 3, 3, 8, generator=generator).argsort(-1)[..., :number].sort(-1).values.int()
    found = strobe.attend_rounded(q, strobe.round_keys(k, v), blocks=blocks, return_lse=True)
    seen = torch.zeros(2, 3, 3, 8, dtype=torch.bool).scatter_(3, blocks.long(), True)
    mask = seen.repeat_interleave(128, 2)[:, :, :300].repeat_interleave(128, 3)[..., :1000]
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * 32**-0.5
    lse = scores.masked_fill(~mask, -torch.inf).logsumexp(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp() * mask, v.double())
    assert error(found.out, out) < tolerance("eight-bit attention of noise", q.dtype)
    assert found.lse is not None
    assert (found.lse - lse).square().mean().sqrt() < tolerance("lse in eight bits", q.dtype)


def test_the_best_blocks_are_those_that_attention_weighs_most() -> None:
    """A query tile looks at one of eight blocks of keys; that one is found, whatever all keys have in common."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (0.3 * torch.randn(1, length, 2, 64, generator=generator) for length in (256, 1024, 1024))
    for head, tile, block in ((0, 0, 6), (0, 1, 2), (1, 0, 3), (1, 1, 7)):
        looks = torch.randn(64, generator=generator)
        q[:, tile * 128 : tile * 128 + 128, head] += looks
        k[:, block * 128 : block * 128 + 128, head] += looks
    kept = strobe.round_keys(k + 5 * torch.randn(64, generator=generator), v)
    budget = BlockBudget(number=2, always=torch.arange(8) == 1)
    found = best_blocks(round_queries(q, kept, 0.125), kept, budget)
    assert found.tolist() == [[[[1, 6], [1, 2]], [[1, 3], [1, 7]]]]


# ----------------------------------------------------------------------------------------------------------------- the kernels


@rest_while_gated("eightbit", "triton")
@needs_triton
def test_the_kernels_equal_the_reference() -> None:
    in_triton(SUPPORT / "eightbit_on_cpu.py", "cpu")


@rest_while_gated("eightbit", "gluon")
@needs_triton
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_kernels_compile_for_hopper(dtype: str, tmp_path: Path) -> None:
    """Gluon has no interpreter: that its kernel compiles to machine instructions is all that is known of it without a GPU."""
    changes = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    result = run(SUPPORT / "compiled_ahead.py", "sm_90", "whole", f"eight:{dtype}", environment=changes)
    assert result.returncode == 0, result.stderr[-3000:]
    asked = dict(line.split() for line in result.stdout.splitlines())
    expected = {"_attend_kernel", "_choose_kernel", "_means_kernel", "_merge_kernel", "_round_kernel", "gluon_attend_kernel"}
    assert asked.keys() == expected
    assert int(asked["gluon_attend_kernel"]) > 100_000
    assert 3 * int(asked["_attend_kernel"]) <= 227 << 10  # three programs run on a multiprocessor


@needs_triton
def test_the_last_wave_is_split() -> None:
    from strobe.attention.dense.eight.impl.triton import split

    assert split(444, 132, 147) == (396, 5)  # as measured on an H100
    assert split(888, 396, 147) == (792, 4)
    assert split(396, 132, 147) == (396, 1)
    assert split(10, 132, 147)[0] == 0
    assert split(10, 132, 1) == (10, 1)


# ---------------------------------------------------------------------------------------------------------------- what is refused


def on_hopper(**changes: object) -> AttentionSpec:
    q = torch.zeros(1, 8, 2, 128, dtype=torch.bfloat16)
    spec = replace(check(q, q, q, None, False), device=torch.device("cuda", 0), card=HOPPER)
    return replace(spec, **changes)


@pytest.mark.parametrize("name", eightbit.IMPLS)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"device": torch.device("cpu")}, "it runs on a GPU, the tensors are on cpu"),
        ({"card": Card(vendor="nvidia", capability=(8, 9))}, "it runs on compute capability 9.x, cuda:0 has 8.9"),
        ({"card": Card(vendor="nvidia", capability=(10, 0))}, "it runs on compute capability 9.x, cuda:0 has 10.0"),
        ({"dtype": torch.float32}, "it takes bfloat16 and float16, not float32"),
        ({"head_dim": 64}, "it has head_dim 128, not 64"),
        ({"num_kv_heads": 1}, "it needs as many key heads as query heads, not 1 and 2"),
        ({"kv_len": 0}, "it takes at least one query and one key"),
        ({"softmax_scale": -1.0}, "it takes a positive softmax_scale, not -1.0"),
    ],
)
def test_what_kernels_refuse(name: str, changes: dict[str, object], reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MISSING.found, name, None)
    (impl,) = (each for each in IMPLS if each.name == name)
    assert impl.refuses(on_hopper(**changes)) == reason


def test_on_a_gpu_auto_takes_a_kernel_behind_its_gate_and_never_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in eightbit.IMPLS:
        monkeypatch.setitem(MISSING.found, name, None)
    monkeypatch.setattr("strobe.attention.impls.GATES", ())
    with pytest.raises(ImplUnavailableError, match=r"strobe doctor --gate runs it.*would run here: gluon, triton, reference$"):
        choose(on_hopper(), "auto")
    assert choose(on_hopper(), "triton").impl.name == "triton"
    green = GateRun(
        operator="eightbit", impl="gluon", vendor="nvidia", architecture="sm_90", device="some card", versions={},
        date="2026-01-31", tests=3, kernel=IMPLS[0].kernel,
    )  # fmt: skip
    monkeypatch.setattr("strobe.attention.impls.GATES", (green,))
    assert choose(on_hopper(), "auto").impl.name == "gluon"
    assert choose(check(*[torch.zeros(1, 8, 2, 128)] * 3, None, False), "auto").impl.name == "reference"


def test_gradients_are_refused_in_one_line() -> None:
    q, k, v = real_like(Shape(frames=1, own=1, height=3, width=4, heads=1))
    kept = strobe.round_keys(k, v)
    q.requires_grad_()
    for call in (
        lambda: strobe.eightbit_attention(q, k, v),
        lambda: strobe.attend_rounded(q, kept),
        lambda: strobe.round_keys(q, q),
    ):
        with pytest.raises(ImplUnavailableError, match="has no gradients.*would run here: dense_attention$") as caught:
            call()
        assert "\n" not in str(caught.value)
    with torch.no_grad():
        assert not strobe.eightbit_attention(q, k, v).out.requires_grad


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = real_like(Shape(frames=1, own=1, height=3, width=4, heads=2))
    kept = strobe.round_keys(k, v)
    with pytest.raises(ShapeError, match="expected batch 1 and head_dim 64"):
        strobe.attend_rounded(q[..., :64], kept)
    with pytest.raises(ConfigError, match="kept: got 3, expected the result of round_keys"):
        strobe.attend_rounded(q, 3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"start: got rows 1 to 13, expected at least one, within 0 to 12"):
        strobe.store_rounded(kept, k, v, 1)
    with pytest.raises(ShapeError, match=r"start: got rows -1 to 2"):
        strobe.store_rounded(kept, k[:, :3], v[:, :3], -1)
    with pytest.raises(ShapeError, match=r"expected \[1, T, 2, 128\]"):
        strobe.store_rounded(kept, k[:, :, :1], v[:, :, :1], 0)
    with pytest.raises(
        ShapeError, match=r"blocks: got int64 \[1, 2, 1, 1\] on cpu, expected int32 \[1, 2, 1, K\] on cpu, K from"
    ):
        strobe.attend_rounded(q, kept, blocks=torch.zeros(1, 2, 1, 1, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"blocks: got int32 \[1, 2, 1, 2\]"):
        strobe.attend_rounded(q, kept, blocks=torch.zeros(1, 2, 1, 2, dtype=torch.int32))
    with pytest.raises(ConfigError, match="room: got 0, expected a positive number"):
        strobe.round_keys(k, v, room=0)
    with pytest.raises(ConfigError, match="unknown impl 'gluonn'"):
        strobe.eightbit_attention(q, k, v, impl="gluonn")
