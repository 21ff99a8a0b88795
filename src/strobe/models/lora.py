"""Low-rank updates of linear layers: merged into the weights, or beside them.

``W' = W + strength * scale * up @ down`` with ``scale = alpha / rank``. Merging is done in float32 whatever the weights' dtype.

Source: LoRA (Hu et al. 2021), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.errors import WeightsError


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
        """Shape of the weight it belongs to: `[out, in]`."""
        return self.up.shape[0], self.down.shape[1]

    def merged(self, weight: Tensor, strength: float = 1.0) -> Tensor:
        """``weight + strength * scale * up @ down`` in float32, on the weight's device; `weight` is left as it is."""
        up, down = (part.to(weight.device, torch.float32) for part in (self.up, self.down))
        return torch.addmm(weight.float(), up, down, alpha=strength * self.scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Updates of a model.

    Args:
        name: shown in tables.
        weights_hash: sha256 of the file, hexadecimal.
        pairs: by name of the linear layer in the model.
    """

    name: str
    weights_hash: str
    pairs: Mapping[str, LoraPair]

    @property
    def num_params(self) -> int:
        """Numbers in all pairs."""
        return sum(pair.up.numel() + pair.down.numel() for pair in self.pairs.values())

    def check(self, model: nn.Module) -> None:
        """Check that every pair has its linear layer.

        Raises:
            WeightsError: a layer is not there or has another shape; names the first and says how many.
        """
        layers = {name: tuple(layer.weight.shape) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        wrong = [name for name, pair in self.pairs.items() if layers.get(name) != pair.shape]
        if wrong:
            have = "is not there" if wrong[0] not in layers else f"is {list(layers[wrong[0]])}"
            raise WeightsError(
                f"LoRA {self.name} does not fit this model: {len(wrong)} of {len(self.pairs)} layers differ; "
                f"{wrong[0]} {have}, the LoRA's is {list(self.pairs[wrong[0]].shape)}; "
                "give one that was trained for this model"
            )


class LoraLinear(nn.Module):
    """A linear layer with its update beside it: two more matrix products in every call, which merging saves.

    Args:
        linear: the layer; shared, not copied.
        pair: its update.
        strength: factor of the update.
    """

    down: Tensor
    up: Tensor

    def __init__(self, linear: nn.Linear, pair: LoraPair, strength: float = 1.0) -> None:
        super().__init__()
        self.linear = linear
        weight = linear.weight
        self.register_buffer("down", pair.down.to(weight.device, weight.dtype))
        self.register_buffer("up", pair.up.to(weight.device, weight.dtype))
        self.factor = strength * pair.scale

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return torch.add(out, F.linear(F.linear(x, self.down), self.up), alpha=self.factor)


@torch.no_grad()
def merge(model: nn.Module, lora: Lora | None, base: nn.Module, strength: float = 1.0) -> None:
    """Make the weights of `model` those of `base` with a LoRA merged in, or without any; their addresses stay.

    The result depends on nothing but the arguments: updates that were merged before leave no rounding behind.

    Args:
        model: a copy of `base` on any device and in any dtype; changed in place.
        lora: updates; None takes those of before out again.
        base: weights without any update.
        strength: factor of the updates.

    Raises:
        WeightsError: the LoRA is not one of this model's.
    """
    if lora is not None:
        lora.check(base)
    pairs = {} if lora is None else lora.pairs
    clean = dict(base.named_modules())
    for name, layer in model.named_modules():
        source = clean.get(name)
        if not (isinstance(layer, nn.Linear) and isinstance(source, nn.Linear)):
            continue
        pair = pairs.get(name)
        weight = source.weight.to(layer.weight.device)
        layer.weight.copy_(weight if pair is None else pair.merged(weight, strength))


def attach(model: nn.Module, lora: Lora | None, strength: float = 1.0) -> None:
    """Put a LoRA beside the linear layers of `model`, or with None take it away; the weights stay as they are.

    Raises:
        WeightsError: the LoRA is not one of this model's.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoraLinear):
            model.set_submodule(name, layer.linear)
    if lora is None:
        return
    lora.check(model)
    for name, pair in lora.pairs.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, LoraLinear(layer, pair, strength))
