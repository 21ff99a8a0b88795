"""Trained gates of video sparse attention: found, checked and put into a transformer's blocks.

FastVideo's FastWan checkpoints hold `blocks.N.to_gate_compress.weight` and `.bias`, `[dim, dim]` and `[dim]`: a linear layer
beside `to_q`, fed by the same modulated norm, whose output weighs the coarse attention channel by channel. diffusers has no place
for them and drops them with a log line. LTX-2.3 has weights of the same name and of shape `[heads, dim]`, a gate per head on the
result of attention; diffusers calls those `to_gate_logits`, and the model itself uses them.

Source: FastVideo, fastvideo/models/dits/wanvideo.py, WanTransformerBlock_VSA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from accelerate import cpu_offload
from diffusers.hooks.group_offloading import GroupOffloadingHook, apply_group_offloading
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import safe_open
from torch import Tensor, nn

from strobe.core.errors import ConfigError, WeightsError
from strobe.integrations.diffusers.families import Layer
from strobe.integrations.diffusers.processors import dtype_of
from strobe.models.checkpoint import SAFE, check_whole, read_shapes, read_tensors

NAME: Final = "to_gate_compress"
_KEY: Final = re.compile(rf"(?:^|\.)(?:transformer_)?blocks\.(\d+)\.(?:attn1\.)?{NAME}\.(weight|bias)$")
TRAINED_SPARSITY: Final[Mapping[int, float]] = {1536: 0.8, 5120: 0.9}
"""Sparsity that released gates were trained with, by the width of the model: FastWan2.1 1.3B and 14B.
Source: FastVideo, docs/distillation/dmd.md."""

Found = dict[int, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSource:
    """Gates of one transformer.

    Args:
        where: what they were read from, for messages.
        tensors: by layer, `weight` and `bias`.
    """

    where: str
    tensors: Found


def find_gates(given: Any, parts: Mapping[str, tuple[nn.Module, tuple[Layer, ...]]]) -> dict[str, GateSource | None]:
    """Find the gates of every transformer: those given to `sparsify`, or those in the folder it was loaded from.

    Args:
        given: `auto`, None for none, a folder or file, tensors by name, or any of these by the name of the component.
        parts: the transformers and their layers, by their names in the pipeline; an empty name without a pipeline.

    Raises:
        WeightsError: there is no gate where one was said to be, or the gates do not fit the model.
        ConfigError: something else was given.
    """
    if isinstance(given, Mapping) and given and not any(isinstance(value, Tensor) for value in given.values()):
        if set(given) - set(parts):
            wrong, right = sorted(set(given) - set(parts))[0], ", ".join(sorted(parts))
            raise ConfigError(f"gates: got some for {wrong!r}, expected tensors by name, or a mapping with the keys {right}")
        return {name: _found(given.get(name), name, *part, several=False) for name, part in parts.items()}
    return {name: _found(given, name, *part, several=len(parts) > 1) for name, part in parts.items()}


def _found(given: Any, component: str, transformer: nn.Module, layers: tuple[Layer, ...], *, several: bool) -> GateSource | None:
    if given is None:
        return None
    if isinstance(given, str) and given == "auto":
        folder = loaded_from(component or "transformer", transformer)
        return None if folder is None else _checked(str(folder), _in_folder(folder), layers, must=False)
    if isinstance(given, (str, Path)):
        place = Path(given)
        inner = place / (component or "transformer")
        if not several or inner.is_dir():
            return _checked(str(given), _in_place(inner if inner.is_dir() else place), layers, must=True)
    elif not isinstance(given, Mapping) or not all(isinstance(value, Tensor) for value in given.values()):
        raise ConfigError(
            f"gates: got a {type(given).__name__}, expected 'auto', None, a folder, a .safetensors file, tensors by name, or a "
            "mapping of these by the component's name"
        )
    elif not several:
        return _checked("the tensors given", dict(given), layers, must=True)
    raise ConfigError("gates: the pipeline has several transformers; give a mapping with the gates of each, by component")


def loaded_from(component: str, transformer: nn.Module) -> Path | None:
    """Return the folder of a transformer's weights, also in the hub's cache; None if it was not loaded from one."""
    config: Any = transformer.config
    origin = config.get("_name_or_path") or ""
    folder = Path(origin)
    if origin and not folder.is_dir():  # the name of a repository; what was fetched of it lies in the hub's cache
        try:
            folder = Path(snapshot_download(origin, local_files_only=True)) / component
        except (HFValidationError, LocalEntryNotFoundError):
            return None
    return folder if origin and folder.is_dir() else None


def _in_place(place: Path) -> dict[str, Tensor]:
    if place.is_dir():
        return _in_folder(place)
    if not place.is_file():
        raise WeightsError(f"gates: {place} does not exist; give the folder of the checkpoint, or a .safetensors file")
    return {name: tensor for name, tensor in read_tensors(place).items() if NAME in name.split(".")}


def _in_folder(folder: Path) -> dict[str, Tensor]:
    """Read the gates of every weight file in a folder; no other tensor is read."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob(f"*{SAFE}")):
        names = [name for name in read_shapes(file) if NAME in name.split(".")]
        if names:
            check_whole(file)
            with safe_open(file, framework="pt") as tensors:
                found |= {name: tensors.get_tensor(name) for name in names}
    return found


def _checked(where: str, tensors: dict[str, Tensor], layers: tuple[Layer, ...], *, must: bool) -> GateSource | None:
    """Sort gates by layer, and check that each fits and none is left over."""
    gates = dict(_of_attention(where, tensors, layers))
    if not gates:
        if must:
            raise WeightsError(f"gates: {where} holds no {NAME}; give the checkpoint that was trained with gates, or gates=None")
        return None
    missing = [number for number in range(len(layers)) if "weight" not in gates.get(number, {})]
    if missing or max(gates) >= len(layers):
        left = sorted(number for number in gates if number >= len(layers))
        what = f"lack one for {len(missing)} layers (first {missing[0]})" if missing else f"have one for layer {left[0]}"
        raise WeightsError(
            f"gates: those of {where} {what}; the model has {len(layers)} layers: give the checkpoint of this model"
        )
    for number, gate in gates.items():
        width = _width(layers[number])
        wanted = {"weight": (width, width), "bias": (width,)}
        for kind, tensor in gate.items():
            if tuple(tensor.shape) != wanted[kind]:
                raise WeightsError(
                    f"gates: the {kind} of layer {number} in {where} has shape {tuple(tensor.shape)}, this model takes "
                    f"{wanted[kind]}; give the checkpoint of this model"
                )
    return GateSource(where=where, tensors=gates)


def _of_attention(where: str, tensors: dict[str, Tensor], layers: tuple[Layer, ...]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield gates of the coarse attention by layer; gates per head on the attention's result are skipped by their shape."""
    found: Found = {}
    for name, tensor in tensors.items():
        match = _KEY.search(name)
        if match is None:
            raise WeightsError(f"gates: {name!r} in {where} belongs to no layer; expected blocks.N.{NAME}.weight or .bias")
        found.setdefault(int(match[1]), {})[match[2]] = tensor
    for number, gate in found.items():
        attn: Any = layers[number].attn if number < len(layers) else layers[0].attn
        rows = gate["weight"].shape[0] if "weight" in gate and gate["weight"].dim() == 2 else 0
        if rows != attn.heads:
            yield number, gate
        elif getattr(attn, "to_gate_logits", None) is None:
            raise WeightsError(
                f"gates: {NAME} of layer {number} in {where} has {rows} rows, one per head: it is a gate on the result of "
                "attention (to_gate_logits in diffusers), which this model was built without; build it with gated_attn=True"
            )


def _width(layer: Layer) -> int:
    attn: Any = layer.attn
    width: int = attn.inner_dim
    return width


def trained_sparsity(source: GateSource, layers: tuple[Layer, ...]) -> float:
    """Return the sparsity that gates were trained with.

    Raises:
        ConfigError: it is not known for a model of this width.
    """
    width = _width(layers[0])
    if width not in TRAINED_SPARSITY:
        raise ConfigError(
            f"sparsity: the gates of {source.where} were trained with one that is not known for a model of width {width}; "
            "give sparsity=, as the checkpoint's card says"
        )
    return TRAINED_SPARSITY[width]


@torch.inference_mode(False)  # what an inference makes, training could not use
def put_gates(source: GateSource, layers: tuple[Layer, ...]) -> tuple[Any, ...]:
    """Put gates into the blocks of a transformer; return what holds each as `to_gate_compress`, from which it is to be deleted.

    They are submodules of the blocks, so that they move, and are offloaded, with them, and are saved in FastWan's layout. Blocks
    that are offloaded already have lists of what they hold: beside those a gate stands alone, with an offload of its own.
    """
    for layer in layers:
        if hasattr(layer.block, NAME):
            raise ConfigError(f"gates: the block of {layer.name} has a {NAME} already; give gates=None, or a model without it")
    return tuple(_put(layer, source.tensors[number]) for number, layer in enumerate(layers))


def _put(layer: Layer, tensors: dict[str, Tensor]) -> Any:
    width, dtype = _width(layer), dtype_of(layer.attn)
    device = next((each.device for each in layer.attn.parameters() if each.device.type != "meta"), torch.device("cpu"))
    gate = nn.Linear(width, width, bias="bias" in tensors, device="meta")
    own = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in tensors.items()}
    gate.load_state_dict({name: tensor.to(device=device, dtype=dtype) for name, tensor in own.items()}, assign=True)
    gate.requires_grad_(False)
    groups = _group_offload(layer)
    if groups is not None:
        owner: Any = SimpleNamespace(**{NAME: gate})
        apply_group_offloading(
            gate,
            onload_device=groups.onload_device,
            offload_device=groups.offload_device,
            offload_type="leaf_level",
            non_blocking=groups.non_blocking,
        )
        return owner
    layer.block.add_module(NAME, gate)
    for module in layer.attn.modules():
        hook: Any = getattr(module, "_hf_hook", None)
        if getattr(hook, "offload", False):
            cpu_offload(gate, execution_device=hook.execution_device)
            break
    return layer.block


def _group_offload(layer: Layer) -> Any:
    """Return the settings of diffusers' group offload of the layer; None if it has none."""
    for module in layer.block.modules():
        registry = getattr(module, "_diffusers_hook", None)
        for hook in () if registry is None else registry.hooks.values():
            if isinstance(hook, GroupOffloadingHook):
                return hook.config
    return None
