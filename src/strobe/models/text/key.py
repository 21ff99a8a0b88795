"""The key under which an embedding is kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The values on which an embedding depends.

    Args:
        identity: of the encoder.
        prompt: cleaned.
        dtype: of the rows, as torch writes it.
    """

    identity: str
    prompt: str
    dtype: str

    @property
    def digest(self) -> str:
        """sha256 of all fields, hexadecimal."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def file(self) -> str:
        """File name of the entry in a folder."""
        return f"{self.digest}.safetensors"
