"""Reading of a checkpoint into a transformer, in the layouts of several projects, or an error that says how they differ."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import SAFE, key_differences, on_meta, read_file, read_shapes
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan

STEM: Final = "diffusion_pytorch_model"
LORA: Final = "generator_lora"
KNOWN_PARTS: Final = ("generator_ema", "generator", LORA)
"""Models in one file that have names of their own, the one to take first."""
SUFFIXES: Final = (SAFE, ".pt", ".pth")
OTHERS: Final = ("Wan2.", "models_t5", "models_clip", "lora")
"""How names of text encoders, autoencoders and LoRAs begin that lie in the same folder."""
SHARD: Final = re.compile(r".+-\d{5}-of-(?!00001)\d{5}\.safetensors")
"""One file of several."""
INDEX: Final = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """The content of a checkpoint: its files, the model taken and its tensors.

    Args:
        files: it was read from.
        part: of a file with several models, the one that was taken; empty if there was one only.
        tensors: by the names in the file; those of a `.safetensors` are shapes alone, on the meta device, until `read`.
    """

    files: tuple[Path, ...]
    part: str
    tensors: Mapping[str, Tensor]

    @property
    def where(self) -> str:
        """Path of the file, or of the folder of several, for an error."""
        path = str(self.files[0] if len(self.files) == 1 else self.files[0].parent)
        return f"{path} ({self.part})" if self.part else path

    def read(self) -> Mapping[str, Tensor]:
        """Return the tensors by the names in the file, on the CPU; they are left on the disk until they are used."""
        tensors = dict(self.tensors)
        for file in self.files:
            tensors.update(read_file(file) if file.suffix == SAFE else {})
        return tensors


def find_files(path: Path) -> tuple[Path, ...]:
    """Find the file or files of the transformer at `path`: a file, or a folder as it is published.

    Raises:
        WeightsError: there are none, or too many to choose from.
    """
    if path.is_file():
        return _shards(path) if path.name.endswith(".index.json") else (path,)
    if not path.is_dir():
        raise WeightsError(f"no file or folder {str(path)!r}; give a checkpoint file or the folder it was published in")
    for folder in (path, path / "transformer"):
        index = folder / f"{STEM}{INDEX}"
        if index.is_file():
            return _shards(index)
        if (folder / f"{STEM}.safetensors").is_file():
            return (folder / f"{STEM}.safetensors",)
    indices = sorted(path.glob(f"*{INDEX}"))
    if len(indices) == 1:
        return _shards(indices[0])
    found = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES and not file.name.startswith(OTHERS)]
    if len(found) == 1 and not SHARD.fullmatch(found[0].name):
        return (found[0],)
    if not found:
        held = ", ".join(sorted(child.name for child in path.iterdir())[:5]) or "nothing"
        raise WeightsError(
            f"{path} holds no transformer (it holds: {held}); expected {STEM}.safetensors, a folder transformer, "
            "or one .safetensors or .pt file"
        )
    if all(SHARD.fullmatch(file.name) for file in found):
        raise WeightsError(f"{path} is half a checkpoint: {found[0].name} has no index; fetch the {INDEX} too")
    raise WeightsError(f"{path} holds several checkpoints: {', '.join(file.name for file in found)}; name one of the files")


def find_lora(path: Path) -> Path | None:
    """Find the LoRA in the folder of a base, as LongLive publishes the two; None if there is none, or `path` is a file."""
    return next((file for file in sorted(path.glob("lora*")) if file.suffix in SUFFIXES), None)


def read_source(files: Sequence[Path]) -> WeightSource:
    """Open a checkpoint, given by its files; of several models in a file the averaged one is taken, if there is one.

    Raises:
        WeightsError: a file is missing, damaged, or would have to run code to be read.
    """
    tensors: dict[str, Tensor] = {}
    taken = ""
    for file in files:
        held: dict[Any, Any] = {**read_shapes(file)} if file.suffix == SAFE else read_file(file)
        found, taken = _part(held, file)
        for name, value in ((str(name), value) for name, value in found.items()):
            if isinstance(value, Tensor) or (isinstance(value, int | float) and name.endswith(".alpha")):
                tensors[name] = torch.as_tensor(value)
    if not tensors:
        raise WeightsError(f"{files[0]} holds no tensors; give a file of weights")
    return WeightSource(files=tuple(files), part=taken, tensors=tensors)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        WeightsError: it is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged or not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds no JSON object; fetch it again")
    return found


def _shards(index: Path) -> tuple[Path, ...]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise WeightsError(f"{index} has no weight_map; fetch it again")
    files = [index.parent / Path(name).name for name in sorted(set(table.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(
            f"{index.parent} is half a checkpoint: {len(missing)} of {len(files)} files missing; fetch: {', '.join(missing)}"
        )
    return tuple(files)


def _part(loaded: dict[Any, Any], file: Path) -> tuple[dict[Any, Any], str]:
    """Choose the model of a file that holds several, or other things too, and return it with its name."""
    models = {} if _is_model(loaded) else _models(loaded)
    if not models:
        return loaded, ""
    known = [name for name in KNOWN_PARTS if name in models]
    if not known and len(models) > 1:
        raise WeightsError(
            f"{file} holds several models: {', '.join(models)}; keep the one that should run, in a file of its own"
        )
    taken: str = next(iter((*known, *models)))
    return models[taken], taken


def _models(loaded: dict[Any, Any], deep: int = 2) -> dict[str, dict[Any, Any]]:
    """List the models in a file by name; names of nested dictionaries are joined by a dot."""
    found: dict[str, dict[Any, Any]] = {}
    for name, value in loaded.items():
        if isinstance(value, dict) and _is_model(value):
            found[str(name)] = value
        elif isinstance(value, dict) and deep:
            found |= {f"{name}.{inner}": model for inner, model in _models(value, deep - 1).items()}
    return found


def _is_model(held: dict[Any, Any]) -> bool:
    """Return whether there are tensors named like parameters, with a dot; those of an optimiser have none."""
    return any(isinstance(tensor, Tensor) and "." in str(name) for name, tensor in held.items())


Layout = Literal["original", "diffusers"]

WRAPPERS: Final = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
"""Parts of a name that training and compilation put in between, anywhere."""
PREFIXES: Final = ("model", "net", "module", "generator", "diffusion_model", "transformer", "base_model")
"""First parts of a name that say nothing but where the transformer stood in something larger."""

OUTSIDE: Final = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}
IN_ATTENTION: Final = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", "norm_q": "norm_q", "norm_k": "norm_k"}
IN_LAYER: Final = {
    **{f"self_attn.{own}": f"attn1.{theirs}" for own, theirs in IN_ATTENTION.items()},
    **{f"cross_attn.{own}": f"attn2.{theirs}" for own, theirs in IN_ATTENTION.items()},
    "norm3": "norm2",  # the affine norm of cross-attention; there norms are numbered in the order of use
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
}
STRANGERS: Final = (
    (("dit.", "text.", "vae."), "is a bundled model; give --model with its folder"),
    (("decoder.conv1.",), "is an autoencoder; give the transformer here and this with --vae"),
    (("decoder.conv_in.",), "is an autoencoder; give the transformer here and this with --vae"),
    (("token_embedding.",), "is a text encoder; give the transformer here and its folder with --release"),
    (("shared.", "encoder.block."), "is a text encoder; give the transformer here and its folder with --release"),
)
"""What else a file may be by how some of its names begin, all of those given, and what to do."""
IMAGE_PARTS: Final = ("img_emb", "k_img", "v_img", "norm_k_img", "image_embedder", "add_k_proj", "add_v_proj", "norm_added_k")
"""Parts of a name that only image-to-video models have."""


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map names without wrappers and prefixes to the names in a file: `blocks.0.q` to `model._fsdp_wrapped_module.blocks.0.q`.

    Raises:
        WeightsError: two names become one.
    """
    found: dict[str, str] = {}
    for name in names:
        parts = [part for part in name.split(".") if part not in WRAPPERS]
        while len(parts) > 1 and parts[0] in PREFIXES:
            parts.pop(0)
        plain = ".".join(parts)
        if plain in found:
            raise WeightsError(
                f"{found[plain]!r} and {name!r} in one checkpoint are the same tensor; keep one transformer in a file"
            )
        found[plain] = name
    return found


def diffusers_name(name: str) -> str:
    """Return the name that diffusers gives to a parameter or module of ours."""
    head, _, rest = name.partition(".")
    number, _, inside = rest.partition(".") if head == "blocks" else ("", "", name)
    table, before = (IN_LAYER, f"blocks.{number}.") if head == "blocks" else (OUTSIDE, "")
    for own, theirs in table.items():
        if inside == own or inside.startswith(f"{own}."):
            return before + theirs + inside.removeprefix(own)
    return before + inside


def recognise(names: Mapping[str, str] | Iterable[str], where: str) -> Layout:
    """Recognise the layout of plain names, or say that they are those of no text-to-video Wan transformer."""
    names = set(names)
    for begins, what in STRANGERS:
        if all(any(name.startswith(begin) for name in names) for begin in begins):
            raise WeightsError(f"{where} {what}")
    image = sorted(name for name in names if not set(name.split(".")).isdisjoint(IMAGE_PARTS))
    if image:
        raise WeightsError(
            f"{where} is an image-to-video model (it has {image[0]}); only text-to-video transformers are supported"
        )
    if any(name.startswith(("condition_embedder.", "proj_out.")) or ".attn1." in name for name in names):
        return "diffusers"
    if any(name.startswith(("time_projection.", "head.head.")) or ".self_attn." in name for name in names):
        return "original"
    some = ", ".join(sorted(names)[:3]) or "nothing"
    raise WeightsError(
        f"{where} holds no Wan transformer that is known here (its tensors: {some}, ...); known are original Wan, diffusers, "
        "Self-Forcing, LongLive and krea checkpoints, see docs/wan.md"
    )


SCALES: Final = ("scale_weight", "weight_scale")
UNUSED: Final = ("scaled_fp8", "scale_input", "input_scale", "comfy_quant")
"""Last parts of names that only programs which multiply in eight bits need."""
EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def take_scales(names: dict[str, str], source: WeightSource) -> dict[str, str]:
    """Remove the names of eight-bit scales from a checkpoint's names, and return them by the plain name of their tensor."""
    found: dict[str, str] = {}
    for name in [name for name in names if name.rpartition(".")[2] in (*SCALES, *UNUSED)]:
        home, _, last = name.rpartition(".")
        spelled = names.pop(name)
        if last in SCALES:
            found[f"{home}.weight"] = spelled
    for name, spelled in found.items():
        tensor = source.tensors[names[name]] if name in names else None
        sizes = () if tensor is None else (1, tensor.shape[0])
        if tensor is None or tensor.dtype not in EIGHT_BITS or source.tensors[spelled].numel() not in sizes:
            shape = list(source.tensors[spelled].shape)
            raise WeightsError(
                f"{source.where} has a scale {spelled} {shape} that fits no eight-bit {name}; scales of one number or one a row "
                "are known: fetch the checkpoint in bfloat16"
            )
    whole = [name for name, spelled in names.items() if not source.tensors[spelled].is_floating_point() and name not in found]
    if whole:
        raise WeightsError(
            f"{source.where} holds whole numbers without a scale ({whole[0]}); this quantised format is not known: fetch the "
            "checkpoint in bfloat16 or in fp8"
        )
    return found


def called(config: WanConfig) -> str:
    """Return name and size of a model, for an error."""
    name = next((name for name, known in SIZES.items() if known == config), "a transformer")
    return f"{name} ({config.num_layers} layers, {config.dim} wide)"


def model_flag(config: WanConfig) -> str:
    """Return the option that asks for a released size."""
    return f"give --model {next(name for name, known in SIZES.items() if known == config)}"


def check_keys(config: WanConfig, expected: Mapping[str, Tensor], held: Mapping[str, Tensor], where: str) -> None:
    """Compare names and shapes with a model's.

    Args:
        config: sizes of the model.
        expected: its tensors, in the checkpoint's spelling.
        held: the checkpoint's tensors.
        where: names the checkpoint in the error.

    Raises:
        WeightsError: they differ: which other model it looks like, or else the first differences of each kind.
    """
    differs = key_differences(expected, held)
    if not differs:
        return
    width = _width(held)
    if width not in (0, config.dim):  # then no tensor has its shape, and a list of them would say nothing
        raise WeightsError(_another(config, held, width, where))
    what = f"is not {called(config)} with its {len(expected)} tensors: {differs}"
    raise WeightsError(f"{where} {what}; give the whole checkpoint as it was published")


def _another(config: WanConfig, held: Mapping[str, Tensor], width: int, where: str) -> str:
    for known in SIZES.values():
        if known.dim == width:
            return f"{where} looks like {called(known)}, not {called(config)}; {model_flag(known)}"
    layers = len({name.split(".")[1] for name in held if name.startswith("blocks.")})
    return (
        f"{where} looks like a transformer of {layers} layers, {width} wide, not {called(config)}; give a checkpoint of that, "
        "or --model with the folder of this one and a config.json that says its sizes"
    )


def _width(held: Mapping[str, Tensor]) -> int:
    """Return the most frequent width of query norms and the patch embedding; 0 if there are none."""
    names = ("patch_embedding.bias", ".norm_q.weight")
    found = Counter(tensor.shape[0] for name, tensor in held.items() if name.endswith(names) and tensor.dim() == 1)
    return found.most_common(1)[0][0] if found else 0


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
class OpenCheckpoint:
    """A checkpoint that fits its model by names and shapes; its tensors are still in the files.

    Args:
        dit: on the meta device.
        source: the files.
        spelling: the model's name of a tensor to the file's.
        scales: the model's name of a tensor in eight bits to the file's name of what it is to be multiplied with.
    """

    dit: CausalWan
    source: WeightSource
    spelling: Mapping[str, str]
    scales: Mapping[str, str]

    @property
    def copied_bytes(self) -> int:
        """Main memory that `read` takes, for tensors that do not stay in their file, bytes."""
        return sum(4 * self.source.tensors[self.spelling[name]].numel() for name in self.scales)

    def read(self) -> CausalWan:
        """Read the tensors, each in the file's own dtype, left on the disk until it is used, but for those in eight bits.

        Those are float32. The files must stay as they are.

        Raises:
            WeightsError: a file cannot be read.
        """
        held = self.source.read()
        with on_meta():
            dit = CausalWan(self.dit.config)
        dit.load_state_dict({name: self._value(held, name) for name in self.spelling}, strict=True, assign=True)
        return dit.requires_grad_(False).eval()

    def _value(self, held: Mapping[str, Tensor], name: str) -> Tensor:
        tensor = held[self.spelling[name]]
        if name not in self.scales:
            return tensor
        scale = held[self.scales[name]].float()
        rows = scale.view(-1, *(1,) * (tensor.dim() - 1)) if scale.numel() == tensor.shape[0] else scale.view(())
        return tensor.float() * rows


def open_checkpoint(path: str | Path, config: WanConfig | None = None) -> OpenCheckpoint:
    """Find a transformer, and compare its names and shapes with its model's.

    The layouts original Wan, diffusers, Self-Forcing, LongLive's base and krea are told apart by their names.

    Every tensor of the model must be there, with its shape, and no other. Pickled files are read with `weights_only`.

    Args:
        path: file, index or folder; see docs/wan.md.
        config: sizes it must have; None: those of the config.json beside it, or else of the released model of its width.

    Raises:
        WeightsError: no, several, half or damaged files; another model, and which; or tensors missing, unexpected or of another
            shape.
    """
    source = read_source(find_files(Path(path)))
    names = plain_names(source.tensors)
    if any(".lora_" in name or name.endswith((".diff", ".diff_b", ".diff_m")) for name in names):
        raise WeightsError(f"{source.where} is a LoRA, not a base model; give the base and add this with --lora")
    scaled = take_scales(names, source)
    layout = recognise(names, source.where)
    held = {name: source.tensors[spelled] for name, spelled in names.items()}
    patches = held.get("patch_embedding.weight")
    if patches is not None and patches.dim() == 5 and patches.shape[1] == 36:
        raise WeightsError(
            f"{source.where} takes 36 channels, as image-to-video Wan2.1, whose picture encoder this engine lacks; give "
            "text-to-video weights"
        )
    config = _config(source, held, layout, config)
    with on_meta():
        dit = CausalWan(config)
    plain = {name: diffusers_name(name) if layout == "diffusers" else name for name in dit.state_dict()}
    check_keys(config, {plain[name]: tensor for name, tensor in dit.state_dict().items()}, held, source.where)
    spelling = {name: names[spelled] for name, spelled in plain.items()}
    scales = {name: scaled[spelled] for name, spelled in plain.items() if spelled in scaled}
    return OpenCheckpoint(dit=dit, source=source, spelling=spelling, scales=scales)


def _config(source: WeightSource, held: Mapping[str, Tensor], layout: Layout, asked: WanConfig | None) -> WanConfig:
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
    if not path.is_file():
        return None
    found = read_json(path)
    if not any(spelling in found for spelling in ("num_heads", "num_attention_heads")):
        return None  # of something else
    values: dict[str, Any] = {
        name: found[spelled] for name, spellings in SPELLINGS.items() for spelled in spellings if spelled in found
    }
    try:
        values["dim"] = found.get("dim", values["num_heads"] * found.get("attention_head_dim", 0))
        if "patch_size" in found:
            _, height, width = found["patch_size"]
            values["patch"] = height, width
        stated = replace(asked or WanConfig(), **values)
    except (TypeError, ValueError, ArithmeticError) as error:
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
