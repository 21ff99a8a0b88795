"""The scale of low-rank updates in a LoRA file, and where it is from: a tensor `alpha`, or the configuration PEFT trained with.

The configuration is what diffusers' `save_lora_weights` writes into the header (`lora_adapter_metadata`), or the file
`adapter_config.json` beside it. Source: PEFT's `LoraLayer.update_layer` and `get_pattern_key`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import SAFE, read_metadata
from strobe.models.wan.weights.files import read_json

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
    """What PEFT's configuration says of the strength."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Adapter:
    """A PEFT configuration of some layers.

    Args:
        where: it was found.
        prefix: what the names of its layers begin with in the file.
        config: what it says.
    """

    where: str
    prefix: str
    config: _Config

    @property
    def beside(self) -> bool:
        """Return whether it is in a file of its own."""
        return self.where == WHERE_BESIDE

    def scale(self, layer: str, rank: int, file: str) -> tuple[float, str]:
        """Return the scale of a layer and where it is from.

        Args:
            layer: name of its module as the file spells it.
            rank: of its tensors.
            file: named in an error.

        Raises:
            WeightsError: the configuration is of another rank, or its alpha is no number.
        """
        config, name = self.config, layer.removeprefix(self.prefix).removeprefix(WRAPPED)
        said = _of_pattern(config.rank_pattern, name, config.r)
        if said != rank:
            raise WeightsError(
                f"{file}: {self.where} says rank {said:g} for {layer}, its tensors have rank {rank}; give the right one"
            )
        alpha = _finite(_of_pattern(config.alpha_pattern, name, config.lora_alpha), self.where, file)
        if config.use_rslora:
            return alpha / math.sqrt(rank), f"alpha {alpha:g} / sqrt(rank {rank}), rslora, from {self.where}"
        return alpha / rank, f"alpha {alpha:g} / rank {rank}, from {self.where}"


def find_adapters(file: Path) -> tuple[_Adapter, ...]:
    """Find the configurations of a LoRA file: those in its header, else the one beside it.

    Raises:
        WeightsError: one is damaged, or of a kind that is not supported.
    """
    written = read_metadata(file).get(HEADER) if file.suffix == SAFE else None
    if written is not None:
        where = f"{HEADER} in its header"
        try:
            found = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{file}: {where} is no JSON ({error}); fetch it again") from error
        flat = found if isinstance(found, dict) else {}
        prefixes = sorted(key.removesuffix("lora_alpha") for key in flat if key == "lora_alpha" or key.endswith(".lora_alpha"))
        return tuple(_adapter(_under(flat, prefix), prefix, where, file) for prefix in prefixes)
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
    own = _finite(alpha, f"alpha of {layer}", file) / rank
    if told is not None and not math.isclose(own, told[0], rel_tol=1e-3):  # bfloat16 alphas
        raise WeightsError(
            f"{file}: {layer} has scale {own:g} by its tensor alpha and {told[0]:g} by {told[1]}; remove the wrong one"
        )
    return own, f"alpha {alpha:g} / rank {rank}, from its tensors alpha"


def in_words(scales: Iterable[tuple[float, str]]) -> str:
    """Say which scales the layers of a file have and where they are from, the most frequent first."""
    counted = Counter(scales).most_common()
    several = len(counted) > 1
    said = [f"scale {scale:.4g}{f' ({number} layers)' * several}: {origin}" for (scale, origin), number in counted[:SHOWN]]
    rest = counted[SHOWN:]
    more = [f"{len(rest)} more scales ({sum(number for _, number in rest)} layers)"] if rest else []
    return "; ".join([*said, *more]) or "full updates, which have no scale"


def _under(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}


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


def _finite(alpha: float, what: str, file: str) -> float:
    if not math.isfinite(alpha):
        raise WeightsError(f"{file}: {what} is {alpha}, no strength that a LoRA can have; fetch it again")
    return alpha
