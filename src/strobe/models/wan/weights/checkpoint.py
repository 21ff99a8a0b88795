"""A checkpoint becomes a transformer, or says in one table why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.lora import Lora, LoraPair
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.weights.files import Part, Source, find_files, read_json, read_source
from strobe.models.wan.weights.fit import called, check_fit, model_flag
from strobe.models.wan.weights.layouts import Layout, diffusers_name, plain_names, recognise

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
    """A transformer with where it came from.

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
    """

    dit: CausalWan
    layout: Layout
    source: Source
    spelling: Mapping[str, str]

    def read(self, dtype: torch.dtype = torch.float32) -> Checkpoint:
        """Read the tensors.

        Raises:
            WeightsError: a file cannot be read.
        """
        held = self.source.read()
        tensors = {name: held[spelled].to(dtype, copy=True) for name, spelled in self.spelling.items()}
        with torch.device("meta"):
            dit = CausalWan(self.dit.config)
        dit.load_state_dict(tensors, strict=True, assign=True)
        dit.requires_grad_(False).eval()
        source = self.source
        return Checkpoint(dit=dit, layout=self.layout, part=source.part, files=source.files, weights_hash=source.sha256())


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
    """Find a transformer and hold it against its model by names and shapes: original Wan, diffusers, Self-Forcing, LongLive's
    base or krea, told apart by their names.

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
    if any(".lora_" in name for name in names):
        raise WeightsError(f"{source.where} is a LoRA, not a base model; give the base and add this with --lora")
    layout = recognise(names, source.where)
    held = {name: source.tensors[spelled] for name, spelled in names.items()}
    config = _config(source, held, layout, config)
    with torch.device("meta"):
        dit = CausalWan(config)
    plain = {name: diffusers_name(name) if layout == "diffusers" else name for name in dit.state_dict()}
    check_fit(config, {plain[name]: tensor for name, tensor in dit.state_dict().items()}, held, source.where)
    spelling = {name: names[spelled] for name, spelled in plain.items()}
    return OpenCheckpoint(dit=dit, layout=layout, source=source, spelling=spelling)


def read_lora(path: str | Path) -> Lora:
    """Read a LoRA: `lora_A` and `lora_B` (or `lora_down` and `lora_up`) by name of the linear layer, in either layout.

    The scale is ``alpha / rank`` where the file has an `alpha`, else 1, as LongLive's has.

    Raises:
        WeightsError: no such file, damaged, or a layer without its half.
    """
    file = Path(path)
    source = read_source((file,))
    tensors, names = source.read(), plain_names(source.tensors)
    halves: dict[str, dict[str, Tensor]] = {}
    for name, spelled in names.items():
        found = re.fullmatch(r"(.+)\.(?:(lora_A|lora_down|lora_B|lora_up)(?:\.default)?\.weight|(alpha))", name)
        if found is None:
            raise WeightsError(f"{source.where} is no LoRA: {spelled!r} is neither lora_A, lora_B, lora_down, lora_up nor alpha")
        which = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up"}.get(found[2], "alpha")
        halves.setdefault(found[1], {})[which] = tensors[spelled]
    pairs = {_own_name(name): _pair(source, name, half) for name, half in halves.items()}
    return Lora(name=file.name, weights_hash=source.sha256(), pairs=pairs)


def _pair(source: Source, name: str, half: Mapping[str, Tensor]) -> LoraPair:
    if not {"up", "down"} <= half.keys() or half["up"].dim() != 2 or half["up"].shape[1] != half["down"].shape[0]:
        shapes = ", ".join(f"{which} {list(tensor.shape)}" for which, tensor in sorted(half.items()))
        raise WeightsError(f"{source.where}: layer {name} has no matching pair [rank, in] and [out, rank], only {shapes}")
    rank = half["down"].shape[0]
    alpha = half["alpha"].item() if "alpha" in half else rank
    return LoraPair(down=half["down"], up=half["up"], scale=alpha / rank)


def _own_name(name: str) -> str:
    """Our name of a linear layer that may be spelled as diffusers does."""
    inside = re.fullmatch(r"(blocks\.\d+\.)(.+)", name)
    before, rest = (inside[1], inside[2]) if inside else ("", name)
    table = OWN_IN_LAYER if inside else OWN_OUTSIDE
    return before + table.get(rest, rest)


def _table(names: tuple[str, ...], before: str) -> dict[str, str]:
    return {diffusers_name(before + name).removeprefix(before): name for name in names}


ATTENTIONS: Final = tuple(f"{which}_attn.{name}" for which in ("self", "cross") for name in "qkvo")
OWN_IN_LAYER: Final = _table((*ATTENTIONS, "ffn.0", "ffn.2"), "blocks.0.")
OWN_OUTSIDE: Final = _table(
    ("text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2", "time_projection.1", "head.head"), ""
)


def _config(source: Source, held: Mapping[str, Tensor], layout: Layout, asked: WanConfig | None) -> WanConfig:
    """Sizes that the checkpoint is to have."""
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
    """The sizes in a config.json, which must be those that were asked for."""
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
