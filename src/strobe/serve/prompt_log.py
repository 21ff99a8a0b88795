"""Inputs of a stream's frames: prompt, seed, preset and picture that it begins with, and the log of its prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from strobe.engine.prompts import Switch, TextEncoder
from strobe.serve.protocol import PromptEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The prompt, seed, preset and picture with which a stream begins.

    Args:
        image: bytes of the picture to start from; empty without one.
    """

    prompt: str
    seed: int
    preset: str
    image: bytes = b""


def switches_from(log: Sequence[PromptEntry], frame_block: int) -> list[Switch]:
    """Return the prompts of a log that take effect at a frame block or after it, as switches of a session."""
    return [
        Switch(frame_block=each.frame_block, prompt=each.text, mode=each.mode, over=each.over)
        for each in log
        if each.frame_block >= max(1, frame_block)
    ]


def hashed(log: Sequence[PromptEntry], encoder: TextEncoder) -> list[PromptEntry]:
    """Return a log in which every prompt has the hash of its text; only prompts without one are encoded."""
    return [each if each.text_sha256 else replace(each, text_sha256=text_hash(encoder, each.text)) for each in log]


def text_hash(encoder: TextEncoder, text: str) -> str:
    """Compute the sha256 of an encoded prompt: dtype, shape and bytes, hexadecimal."""
    tensor = encoder.encode([text]).detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
