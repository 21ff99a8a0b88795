"""Transformers of diffusers by name: their sizes, with random weights or from a folder, and the arguments of one forward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import diffusers
import torch
from torch import Tensor, nn

from strobe.core.errors import ConfigError, WeightsError, unknown_choice
from strobe.engine.load import RANDOM
from strobe.perf.measure.profile import file_sha256

Sizes = Mapping[str, Any]
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shot:
    """Sizes of one forward pass: pixels, frames, samples.

    Args:
        height, width: pixels.
        frames: pixel frames of the whole clip.
        batch: samples.
    """

    height: int
    width: int
    frames: int
    batch: int = 1

    def grid(self, stride: tuple[int, int, int], patch: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the tokens in time, height and width behind a causal autoencoder of that stride.

        Raises:
            ConfigError: a size that the model's autoencoder or patches do not divide.
        """
        time, rows, columns = stride[0], stride[1] * patch[1], stride[2] * patch[2]
        if self.frames < 1 or (self.frames - 1) % time or self.height % rows or self.width % columns:
            raise ConfigError(
                f"{self.height}x{self.width} and {self.frames} frames: this model takes heights divisible by {rows}, widths "
                f"divisible by {columns} and {time} n + 1 frames"
            )
        latents = (self.frames - 1) // time + 1
        return (latents // patch[0], self.height // rows, self.width // columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DitModel:
    """Entry of the table of transformers: class, sizes, strides and arguments.

    Args:
        cls: name of the class in diffusers.
        sizes: its configuration where it is not the default of the class.
        tiny: the same for a configuration that a CPU runs at once.
        stride: stride of the model's autoencoder in time, height and width.
        patch: patch size of the transformer.
        shot: default sizes of a pass.
        tiny_shot: the same of the tiny configuration.
        arguments: makes the arguments of a forward pass from the model's configuration, the grid of tokens, the pass and a
            drawing function.
        masked: the stock attention is given a mask of pairs, which not every kernel takes.
        source: where the sizes come from.
    """

    cls: str
    sizes: Sizes
    tiny: Sizes
    stride: tuple[int, int, int]
    patch: tuple[int, int, int]
    shot: Shot
    tiny_shot: Shot
    arguments: Callable[[Any, tuple[int, int, int], Shot, Callable[..., Tensor]], Arguments]
    masked: bool = False
    source: str


def _wan(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    patch = config.patch_size
    latents = (side * step for side, step in zip(grid, patch, strict=True))
    return {
        "hidden_states": draw(shot.batch, config.in_channels, *latents),
        "encoder_hidden_states": draw(shot.batch, min(512, 64 * config.num_layers), config.text_dim),
        "timestep": torch.full_like(draw(shot.batch), 500),
    }


def _ltx2(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    t, h, w = grid
    audio = round(shot.frames / 24 * config.audio_sampling_rate / config.audio_hop_length / config.audio_scale_factor)
    text = min(1024, 64 * config.num_layers)
    return {
        "hidden_states": draw(shot.batch, t * h * w, config.in_channels),
        "audio_hidden_states": draw(shot.batch, audio, config.audio_in_channels),
        "encoder_hidden_states": draw(shot.batch, text, config.caption_channels),
        "audio_encoder_hidden_states": draw(shot.batch, text, config.caption_channels),
        "timestep": torch.full_like(draw(shot.batch), 500),
        "sigma": torch.full_like(draw(shot.batch), 0.5),
        "num_frames": t,
        "height": h,
        "width": w,
        "audio_num_frames": audio,
    }


TEXT_USED: Final = 0.25
"""Share of the text tokens that are no padding: a prompt of some hundred words."""


def _hunyuan15(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    sizes = (min(1000, 32 * config.num_layers), min(256, 8 * config.num_layers))
    used = (max(1, round(sizes[0] * TEXT_USED)), 0)
    masks = [
        (torch.arange(size) < count).long().expand(shot.batch, -1).contiguous() for size, count in zip(sizes, used, strict=True)
    ]
    images = min(729, 16 * config.num_layers)
    return {
        "hidden_states": draw(shot.batch, config.in_channels, *grid),
        "timestep": torch.full_like(draw(shot.batch), 500),
        "encoder_hidden_states": draw(shot.batch, sizes[0], config.text_embed_dim),
        "encoder_attention_mask": masks[0],
        "encoder_hidden_states_2": draw(shot.batch, sizes[1], config.text_embed_2_dim),
        "encoder_attention_mask_2": masks[1],
        "image_embeds": torch.zeros_like(draw(shot.batch, images, config.image_embed_dim)),
    }


_TINY_WAN: Final = {
    "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16,
    "ffn_dim": 32, "num_layers": 2,
}  # fmt: skip


def _wan_model(sizes: Sizes, source: str) -> DitModel:
    return DitModel(
        cls="WanTransformer3DModel",
        sizes=sizes,
        tiny=_TINY_WAN,
        stride=(4, 8, 8),
        patch=(1, 2, 2),
        shot=Shot(height=480, width=832, frames=81),
        tiny_shot=Shot(height=96, width=128, frames=17),
        arguments=_wan,
        source=source,
    )


MODELS: Final[dict[str, DitModel]] = {
    "wan-1.3b": _wan_model({"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, "Wan2.1-T2V-1.3B"),
    "wan-14b": _wan_model({}, "Wan2.1-T2V-14B, the defaults of the class"),
    "ltx-2": DitModel(
        cls="LTX2VideoTransformer3DModel",
        sizes={},
        tiny={
            "in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32,
            "audio_in_channels": 8, "audio_out_channels": 8, "audio_num_attention_heads": 2, "audio_attention_head_dim": 6,
            "audio_cross_attention_dim": 12, "num_layers": 2, "caption_channels": 16,
        },
        stride=(8, 32, 32),
        patch=(1, 1, 1),
        shot=Shot(height=512, width=768, frames=121),
        tiny_shot=Shot(height=256, width=256, frames=33),
        arguments=_ltx2,
        source="LTX-2, the defaults of the class",
    ),
    "hunyuan-video-1.5": DitModel(
        cls="HunyuanVideo15Transformer3DModel",
        sizes={"task_type": "t2v"},
        tiny={
            "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
            "num_refiner_layers": 1, "text_embed_dim": 16, "text_embed_2_dim": 8, "image_embed_dim": 8,
            "rope_axes_dim": (4, 6, 6),
        },
        stride=(4, 16, 16),
        patch=(1, 1, 1),
        shot=Shot(height=480, width=832, frames=121),
        tiny_shot=Shot(height=128, width=128, frames=17),
        arguments=_hunyuan15,
        masked=True,
        source="HunyuanVideo 1.5 at 480p, the defaults of the class",
    ),
}  # fmt: skip


def model_named(name: str) -> DitModel:
    """Return a model of the table.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in MODELS:
        raise unknown_choice("model", name, MODELS)
    return MODELS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A transformer with the arguments of its forward pass.

    Args:
        name: name in reports.
        transformer: on its device, in its dtype, for inference.
        arguments: arguments of one forward pass, by name.
        shot: sizes of the pass.
        weights_sha256: hash of the weights; of random ones, of the text that says so.
        random: whether the weights are drawn, so that outputs mean nothing.
        masked: as of `DitModel`.
        ran: the user's function that made it; empty for a model of the table.
    """

    name: str
    transformer: Any
    arguments: Arguments
    shot: Shot
    weights_sha256: str
    random: bool
    masked: bool = False
    ran: str = ""

    @property
    def num_params(self) -> int:
        """Parameters of the transformer."""
        return sum(parameter.numel() for parameter in self.transformer.parameters())


def load_named(
    name: str, *, shot: Shot | None, tiny: bool, weights: Path | None, device: torch.device, dtype: torch.dtype, seed: int
) -> Loaded:
    """Load a model of the table from a folder, or draw random weights.

    Args:
        shot: sizes of a pass; None: the model's own.
        tiny: its tiny configuration.
        weights: folder of a transformer as diffusers saves it; None: weights are drawn.

    Raises:
        ConfigError: an unknown name, sizes that do not fit the model, or a tiny configuration with weights.
        WeightsError: the folder holds no such transformer.
    """
    model = model_named(name)
    if tiny and weights is not None:
        raise ConfigError("--tiny draws its weights; leave --weights out")
    chosen = shot or (model.tiny_shot if tiny else model.shot)
    grid = chosen.grid(model.stride, model.patch)
    cls = getattr(diffusers, model.cls)
    if weights is None:
        with _drawn(device, dtype, seed):
            transformer = cls(**(model.tiny if tiny else model.sizes))
            if tiny:
                _spread(transformer)
        digest = hashlib.sha256(f"{RANDOM} of {name}{' tiny' if tiny else ''}, seed {seed}".encode()).hexdigest()
    else:
        try:
            transformer = cls.from_pretrained(weights, torch_dtype=dtype, local_files_only=True).to(device)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{weights} holds no {model.cls} as diffusers saves it: {str(error).splitlines()[0]}") from error
        digest = _digest(weights)
    transformer.requires_grad_(False).train(False)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    label = f"{name}{', tiny' if tiny else ''}{f', {RANDOM}' if weights is None else ''}"
    return Loaded(
        name=label,
        transformer=transformer,
        arguments=on(model.arguments(transformer.config, grid, chosen, draw), device),
        shot=chosen,
        weights_sha256=digest,
        random=weights is None,
        masked=model.masked,
    )


def on(arguments: Mapping[str, Any], device: torch.device) -> Arguments:
    """Return the same arguments with all tensors on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}


@contextmanager
def _drawn(device: torch.device, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Create modules made in the body on a device in a dtype; the global generator is restored afterwards."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _spread(model: nn.Module) -> None:
    """Set every parameter to non-trivial values: tables that start at 0 would hide errors."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.5 / value.shape[-1] ** 0.5 if value.dim() > 1 else 0.1
            value.normal_(std=spread).add_(1.0 if "norm" in name and value.dim() == 1 else 0.0)


def _digest(folder: Path) -> str:
    """Compute one SHA-256 over all weight files in a folder."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
