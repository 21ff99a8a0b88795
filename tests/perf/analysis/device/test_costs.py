"""FLOPs and bytes of recorded operators against counting them one by one, and rates against the peaks of a device."""

from __future__ import annotations

import math
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from strobe.core.costs import WAN_1_3B, AttentionShape, Cost, attention, device_peaks, elementwise, matmul
from strobe.core.errors import DataError
from strobe.perf.analysis.device.roofline import operator_cost, roofline
from strobe.perf.trace import OperatorInputs
from strobe.perf.trace.tables import PRICED

BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"
Sizes = tuple[int, ...]


def _calls(name: str, *sizes: Sizes, types: tuple[str, ...] | str = BF16, values: dict[int, str] | None = None) -> OperatorInputs:
    texts = tuple((values or {}).get(i, "") for i in range(max(values or {}, default=-1) + 1))
    kinds = (types,) * len(sizes) if isinstance(types, str) else types
    return OperatorInputs("", name, sizes, kinds, texts)


def _cost(calls: OperatorInputs) -> tuple[int, int, int]:
    found = operator_cost(calls)
    assert not isinstance(found, str), found
    return found[0].flops, found[0].read_bytes, found[0].write_bytes


def test_scaled_products() -> None:
    sizes: list[Sizes] = [(6, 16), (16, 32), (6, 1), (1, 32), (32,)]
    types = (FP8, FP8, "float", "float", BF16)
    flops = sum(2 for _ in product(range(6), range(16), range(32)))
    read = 6 * 16 + 16 * 32 + 4 * (6 + 32) + 2 * 32
    for number, size in (("15", 2), ("6", 4), ("", 1)):
        calls = _calls("aten::_scaled_mm", *sizes, types=types, values={6: number, 7: "False"})
        assert _cost(calls) == (flops, read, 6 * 32 * size)
        assert operator_cost(calls)[1] == "float8"
    assert "writes" in str(operator_cost(_calls("aten::_scaled_mm", *sizes, types=types, values={6: "99"})))
    assert "writes" in str(operator_cost(_calls("aten::_scaled_mm", *sizes, types=types)))


OPERATORS = [
    "cudnn_convolution", "cudnn_convolution_transpose", "miopen_convolution", "miopen_convolution_transpose", "_conv_depthwise2d",
    "conv_depthwise3d",
]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_arguments_are_read_where_the_operator_has_them(name: str) -> None:
    """By PyTorch's own declaration of it; every argument is another one. A single number holds for all axes."""
    rank, transposed = 3 if name.endswith("3d") else 2, name.endswith("transpose")
    axes = {"padding": [1, 2, 3], "stride": [3, 3, 3], "dilation": [1, 3, 2]} | (
        {"output_padding": [2, 1, 0]} if transposed else {}
    )
    options = {key: value[:rank] for key, value in axes.items()} | {"groups": 4}
    x, w = (2, 4, 11, 13, 15)[: 2 + rank], (4 if transposed else 8, 2 if transposed else 1, 3, 2, 4)[: 2 + rank]
    with FlopCounterMode(display=False) as counter:
        plain = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")
        y = plain(torch.zeros(x, device="meta"), torch.zeros(w, device="meta"), **options)
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    texts = {key: str(value) for key, value in options.items()} | {"stride": "[3]"}
    values = {place: texts[each.name] for place, each in enumerate(arguments) if each.name in texts}
    cost = _cost(_calls(f"aten::{name}", x, w, values=values))
    assert cost == (counter.get_total_flops(), 2 * (prod(x) + prod(w)), 2 * y.numel())


ATTENTION: list[tuple[str, bool, int, tuple[str, str]]] = [
    ("aten::_flash_attention_forward", True, 8, ("False", "True")),
    ("aten::_efficient_attention_forward", True, 9, ("0", "1")),
    ("aten::_scaled_dot_product_cudnn_attention", False, 6, ("False", "True")),
    ("aten::_flash_attention_backward", True, 11, ("False", "True")),
    ("aten::_efficient_attention_backward", True, 14, ("False", "True")),
    ("aten::_cudnn_attention_backward", False, 14, ("False", "True")),
    ("aten::_scaled_dot_product_cudnn_attention_backward", False, 14, ("False", "True")),
    ("flash_attn::_flash_attn_backward", True, 11, ("False", "True")),
]


@pytest.mark.parametrize(("name", "tokens_first", "place", "words"), ATTENTION)
def test_attention_and_its_gradients(name: str, tokens_first: bool, place: int, words: tuple[str, str]) -> None:
    """Scores and output; of gradients the scores again, and those of values, probabilities, queries and keys."""
    backward = name.endswith("backward")
    products = 5 if backward else 2

    def size(tokens: int, heads: int) -> Sizes:
        return (2, tokens, heads, 8) if tokens_first else (2, heads, tokens, 8)

    q, k = size(5, 4), size(7, 2)
    dense = _calls(name, *((q,) * backward), q, k, k, values={place: words[0]})
    pairs = sum(1 for _ in product(range(2), range(4), range(5), range(7)))
    read = 2 * (prod(q) * (3 if backward else 1) + 2 * prod(k))  # queries, output, its gradient; keys and values
    written = 2 * (prod(q) + 2 * prod(k) * backward)
    assert _cost(dense) == (pairs * 8 * 2 * products, read, written)
    square = size(6, 3)
    causal = _calls(name, *((square,) * backward), square, square, square, values={place: words[1]})
    pairs = sum(1 for _, _, a, b in product(range(2), range(3), range(6), range(6)) if b <= a)
    assert _cost(causal)[0] == pairs * 8 * 2 * products


def test_our_block_sparse_attention() -> None:
    """Four blocks of eight tokens; every query block attends to three of them."""
    q, indices = (2, 32, 3, 16), (2, 3, 4, 3)
    selected = [(b, h, i, j) for b, h, i, j in product(range(2), range(3), range(4), range(3))]
    pairs = sum(8 * 8 for _ in selected)
    sizes: list[Sizes] = [q, q, q, indices, indices[:3], (), ()]
    values = {7: "8", 8: "False", 9: "3", 10: "4"}
    flops, read, written = _cost(_calls("strobe::block_sparse_forward", *sizes, values=values))
    assert (flops, read, written) == (pairs * 4 * 16, 2 * 3 * prod(q), 2 * prod(q))
    backward = _calls(
        "strobe::block_sparse_backward", q, (2, 3, 32), q, q, q, q, (2, 3, 32), indices, indices[:3], (), (),
        values={11: "8", 12: "False", 13: "3", 14: "4"},
    )  # fmt: skip
    assert _cost(backward)[0] == pairs * 10 * 16
    ragged = _calls("strobe::block_sparse_forward", *sizes[:5], (4,), (4,), values=values)
    assert "not all full" in str(operator_cost(ragged))
    assert "not recorded" in str(operator_cost(_calls("strobe::block_sparse_forward", *sizes, values={7: "8", 9: "None"})))
    assert "more than" in str(operator_cost(_calls("strobe::block_sparse_forward", *sizes, values={7: "8", 9: "5"})))


def test_elementwise_work_moves_every_operand_once() -> None:
    assert _cost(_calls("aten::add", (4, 1, 6), (5, 1))) == (0, 2 * (24 + 5), 2 * 4 * 5 * 6)
    assert _cost(_calls("aten::mul", (4, 6), (), types=("float", "Scalar"))) == (0, 96, 96)
    assert _cost(_calls("aten::copy_", (4, 6), (4, 6), types=("float", BF16))) == (0, 48, 96)
    assert _cost(_calls("aten::fill_", (4, 6), (), types=("long int", "Scalar"))) == (0, 0, 192)
    assert _cost(_calls("aten::sum", (4, 6))) == (0, 48, 0), "what it writes depends on the axes, and may be one number"
    assert _cost(_calls("aten::native_layer_norm", (2, 4, 6), (), (6,), (6,))) == (0, 2 * (48 + 12), 2 * 48)
    assert _cost(_calls("aten::native_group_norm", (2, 4, 6), (4,), (4,))) == (0, 2 * (48 + 8), 2 * 48)
    assert _cost(_calls("triton_poi_fused_add_3", (8, 4), (8, 4), (4,), (), types=("float", BF16, "float", "Scalar"))) == (
        0, 4 * 32 + 2 * 32 + 16, 0,
    )  # fmt: skip
    assert "fit together" in str(operator_cost(_calls("aten::add", (4, 3), (5,))))
    assert "dtype" in str(operator_cost(_calls("aten::add", (4,), types="c10::Strange")))
    assert "not known" in str(operator_cost(_calls("aten::my_operator", (4,))))
    assert "not known" in str(operator_cost(_calls("triton_tem_fused_mm_1", (4, 4), (4, 4)))), "a template may be a product"


@pytest.mark.parametrize("name", sorted(PRICED))
def test_whatever_is_recorded_has_a_cost_or_a_reason(name: str) -> None:
    for sizes in ((), ((2, 3),) * 3, ((2, 3, 4, 8),) * 9):
        for values in ({}, *(dict.fromkeys(range(15), text) for text in ("x", "[]", "[0, 0]"))):
            found = operator_cost(_calls(name, *sizes, values=values))
            assert found != "what it computes is not known"


def _counted(batch: int, m: int, k: int, n: int) -> int:
    return sum(2 for _ in product(range(batch), range(m), range(k), range(n)))  # a multiplication and an addition


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (2, 9, 4)])
def test_matrix_products(m: int, k: int, n: int) -> None:
    flops = _counted(1, m, k, n)
    assert _cost(_calls("aten::mm", (m, k), (k, n))) == (flops, 2 * (m * k + k * n), 2 * m * n)
    assert _cost(_calls("aten::addmm", (n,), (m, k), (k, n), ())) == (flops, 2 * (m * k + k * n + n), 2 * m * n)
    assert _cost(_calls("aten::addmm", (m, n), (m, k), (k, n), types="float")) == (flops, 4 * (m * k + k * n + m * n), 4 * m * n)
    three = _counted(3, m, k, n)
    assert _cost(_calls("aten::bmm", (3, m, k), (3, k, n))) == (three, 6 * (m * k + k * n), 6 * m * n)
    assert _cost(_calls("aten::baddbmm", (3, m, n), (3, m, k), (3, k, n))) == (three, 6 * (m * k + k * n + m * n), 6 * m * n)


Q = (1, 64, 2, 8)


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (_calls("aten::mm", (2, 3), (4, 5)), "no matrix product"),
        (_calls("aten::mm", (2, 3)), "no matrix product"),
        (_calls("aten::bmm", (2, 3, 4), (3, 4, 5)), "no matrix product"),
        (_calls("aten::mm", (2, 3), (3, 5), types="Scalar"), "dtype"),
        (_calls("aten::mm", types=BF16), "dtype"),
        (_calls("aten::_flash_attention_forward", Q, Q, Q), "causal is not recorded"),
        (_calls("aten::_flash_attention_forward", Q, Q, Q, (3,), (3,), values={8: "False"}), "packed"),
        (_calls("aten::_flash_attention_forward", Q, Q, Q, values={8: "True", 11: "256", 12: "0"}), "window"),
        (_calls("aten::_flash_attention_forward", (1, 8, 2, 8), Q, Q, values={8: "True"}), "unequal numbers"),
        (_calls("aten::_flash_attention_forward", Q[1:], Q[1:], Q[1:], values={8: "False"}), "no attention"),
        (_calls("aten::_flash_attention_forward", Q, Q, (1, 64, 2, 16), values={8: "False"}), "no attention"),
    ],
)
def test_what_is_not_known_is_said(calls: OperatorInputs, why: str) -> None:
    found: Any = operator_cost(calls)
    assert isinstance(found, str) and why in found


@pytest.mark.parametrize(
    "calls",
    [
        _calls("aten::mm", (-4, 8), (8, 16)),
        _calls("aten::_flash_attention_forward", *((-1, 10, 4, 64),) * 3, values={8: "True"}),
        _calls("aten::mm", (10**400, 8), (8, 16)),
        _calls("aten::mm", (1 << 31, 1 << 31), (1 << 31, (1 << 31) + 1)),
    ],
)
def test_sizes_that_no_tensor_has_give_a_reason(calls: OperatorInputs) -> None:
    assert operator_cost(calls) == "its sizes are not those of tensors"


def test_the_largest_tensors_have_a_cost() -> None:
    assert _cost(_calls("aten::mm", (1 << 31, 1 << 31), (1 << 31, 1 << 31)))[0] == 2 << 93
    assert _cost(_calls("aten::mm", (0, 8), (8, 16))) == (0, 2 * 8 * 16, 0)


H100 = device_peaks("H100 SXM")
assert H100 is not None


def test_a_rate_is_held_against_the_peak_at_the_clock_that_ran() -> None:
    """The peak holds at 1,830 MHz; at 1,464, four fifths of it, the same rate is five fourths of the share."""
    product = matmul(8192, 8192, 8192, dtype="bf16")
    found = roofline(1_500_000, product, H100, "bf16", sm_mhz=1464)
    assert found.compute_share is not None and found.clock_share == pytest.approx(found.compute_share * 1.25)
    assert roofline(1_500_000, product, H100, "bf16").clock_share is None
    assert (
        roofline(1_500_000, product, device_peaks("A100 SXM 80GB"), "bf16", sm_mhz=1410).clock_share is None
    )  # peak of no clock
    assert roofline(100_000, elementwise(64, dtype="bf16"), H100, "bf16", sm_mhz=1464).clock_share is None


def test_work_without_matrix_flops_is_bound_by_memory() -> None:
    found = roofline(100_000, elementwise(64 * 2**20, dtype="bf16"), H100, "bf16")
    assert found.bound == "memory" and found.compute_share is None
    assert found.share == found.memory_share == pytest.approx(2 * 2 * 64 * 2**20 / 1e-4 / 3352e9)


def test_the_220_us_of_the_latency_analysis_are_above_the_peak() -> None:
    """538 GFLOP of self-attention cannot take 220 us on an H100."""
    tokens = WAN_1_3B.tokens_per_frame(480, 832)
    shape = AttentionShape(q_tokens=3 * tokens, kv_tokens=12 * tokens, num_heads=WAN_1_3B.num_heads, head_dim=WAN_1_3B.head_dim)
    found = roofline(220_000, attention(shape, dtype="bf16"), H100, "bf16")
    assert found.compute_share is not None and found.compute_share > 2
    assert "2447 TFLOP/s is above the bfloat16 peak of H100 SXM, 989.4" in found.anomaly
    assert not roofline(800_000, attention(shape, dtype="bf16"), H100, "bf16").anomaly


def test_a_sparse_call_may_exceed_the_peak_only_by_work_that_it_does_not_do() -> None:
    shape = AttentionShape(q_tokens=4096, kv_tokens=16384, num_heads=12, head_dim=128)
    dense, sparse = attention(shape, dtype="bf16"), attention(shape, dtype="bf16", pairs=shape.pairs // 10)
    found = roofline(80_000, sparse, H100, "bf16", dense=dense)
    assert found.effective_flops_per_s is not None and found.effective_flops_per_s > 989.4e12
    assert found.effective_flops_per_s == pytest.approx(10 * found.flops_per_s, rel=1e-6)
    assert not found.anomaly
    assert roofline(80_000, dense, H100, "bf16").anomaly


def test_what_fits_into_the_cache_may_be_faster_than_memory() -> None:
    small, large = elementwise(2**20, dtype="bf16"), elementwise(2**28, dtype="bf16")
    assert not roofline(500, small, H100, "bf16").anomaly  # 8.4 TB/s out of the cache
    assert "do not fit into its cache" in roofline(120_000, large, H100, "bf16").anomaly


@pytest.mark.parametrize(("device", "dtype"), [("Intel Xeon", "bf16"), ("H100 SXM", "float64"), ("H100 SXM", "no dtype")])
def test_without_a_peak_there_are_rates_and_nothing_else(device: str, dtype: str) -> None:
    found = roofline(1000, matmul(64, 64, 64, dtype="bf16"), device_peaks(device), dtype)
    assert found.flops_per_s == pytest.approx(2 * 64**3 / 1e-6)
    assert (found.compute_share, found.bound, found.floor_ns, found.share) == (None, None, None, None)
    assert not found.anomaly


@pytest.mark.parametrize("time_ns", [0, -1])
def test_no_time_no_rate(time_ns: int) -> None:
    with pytest.raises(DataError, match="no rate"):
        roofline(time_ns, Cost(flops=1), H100, "bf16")


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.integers(1, 10**12))
def test_the_share_is_the_floor_over_the_time(time_ns: int, flops: int, moved: int) -> None:
    found = roofline(time_ns, Cost(flops=flops, read_bytes=moved), H100, "bf16")
    assert found.share is not None and found.floor_ns is not None
    assert (found.flops_per_s, found.bytes_per_s) == pytest.approx((flops / time_ns * 1e9, moved / time_ns * 1e9))
    assert math.isclose(found.share, found.floor_ns / time_ns, rel_tol=1e-9)
    assert found.floor_ns == pytest.approx(max(flops / 989.4e12, moved / 3352e9) * 1e9)
    if not found.anomaly and moved > H100.cache_bytes:
        assert found.share <= 1.021
