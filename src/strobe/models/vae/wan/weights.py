"""Weights of the Wan autoencoders: the original spelling and that of diffusers, or drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import fill, on_meta, read_shapes, read_tensors, seeded
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig

FILES = ("Wan2.1_VAE.pth", "Wan2.2_VAE.pth", "vae/diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors")
"""Where a folder may have the weights: the original releases, a diffusers pipeline, its `vae` folder."""

Spelling = tuple[str, str]
"""The name of a module in the original checkpoint and in diffusers."""

LAYERS: dict[str, Spelling] = {
    "norm1": ("residual.0", "norm1"),
    "conv1": ("residual.2", "conv1"),
    "norm2": ("residual.3", "norm2"),
    "conv2": ("residual.6", "conv2"),
    "shortcut": ("shortcut", "conv_shortcut"),
    "norm": ("norm", "norm"),
    "qkv": ("to_qkv", "to_qkv"),
    "out": ("proj", "proj"),
    "conv": ("resample.1", "resample.1"),
    "time_conv": ("time_conv", "time_conv"),
}
"""Layers inside a stage or the middle; the key is our name."""

ENDS: dict[str, Spelling] = {"enter": ("conv1", "conv_in"), "norm": ("head.0", "norm_out"), "leave": ("head.2", "conv_out")}
"""Layers of an encoder or decoder itself."""

MIDDLE: tuple[Spelling, ...] = (
    ("middle.0", "mid_block.resnets.0"),
    ("middle.1", "mid_block.attentions.0"),
    ("middle.2", "mid_block.resnets.1"),
)


def _spell(path: str, blocks: int) -> Spelling:
    """Return the original and the diffusers name of one of our modules, e.g. `decoder.stages.3.time_conv`."""
    match path.split("."):
        case ["moments"]:
            return "conv1", "quant_conv"
        case ["unpack"]:
            return "conv2", "post_quant_conv"
        case [part, end]:
            place, layer = ("", ""), ENDS[end]
        case [part, "middle", number, name]:
            place, layer = MIDDLE[int(number)], LAYERS[name]
        case ["encoder" | "decoder" as part, _, stage, "layers", number, name]:
            side = "down" if part == "encoder" else "up"
            inside = f"{side}sampler" if name in ("conv", "time_conv") else f"resnets.{number}"
            place = (f"{side}samples.{stage}.{side}samples.{number}", f"{side}_blocks.{stage}.{inside}")
            layer = LAYERS[name]
        case ["encoder" as part, _, number, name]:
            place, layer = (f"downsamples.{number}", f"down_blocks.{number}"), LAYERS[name]
        case [part, _, number, name]:
            up, block = divmod(int(number), blocks + 1)
            inside = "upsamplers.0" if block == blocks else f"resnets.{block}"
            place, layer = (f"upsamples.{number}", f"up_blocks.{up}.{inside}"), LAYERS[name]
    original, diffusers = (".".join(filter(None, (part, *pair))) for pair in zip(place, layer, strict=True))
    return original, diffusers


def key_names(config: WanVAEConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Map our tensor names to the original ones, and to those of diffusers."""
    with on_meta():
        keys = [key.rpartition(".") for key in WanVAE(config).state_dict()]
    spelt = [(f"{path}.{kind}", kind, _spell(path, config.num_blocks + 1)) for path, _, kind in keys]
    original = {key: f"{names[0]}.{kind}" for key, kind, names in spelt}
    return original, {key: f"{names[1]}.{kind}" for key, kind, names in spelt}


def load_wan_vae(path: str | Path, config: WanVAEConfig | None = None) -> WanVAE:
    """Load the autoencoder, float32, on the CPU, ready for inference.

    Args:
        path: a `.pth` or `.safetensors` file in either spelling, or a folder that holds one of `FILES`.
        config: sizes; None: those of Wan2.1 or, by its names, Wan2.2, with the widths that the file has, which the pruned
            "lightvae" cuts to a quarter.

    Raises:
        WeightsError: no such file, damaged, in neither spelling, or not all and only the tensors of this autoencoder.
    """
    file = find_wan_vae(Path(path))
    tensors = read_tensors(file)
    spelling = 0 if "decoder.conv1.weight" in tensors else 1
    enter = tensors.get(("encoder.conv1.weight", "encoder.conv_in.weight")[spelling])
    if enter is None or enter.dim() != 5:
        raise WeightsError(
            f"{file} is no Wan VAE: it has neither encoder.conv1 (original) nor encoder.conv_in (diffusers) with both "
            "of its coders; give Wan2.1_VAE.pth, Wan2.2_VAE.pth or the vae folder of a diffusers pipeline"
        )
    config = config or _told(tensors, enter.shape[0])
    with on_meta():
        vae = WanVAE(config)
    fill(vae, tensors, key_names(config)[spelling], file)
    return vae


def _told(tensors: Mapping[str, torch.Tensor], width: int) -> WanVAEConfig:
    """Return the sizes of a file's tensors; those of Wan2.2 are told by a name in either spelling."""
    first = ("decoder.upsamples.0.upsamples.0.residual.2.bias", "decoder.up_blocks.0.upsampler.resample.1.bias")
    found = next((tensors[name] for name in first if name in tensors), None)
    if found is None:
        return replace(WanVAEConfig(), width=width)
    return replace(WAN22, width=width, decoder_width=found.shape[0] // WAN22.multipliers[-1])


def find_wan_vae(path: Path) -> Path:
    """Find the autoencoder's file: `path` itself, or the first of `FILES` in a folder.

    Transformers use the last of these names too, so a file of that name is checked for a decoder's tensors.

    Raises:
        WeightsError: a folder holds none.
    """
    if not path.is_dir():
        return path
    for name in FILES:
        file = path / name
        if file.is_file() and (name != FILES[-1] or any(key.startswith("decoder.") for key in read_shapes(file))):
            return file
    raise WeightsError(
        f"{path} holds no Wan VAE; expected one of: {', '.join(FILES)}; give --vae its file, or --release the folder of Wan"
    )


def random_wan_vae(config: WanVAEConfig, seed: int) -> WanVAE:
    """Build an untrained autoencoder for measuring: the same weights for the same seed, float32, on the CPU. Frames are noise."""
    with seeded(seed):
        return WanVAE(config).requires_grad_(False).eval()
