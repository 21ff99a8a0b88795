"""Embeddings of prompts, kept in a folder and in main memory: the text encoder runs once per prompt, not once per session."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from strobe.core.errors import ConfigError, DataError, StrobeError
from strobe.core.files import write_whole
from strobe.models.text.umt5 import Umt5


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


MEMORY_BYTES = 1 << 28
"""Main memory for embeddings: some 250 prompts of 100 words of umT5-xxl."""


VERSION = 1

LIMIT_BYTES = 1 << 30
"""Size of a cache unless it is told: more than a thousand prompts of umT5-xxl."""

STALE_S = 3600
"""Age from which a half-written file is that of a process that died."""


class PromptCache:
    """Embeddings in a folder, one safetensors file each. Several processes may share it.

    An entry appears whole or not at all; one that is not what it should be is deleted, and missing. When the folder
    outgrows its limit, those that were not used for longest go first.

    Args:
        folder: made if it is not there.
        limit_bytes: of all entries together.

    Raises:
        ConfigError: the limit is not positive.
        DataError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        if limit_bytes < 1:
            raise ConfigError(f"a prompt cache of {limit_bytes} bytes holds nothing; give 1 or more, or use no cache")
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise DataError(
                f"cannot keep prompts in {folder}: {error.strerror}; choose a folder that can be written to"
            ) from error

    def holds(self, key: Key) -> bool:
        """Return whether there is an entry, valid or not."""
        return (self.folder / key.file).is_file()

    def is_empty(self) -> bool:
        return not self._entries()

    def get(self, key: Key) -> Tensor | None:
        """Read rows [tokens, dim] to the CPU; None if they are missing or damaged."""
        path = self.folder / key.file
        try:
            rows = _read(path, key)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, DataError):
            path.unlink(missing_ok=True)
            return None
        return rows

    def put(self, key: Key, rows: Tensor) -> None:
        """Keep rows [tokens, dim]; a failure to write is not raised, because the rows themselves are good."""
        rows = rows.detach().cpu().contiguous()
        data = save({"rows": rows}, {"strobe": _header(key, rows)})
        try:
            if len(data) <= self.limit_bytes:
                write_whole(self.folder / key.file, data)
                self._trim(keep=key.file)
        except (OSError, StrobeError):
            return

    def _trim(self, keep: str) -> None:
        for partial in self.folder.glob(".*.tmp"):
            if time.time() - partial.stat().st_mtime > STALE_S:
                partial.unlink(missing_ok=True)
        entries = sorted((status.st_mtime_ns, path, status.st_size) for path, status in self._entries() if path.name != keep)
        size = sum(status.st_size for _, status in self._entries())
        for _, path, size_bytes in entries:
            if size <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            size -= size_bytes

    def _entries(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self.folder.glob("*.safetensors"):
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:  # another process was faster
                continue
        return found


def _read(path: Path, key: Key) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(path)
    with safe_open(path, "pt") as file:
        header = (file.metadata() or {}).get("strobe", "")
        names = list(file.keys())
        rows: Tensor = file.get_tensor("rows")
    if names != ["rows"] or rows.dim() != 2 or str(rows.dtype) != key.dtype or header != _header(key, rows):
        raise DataError(f"it is damaged, of another version than {VERSION}, or not of {key.prompt!r}")
    return rows


def _header(key: Key, rows: Tensor) -> str:
    digest = hashlib.sha256(rows.view(torch.uint8).numpy().tobytes()).hexdigest()
    return msgspec.json.encode({"version": VERSION, "key": key, "sha256": digest}).decode()


class PromptEncoder:
    """An encoder of prompts for the transformer: rows, then zeros up to `length`. Threads use the embedder in turn.

    The last embeddings are held in main memory, for any number of sessions; the least recently used goes first. A prompt is found
    by whoever has it, and by nobody else: only the digests of prompts are held, and none is listed.

    Args:
        embedder: the text encoder.
        cache: folder where embeddings are kept; None: there is none.
        limit_bytes: of all embeddings in main memory together.
    """

    def __init__(self, embedder: Umt5, cache: PromptCache | None = None, limit_bytes: int = MEMORY_BYTES) -> None:
        self.embedder = embedder
        self.cache = cache
        self.limit_bytes = limit_bytes
        self._held: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def check(self, prompts: Sequence[str]) -> None:
        """Check prompts before a stream depends on them.

        Raises:
            ConfigError: one is empty or too long.
        """
        for prompt in prompts:
            cleaned = self.embedder.clean(prompt)
            if self.cache is None or not self.cache.holds(self._key(cleaned)):
                self.embedder.check(cleaned)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts to text [B, length, dim] on the CPU in the encoder's dtype; padded rows are zeros.

        Raises:
            ConfigError: a prompt is empty or too long, or there is none.
        """
        if not prompts:
            raise ConfigError("no prompts; give at least one")
        cleaned = [self.embedder.clean(prompt) for prompt in prompts]
        known = {prompt: self._recall(self._key(prompt)) for prompt in dict.fromkeys(cleaned)}
        found = {prompt: rows for prompt, rows in known.items() if rows is not None}
        if len(found) < len(known):
            with self._turn:
                found = self._complete(known)
        return torch.stack([F.pad(found[prompt], (0, 0, 0, self.embedder.length - len(found[prompt]))) for prompt in cleaned])

    def ready(self, prompts: Sequence[str]) -> bool:
        """Return whether the embeddings of all prompts are kept."""
        keys = [self._key(self.embedder.clean(prompt)) for prompt in prompts]
        return all(self._recall(key) is not None or (self.cache is not None and self.cache.holds(key)) for key in keys)

    def place(self, device: torch.device) -> None:
        with self._turn:
            self.embedder.place(device)

    def _complete(self, known: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Read rows that are not known from the folder, if no other thread has made them meanwhile, and encode the others."""
        found: dict[str, Tensor] = {}
        for prompt, rows in known.items():
            key = self._key(prompt)
            rows = self._recall(key) if rows is None else rows
            rows = self.cache.get(key) if rows is None and self.cache is not None else rows
            if rows is not None:
                found[prompt] = rows
        new = [prompt for prompt in known if prompt not in found]
        made = dict(zip(new, self.embedder.embed(new), strict=True)) if new else {}
        if self.cache is not None:
            for prompt, rows in made.items():
                self.cache.put(self._key(prompt), rows)
        found |= made
        for prompt, rows in found.items():
            self._hold(self._key(prompt), rows)
        return found

    def _key(self, cleaned: str) -> Key:
        return Key(identity=self.embedder.identity, prompt=cleaned, dtype=str(self.embedder.dtype))

    def _recall(self, key: Key) -> Tensor | None:
        """Return rows [tokens, dim] on the CPU, not to be written to; None if they are not in main memory."""
        with self._lock:
            rows = self._held.get(key.digest)
            if rows is not None:
                self._held.move_to_end(key.digest)
            return rows

    def _hold(self, key: Key, rows: Tensor) -> None:
        """Hold rows in main memory, and drop the least recently used ones that no longer fit."""
        if rows.nbytes > self.limit_bytes:
            return
        with self._lock:
            self._held[key.digest] = rows
            self._held.move_to_end(key.digest)
            held = sum(each.nbytes for each in self._held.values())
            while held > self.limit_bytes:
                held -= self._held.popitem(last=False)[1].nbytes
