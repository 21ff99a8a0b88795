"""FLOPs and least bytes of convolutions and their gradients, from the inputs that a trace recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from strobe.core.costs import Cost, conv, element_bytes

Sizes = tuple[int, ...]
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_MASK: Final = re.compile(r"True|False|1|0")


class _Forward(NamedTuple):
    """Positions of a convolution's arguments among its operands."""

    padding: int
    stride: int
    dilation: int
    groups: int | None
    output_padding: int | None = None


_FORWARD: Final = {
    "aten::cudnn_convolution": _Forward(2, 3, 4, 5),
    "aten::cudnn_convolution_transpose": _Forward(2, 4, 5, 6, output_padding=3),
    "aten::miopen_convolution": _Forward(3, 4, 5, 6),
    "aten::miopen_convolution_transpose": _Forward(3, 5, 6, 7, output_padding=4),
    "aten::_conv_depthwise2d": _Forward(5, 4, 6, None),
    "aten::conv_depthwise3d": _Forward(5, 4, 6, None),
}
_BACKWARD: Final = "aten::convolution_backward"
CONVOLUTIONS: Final = frozenset({*_FORWARD, _BACKWARD})


def convolution_cost(name: str, sizes: Sequence[Sizes], values: Sequence[str], dtype: str) -> Cost | str:
    """Return the cost of a call, or the reason why it is not known.

    A convolution is two FLOPs for each output, input channel of its group and tap; each gradient is as many. A bias that the
    operator adds by itself is not counted.
    """
    if name == _BACKWARD:
        return _backward(sizes, values, dtype)
    places = _FORWARD[name]
    transposed = places.output_padding is not None
    given, weight = (*sizes, (), ())[:2]
    if not _fits(given, weight):
        return "its sizes are no convolution"
    rank = len(given) - 2
    groups = given[1] if places.groups is None else _one(values, places.groups)
    steps = [_list(values, place, rank) for place in (places.padding, places.stride, places.dilation)]
    extra = [0] * rank if places.output_padding is None else _list(values, places.output_padding, rank)
    if groups is None or groups < 1 or extra is None or None in steps:
        return "its strides and paddings are not recorded"
    padding, stride, dilation = ([*each] for each in steps if each is not None)
    if min(stride, default=1) < 1:
        return "its strides and paddings are not recorded"
    out = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1 if transposed else (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d, e in zip(given[2:], weight[2:], padding, stride, dilation, extra, strict=True)
    ]
    channels = weight[1] * groups if transposed else weight[0]
    if min(out, default=1) < 0 or (weight[0] if transposed else weight[1] * groups) != given[1]:
        return "its sizes are no convolution"
    result = (given[0], channels, *out)
    return _one_product(given if transposed else result, weight, dtype) + _moved(dtype, (given, weight), (result,))


def _backward(sizes: Sequence[Sizes], values: Sequence[str], dtype: str) -> Cost | str:
    gradient, given, weight = (*sizes, (), (), ())[:3]
    if not _fits(given, weight) or len(gradient) != len(given):
        return "its sizes are no convolution"
    mask = [word in ("True", "1") for word in _MASK.findall(values[10])] if len(values) > 10 else []
    if len(mask) != 3 or len(values) <= 7 or values[7] not in ("True", "False", "1", "0"):
        return "which gradients it computes is not recorded"
    one = _one_product(given if values[7] in ("True", "1") else gradient, weight, dtype)
    read = (gradient, *((weight,) if mask[0] else ()), *((given,) if mask[1] else ()))
    made = tuple(size for size, wanted in zip((given, weight, gradient[1:2]), mask, strict=True) if wanted)
    return one * (mask[0] + mask[1]) + _moved(dtype, read, made)


def _one_product(positions: Sizes, weight: Sizes, dtype: str) -> Cost:
    """Compute the FLOPs of one pass over all positions: each is multiplied with all weights of one of its channels."""
    count = positions[0] * math.prod(positions[2:])
    return Cost(flops=conv(count, weight[1], weight[0], taps=math.prod(weight[2:]), dtype=dtype, bias=False).flops)


def _moved(dtype: str, read: Sequence[Sizes], written: Sequence[Sizes]) -> Cost:
    size = element_bytes(dtype)
    return Cost(read_bytes=sum(map(math.prod, read)) * size, write_bytes=sum(map(math.prod, written)) * size)


def _fits(given: Sizes, weight: Sizes) -> bool:
    return 3 <= len(given) == len(weight) <= 5


def _one(values: Sequence[str], place: int) -> int | None:
    return int(values[place]) if place < len(values) and _NUMBER.fullmatch(values[place]) else None


def _list(values: Sequence[str], place: int, rank: int) -> list[int] | None:
    """Parse a list such as `[16, 16]`, one number per axis; a single number holds for all axes."""
    found = [int(one) for one in _NUMBER.findall(values[place])] if place < len(values) else []
    found = found * rank if len(found) == 1 else found
    return found if len(found) == rank else None
