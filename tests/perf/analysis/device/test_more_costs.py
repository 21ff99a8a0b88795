"""FLOPs and bytes of convolutions, gradients, eight-bit products and elementwise work, against counting them one by one."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from strobe.perf.analysis.device.roofline import operator_cost
from strobe.perf.trace import OperatorCalls
from strobe.perf.trace.operators import PRICED

BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"
Sizes = tuple[int, ...]


def _calls(name: str, *sizes: Sizes, types: tuple[str, ...] | str = BF16, values: dict[int, str] | None = None) -> OperatorCalls:
    texts = tuple((values or {}).get(i, "") for i in range(max(values or {}, default=-1) + 1))
    kinds = (types,) * len(sizes) if isinstance(types, str) else types
    return OperatorCalls(device=0, name=name, sizes=sizes, types=kinds, values=texts, calls=1, events=1, sum_ns=1)


def _cost(calls: OperatorCalls) -> tuple[int, int, int]:
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


def _slid(length: int, taps: int, padding: int, stride: int, dilation: int) -> int:
    """Places that a kernel takes, one after the other."""
    places, at = 0, -padding
    while at + dilation * (taps - 1) < length + padding:
        places, at = places + 1, at + stride
    return places


CONVOLUTIONS = [  # batch, channels in, out, groups, input, taps, padding, stride, dilation
    (4, 3, 8, 1, (14, 15), (3, 5), (1, 2), (2, 1), (1, 1)),
    (1, 6, 4, 2, (9,), (3,), (0,), (2,), (2,)),
    (2, 4, 4, 4, (5, 6, 7), (1, 3, 3), (0, 1, 1), (1, 1, 2), (1, 1, 1)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case: tuple[Any, ...]) -> None:
    batch, inner, outer, groups, given, taps, padding, stride, dilation = case
    out = tuple(map(_slid, given, taps, padding, stride, dilation))
    flops = sum(2 * inner // groups * prod(taps) for _ in product(range(batch), range(outer), *map(range, out)))
    x, w, y = (batch, inner, *given), (outer, inner // groups, *taps), (batch, outer, *out)
    moved = 2 * (prod(x) + prod(w)), 2 * prod(y)
    lists = [str(list(each)) for each in (padding, stride, dilation)]
    numbered = dict(zip((2, 3, 4, 5), (*lists, str(groups)), strict=True))
    assert _cost(_calls("aten::cudnn_convolution", x, w, values=numbered)) == (flops, *moved)
    shifted = {place + 1: text for place, text in numbered.items()}
    assert _cost(_calls("aten::miopen_convolution", x, w, (), values=shifted)) == (flops, *moved)
    with FlopCounterMode(display=False) as counter:
        options: dict[str, Any] = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
        getattr(torch.nn.functional, f"conv{len(given)}d")(
            torch.zeros(x, device="meta"), torch.zeros(w, device="meta"), **options
        )
    assert counter.get_total_flops() == flops, "PyTorch counts the same"


def test_transposed_convolutions() -> None:
    x, w = (2, 6, 5, 7), (6, 4, 3, 3)  # two groups of 3 channels in, 4 out
    values = {2: "[1, 1]", 3: "[1, 1]", 4: "[2]", 5: "[1, 1]", 6: "2"}
    cost = _cost(_calls("aten::cudnn_convolution_transpose", x, w, values=values))
    assert tuple(torch.nn.functional.conv_transpose2d(torch.zeros(x), torch.zeros(w), None, 2, 1, 1, 2).shape) == (2, 8, 10, 14)
    flops = sum(2 * 4 * 9 for _ in product(range(2), range(6), range(5), range(7)))
    assert cost == (flops, 2 * (prod(x) + prod(w)), 2 * 2 * 8 * 10 * 14)


OPERATORS = [
    "cudnn_convolution", "cudnn_convolution_transpose", "miopen_convolution", "miopen_convolution_transpose", "_conv_depthwise2d",
    "conv_depthwise3d",
]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_arguments_are_read_where_the_operator_has_them(name: str) -> None:
    """By PyTorch's own declaration of it; of each axis every argument is another one."""
    rank, transposed = 3 if name.endswith("3d") else 2, name.endswith("transpose")
    options = {
        "padding": [1, 2, 3],
        "stride": [3, 2, 1],
        "dilation": [1, 3, 2],
        **({"output_padding": [2, 1, 0]} if transposed else {}),
    }
    options = {key: value[:rank] for key, value in options.items()} | {"groups": 4}
    x, w = (2, 4, 11, 13, 15)[: 2 + rank], (4 if transposed else 8, 2 if transposed else 1, 3, 2, 4)[: 2 + rank]
    with FlopCounterMode(display=False) as counter:
        plain = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")
        y = plain(torch.zeros(x, device="meta"), torch.zeros(w, device="meta"), **options)
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    values = {place: str(options[each.name]) for place, each in enumerate(arguments) if each.name in options}
    cost = _cost(_calls(f"aten::{name}", x, w, values=values))
    assert cost == (counter.get_total_flops(), 2 * (prod(x) + prod(w)), 2 * y.numel())


@pytest.mark.parametrize(("mask", "products"), [("[True, True, False]", 2), ("[False, True, True]", 1), ("[1, 0, 0]", 1)])
def test_gradients_of_convolutions(mask: str, products: int) -> None:
    gradient, x, w = (2, 8, 6, 6), (2, 4, 8, 8), (8, 4, 3, 3)
    values = {3: "[8]", 4: "[1, 1]", 5: "[0, 0]", 6: "[1, 1]", 7: "False", 8: "[0, 0]", 9: "1", 10: mask}
    one = sum(2 * 4 * 9 for _ in product(range(2), range(8), range(6), range(6)))
    into_x, into_w, into_bias = (word in ("True", "1") for word in mask.strip("[]").split(", "))
    read = prod(gradient) + into_x * prod(w) + into_w * prod(x)
    written = into_x * prod(x) + into_w * prod(w) + into_bias * 8
    assert _cost(_calls("aten::convolution_backward", gradient, x, w, values=values)) == (products * one, 2 * read, 2 * written)
    with FlopCounterMode(display=False) as counter:
        torch.ops.aten.convolution_backward(
            *(torch.zeros(size, device="meta") for size in (gradient, x, w)), [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
            [into_x, into_w, into_bias],
        )  # fmt: skip
    assert counter.get_total_flops() == products * one, "PyTorch counts the same"


BACKWARD: list[tuple[str, bool, int, int]] = [
    ("aten::_flash_attention_backward", True, 11, 1),
    ("aten::_efficient_attention_backward", True, 14, 1),
    ("aten::_cudnn_attention_backward", False, 14, 1),
    ("aten::_scaled_dot_product_cudnn_attention_backward", False, 14, 1),
    ("flash_attn::_flash_attn_backward", True, 11, 1),
]


@pytest.mark.parametrize(("name", "tokens_first", "place", "first"), BACKWARD)
def test_gradients_of_attention(name: str, tokens_first: bool, place: int, first: int) -> None:
    """Scores, and gradients of values, probabilities, queries and keys: five products for each pair."""

    def size(tokens: int, heads: int) -> Sizes:
        return (2, tokens, heads, 8) if tokens_first else (2, heads, tokens, 8)

    q, k = size(5, 4), size(7, 2)
    dense = _calls(name, *((q,) * first), q, k, k, values={place: "False"})
    pairs = sum(1 for _ in product(range(2), range(4), range(5), range(7)))
    read = 2 * (3 * prod(q) + 2 * prod(k))  # queries, output, its gradient; keys and values
    assert _cost(dense) == (pairs * 8 * 2 * 5, read, 2 * (prod(q) + 2 * prod(k)))
    square = size(6, 3)
    causal = sum(1 for _, _, a, b in product(range(2), range(3), range(6), range(6)) if b <= a)
    assert _cost(_calls(name, *((square,) * first), square, square, square, values={place: "True"}))[0] == causal * 8 * 2 * 5


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
