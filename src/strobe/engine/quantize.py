"""Choice and replacement of the linear layers of a transformer that run in eight bits.

`Transformer` quantises once, after a LoRA was merged and Q, K and V were fused and before layers are compiled. Another LoRA then
goes through `requantize_linears` instead of `merge` and `fuse_qkv`: addresses stay, so recorded passes stay valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from strobe.core.errors import ConfigError
from strobe.engine.resolve import ResolvedConfig
from strobe.models.lora import Lora, merge, updated
from strobe.models.wan.linears import EightBitLinear, Fp8Linear, Int8Linear
from strobe.models.wan.transformer import CausalTransformer

QKV: Final = ("q", "k", "v")
LINEARS: Final = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.o", "ffn.0", "ffn.2")
"""What runs in every pass, by name in a layer. Text keys and values, embeddings, time path and head stay native: they are small,
or run once per prompt."""


def check_lora(config: ResolvedConfig) -> None:
    """Check that a configuration does not keep a LoRA beside eight-bit weights.

    Raises:
        ConfigError: names what to change.
    """
    if config.linear_format != "native" and not config.asked.knobs.merge_lora:
        raise ConfigError(
            f"linear_format {config.linear_format!r} needs the LoRA merged into the weights: turn knob merge_lora on, "
            "or use linear_format 'native'"
        )


@torch.no_grad()
def quantize_linears(dit: CausalTransformer, config: ResolvedConfig, native_layers: Collection[int] = ()) -> None:
    """Replace linear layers of a prepared transformer by eight-bit ones, as `linear_format` and `simulate` say.

    Fused Q, K and V are one layer, of which theirs are parts. Call it once; see `requantize_linears` for other weights.

    Args:
        dit: changed in place.
        config: `linear_format` "native" changes nothing.
        native_layers: numbers of layers that stay as they are; -1 is the last.

    Raises:
        ConfigError: `native_layers` names none, a layer is no plain linear layer, or its sizes do not fit FP8; nothing was
            changed.
    """
    if config.linear_format == "native":
        return
    fp8 = config.linear_format == "fp8"
    number = len(dit.layers)
    if any(not -number <= index < number for index in native_layers):
        raise ConfigError(f"native_layers {sorted(native_layers)} are not all layers of this model: it has 0..{number - 1}")
    native = {index % number for index in native_layers}
    make = partial(Fp8Linear.from_linear, simulate=config.simulate) if fp8 else Int8Linear.from_linear
    made = {name: make(linear) for name, linear in _chosen(dit, native)}
    for name, layer in made.items():
        _place(dit, name, layer)


@torch.no_grad()
def requantize_linears(dit: CausalTransformer, base: CausalTransformer, loras: Sequence[Lora]) -> None:
    """Make the weights of a quantised transformer those of `base` with LoRAs merged in, or without any; addresses stay.

    The result is that of merging, then quantising: it does not depend on what was merged before.

    Args:
        dit: what `quantize_linears` changed; changed in place.
        base, loras: see `strobe.models.lora.merge`.

    Raises:
        WeightsError: a LoRA is not one of this model's.
    """
    merge(dit, loras, base)  # what stayed native

    def value(name: str) -> Tensor:
        return updated(name, base.get_parameter(name).to(dit.device), loras)

    for name, layer in _held(dit):
        layer.requantize(torch.cat([value(f"{part}.weight") for part in _parts(name)]))
        if layer.bias is not None:
            layer.bias.copy_(torch.cat([value(f"{part}.bias") for part in _parts(name)]))


def _chosen(dit: CausalTransformer, native: set[int]) -> Iterator[tuple[str, nn.Linear]]:
    """List the linear layers to quantise, by name; fused Q, K and V count as one."""
    for index, layer in enumerate(dit.layers):
        names = ("self_attn.fused", *LINEARS[len(QKV) :]) if dit.qkv_fused else LINEARS
        for name in () if index in native else names:
            linear = layer.get_submodule(name)
            if not isinstance(linear, nn.Linear):
                raise ConfigError(
                    f"blocks.{index}.{name} is a {type(linear).__name__}, and only an nn.Linear can be quantised: "
                    "merge the LoRA, and quantise once"
                )
            yield f"blocks.{index}.{name}", linear


def _place(dit: CausalTransformer, name: str, layer: EightBitLinear) -> None:
    dit.set_submodule(name, layer)
    home, _, own = name.rpartition(".")
    if own != "fused":
        return
    dim = layer.values.shape[0] // len(QKV)
    for index, part in enumerate(QKV):
        dit.set_submodule(f"{home}.{part}", layer.part(index * dim, (index + 1) * dim))
    dit.set_submodule(f"{home}.fused_kv", layer.part(dim, len(QKV) * dim))


def _held(dit: CausalTransformer) -> Iterator[tuple[str, EightBitLinear]]:
    """List the eight-bit layers that are not part of another one."""
    found = {name: module for name, module in dit.named_modules() if isinstance(module, EightBitLinear)}
    homes = {name.removesuffix(".fused") for name in found if name.endswith(".fused")}
    parts = {f"{home}.{part}" for home in homes for part in (*QKV, "fused_kv")}
    yield from ((name, layer) for name, layer in found.items() if name not in parts)


def _parts(name: str) -> tuple[str, ...]:
    """Return the names of the original layers that a layer was made from."""
    home, _, own = name.rpartition(".")
    return tuple(f"{home}.{part}" for part in QKV) if own == "fused" else (name,)
