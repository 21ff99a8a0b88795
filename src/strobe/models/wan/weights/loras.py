"""Reading of LoRA files as updates of a transformer, in the spellings of several projects.

Known are `lora_A` and `lora_B` (PEFT, diffusers), `lora_down` and `lora_up`, both under a module's name with dots or, as kohya
writes it, as `lora_unet_` and the name with underscores; and full updates: `diff` of a weight, `diff_b` of a bias and `diff_m` of
a modulation. Other kinds of adapters are refused by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.lora import Lora, LoraPair
from strobe.models.wan.weights.files import WeightSource, read_source
from strobe.models.wan.weights.layouts import diffusers_name, plain_names
from strobe.models.wan.weights.lora_scale import find_adapters, in_words, scale_of

KOHYA: Final = "lora_unet_"
HALVES: Final = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up"}
DIFFS: Final = {"diff": "weight", "diff_b": "bias", "diff_m": "modulation"}
"""Suffix of a full update and the parameter of the module that it belongs to."""
ENTRY: Final = re.compile(
    r"(?P<module>.*?)\.?(?:(?P<half>lora_A|lora_down|lora_B|lora_up)(?:\.(?P<adapter>[^.]+))?\.weight|(?P<alpha>alpha)"
    r"|(?P<diff>diff(?:_b|_m)?))"
)
KINDS: Final = {
    "DoRA": re.compile(r"dora_scale|lora_magnitude_vector"),
    "LoKr": re.compile(r"lokr_"),
    "LoHa": re.compile(r"hada_"),
    "LoCon with a Tucker core": re.compile(r"lora_mid"),
    "AdaLoRA": re.compile(r"lora_E|ranknum"),
    "VeRA": re.compile(r"vera_lambda_"),
    "OFT or BOFT": re.compile(r"oft_"),
    "IA3": re.compile(r"ia3_l|on_input"),
    "a LoRA with biases": re.compile(r"lora_(?:A|B|up|down)\b.*\.bias"),
}
"""Adapters of other kinds, by what is in the last parts of their tensors' names."""


def read_lora(path: str | Path) -> Lora:
    """Read a LoRA.

    The scale of a low-rank update is ``alpha / rank``. Alpha is the layer's tensor `alpha`, or what PEFT's configuration says, in
    the file's header or in `adapter_config.json` beside it; where none is there the scale is 1, as LongLive's is. `Lora.scale`
    says which was taken.

    Raises:
        WeightsError: no such file, damaged, of another kind than LoRA, an update that is not known, numbers that are none, or a
            layer without its half.
    """
    file = Path(path)
    source = read_source((file,))
    tensors, names = source.read(), plain_names(source.tensors)
    halves: dict[str, dict[str, Tensor]] = {}
    diffs: dict[str, Tensor] = {}
    layers: dict[str, str] = {}
    adapters: dict[str, str] = {}
    for name, spelled in names.items():
        found = ENTRY.fullmatch(name)
        if found is None or not found["module"]:
            raise WeightsError(f"{source.where} {_what_else(spelled)}")
        module = own_name(found["module"])
        if found["diff"]:
            diffs[f"{module}.{DIFFS[found['diff']]}"] = _finite(source, spelled, tensors[spelled])
            continue
        if found["adapter"]:
            adapters.setdefault(found["adapter"], spelled)
        part = HALVES.get(found["half"], "alpha")
        if part in halves.setdefault(module, {}):
            raise WeightsError(
                f"{source.where} has two tensors {part} of layer {module}, one is {spelled!r}; keep one adapter in a file"
            )
        halves[module][part] = tensors[spelled] if part == "alpha" else _finite(source, spelled, tensors[spelled])
        if found["half"]:
            layers[module] = spelled.partition(f".{found['half']}")[0]
    if len(adapters) > 1:
        raise WeightsError(f"{source.where} holds the adapters {', '.join(sorted(adapters))}; keep one adapter in a file")
    settings = find_adapters(file) if any(".lora_A." in spelled for spelled in names.values()) else ()
    pairs, scales = {}, []
    for name, half in halves.items():
        scale_at = partial(scale_of, layers.get(name, name), adapters=settings, file=source.where)
        pairs[name], origin = _pair(source, name, half, scale_at)
        scales.append((pairs[name].scale, origin))
    for name in [name for name, pair in pairs.items() if pair.up.dim() > 2]:  # a convolution: small, and no linear layer
        diffs[f"{name}.weight"] = _whole(pairs.pop(name))
    digest = source.sha256()
    if any(each.beside for each in settings):  # the file alone does not say what it does
        digest = hashlib.sha256(f"{digest} {sorted((name, pair.scale) for name, pair in pairs.items())}".encode()).hexdigest()
    return Lora(name=file.name, weights_hash=digest, pairs=pairs, diffs=diffs, scale=in_words(scales))


def _what_else(spelled: str) -> str:
    """Say what a file is, by a name in it that no LoRA has."""
    kind = next((kind for kind, pattern in KINDS.items() if pattern.search(spelled)), None)
    if kind is None:
        return (
            f"is no LoRA: {spelled!r} is none of lora_A, lora_B, lora_down, lora_up, alpha, diff, diff_b and diff_m; give a LoRA "
            "file with those"
        )
    return (
        f"is {kind} ({spelled!r}), a kind that is not supported; merge it into its base where it was trained and give the merged "
        "weights, or give a plain LoRA"
    )


def _finite(source: WeightSource, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor of the file.

    Raises:
        WeightsError: there is NaN or infinity in it.
    """
    if not tensor.float().isfinite().all():
        raise WeightsError(f"{source.where}: {name!r} holds NaN or infinity; fetch it again, or take another step")
    return tensor


def _pair(
    source: WeightSource, name: str, half: Mapping[str, Tensor], scale_at: Callable[[int, float | None], tuple[float, str]]
) -> tuple[LoraPair, str]:
    """Return the update of a layer, and where its scale is from.

    Args:
        name: ours of the layer.
        half: its tensors `up`, `down` and `alpha`.
        scale_at: the scale at a rank and an alpha.
    """
    fits = {"up", "down"} <= half.keys() and half["up"].dim() == half["down"].dim() >= 2
    if not fits or half["up"].shape[1] != half["down"].shape[0] or half["up"].shape[2:].numel() != 1:
        shapes = ", ".join(f"{which} {list(tensor.shape)}" for which, tensor in sorted(half.items()))
        raise WeightsError(f"{source.where}: layer {name} has no matching pair [rank, in] and [out, rank], only {shapes}")
    rank = half["down"].shape[0]
    if not rank:
        raise WeightsError(f"{source.where}: layer {name} has rank 0, which updates nothing; leave the layer out")
    alpha = half.get("alpha")
    if alpha is not None and alpha.numel() != 1:
        raise WeightsError(f"{source.where}: alpha of layer {name} is {list(alpha.shape)}, not one number; fetch it again")
    scale, origin = scale_at(rank, None if alpha is None else float(alpha))
    return LoraPair(down=half["down"], up=half["up"], scale=scale), origin


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
