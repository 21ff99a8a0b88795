"""Reading of LoRA files as updates of a transformer, in the spellings of several projects.

Known are `lora_A` and `lora_B` (PEFT, diffusers), `lora_down` and `lora_up`, both under a module's name with dots or, as kohya
writes it, as `lora_unet_` and the name with underscores; and full updates: `diff` of a weight, `diff_b` of a bias and `diff_m` of
a modulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.lora import Lora, LoraPair
from strobe.models.wan.weights.files import Source, read_source
from strobe.models.wan.weights.layouts import diffusers_name, plain_names

KOHYA: Final = "lora_unet_"
HALVES: Final = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up"}
DIFFS: Final = {"diff": "weight", "diff_b": "bias", "diff_m": "modulation"}
"""Suffix of a full update and the parameter of the module that it belongs to."""
ENTRY: Final = re.compile(
    r"(?P<module>.*?)\.?(?:(?P<half>lora_A|lora_down|lora_B|lora_up)(?:\.default)?\.weight|(?P<alpha>alpha)|(?P<diff>diff(?:_b|_m)?))"
)


def read_lora(path: str | Path) -> Lora:
    """Read a LoRA.

    The scale of a low-rank update is ``alpha / rank`` where the file has an `alpha`, else 1, as LongLive's has.

    Raises:
        WeightsError: no such file, damaged, an update that is not known, or a layer without its half.
    """
    file = Path(path)
    source = read_source((file,))
    tensors, names = source.read(), plain_names(source.tensors)
    halves: dict[str, dict[str, Tensor]] = {}
    diffs: dict[str, Tensor] = {}
    for name, spelled in names.items():
        found = ENTRY.fullmatch(name)
        if found is None or not found["module"]:
            raise WeightsError(
                f"{source.where} is no LoRA: {spelled!r} is none of lora_A, lora_B, lora_down, lora_up, alpha, diff, diff_b and "
                "diff_m; give a LoRA file with those"
            )
        module = own_name(found["module"])
        if found["diff"]:
            diffs[f"{module}.{DIFFS[found['diff']]}"] = tensors[spelled]
        else:
            halves.setdefault(module, {})[HALVES.get(found["half"], "alpha")] = tensors[spelled]
    pairs = {name: _pair(source, name, half) for name, half in halves.items()}
    for name in [name for name, pair in pairs.items() if pair.up.dim() > 2]:  # a convolution: small, and no linear layer
        diffs[f"{name}.weight"] = _whole(pairs.pop(name))
    return Lora(name=file.name, weights_hash=source.sha256(), pairs=pairs, diffs=diffs)


def _pair(source: Source, name: str, half: Mapping[str, Tensor]) -> LoraPair:
    fits = {"up", "down"} <= half.keys() and half["up"].dim() == half["down"].dim() >= 2
    if not fits or half["up"].shape[1] != half["down"].shape[0] or half["up"].shape[2:].numel() != 1:
        shapes = ", ".join(f"{which} {list(tensor.shape)}" for which, tensor in sorted(half.items()))
        raise WeightsError(f"{source.where}: layer {name} has no matching pair [rank, in] and [out, rank], only {shapes}")
    rank = half["down"].shape[0]
    alpha = half["alpha"].item() if "alpha" in half else rank
    return LoraPair(down=half["down"], up=half["up"], scale=alpha / rank)


def _whole(pair: LoraPair) -> Tensor:
    """Compute the full update of a convolution: ``scale * up @ down``, of the weight's shape."""
    up, down = pair.up.float().flatten(1), pair.down.float()
    whole: Tensor = torch.mm(up, down.flatten(1)).unflatten(1, down.shape[1:])
    return pair.scale * whole


def own_name(module: str) -> str:
    """Return our name of a module that may be spelled as in diffusers, or with underscores as in kohya."""
    if module.startswith(KOHYA):
        flat = re.fullmatch(r"blocks_(\d+)_(.+)", module.removeprefix(KOHYA))
        before, rest = (f"blocks.{flat[1]}.", flat[2]) if flat else ("", module.removeprefix(KOHYA))
        return before + (FLAT_IN_LAYER if flat else FLAT_OUTSIDE).get(rest, rest)
    inside = re.fullmatch(r"(blocks\.\d+\.)(.+)", module)
    before, rest = (inside[1], inside[2]) if inside else ("", module)
    return before + (OWN_IN_LAYER if inside else OWN_OUTSIDE).get(rest, rest)


def _flat(names: tuple[str, ...], theirs: Mapping[str, str]) -> dict[str, str]:
    """Map names with underscores, ours and diffusers', to ours."""
    return {spelled.replace(".", "_"): own for spelled, own in (*((name, name) for name in names), *theirs.items())}


IN_LAYER: Final = (
    *(f"{which}_attn.{name}" for which in ("self", "cross") for name in ("q", "k", "v", "o", "norm_q", "norm_k")),
    "norm3",
    "ffn.0",
    "ffn.2",
)
OUTSIDE: Final = (
    *("text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2", "time_projection.1", "head.head"),
    "patch_embedding",
)
OWN_IN_LAYER: Final = {diffusers_name(f"blocks.0.{name}").removeprefix("blocks.0."): name for name in IN_LAYER}
OWN_OUTSIDE: Final = {diffusers_name(name): name for name in OUTSIDE}
FLAT_IN_LAYER: Final = _flat(IN_LAYER, OWN_IN_LAYER)
FLAT_OUTSIDE: Final = _flat(OUTSIDE, OWN_OUTSIDE)
