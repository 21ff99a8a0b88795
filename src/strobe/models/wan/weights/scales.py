"""Checkpoints with matrices in eight bits, each with its own scale beside it: ``W = values * scale``.

`scale_weight` is ComfyUI's first spelling, `weight_scale` its second and that of others; scales are one number, or one a row.
"""

from __future__ import annotations

from typing import Final

import torch

from strobe.core.errors import WeightsError
from strobe.models.wan.weights.files import WeightSource

SCALES: Final = ("scale_weight", "weight_scale")
UNUSED: Final = ("scaled_fp8", "scale_input", "input_scale", "comfy_quant")
"""Last parts of names that only programs which multiply in eight bits need."""
EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def take_scales(names: dict[str, str], source: WeightSource) -> dict[str, str]:
    """Remove the names of eight-bit scales from a checkpoint's names, and return them.

    Args:
        names: plain names to the file's; what is taken is removed.
        source: tensors by the file's names.

    Returns:
        plain name of a tensor in eight bits to the file's name of its scale.

    Raises:
        WeightsError: a scale without its tensor or of a wrong shape, or whole numbers without a scale.
    """
    found: dict[str, str] = {}
    for name in [name for name in names if name.rpartition(".")[2] in (*SCALES, *UNUSED)]:
        home, _, last = name.rpartition(".")
        spelled = names.pop(name)
        if last in SCALES:
            found[f"{home}.weight"] = spelled
    for name, spelled in found.items():
        tensor = source.tensors[names[name]] if name in names else None
        sizes = () if tensor is None else (1, tensor.shape[0])
        if tensor is None or tensor.dtype not in EIGHT_BITS or source.tensors[spelled].numel() not in sizes:
            shape = list(source.tensors[spelled].shape)
            raise WeightsError(
                f"{source.where} has a scale {spelled} {shape} that fits no eight-bit {name}; scales of one number or one a row "
                "are known: fetch the checkpoint in bfloat16"
            )
    whole = [name for name, spelled in names.items() if not source.tensors[spelled].is_floating_point() and name not in found]
    if whole:
        raise WeightsError(
            f"{source.where} holds whole numbers without a scale ({whole[0]}); this quantised format is not known: fetch the "
            "checkpoint in bfloat16 or in fp8"
        )
    return found
