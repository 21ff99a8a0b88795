"""FLOPs and bytes of recorded operators against counting them, one product and one element at a time."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from strobe.perf.analysis.device.roofline import operator_cost
from strobe.perf.trace import OperatorCalls

BF16 = "c10::BFloat16"


def _calls(name: str, *sizes: tuple[int, ...], dtype: str = BF16, values: dict[int, str] | None = None) -> OperatorCalls:
    texts = tuple((values or {}).get(i, "") for i in range(max(values, default=-1) + 1 if values else 0))
    return OperatorCalls(
        device=0, name=f"aten::{name}", sizes=sizes, types=(dtype,) * len(sizes), values=texts, calls=1, events=1, sum_ns=1
    )


def _cost(calls: OperatorCalls) -> tuple[int, int, int]:
    found = operator_cost(calls)
    assert not isinstance(found, str), found
    return found[0].flops, found[0].read_bytes, found[0].write_bytes


def _counted(batch: int, m: int, k: int, n: int) -> int:
    return sum(2 for _ in product(range(batch), range(m), range(k), range(n)))  # a multiplication and an addition


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (2, 9, 4)])
def test_matrix_products(m: int, k: int, n: int) -> None:
    flops = _counted(1, m, k, n)
    assert _cost(_calls("mm", (m, k), (k, n))) == (flops, 2 * (m * k + k * n), 2 * m * n)
    assert _cost(_calls("addmm", (n,), (m, k), (k, n), ())) == (flops, 2 * (m * k + k * n + n), 2 * m * n)
    assert _cost(_calls("addmm", (m, n), (m, k), (k, n), dtype="float")) == (flops, 4 * (m * k + k * n + m * n), 4 * m * n)
    three = _counted(3, m, k, n)
    assert _cost(_calls("bmm", (3, m, k), (3, k, n))) == (three, 6 * (m * k + k * n), 6 * m * n)
    assert _cost(_calls("baddbmm", (3, m, n), (3, m, k), (3, k, n))) == (three, 6 * (m * k + k * n + m * n), 6 * m * n)


ATTENTION: list[tuple[str, bool, int, tuple[str, str]]] = [
    ("_flash_attention_forward", True, 8, ("False", "True")),
    ("_efficient_attention_forward", True, 9, ("0", "1")),
    ("_scaled_dot_product_cudnn_attention", False, 6, ("False", "True")),
]


@pytest.mark.parametrize(("name", "tokens_first", "place", "words"), ATTENTION)
def test_attention(name: str, tokens_first: bool, place: int, words: tuple[str, str]) -> None:
    def size(tokens: int, heads: int) -> tuple[int, ...]:
        return (2, tokens, heads, 8) if tokens_first else (2, heads, tokens, 8)

    dense = _calls(name, size(5, 4), size(7, 2), size(7, 2), values={place: words[0]})
    pairs = sum(1 for _ in product(range(2), range(4), range(5), range(7)))
    assert _cost(dense) == (pairs * 8 * 4, 2 * 8 * (2 * 5 * 4 + 2 * 2 * 7 * 2), 2 * 8 * 2 * 5 * 4)
    causal = _calls(name, size(6, 3), size(6, 3), size(6, 3), values={place: words[1]})
    pairs = sum(1 for _, _, q, k in product(range(2), range(3), range(6), range(6)) if k <= q)
    assert _cost(causal)[0] == pairs * 8 * 4


Q = (1, 64, 2, 8)


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (_calls("mm", (2, 3), (4, 5)), "no matrix product"),
        (_calls("mm", (2, 3)), "no matrix product"),
        (_calls("bmm", (2, 3, 4), (3, 4, 5)), "no matrix product"),
        (_calls("mm", (2, 3), (3, 5), dtype="Scalar"), "dtype"),
        (_calls("mm", dtype=BF16), "dtype"),
        (_calls("_flash_attention_forward", Q, Q, Q), "causal is not recorded"),
        (_calls("_flash_attention_forward", Q, Q, Q, (3,), (3,), values={8: "False"}), "packed"),
        (_calls("_flash_attention_forward", Q, Q, Q, values={8: "True", 11: "256", 12: "0"}), "window"),
        (_calls("_flash_attention_forward", (1, 8, 2, 8), Q, Q, values={8: "True"}), "unequal numbers"),
        (_calls("_flash_attention_forward", Q[1:], Q[1:], Q[1:], values={8: "False"}), "no attention"),
        (_calls("_flash_attention_forward", Q, Q, (1, 64, 2, 16), values={8: "False"}), "no attention"),
    ],
)
def test_what_is_not_known_is_said(calls: OperatorCalls, why: str) -> None:
    found: Any = operator_cost(calls)
    assert isinstance(found, str) and why in found


@pytest.mark.parametrize(
    "calls",
    [
        _calls("mm", (-4, 8), (8, 16)),
        _calls("mm", (4, -8), (-8, 16)),
        _calls("bmm", (-2, 4, 8), (-2, 8, 16)),
        _calls("addmm", (-16,), (4, 8), (8, 16)),
        _calls("_flash_attention_forward", *((1, -10, 4, 64),) * 3, values={8: "True"}),
        _calls("_flash_attention_forward", *((1, 10, 4, -64),) * 3, values={8: "False"}),
        _calls("_flash_attention_forward", *((-1, 10, 4, 64),) * 3, values={8: "True"}),
        _calls("mm", (10**400, 8), (8, 16)),
        _calls("mm", (1 << 31, 1 << 31), (1 << 31, (1 << 31) + 1)),
    ],
)
def test_sizes_that_no_tensor_has_give_a_reason(calls: OperatorCalls) -> None:
    assert operator_cost(calls) == "its sizes are not those of tensors"


def test_the_largest_tensors_have_a_cost() -> None:
    assert _cost(_calls("mm", (1 << 31, 1 << 31), (1 << 31, 1 << 31)))[0] == 2 << 93
    assert _cost(_calls("mm", (0, 8), (8, 16))) == (0, 2 * 8 * 16, 0)
