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

from strobe.models.wan.config import WanConfig
from strobe.models.wan.weights import open_checkpoint

WAN = WanConfig(dim=48, ffn_dim=128, freq_dim=32, text_dim=24, text_len=12, num_heads=2, num_layers=2, latent_channels=16)
Tensors = dict[str, Tensor]

DIFFUSERS_OUTSIDE = """
    patch_embedding.weight patch_embedding.weight
    patch_embedding.bias patch_embedding.bias
    text_embedding.0.weight condition_embedder.text_embedder.linear_1.weight
    text_embedding.0.bias condition_embedder.text_embedder.linear_1.bias
    text_embedding.2.weight condition_embedder.text_embedder.linear_2.weight
    text_embedding.2.bias condition_embedder.text_embedder.linear_2.bias
    time_embedding.0.weight condition_embedder.time_embedder.linear_1.weight
    time_embedding.0.bias condition_embedder.time_embedder.linear_1.bias
    time_embedding.2.weight condition_embedder.time_embedder.linear_2.weight
    time_embedding.2.bias condition_embedder.time_embedder.linear_2.bias
    time_projection.1.weight condition_embedder.time_proj.weight
    time_projection.1.bias condition_embedder.time_proj.bias
    head.modulation scale_shift_table
    head.head.weight proj_out.weight
    head.head.bias proj_out.bias
"""
DIFFUSERS_LAYER = """
    modulation scale_shift_table
    norm3.weight norm2.weight
    norm3.bias norm2.bias
    ffn.0.weight ffn.net.0.proj.weight
    ffn.0.bias ffn.net.0.proj.bias
    ffn.2.weight ffn.net.2.weight
    ffn.2.bias ffn.net.2.bias
    self_attn.norm_q.weight attn1.norm_q.weight
    self_attn.norm_k.weight attn1.norm_k.weight
    cross_attn.norm_q.weight attn2.norm_q.weight
    cross_attn.norm_k.weight attn2.norm_k.weight
    self_attn.q.weight attn1.to_q.weight
    self_attn.q.bias attn1.to_q.bias
    self_attn.k.weight attn1.to_k.weight
    self_attn.k.bias attn1.to_k.bias
    self_attn.v.weight attn1.to_v.weight
    self_attn.v.bias attn1.to_v.bias
    self_attn.o.weight attn1.to_out.0.weight
    self_attn.o.bias attn1.to_out.0.bias
    cross_attn.q.weight attn2.to_q.weight
    cross_attn.q.bias attn2.to_q.bias
    cross_attn.k.weight attn2.to_k.weight
    cross_attn.k.bias attn2.to_k.bias
    cross_attn.v.weight attn2.to_v.weight
    cross_attn.v.bias attn2.to_v.bias
    cross_attn.o.weight attn2.to_out.0.weight
    cross_attn.o.bias attn2.to_out.0.bias
"""


def pairs(table: str) -> dict[str, str]:
    return dict(line.split() for line in table.strip().splitlines())


def to_diffusers(original: Tensors) -> Tensors:
    outside, layer, out = pairs(DIFFUSERS_OUTSIDE), pairs(DIFFUSERS_LAYER), {}
    for name, tensor in original.items():
        if name.startswith("blocks."):
            number, inside = name.split(".", 2)[1:]
            out[f"blocks.{number}.{layer[inside]}"] = tensor
        else:
            out[outside[name]] = tensor
    return out


LINEARS = [
    *(f"{which}_attn.{name}" for which in ("self", "cross") for name in ("q", "k", "v", "o")),
    "ffn.0",
    "ffn.2",
]
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
    "original": write_original,
    "original_sharded": write_original_sharded,
    "diffusers": write_diffusers,
    "self_forcing": write_self_forcing,
    "fsdp": write_fsdp,
    "longlive": write_longlive,
    "krea": write_krea,
}


def read_checkpoint(path: Path, config: WanConfig | None = None) -> SimpleNamespace:
    """A checkpoint's transformer in float32, what was taken of its files, and their hash."""
    opened = open_checkpoint(path, config)
    source = opened.source
    return SimpleNamespace(dit=opened.read().float(), part=source.part, files=source.files, weights_hash=source.sha256())
