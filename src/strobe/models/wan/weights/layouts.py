"""Layouts of checkpoints: the names each project uses, and ours, which are those of the original Wan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from strobe.core.errors import WeightsError

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


def plain_name(name: str) -> str:
    """Strip wrappers and prefixes from a name: `model._fsdp_wrapped_module.blocks.0.q` becomes `blocks.0.q`."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while len(parts) > 1 and parts[0] in PREFIXES:
        parts.pop(0)
    return ".".join(parts)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map plain names to the names in a file.

    Raises:
        WeightsError: two names become one.
    """
    found: dict[str, str] = {}
    for name in names:
        plain = plain_name(name)
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
    """Recognise the layout of plain names.

    Raises:
        WeightsError: they are those of no text-to-video Wan transformer.
    """
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
