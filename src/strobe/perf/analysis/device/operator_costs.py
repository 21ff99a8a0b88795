"""FLOPs and least bytes of one call of an operator, from the inputs that the trace recorded."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from strobe.core.costs import AttentionShape, Cost, attention, element_bytes, matmul, parse_dtype
from strobe.perf.trace.events import OperatorCalls

_PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Matrix products: the place of the left factor; what stands before it is added."""


class _Attention(NamedTuple):
    """Where an attention operator has what: `heads` and `tokens` among a tensor's axes, the others among the operands."""

    tokens: int
    heads: int
    causal: int
    packed: tuple[int, ...] = ()
    window: tuple[int, ...] = ()


_ATTENTIONS: Final = {
    "aten::_flash_attention_forward": _Attention(1, 2, 8, packed=(3, 4), window=(11, 12)),
    "aten::_efficient_attention_forward": _Attention(1, 2, 9, packed=(4, 5)),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(2, 1, 6),
}
_DENSE: Final = ("False", "0")
_CAUSAL: Final = ("True", "1", "2")
_MOST_ELEMENTS: Final = 1 << 62
"""A tensor with more has no number for its last one."""
_NO_WINDOW: Final = ("", "-1", "None")


class OperatorCost(NamedTuple):
    """What one call must compute and move, and the dtype of its products."""

    cost: Cost
    dtype: str


def operator_cost(calls: OperatorCalls) -> OperatorCost | str:
    """Return what one of the calls costs, or why that is not known.

    A matrix product `[m, k] @ [k, n]` is `2 m k n` FLOPs, attention `4 D` for every pair of a query and a key that meet. Causal
    attention over equally many queries and keys computes half of the pairs and the diagonal.
    """
    first = _PRODUCTS.get(calls.name, 0)
    if any(size < 0 for sizes in calls.sizes for size in sizes) or any(math.prod(one) > _MOST_ELEMENTS for one in calls.sizes):
        return "its sizes are not those of tensors"
    dtype = parse_dtype(calls.types[first]) if len(calls.types) > first else None
    if dtype is None:
        return "its dtype is not recorded or not known"
    found = _product(calls, first, dtype) if calls.name in _PRODUCTS else _attention(calls, dtype)
    return found if isinstance(found, str) else OperatorCost(found, dtype)


def _product(calls: OperatorCalls, first: int, dtype: str) -> Cost | str:
    left, right = (*calls.sizes[first : first + 2], (), ())[:2]
    if not 2 <= len(left) == len(right) <= 3 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        return "its sizes are no matrix product"
    (*batch, m, k), n = left, right[-1]
    added = math.prod(calls.sizes[0]) * element_bytes(dtype) if first and calls.sizes[0] else 0
    return matmul(m, k, n, dtype=dtype, batch=math.prod(batch)) + Cost(read_bytes=added)


def _attention(calls: OperatorCalls, dtype: str) -> Cost | str:
    places, sizes = _ATTENTIONS[calls.name], calls.sizes
    if len(sizes) < 3 or {len(size) for size in sizes[:3]} != {4} or sizes[1] != sizes[2] or sizes[0][3] != sizes[1][3]:
        return "its sizes are no attention of one head size"
    if any(sizes[place] for place in places.packed if place < len(sizes)):
        return "sequences of different lengths are packed together"
    if any(calls.values[place] not in _NO_WINDOW for place in places.window if place < len(calls.values)):
        return "it attends to a window"
    causal = calls.values[places.causal] if len(calls.values) > places.causal else ""
    if causal not in (*_DENSE, *_CAUSAL):
        return "whether it is causal is not recorded"
    shape = AttentionShape(
        q_tokens=sizes[0][places.tokens],
        kv_tokens=sizes[1][places.tokens],
        num_heads=sizes[0][places.heads],
        num_kv_heads=sizes[1][places.heads],
        head_dim=sizes[0][3],
        batch=sizes[0][0],
    )
    if causal in _DENSE:
        return attention(shape, dtype=dtype)
    if shape.q_tokens != shape.kv_tokens:
        return "it is causal over unequal numbers of queries and keys"
    return attention(shape, dtype=dtype, pairs=shape.batch * shape.num_heads * shape.q_tokens * (shape.q_tokens + 1) // 2)
