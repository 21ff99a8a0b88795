"""Inputs of a stream's frames: prompt, seed, preset and picture that it begins with, and the log of its prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from strobe.engine.prompts import Mode, Switch
from strobe.engine.texts import TextEncoder


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptEntry:
    """A prompt of the log: its number, and the first frame block that follows it.

    Args:
        text_sha256: hash of the encoded prompt, see `text_hash`; empty until the log is saved.
    """

    epoch: int
    frame_block: int
    text: str
    mode: Mode
    over: int
    text_sha256: str = ""


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
