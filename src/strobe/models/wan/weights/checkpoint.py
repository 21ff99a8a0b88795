"""Reading of a checkpoint into a transformer, or an error with one table of all differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.weights.files import Part, WeightSource, find_files, read_json, read_source
from strobe.models.wan.weights.key_check import called, check_channels, check_keys, model_flag
from strobe.models.wan.weights.layouts import Layout, diffusers_name, plain_names, recognise
from strobe.models.wan.weights.scales import take_scales

SPELLINGS: Final = {
    "num_layers": ("num_layers",),
    "ffn_dim": ("ffn_dim",),
    "freq_dim": ("freq_dim",),
    "text_dim": ("text_dim",),
    "text_len": ("text_len",),
    "latent_channels": ("in_dim", "in_channels"),
    "num_heads": ("num_heads", "num_attention_heads"),
    "eps": ("eps",),
}
"""Fields of a config.json: the original name, then diffusers'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A transformer with the place it came from.

    Args:
        dit: on the CPU, without gradients.
        layout: whose names the file uses.
        part: of a file with several models, the one that was taken; else empty.
        files: it was read from.
        weights_hash: sha256 over the names and contents of the files, hexadecimal.
    """

    dit: CausalWan
    layout: Layout
    part: str
    files: tuple[Path, ...]
    weights_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCheckpoint:
    """A checkpoint that fits its model by names and shapes; its tensors are still in the files.

    Args:
        dit: on the meta device.
        layout: see `Checkpoint`.
        source: the files.
        spelling: the model's name of a tensor to the file's.
        scales: the model's name of a tensor in eight bits to the file's name of what it is to be multiplied with.
    """

    dit: CausalWan
    layout: Layout
    source: WeightSource
    spelling: Mapping[str, str]
    scales: Mapping[str, str]

    @property
    def copied_bytes(self) -> int:
        """Main memory that `read` takes without a dtype, for tensors that do not stay in their file, bytes."""
        return sum(4 * self.source.tensors[self.spelling[name]].numel() for name in self.scales)

    def read(self, dtype: torch.dtype | None = None) -> Checkpoint:
        """Read the tensors.

        Args:
            dtype: of all of them; None: each in the file's own, left on the disk until it is used, but for those in eight bits,
                which are float32. The files must stay as they are then.

        Raises:
            WeightsError: a file cannot be read.
        """
        held = self.source.read()
        tensors = {name: self._value(held, name) for name in self.spelling}
        if dtype is not None:
            tensors = {name: tensor.to(dtype, copy=True) for name, tensor in tensors.items()}
        with torch.device("meta"):
            dit = CausalWan(self.dit.config)
        dit.load_state_dict(tensors, strict=True, assign=True)
        dit.requires_grad_(False).eval()
        source = self.source
        return Checkpoint(dit=dit, layout=self.layout, part=source.part, files=source.files, weights_hash=source.sha256())

    def _value(self, held: Mapping[str, Tensor], name: str) -> Tensor:
        """Return a tensor of the model, multiplied by its scale if it is in eight bits."""
        tensor = held[self.spelling[name]]
        if name not in self.scales:
            return tensor
        scale = held[self.scales[name]].float()
        rows = scale.view(-1, *(1,) * (tensor.dim() - 1)) if scale.numel() == tensor.shape[0] else scale.view(())
        return tensor.float() * rows


def read_checkpoint(
    path: str | Path, config: WanConfig | None = None, *, part: Part = "auto", dtype: torch.dtype = torch.float32
) -> Checkpoint:
    """Read a transformer: `open_checkpoint`, then its tensors.

    Args:
        path, config, part: see `open_checkpoint`.
        dtype: of the result.

    Raises:
        WeightsError: see `open_checkpoint`.
    """
    return open_checkpoint(path, config, part=part).read(dtype)


def open_checkpoint(path: str | Path, config: WanConfig | None = None, *, part: Part = "auto") -> OpenCheckpoint:
    """Find a transformer, and compare its names and shapes with its model's.

    The layouts original Wan, diffusers, Self-Forcing, LongLive's base and krea are told apart by their names.

    Every tensor of the model must be there, with its shape, and no other. Pickled files are read with `weights_only`.

    Args:
        path: file, index or folder; see docs/wan.md.
        config: sizes it must have; None: those of the config.json beside it, or else of the released model of its width.
        part: which model of a Self-Forcing file; "auto" takes `generator_ema`, if there is one.

    Raises:
        WeightsError: no, several, half or damaged files; another model, and which; or tensors missing, unexpected or of another
            shape, in one table.
    """
    source = read_source(find_files(Path(path)), part)
    names = plain_names(source.tensors)
    if any(".lora_" in name or name.endswith((".diff", ".diff_b", ".diff_m")) for name in names):
        raise WeightsError(f"{source.where} is a LoRA, not a base model; give the base and add this with --lora")
    scaled = take_scales(names, source)
    layout = recognise(names, source.where)
    held = {name: source.tensors[spelled] for name, spelled in names.items()}
    check_channels(held, source.where)
    config = _config(source, held, layout, config)
    with torch.device("meta"):
        dit = CausalWan(config)
    plain = {name: diffusers_name(name) if layout == "diffusers" else name for name in dit.state_dict()}
    check_keys(config, {plain[name]: tensor for name, tensor in dit.state_dict().items()}, held, source.where)
    spelling = {name: names[spelled] for name, spelled in plain.items()}
    scales = {name: scaled[spelled] for name, spelled in plain.items() if spelled in scaled}
    return OpenCheckpoint(dit=dit, layout=layout, source=source, spelling=spelling, scales=scales)


def _config(source: WeightSource, held: Mapping[str, Tensor], layout: Layout, asked: WanConfig | None) -> WanConfig:
    """Return the sizes that the checkpoint must have."""
    stated = _stated(source.files[0].parent / "config.json", asked)
    if stated is not None:
        return stated
    if asked is not None:
        return asked
    width = held["patch_embedding.bias"].shape[0] if "patch_embedding.bias" in held else 0
    for config in SIZES.values():
        if config.dim == width:
            return config
    raise WeightsError(
        f"{source.where} has no config.json beside it and is {width} wide, which is none of "
        f"{', '.join(f'{name} ({config.dim})' for name, config in SIZES.items())}; put its config.json there"
    )


def _stated(path: Path, asked: WanConfig | None) -> WanConfig | None:
    """Read the sizes in a config.json, and check that they are those asked for."""
    if not path.is_file():
        return None
    found = read_json(path)
    if not any(spelling in found for spelling in ("num_heads", "num_attention_heads")):
        return None  # of something else
    values: dict[str, Any] = {
        name: found[spelled] for name, spellings in SPELLINGS.items() for spelled in spellings if spelled in found
    }
    values["dim"] = found.get("dim", values["num_heads"] * found.get("attention_head_dim", 0))
    if "patch_size" in found:
        values["patch"] = tuple(found["patch_size"][1:])
    base = asked or WanConfig()
    try:
        stated = replace(base, **values)
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{path} does not describe a Wan transformer ({error})") from error
    if asked is not None and stated != asked and stated in SIZES.values():
        raise WeightsError(f"{path.parent} is {called(stated)} by its config.json, not {called(asked)}; {model_flag(stated)}")
    if asked is not None and stated != asked:
        differ = [
            f"{name} {getattr(stated, name)} instead of {getattr(asked, name)}"
            for name in values
            if getattr(stated, name) != getattr(asked, name)
        ]
        raise WeightsError(f"{path.parent} is another model than was asked for: {', '.join(differ)}; give --model {path.parent}")
    return stated
