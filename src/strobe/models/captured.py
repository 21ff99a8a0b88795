"""q, k and v of a model's attention calls in one safetensors file: `strobe.capture` writes it, benchmarks read it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from strobe.core.errors import ConfigError, WeightsError
from strobe.core.files import writing_whole
from strobe.models.checkpoint import DTYPES, read_metadata, read_shapes

KEY: Final = "strobe.captured"
"""Entry of the file's metadata that lists its calls, in JSON."""
_WORDS: Final = {dtype: word for word, dtype in DTYPES.items()}

Operands = tuple[Tensor, Tensor, Tensor]


class CapturedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One attention call of a model.

    Args:
        model: class of the transformer.
        layer: name of the attention module, with its component.
        step: denoise step, counted from 0.
        grid: tokens of the video in (time, height, width): the first rows of q, k and v, in raster order.
        text_tokens: rows after them.
    """

    model: str
    layer: str
    step: int
    grid: tuple[int, int, int]
    text_tokens: int = 0


def write_calls(path: Path, calls: Sequence[tuple[CapturedCall, Operands]]) -> None:
    """Write calls with their q, k and v, `[1, S, H, D]`; the file takes its place when it is whole.

    Raises:
        StrobeError: it cannot be written.
    """
    tensors = {
        f"{number}.{name}": each for number, (_, three) in enumerate(calls) for name, each in zip("qkv", three, strict=True)
    }
    listed, end = msgspec.json.encode([call for call, _ in calls]).decode(), 0
    header: dict[str, Any] = {"__metadata__": {KEY: listed}}
    for name, each in tensors.items():
        header[name] = {"dtype": _WORDS[each.dtype], "shape": each.shape, "data_offsets": (end, end := end + each.nbytes)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with writing_whole(path, end) as file:  # as safetensors writes it, tensor by tensor: its own writer holds all of them twice
        file.write(len(text).to_bytes(8, "little") + text)
        for each in tensors.values():
            file.write(each.contiguous().view(-1).view(torch.uint8).numpy().data)


def read_calls(path: Path) -> tuple[tuple[CapturedCall, tuple[int, int]], ...]:
    """Read what calls a file holds, each with its heads and head_dim; no tensor is read.

    Raises:
        ConfigError: it is no such file, or damaged.
    """
    try:
        listed, shapes = read_metadata(path).get(KEY, ""), read_shapes(path)
        calls = msgspec.json.decode(listed, type=tuple[CapturedCall, ...])
        found = [[tuple(shapes[f"{number}.{name}"].shape) for name in "qkv"] for number in range(len(calls))]
    except (WeightsError, msgspec.DecodeError, KeyError) as error:
        raise ConfigError(f"{path} holds no captured q, k and v ({error}); make the file with strobe.capture") from error
    for number, (call, (q, k, v)) in enumerate(zip(calls, found, strict=True)):
        if not q == k == v or len(q) != 4 or q[:2] != (1, prod(call.grid) + call.text_tokens):
            raise ConfigError(f"{path}: call {number} of {call.layer} does not fit its grid of {call.grid}; capture it again")
    return tuple((call, (shapes[f"{number}.q"].shape[2], shapes[f"{number}.q"].shape[3])) for number, call in enumerate(calls))


def read_video(path: Path, number: int, call: CapturedCall, dtype: torch.dtype, device: torch.device) -> Operands:
    """Read q, k and v of the video's tokens of one call, `[1, T * H * W, H, D]`.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            q, k, v = (file.get_slice(f"{number}.{name}")[:, : prod(call.grid)].to(device, dtype) for name in "qkv")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: call {number} cannot be read ({error}); capture it again") from error
    return q, k, v
