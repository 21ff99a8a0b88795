"""Families of transformers: the names of their layers, and how their forward pass gives the video's grid of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from diffusers import (
    CosmosTransformer3DModel,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoTransformer3DModel,
    LTX2VideoTransformer3DModel,
    WanTransformer3DModel,
)
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from strobe.attention.explain import components_of
from strobe.core.errors import ConfigError, ShapeError
from strobe.integrations.diffusers.forward import Triple, bare
from strobe.integrations.diffusers.processors import CosmosProcessor, JointProcessor, LTX2Processor, SparseProcessor, WanProcessor

Arguments = Mapping[str, Any]
"""Arguments of a forward call by name; those that were not given may be missing."""
Facts = tuple[Triple, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer with attention that becomes sparse.

    Args:
        name: key of its processor in `attn_processors`.
    """

    name: str
    block: nn.Module
    attn: nn.Module


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerFamily:
    """One class of transformers.

    Args:
        blocks: lists of blocks whose attention becomes sparse, in the order of the layers, and the name of the attention.
        processor: what takes the place of the processors.
        facts: gives the grid of a forward pass and the text tokens of each sample, from the arguments of the transformer.
        gated: there are trained gates for such models.
    """

    model: type[Any]
    blocks: tuple[tuple[str, str], ...]
    processor: type[SparseProcessor]
    facts: Callable[[Any, Arguments], Facts]
    gated: bool = False

    def layers(self, transformer: nn.Module) -> tuple[Layer, ...]:
        return tuple(
            Layer(name=f"{blocks}.{number}.{attn}.processor", block=block, attn=block.get_submodule(attn))
            for blocks, attn in self.blocks
            for number, block in enumerate(transformer.get_submodule(blocks).children())
        )

    def names(self) -> tuple[str, ...]:
        """List the arguments of the transformer's forward in order; an older diffusers does not know every one."""
        return tuple(inspect.signature(self.model.forward).parameters)[1:]


def _sizes(latents: Tensor, patch: tuple[int, int, int]) -> Triple:
    """Compute the token grid (time, height, width) of latents `[B, C, F, Y, X]`."""
    if latents.dim() != 5:
        raise ShapeError(f"hidden_states: got shape {tuple(latents.shape)}, expected latents [B, C, F, Y, X]")
    t, h, w = (size // step for size, step in zip(latents.shape[2:], patch, strict=True))
    return t, h, w


def _patched(config: Any, given: Arguments) -> Facts:
    return _sizes(given["hidden_states"], config.patch_size), ()


def _ltx2(config: Any, given: Arguments) -> Facts:
    tokens = given["hidden_states"]
    sizes: list[Any] = [given.get(name) for name in ("num_frames", "height", "width")]
    if None in sizes:
        raise ConfigError("LTX-2: num_frames, height and width were not given; sparse attention needs the latents' sizes")
    steps = (config.patch_size_t, config.patch_size, config.patch_size)
    t, h, w = (-(-size // step) for size, step in zip(sizes, steps, strict=True))
    if tokens.shape[1] != t * h * w:
        raise ShapeError(
            f"LTX-2: got {tokens.shape[1]} video tokens for a grid of ({t}, {h}, {w}), which has {t * h * w}; tokens beside the "
            "grid, such as those of a reference video, cannot be put in tiles: restore() the pipeline for such calls"
        )
    if given.get("video_self_attention_mask") is not None:
        raise ConfigError("LTX-2: video_self_attention_mask is given; sparse attention takes none: restore() the pipeline first")
    return (t, h, w), ()


_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""What was asked of masks and images on a GPU: a pipeline gives the same ones in every step, and asking waits for the device.
Kept as long as the tensor is there, with the version of its contents."""


def _known(tensor: Tensor, ask: Callable[[Tensor], Any]) -> Any:
    if tensor.is_inference() or tensor.device.type == "cpu":  # its version is not counted, or not what NumPy writes
        return ask(tensor)
    found = _KNOWN.get(tensor)
    if found is None or found[0] != tensor._version:
        found = tensor._version, ask(tensor)
        _KNOWN[tensor] = found
    return found[1]


def _lengths(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.sum(dim=1, dtype=torch.int).tolist())


def _any(images: Tensor) -> bool:
    return bool(images.any())


def _hunyuan(config: Any, given: Arguments) -> Facts:
    grid = _sizes(given["hidden_states"], (config.patch_size_t, config.patch_size, config.patch_size))
    return grid, _known(given["encoder_attention_mask"], _lengths)


def _hunyuan15(config: Any, given: Arguments) -> Facts:
    """Count text of two encoders, then the image's tokens, which count unless the image is all 0."""
    images = given["image_embeds"]
    image_tokens = images.shape[1] if _known(images, _any) else 0
    both = (_known(given[name], _lengths) for name in ("encoder_attention_mask", "encoder_attention_mask_2"))
    lengths = tuple(first + second + image_tokens for first, second in zip(*both, strict=True))
    return _sizes(given["hidden_states"], (config.patch_size_t, config.patch_size, config.patch_size)), lengths


FAMILIES: Final = (
    TransformerFamily(
        model=WanTransformer3DModel, blocks=(("blocks", "attn1"),), processor=WanProcessor, facts=_patched, gated=True
    ),
    TransformerFamily(
        model=LTX2VideoTransformer3DModel,
        blocks=(("transformer_blocks", "attn1"),),
        processor=LTX2Processor,
        facts=_ltx2,
        gated=True,
    ),
    TransformerFamily(
        model=HunyuanVideoTransformer3DModel,
        blocks=(("transformer_blocks", "attn"), ("single_transformer_blocks", "attn")),
        processor=JointProcessor,
        facts=_hunyuan,
    ),
    TransformerFamily(
        model=HunyuanVideo15Transformer3DModel,
        blocks=(("transformer_blocks", "attn"),),
        processor=JointProcessor,
        facts=_hunyuan15,
    ),
    TransformerFamily(
        model=CosmosTransformer3DModel, blocks=(("transformer_blocks", "attn1"),), processor=CosmosProcessor, facts=_patched
    ),
)


def family_of(model: object) -> TransformerFamily | None:
    """Return the family of a transformer; None for others, and for subclasses, which may treat tokens differently."""
    return next((family for family in FAMILIES if type(model) is family.model), None)


_MODELS: Final = tuple(family.model for family in FAMILIES)


def find_transformers(pipe: Any, asks: str = "sparsify") -> dict[str, tuple[nn.Module, TransformerFamily]]:
    """Return a pipeline's transformers that can become sparse, by component; a single transformer has an empty name.

    Args:
        asks: what looks for them, for messages.

    Raises:
        ConfigError: there is none, or it is sharded, or something that hides it stands around it.
    """
    given, found = components_of(pipe), {}
    for name, component in given.items():
        module = getattr(component, "_orig_mod", component)  # what torch.compile wrapped
        family, inner = family_of(module), bare(module)
        if is_known(inner) and any(base.__name__ == "FSDPModule" for each in inner.modules() for base in type(each).__mro__):
            kind = next(model.__name__ for model in _MODELS if isinstance(inner, model))
            raise ConfigError(
                f"{asks}: {name or 'the model'}, a {kind}, was sharded by fully_shard; {asks} before fully_shard, which keeps it"
            )
        if family is not None:
            found[name] = (module, family)
        elif family_of(inner) is not None:
            raise ConfigError(
                f"{asks}: {name or 'this'} is a {type(module).__name__} around a {type(inner).__name__}; "
                f"give its .module, or better {asks} the transformer before it is wrapped"
            )
    if not found:
        names = sorted({type(each).__name__ for each in given.values() if isinstance(each, nn.Module)}) or [type(pipe).__name__]
        known = ", ".join(family.model.__name__ for family in FAMILIES)
        raise ConfigError(f"{asks}: found no transformer it knows among {', '.join(names)}; it knows {known}")
    return found


def is_known(component: Any) -> bool:
    """Whether a component is a transformer of a family, also wrapped, or sharded, which gives it a class of its own."""
    return isinstance(bare(component), _MODELS)
