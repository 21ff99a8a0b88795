"""Reading of LoRA files as updates of a transformer, in the spellings of several projects, and the scale of their updates.

Known are `lora_A` and `lora_B` (PEFT, diffusers), `lora_down` and `lora_up`, both under a module's name with dots or, as kohya
writes it, as `lora_unet_` and the name with underscores; and full updates: `diff` of a weight, `diff_b` of a bias and `diff_m` of
a modulation. Other kinds of adapters are refused by name. The scale is of a tensor `alpha`, or of the configuration that PEFT
trained with: what diffusers' `save_lora_weights` writes into the header (`lora_adapter_metadata`), or `adapter_config.json`
beside the file. Source: PEFT's `LoraLayer.update_layer` and `get_pattern_key`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import SAFE, hashing, read_metadata
from strobe.models.lora import Lora, LoraPair
from strobe.models.wan.weights.checkpoint import IN_LAYER, OUTSIDE, WeightSource, plain_names, read_json, read_source

HEADER: Final = "lora_adapter_metadata"
BESIDE: Final = "adapter_config.json"
WHERE_BESIDE: Final = f"{BESIDE} beside it"
WRAPPED: Final = "base_model.model."
"""What PEFT writes before the names of the model that it wrapped."""
NO_ALPHA: Final = "no alpha in the file, its header or beside it"
SHOWN: Final = 3
"""Scales of one file that are told one by one."""
OTHER_KINDS: Final = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "alora_invocation_tokens": "aLoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
}
"""Settings of PEFT that make an update of another kind, if they are on."""
CHANGES_BASE: Final = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""How `init_lora_weights` begins where training also changed the base's weights, which the file does not hold."""


class _Config(msgspec.Struct):
    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Adapter:
    """A PEFT configuration of some layers: where it was found, what their names begin with in the file, and what it says."""

    where: str
    prefix: str
    config: _Config

    def scale(self, layer: str, rank: int, file: str) -> tuple[float, str]:
        """Return the scale of a layer, as the file spells it, and where it is from; refuse another rank or an alpha of NaN."""
        config, name = self.config, layer.removeprefix(self.prefix).removeprefix(WRAPPED)
        said = _of_pattern(config.rank_pattern, name, config.r)
        if said != rank:
            raise WeightsError(
                f"{file}: {self.where} says rank {said:g} for {layer}, its tensors have rank {rank}; give the right one"
            )
        alpha = _checked_alpha(_of_pattern(config.alpha_pattern, name, config.lora_alpha), self.where, file)
        if config.use_rslora:
            return alpha / math.sqrt(rank), f"alpha {alpha:g} / sqrt(rank {rank}), rslora, from {self.where}"
        return alpha / rank, f"alpha {alpha:g} / rank {rank}, from {self.where}"


def find_adapters(file: Path) -> tuple[_Adapter, ...]:
    """Find the configurations of a LoRA file: those in its header, else the one beside it."""
    written = read_metadata(file).get(HEADER) if file.suffix == SAFE else None
    if written is not None:
        where = f"{HEADER} in its header"
        try:
            found = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{file}: {where} is no JSON ({error}); fetch it again") from error
        flat = found if isinstance(found, dict) else {}
        prefixes = sorted(key.removesuffix("lora_alpha") for key in flat if key == "lora_alpha" or key.endswith(".lora_alpha"))
        under = ({key.removeprefix(each): value for key, value in flat.items() if key.startswith(each)} for each in prefixes)
        return tuple(_adapter(mine, prefix, where, file) for prefix, mine in zip(prefixes, under, strict=True))
    beside = file.with_name(BESIDE)
    return (_adapter(read_json(beside), "", WHERE_BESIDE, file),) if beside.is_file() else ()


def scale_of(layer: str, rank: int, alpha: float | None, adapters: tuple[_Adapter, ...], file: str) -> tuple[float, str]:
    """Return the scale of a layer, ``alpha / rank`` or ``alpha / sqrt(rank)``, and where it is from; 1 if nothing says it.

    Args:
        layer: name of its module as the file spells it.
        rank: of its tensors.
        alpha: the layer's own tensor; None if it has none.
        adapters: configurations of the file.
        file: named in an error.

    Raises:
        WeightsError: an alpha is no number, two sources differ, or several configurations are there and none is the layer's.
    """
    mine = [each for each in adapters if layer.startswith(each.prefix)] or list(adapters)
    if len(mine) > 1:
        raise WeightsError(
            f"{file}: {mine[0].where} speaks of {', '.join(each.prefix.rstrip('.') for each in mine)}, and {layer} is of none of "
            "them; keep one transformer's LoRA in a file"
        )
    told = mine[0].scale(layer, rank, file) if mine else None
    if alpha is None:
        return told or (1.0, NO_ALPHA)
    own = _checked_alpha(alpha, f"alpha of {layer}", file) / rank
    if told is not None and not math.isclose(own, told[0], rel_tol=1e-3):  # bfloat16 alphas
        raise WeightsError(
            f"{file}: {layer} has scale {own:g} by its tensor alpha and {told[0]:g} by {told[1]}; remove the wrong one"
        )
    return own, f"alpha {alpha:g} / rank {rank}, from its tensors alpha"


def _adapter(found: Mapping[str, Any], prefix: str, where: str, file: Path) -> _Adapter:
    kind, start = found.get("peft_type") or "LORA", str(found.get("init_lora_weights"))
    kinds = [name for setting, name in OTHER_KINDS.items() if found.get(setting)]
    if kind != "LORA" or kinds:
        raise WeightsError(
            f"{file} is {kinds[0] if kinds else kind}, by {where}, a kind that is not supported; merge it into its base where it "
            "was trained and give the merged weights"
        )
    if start.lower().startswith(CHANGES_BASE):
        raise WeightsError(
            f"{file} began as {start}, by {where}: training changed the base's weights too, which the file does not hold; "
            "convert it to a plain LoRA with PEFT (path_initial_model_for_weight_conversion)"
        )
    try:
        return _Adapter(where=where, prefix=prefix, config=msgspec.convert(dict(found), _Config))
    except msgspec.ValidationError as error:
        raise WeightsError(f"{file}: {where} is no configuration of a LoRA ({error}); fetch it again") from error


def _of_pattern(pattern: Mapping[str, float] | None, layer: str, otherwise: float) -> float:
    """Return the value of the first pattern that matches the end of a layer's name, as PEFT does."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", layer):
            return value
    return otherwise


def _checked_alpha(alpha: float, what: str, file: str) -> float:
    if not math.isfinite(alpha):
        raise WeightsError(f"{file}: {what} is {alpha}, no strength that a LoRA can have; fetch it again")
    return alpha


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
            parameter = f"{module}.{DIFFS[found['diff']]}"
            if parameter in diffs:
                raise WeightsError(f"{source.where} has two full updates of {parameter}; keep one adapter in a file")
            diffs[parameter] = _finite(source, spelled, tensors[spelled])
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
    digest = hashing(source.files)()
    if any(each.where == WHERE_BESIDE for each in settings):  # the file alone does not say what it does
        digest = hashlib.sha256(f"{digest} {sorted((name, pair.scale) for name, pair in pairs.items())}".encode()).hexdigest()
    counted = Counter(scales).most_common()
    several, rest = len(counted) > 1, counted[SHOWN:]
    said = [f"scale {scale:.4g}{f' ({number} layers)' * several}: {origin}" for (scale, origin), number in counted[:SHOWN]]
    said += [f"{len(rest)} more scales ({sum(number for _, number in rest)} layers)"] if rest else []
    words = "; ".join(said) or "full updates, which have no scale"
    return Lora(name=file.name, weights_hash=digest, pairs=pairs, diffs=diffs, scale=words)


def _what_else(spelled: str) -> str:
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
    """Return a tensor of the file, unless it holds NaN, infinity or whole numbers, which want a scale that is not there."""
    if not tensor.is_floating_point():
        raise WeightsError(f"{source.where}: {name!r} is {tensor.dtype}, a quantised format that is not known; take bfloat16")
    if not tensor.float().isfinite().all():
        raise WeightsError(f"{source.where}: {name!r} holds NaN or infinity; fetch it again, or take another step")
    return tensor


def _pair(
    source: WeightSource, name: str, half: Mapping[str, Tensor], scale_at: Callable[[int, float | None], tuple[float, str]]
) -> tuple[LoraPair, str]:
    """Return the update of a layer, and where its scale is from; `half` has its tensors `up`, `down` and `alpha`."""
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


def _flat(names: Mapping[str, str]) -> dict[str, str]:
    return {spelled.replace(".", "_"): own for own, theirs in names.items() for spelled in (own, theirs)}


OWN_IN_LAYER: Final = {theirs: own for own, theirs in IN_LAYER.items()}
OWN_OUTSIDE: Final = {theirs: own for own, theirs in OUTSIDE.items()}
FLAT_IN_LAYER: Final = _flat(IN_LAYER)
FLAT_OUTSIDE: Final = _flat(OUTSIDE)
