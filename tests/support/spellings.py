"""Checkpoints in the spellings that others publish, written out by hand from one official set of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from strobe.models.checkpoint import hashing
from strobe.models.wan.config import WanConfig
from strobe.models.wan.weights import open_checkpoint

WAN = WanConfig(dim=48, ffn_dim=128, freq_dim=32, text_dim=24, text_len=12, num_heads=2, num_layers=2, latent_channels=16)
Tensors = dict[str, Tensor]

DIFFUSERS_OUTSIDE = {
    "patch_embedding": "patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
}
DIFFUSERS_LAYER = {
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    **{
        f"{which}_attn.{name}": f"attn{number}.{theirs}"
        for number, which in enumerate(("self", "cross"), start=1)
        for name, theirs in (
            ("norm_q", "norm_q"), ("norm_k", "norm_k"), ("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"),
        )
    },
}  # fmt: skip
"""Modules by their original names; modulations, of the head and of a layer, are tables there."""


def to_diffusers(original: Tensors) -> Tensors:
    out = {}
    for name, tensor in original.items():
        module, _, kind = name.rpartition(".")
        parts = module.split(".", 2)
        layer, inside = (f"blocks.{parts[1]}.", ".".join(parts[2:])) if parts[0] == "blocks" else ("", module)
        theirs = (DIFFUSERS_LAYER if layer else DIFFUSERS_OUTSIDE).get(inside, "")
        out[layer + ("scale_shift_table" if kind == "modulation" else f"{theirs}.{kind}")] = tensor
    return out


LINEARS = [*(f"{which}_attn.{name}" for which in ("self", "cross") for name in ("q", "k", "v", "o")), "ffn.0", "ffn.2"]
"""What LongLive's LoRA covers in every layer."""


def lora_tensors(original: Tensors, rank: int = 4, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Draw LoRA matrices down and up for every linear layer, by its original name."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for number in range(2):
        for linear in LINEARS:
            out, given = original[f"blocks.{number}.{linear}.weight"].shape
            down, up = torch.randn(rank, given, generator=generator), torch.randn(out, rank, generator=generator)
            found[f"blocks.{number}.{linear}"] = 0.1 * down, 0.1 * up
    return found


def peft(loras: dict[str, tuple[Tensor, Tensor]]) -> Tensors:
    """Name LoRA tensors as PEFT does in LongLive's lora.pt."""
    out = {}
    for name, (down, up) in loras.items():
        out[f"base_model.model.{name}.lora_A.weight"] = down
        out[f"base_model.model.{name}.lora_B.weight"] = up
    return out


ORIGINAL_CONFIG: dict[str, Any] = {
    "_class_name": "WanModel", "dim": 48, "eps": 1e-06, "ffn_dim": 128, "freq_dim": 32, "in_dim": 16, "model_type": "t2v",
    "num_heads": 2, "num_layers": 2, "out_dim": 16, "text_len": 12, "text_dim": 24,
}  # fmt: skip
DIFFUSERS_CONFIG: dict[str, Any] = {
    "_class_name": "WanTransformer3DModel", "attention_head_dim": 24, "num_attention_heads": 2, "cross_attn_norm": True,
    "eps": 1e-06, "ffn_dim": 128, "freq_dim": 32, "in_channels": 16, "num_layers": 2, "out_channels": 16,
    "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "text_dim": 24, "image_dim": None,
}  # fmt: skip


def write_sharded(folder: Path, tensors: Tensors) -> None:
    """Write two shards and an index, cut in the middle of a layer."""
    names = sorted(tensors)
    half = len(names) // 2
    files = {
        f"diffusion_pytorch_model-0000{i + 1}-of-00002.safetensors": part for i, part in enumerate((names[:half], names[half:]))
    }
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


def write_original(folder: Path, original: Tensors) -> Path:
    save_file(original, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps(ORIGINAL_CONFIG))
    (folder / "Wan2.1_VAE.pth").write_bytes(b"another part")
    (folder / "models_t5_umt5-xxl-enc-bf16.pth").write_bytes(b"another part")
    return folder


def write_original_sharded(folder: Path, original: Tensors) -> Path:
    write_sharded(folder, original)
    (folder / "config.json").write_text(json.dumps(ORIGINAL_CONFIG))
    return folder


def write_diffusers(folder: Path, original: Tensors) -> Path:
    inner = folder / "transformer"
    inner.mkdir()
    write_sharded(inner, to_diffusers(original))
    (inner / "config.json").write_text(json.dumps(DIFFUSERS_CONFIG))
    (folder / "model_index.json").write_text("{}")
    return folder


def write_self_forcing(folder: Path, original: Tensors) -> Path:
    """Write a Self-Forcing file: the averaged weights are the original ones, the others differ."""
    raw = {f"model.{name}": tensor + 1 for name, tensor in original.items()}
    torch.save(
        {"generator": raw, "generator_ema": {f"model.{n}": t for n, t in original.items()}}, folder / "self_forcing_dmd.pt"
    )
    return folder / "self_forcing_dmd.pt"


def write_fsdp(folder: Path, original: Tensors) -> Path:
    """Write a file as it is saved from a wrapped and compiled model."""
    spelled = {}
    for name, tensor in original.items():
        inner = name.replace("blocks.1.", "blocks.1._fsdp_wrapped_module._checkpoint_wrapped_module.")
        spelled[f"_orig_mod.model._fsdp_wrapped_module.{inner}"] = tensor
    torch.save({"generator": spelled, "step": 600}, folder / "model.pt")
    return folder


def write_longlive(folder: Path, original: Tensors) -> Path:
    torch.save({"generator": {f"model.{n}": t for n, t in original.items()}}, folder / "longlive_base.pt")
    torch.save({"generator_lora": peft(lora_tensors(original))}, folder / "lora.pt")
    return folder


def write_krea(folder: Path, original: Tensors) -> Path:
    save_file({f"model.{name}": tensor for name, tensor in original.items()}, folder / "krea-realtime-video-14b.safetensors")
    return folder


WRITERS: dict[str, Callable[[Path, Tensors], Path]] = {
    "original": write_original, "original_sharded": write_original_sharded, "diffusers": write_diffusers,
    "self_forcing": write_self_forcing, "fsdp": write_fsdp, "longlive": write_longlive, "krea": write_krea,
}  # fmt: skip


def read_checkpoint(path: Path, config: WanConfig | None = None) -> SimpleNamespace:
    """A checkpoint's transformer in float32, what was taken of its files, and their hash."""
    opened = open_checkpoint(path, config)
    source = opened.source
    return SimpleNamespace(dit=opened.read().float(), part=source.part, files=source.files, weights_hash=hashing(source.files)())
