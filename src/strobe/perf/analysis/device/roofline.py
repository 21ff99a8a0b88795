"""Costs of operators from their recorded inputs, and measured times against the device's peaks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from strobe.core.costs import (
    AttentionShape,
    Cost,
    DevicePeaks,
    attention,
    attention_backward,
    conv,
    element_bytes,
    matmul,
    parse_dtype,
)
from strobe.core.errors import DataError
from strobe.core.printable import bytes_in
from strobe.perf.trace.events import OperatorInputs

# FLOPs and least bytes of one call of an operator, from the inputs that the trace recorded. Each function below returns the cost
# of a call, or the reason why it is not known.

Sizes = tuple[int, ...]
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_DENSE: Final = ("False", "0")

_CONVOLUTIONS: Final[dict[str, tuple[int | None, ...]]] = {
    "aten::cudnn_convolution": (2, 3, 4, 5, None),
    "aten::cudnn_convolution_transpose": (2, 4, 5, 6, 3),
    "aten::miopen_convolution": (3, 4, 5, 6, None),
    "aten::miopen_convolution_transpose": (3, 5, 6, 7, 4),
    "aten::_conv_depthwise2d": (5, 4, 6, None, None),
    "aten::conv_depthwise3d": (5, 4, 6, None, None),
}
"""Positions of padding, stride, dilation, groups and output padding among the operands of convolutions."""


def _convolution(calls: OperatorInputs, dtype: str) -> Cost | str:
    """A convolution is two FLOPs for each output, input channel of its group and tap; a bias of its own is not counted."""
    places = _CONVOLUTIONS[calls.name]
    transposed = places[-1] is not None
    given, weight = (*calls.sizes, (), ())[:2]
    if not 3 <= len(given) == len(weight) <= 5:
        return "its sizes are no convolution"
    rank = len(given) - 2
    otherwise: tuple[list[int], ...] = ([], [], [], [given[1]], [0] * rank)
    padding, stride, dilation, groups, extra = (
        default if place is None else _numbers(calls.values, place, len(default) or rank)
        for place, default in zip(places, otherwise, strict=True)
    )
    if not (padding and stride and dilation and groups and extra) or min(*stride, *groups) < 1:
        return "its strides and paddings are not recorded"
    out = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1 if transposed else (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d, e in zip(given[2:], weight[2:], padding, stride, dilation, extra, strict=True)
    ]
    channels = weight[1] * groups[0] if transposed else weight[0]
    if min(out) < 0 or (weight[0] if transposed else weight[1] * groups[0]) != given[1]:
        return "its sizes are no convolution"
    result = (given[0], channels, *out)
    positions = given if transposed else result
    products = positions[0] * math.prod(positions[2:])  # each is multiplied with all weights of one of its channels
    flops = conv(products, weight[1], weight[0], taps=math.prod(weight[2:]), dtype=dtype, bias=False).flops
    size = element_bytes(dtype)
    read = (math.prod(given) + math.prod(weight)) * size
    return Cost(flops=flops, read_bytes=read, write_bytes=math.prod(result) * size)


def _numbers(values: Sequence[str], place: int, count: int) -> list[int]:
    """Parse a list such as `[16, 16]`, one number per axis; a single number holds for all. Empty if it is not that."""
    found = [int(one) for one in _NUMBER.findall(values[place])] if place < len(values) else []
    found = found * count if len(found) == 1 else found
    return found if len(found) == count else []


_PRODUCTS: Final = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1, "aten::baddbmm": 1,
}  # fmt: skip
"""Position of the left factor among the operands of matrix products; an operand before it is added."""
_SCALED_OUT: Final = {"5": "float16", "6": "float32", "15": "bfloat16"}
"""Output dtypes of scaled products, by torch's number."""


_ATTENTIONS: Final[dict[str, tuple[int, int, int | None, Sizes, Sizes]]] = {
    "aten::_flash_attention_forward": (0, 1, 8, (3, 4), (11, 12)),
    "aten::_flash_attention_backward": (1, 1, 11, (6, 7), (15, 16)),
    "aten::_efficient_attention_forward": (0, 1, 9, (4, 5), ()),
    "aten::_efficient_attention_backward": (1, 1, 14, (6, 7), ()),
    "aten::_scaled_dot_product_cudnn_attention": (0, 2, 6, (), ()),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 2, 14, (9, 10), ()),
    "aten::_cudnn_attention_forward": (0, 2, 10, (4, 5), ()),
    "aten::_cudnn_attention_backward": (1, 2, 14, (9, 10), ()),
    "flash_attn::_flash_attn_forward": (0, 1, 5, (), (6, 7)),
    "flash_attn::_flash_attn_backward": (1, 1, 11, (), (12, 13)),
    "strobe::fa4_forward": (0, 1, None, (), ()),
    "strobe::fa4_backward": (2, 1, None, (), ()),
}
"""Position of the queries, axis of tokens, and the positions of the causal flag, of lengths of packed sequences, of a window."""
_SPARSE: Final = {"strobe::block_sparse_forward": (0, 7, 9, (5, 6)), "strobe::block_sparse_backward": (2, 11, 13, (9, 10))}
"""Of our block-sparse attention the positions of queries, block length, uniform count, sizes of ragged blocks."""
_CAUSAL: Final = ("True", "1", "2")
_MOST_ELEMENTS: Final = 1 << 62
"""Most elements of a tensor: beyond them its last element has no 64-bit index."""
_NO_WINDOW: Final = ("", "-1", "None")

_FUSED: Final = re.compile(r"triton_(?:poi|per|red|for)_\w+")
"""Names of pointwise and reduction kernels of PyTorch's compiler; their operands are everything they read and write."""
_POINTWISE: Final = frozenset(
    f"aten::{name}"
    for name in (
        "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "neg", "exp", "sqrt", "rsqrt", "abs", "clamp_min",
        "clamp", "gelu", "silu", "silu_", "relu", "relu_", "tanh", "sigmoid", "sin", "cos", "gelu_backward", "silu_backward",
        "tanh_backward", "threshold_backward", "sigmoid_backward", "_softmax", "_log_softmax", "_softmax_backward_data",
        "addcmul", "addcdiv", "lerp", "where",
    )
)  # fmt: skip
"""Pointwise operators: every operand is read, and a result of their broadcast size is written."""
_NORMS: Final = frozenset({"aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_group_norm"})
"""Norms and the like: every operand is read, and a result as large as the first one is written."""
_COPY: Final = "aten::copy_"
_FILLS: Final = frozenset({"aten::fill_", "aten::zero_"})
_REDUCTIONS: Final = frozenset({"aten::sum", "aten::mean", "aten::max", "aten::min", "aten::amax", "aten::argmax", "aten::prod"})
_ELEMENT_BYTES: Final = {"long int": 8, "long": 8, "int": 4, "short int": 2, "short": 2, "unsigned char": 1, "bool": 1}
"""Element sizes of types that no matrix product has, bytes."""


OperatorCost: TypeAlias = tuple[Cost, str]
"""FLOPs and least bytes of one call, and the dtype of its products."""


def operator_cost(calls: OperatorInputs) -> OperatorCost | str:
    """Return the cost of one of the calls, or the reason why it is not known.

    A matrix product `[m, k] @ [k, n]` is `2 m k n` FLOPs, attention `4 D` for every pair of a query and a key that meet, its
    gradients `10 D`. Causal attention over equally many queries and keys computes half of the pairs and the diagonal. Elementwise
    work has no FLOPs that a matrix peak is about: every operand is moved once.
    """
    if any(size < 0 for sizes in calls.sizes for size in sizes) or any(math.prod(one) > _MOST_ELEMENTS for one in calls.sizes):
        return "its sizes are not those of tensors"
    if calls.name in _POINTWISE | _NORMS | _FILLS | _REDUCTIONS | {_COPY} or _FUSED.fullmatch(calls.name):
        return _elementwise(calls)
    if calls.name not in _COSTS:
        return "what it computes is not known"
    first, cost_of = _COSTS[calls.name]
    dtype = parse_dtype(calls.types[first]) if len(calls.types) > first else None
    if dtype is None:
        return "its dtype is not recorded or not known"
    found = cost_of(calls, dtype)
    return found if isinstance(found, str) else (found, dtype)


def _product(calls: OperatorInputs, dtype: str) -> Cost | str:
    first = _PRODUCTS[calls.name]
    left, right = (*calls.sizes[first : first + 2], (), ())[:2]
    if not 2 <= len(left) == len(right) <= 3 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        return "its sizes are no matrix product"
    (*batch, m, k), n = left, right[-1]
    added = math.prod(calls.sizes[0]) * element_bytes(dtype) if first and calls.sizes[0] else 0
    return matmul(m, k, n, dtype=dtype, batch=math.prod(batch)) + Cost(read_bytes=added)


def _scaled(calls: OperatorInputs, dtype: str) -> Cost | str:
    """Return the cost of a product of eight-bit numbers with scales, with output in the requested dtype."""
    product = _product(calls, dtype)
    if isinstance(product, str):
        return product
    wanted = calls.values[6] if len(calls.values) > 6 else "?"
    out = _SCALED_OUT.get(wanted) if wanted not in ("", "None") else dtype
    if out is None:
        return "the dtype that it writes is not recorded"
    others = sum(_bytes_of(calls, place) or 0 for place in range(2, min(5, len(calls.sizes))))
    written = product.write_bytes // element_bytes(dtype) * element_bytes(out)
    return replace(product, read_bytes=product.read_bytes + others, write_bytes=written)


def _attention(calls: OperatorInputs, dtype: str) -> Cost | str:
    (first, tokens, causal_at, packed, window), sizes, values = _ATTENTIONS[calls.name], calls.sizes, calls.values
    shape = _attention_shape(sizes[first : first + 3], tokens)
    if shape is None:
        return "its sizes are no attention of one head size"
    if any(sizes[place] for place in packed if place < len(sizes)):
        return "sequences of different lengths are packed together"
    if any(values[place] not in _NO_WINDOW for place in window if place < len(values)):
        return "it attends to a window"
    cost = attention_backward if calls.name.endswith("backward") else attention
    causal = "False" if causal_at is None else values[causal_at] if len(values) > causal_at else ""
    if causal in _DENSE:
        return cost(shape, dtype=dtype)
    if causal not in _CAUSAL:
        return "whether it is causal is not recorded"
    if shape.q_tokens != shape.kv_tokens:
        return "it is causal over unequal numbers of queries and keys"
    return cost(shape, dtype=dtype, pairs=shape.batch * shape.num_heads * shape.q_tokens * (shape.q_tokens + 1) // 2)


def _attention_shape(sizes: Sequence[Sizes], tokens: int) -> AttentionShape | None:
    heads = 3 - tokens  # [B, S, H, D] or [B, H, S, D]
    if len(sizes) < 3 or {len(size) for size in sizes} != {4} or sizes[1] != sizes[2] or sizes[0][3] != sizes[1][3]:
        return None
    return AttentionShape(
        q_tokens=sizes[0][tokens],
        kv_tokens=sizes[1][tokens],
        num_heads=sizes[0][heads],
        num_kv_heads=sizes[1][heads],
        head_dim=sizes[0][3],
        batch=sizes[0][0],
    )


def _sparse(calls: OperatorInputs, dtype: str) -> Cost | str:
    first, *counts, ragged = _SPARSE[calls.name]
    shape = _attention_shape(calls.sizes[first : first + 3], 1)
    if shape is None:
        return "its sizes are no attention of one head size"
    if any(calls.sizes[place] for place in ragged if place < len(calls.sizes)):
        return "its blocks are not all full, and how full is not recorded"
    words = [calls.values[place] if place < len(calls.values) else "" for place in counts]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return "how many blocks each query attends to is not recorded"
    block, count = map(int, words)
    pairs = shape.batch * shape.num_heads * shape.q_tokens * block * count
    if pairs > shape.pairs:
        return "its blocks are more than a dense call has"
    return (attention_backward if calls.name.endswith("backward") else attention)(shape, dtype=dtype, pairs=pairs)


_COSTS: Final[dict[str, tuple[int, Callable[[OperatorInputs, str], Cost | str]]]] = {
    **{name: (first, _product) for name, first in _PRODUCTS.items()},
    "aten::_scaled_mm": (0, _scaled),
    **dict.fromkeys(_CONVOLUTIONS, (0, _convolution)),
    **{name: (first, _attention) for name, (first, *_) in _ATTENTIONS.items()},
    **{name: (first, _sparse) for name, (first, *_) in _SPARSE.items()},
}
"""By operator, the position of the operand with the dtype of the products, and its cost."""


def _bytes_of(calls: OperatorInputs, place: int) -> int | None:
    """Return the bytes of an operand; `None` if its type is not known, 0 if it is no tensor."""
    if not calls.sizes[place]:
        return 0
    kind = calls.types[place] if place < len(calls.types) else ""
    known = parse_dtype(kind)
    size = element_bytes(known) if known is not None else _ELEMENT_BYTES.get(kind)
    return None if size is None else math.prod(calls.sizes[place]) * size


def _elementwise(calls: OperatorInputs) -> OperatorCost | str:
    places = [place for place, size in enumerate(calls.sizes) if size]
    given = [moved for place in places if (moved := _bytes_of(calls, place)) is not None]
    if not places:
        return "its sizes are not recorded"
    if len(given) < len(places):
        return "its dtype is not recorded or not known"
    dtype = parse_dtype(calls.types[places[0]]) or calls.types[places[0]]
    if calls.name == _COPY and len(given) == 2:
        return Cost(write_bytes=given[0], read_bytes=given[1]), dtype
    if calls.name in _FILLS:
        return Cost(write_bytes=given[0]), dtype
    if calls.name in _NORMS:
        return Cost(read_bytes=sum(given), write_bytes=given[0]), dtype
    if calls.name in _REDUCTIONS or calls.name not in _POINTWISE:  # of a fused kernel's operands some are written
        return Cost(read_bytes=given[0] if calls.name in _REDUCTIONS else sum(given)), dtype
    shape = _broadcast([calls.sizes[place] for place in places])
    if shape is None:
        return "its sizes do not fit together"
    sizes = (each // math.prod(calls.sizes[place]) for each, place in zip(given, places, strict=True) if each)
    element = max(sizes, default=0)
    return Cost(read_bytes=sum(given), write_bytes=math.prod(shape) * element), dtype


def _broadcast(sizes: Sequence[Sizes]) -> Sizes | None:
    rank = max(map(len, sizes))
    found = []
    for axis in zip(*((1,) * (rank - len(size)) + size for size in sizes), strict=True):
        wide = {length for length in axis if length != 1}
        if len(wide) > 1:
            return None
        found.append(wide.pop() if wide else 1)
    return tuple(found)


# Roofline: a measured time against the device's peaks; rates, shares, the bound, and rates that are impossible.

NS_PER_S: Final = 1_000_000_000
TOLERANCE: Final = Fraction(102, 100)
"""Largest rate / published peak that is not an anomaly: the peak holds for the published boost clock."""

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """One operation against one device; shares and limits are None where the device or the dtype is unknown.

    Args:
        device: short name of the device; None: its peaks are not known.
        flops_per_s: computed FLOPs / time, FLOP/s.
        bytes_per_s: least bytes / time, bytes/s.
        compute_share: `flops_per_s` / the dtype's matrix peak; None for an operation without matrix FLOPs too.
        clock_share: `flops_per_s` / that peak at the SM clock that ran; None where a clock is not known.
        memory_share: `bytes_per_s` / memory bandwidth.
        floor_ns: the least time the device could take: the larger of FLOPs / peak and bytes / bandwidth.
        bound: the larger of the two: compute or memory.
        effective_flops_per_s: FLOPs of the dense operation that this one replaces / time, FLOP/s; None where nothing is replaced.
            It may exceed the peak: the work is not done.
        anomaly: description of a rate that is impossible; empty if there is none.
    """

    device: str | None
    flops_per_s: float
    bytes_per_s: float
    compute_share: float | None
    clock_share: float | None
    memory_share: float | None
    floor_ns: float | None
    bound: Bound | None
    effective_flops_per_s: float | None
    anomaly: str

    @property
    def share(self) -> float | None:
        """Share of the roof that limits this operation: `floor_ns` / time."""
        shares = {"compute": self.compute_share, "memory": self.memory_share}
        return None if self.bound is None else shares[self.bound]


def roofline(
    time_ns: Fraction | float,
    cost: Cost,
    peaks: DevicePeaks | None,
    dtype: str,
    *,
    dense: Cost | None = None,
    sm_mhz: int | None = None,
) -> Roofline:
    """Compare a time with a device's roofline.

    Args:
        time_ns: time of one operation, above 0.
        cost: FLOPs and least bytes of the operation (`strobe.core.costs`); for sparse attention of the pairs it really computes.
        peaks: peaks of the device; None: rates only.
        dtype: dtype of the matrix products, in any spelling; it chooses the peak.
        dense: the dense operation that a sparse one replaces, for the effective rate.
        sm_mhz: SM clock while it ran; None: not known.
    """
    if time_ns <= 0:
        raise DataError(f"a time of {float(time_ns):g} ns gives no rate; give one above 0")
    per_s = Fraction(NS_PER_S) / Fraction(time_ns)
    rates = cost.flops * per_s, cost.moved_bytes * per_s
    flops_peak = peaks.peak_flops_per_s(dtype) if peaks is not None and cost.flops else None
    floors: dict[Bound, Fraction] = {}
    if peaks is not None and (flops_peak is not None or not cost.flops):
        floors["memory"] = Fraction(cost.moved_bytes * NS_PER_S, peaks.bandwidth_bytes_per_s)
        floors["compute"] = Fraction(cost.flops * NS_PER_S, flops_peak) if flops_peak else Fraction(0)
    bound: Bound | None = None
    if floors:
        bound = "compute" if floors["compute"] >= floors["memory"] else "memory"
    ran = sm_mhz / peaks.clock_mhz if peaks is not None and peaks.clock_mhz and sm_mhz else None
    return Roofline(
        device=None if peaks is None else peaks.name,
        flops_per_s=float(rates[0]),
        bytes_per_s=float(rates[1]),
        compute_share=float(rates[0] / flops_peak) if flops_peak else None,
        clock_share=float(rates[0] / flops_peak) / ran if flops_peak and ran else None,
        memory_share=None if peaks is None else float(rates[1] / peaks.bandwidth_bytes_per_s),
        floor_ns=float(floors[bound]) if bound else None,
        bound=bound,
        effective_flops_per_s=None if dense is None else float(dense.flops * per_s),
        anomaly="" if peaks is None else _anomaly(rates, cost, peaks, dtype, flops_peak),
    )


def _anomaly(rates: tuple[Fraction, Fraction], cost: Cost, peaks: DevicePeaks, dtype: str, flops_peak: int | None) -> str:
    """Name the peak that is exceeded. Data that fits into the cache may arrive faster than memory delivers it."""
    flops, moved = rates
    if flops_peak is not None and flops > flops_peak * TOLERANCE:
        return (
            f"{float(flops) / 1e12:.4g} TFLOP/s is above the {parse_dtype(dtype)} peak of {peaks.name}, {flops_peak / 1e12:.4g}: "
            f"a time without synchronisation, or not all of these FLOPs were computed"
        )
    if moved > peaks.bandwidth_bytes_per_s * TOLERANCE and cost.moved_bytes > peaks.cache_bytes:
        return (
            f"{float(moved) / 1e9:.4g} GB/s is above the memory bandwidth of {peaks.name}, "
            f"{peaks.bandwidth_bytes_per_s / 1e9:.4g}, and {bytes_in(cost.moved_bytes, 'MiB'):.4g} MiB do not fit into its "
            f"cache: a time without synchronisation, or not all of these bytes were moved"
        )
    return ""
