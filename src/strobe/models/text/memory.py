"""The last embeddings of prompts, in main memory."""

from __future__ import annotations

import threading
from collections import OrderedDict

from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.models.text.key import Key

LIMIT_BYTES = 1 << 28
"""Size of a memory unless it is told: some 250 prompts of 100 words of umT5-xxl."""


class PromptMemory:
    """Embeddings in main memory, shared by any number of sessions; the least recently used goes first.

    A prompt is found by whoever has it, and by nobody else: only the digests of prompts are held, and none is listed.

    Args:
        limit_bytes: of all embeddings together; one that is larger is not held.

    Raises:
        ConfigError: the limit is not positive.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        if limit_bytes < 1:
            raise ConfigError(f"a memory for prompts of {limit_bytes} bytes holds nothing; give 1 or more, or use none")
        self.limit_bytes = limit_bytes
        self._rows: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory of the embeddings that are held, bytes."""
        with self._lock:
            return sum(rows.nbytes for rows in self._rows.values())

    def get(self, key: Key) -> Tensor | None:
        """Return rows [tokens, dim] on the CPU, not to be written to; None if they are not held."""
        with self._lock:
            rows = self._rows.get(key.digest)
            if rows is not None:
                self._rows.move_to_end(key.digest)
            return rows

    def put(self, key: Key, rows: Tensor) -> None:
        """Hold rows, and drop the least recently used ones that no longer fit."""
        if rows.nbytes > self.limit_bytes:
            return
        with self._lock:
            self._rows[key.digest] = rows
            self._rows.move_to_end(key.digest)
            held = sum(each.nbytes for each in self._rows.values())
            while held > self.limit_bytes:
                held -= self._rows.popitem(last=False)[1].nbytes
