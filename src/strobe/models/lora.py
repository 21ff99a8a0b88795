"""Updates of a model's weights, several at a time: merged into the weights, or low-rank ones beside them.

``W' = W + sum over LoRAs of strength * (scale * up @ down + diff)`` with ``scale = alpha / rank``. Merging is done in float32
whatever the weights' dtype.

Source: LoRA (Hu et al. 2021), section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.errors import ConfigError, WeightsError


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraPair:
    """The update of one linear layer.

    Args:
        down: `[rank, in]`.
        up: `[out, rank]`.
        scale: alpha / rank.
    """

    down: Tensor
    up: Tensor
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight that is updated: `[out, in]`."""
        return self.up.shape[0], self.down.shape[1]

    def merged(self, weight: Tensor, strength: float = 1.0) -> Tensor:
        """Return ``weight + strength * scale * up @ down`` in float32, on the weight's device; `weight` is left as it is."""
        up, down = (part.to(weight.device, torch.float32) for part in (self.up, self.down))
        return torch.addmm(weight.float(), up, down, alpha=strength * self.scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """A set of updates of one model: the content of a LoRA file, with a strength.

    Args:
        name: shown in tables.
        weights_hash: sha256 of the file, hexadecimal.
        pairs: low-rank updates, by name of the linear layer in the model.
        diffs: full updates, by name of the parameter in the model; of its shape.
        strength: factor of all of them.
        scale: which scales its pairs have and where they are from, in words.
    """

    name: str
    weights_hash: str
    pairs: Mapping[str, LoraPair] = field(compare=False)
    diffs: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    strength: float = 1.0
    scale: str = field(default="", compare=False)

    @property
    def account(self) -> str:
        """One line of what is merged: name, strength, scale and where the scale is from."""
        return f"{self}: {self.scale}" if self.scale else str(self)

    @property
    def num_params(self) -> int:
        return sum(pair.up.numel() + pair.down.numel() for pair in self.pairs.values())

    def at(self, strength: float) -> Lora:
        """Return the same LoRA with another strength; raises ConfigError for one that is not finite."""
        if not math.isfinite(strength):
            raise ConfigError(f"LoRA {self.name}: {strength} is no strength; give a number such as 0.8")
        return replace(self, strength=float(strength))

    def __str__(self) -> str:
        return self.name if self.strength == 1 else f"{self.name} at {self.strength:g}"

    def check(self, model: nn.Module) -> None:
        """Check that every update has its layer or parameter.

        Raises:
            WeightsError: one is not there or has another shape; names the first and says how many.
        """
        linears = ((name, layer.weight) for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
        have = {name: tuple(weight.shape) for name, weight in (*linears, *model.named_parameters())}
        given: dict[str, tuple[int, ...]] = {name: pair.shape for name, pair in self.pairs.items()}
        given |= {name: tuple(diff.shape) for name, diff in self.diffs.items()}
        wrong = [name for name, shape in given.items() if have.get(name) != shape]
        if wrong:
            there = "is not there" if wrong[0] not in have else f"is {list(have[wrong[0]])}"
            raise WeightsError(
                f"LoRA {self.name} does not fit this model: {len(wrong)} of {len(given)} layers differ; "
                f"{wrong[0]} {there}, the LoRA's is {list(given[wrong[0]])}; give one that was trained for this model"
            )


def combined(own: Sequence[Lora], more: Sequence[Lora]) -> tuple[Lora, ...]:
    """Combine a model's LoRAs with further ones: those of `more` that are among `own` change its strength, the rest follow.

    Raises:
        ConfigError: `more` has one of them twice.
    """
    given: dict[str, Lora] = {}
    for lora in more:
        if lora.weights_hash in given:
            first = given[lora.weights_hash].name
            raise ConfigError(
                f"LoRA {lora.name} is given twice (first as {first}); give it once, with the strength it should have"
            )
        given[lora.weights_hash] = lora
    kept = tuple(given.pop(lora.weights_hash, lora) for lora in own)
    return (*kept, *given.values())


class LoraLinear(nn.Module):
    """A linear layer with a low-rank update beside its weight: two more matrix products in every call, which merging saves.

    Args:
        linear: the layer, or one that has an update beside it already; shared, not copied.
        pair: its update.
        strength: factor of the update.
    """

    down: Tensor
    up: Tensor

    def __init__(self, linear: nn.Linear | LoraLinear, pair: LoraPair, strength: float = 1.0) -> None:
        super().__init__()
        self.linear = linear
        weight = self.plain.weight
        self.register_buffer("down", pair.down.to(weight.device, weight.dtype))
        self.register_buffer("up", pair.up.to(weight.device, weight.dtype))
        self.factor = strength * pair.scale

    @property
    def plain(self) -> nn.Linear:
        """Layer without any update."""
        return self.linear.plain if isinstance(self.linear, LoraLinear) else self.linear

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return torch.add(out, F.linear(F.linear(x, self.down), self.up), alpha=self.factor)


def updated(name: str, weight: Tensor, loras: Iterable[Lora]) -> Tensor:
    """Return a parameter with all updates of it, in float32 if there are any; `weight` is left as it is.

    Args:
        name: of the parameter in the model.
        weight: its value without any update, on any device.
        loras: their updates and strengths.
    """
    layer, _, which = name.rpartition(".")
    for lora in loras:
        pair = lora.pairs.get(layer) if which == "weight" else None
        if pair is not None:
            weight = pair.merged(weight, lora.strength)
        diff = lora.diffs.get(name)
        if diff is not None:
            weight = torch.add(weight.float(), diff.to(weight.device, torch.float32), alpha=lora.strength)
    return weight


@torch.no_grad()
def merge(model: nn.Module, loras: Sequence[Lora], base: nn.Module) -> None:
    """Make the weights of `model` those of `base` with LoRAs merged in, or without any; their addresses stay.

    The result depends on nothing but the arguments: updates that were merged before leave no rounding behind.

    Args:
        model: a copy of `base` on any device and in any dtype; changed in place.
        loras: updates; an empty list takes those of before out again.
        base: weights without any update.

    Raises:
        WeightsError: a LoRA is not one of this model's.
    """
    for lora in loras:
        lora.check(base)
    clean = dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        source = clean.get(name)
        if source is not None:
            parameter.copy_(updated(name, source.to(parameter.device), loras))


def attach(model: nn.Module, loras: Sequence[Lora], base: nn.Module) -> None:
    """Attach LoRAs beside the linear layers of `model`, or remove them with an empty list.

    Low-rank updates leave the weights as they are; full ones (`Lora.diffs`) are merged.

    Args:
        model, loras, base: see `merge`.

    Raises:
        WeightsError: a LoRA is not one of this model's.
    """
    for lora in loras:
        lora.check(base)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoraLinear):
            model.set_submodule(name, layer.plain)
    merge(model, [replace(lora, pairs={}) for lora in loras], base)
    for lora in loras:
        for name, pair in lora.pairs.items():
            linear = model.get_submodule(name)
            assert isinstance(linear, nn.Linear | LoraLinear)
            model.set_submodule(name, LoraLinear(linear, pair, lora.strength))
