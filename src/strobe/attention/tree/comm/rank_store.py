"""A notice board of a process group: each rank's note about its failed call, for the ranks that wait for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """The note that a rank leaves when its call fails.

    Args:
        number: of the call on this rank.
        digest: of the arguments that must be equal.
        call: the call in words.
        reason: what happened.
        blamed: the ranks it waited for in vain.
    """

    number: int
    digest: int
    call: str
    reason: str
    blamed: tuple[int, ...]

    @property
    def text(self) -> str:
        """The note in words: number and description of the call, and what happened."""
        return f"in call {self.number} ({self.call}): {self.reason}"


class RankStore:
    """Notes in the process group's key-value store, whose process may have ended: every method has a time limit.

    Args:
        store: of the group; None for a process alone, which has no board.
        rank: this rank in the group.
    """

    def __init__(self, store: Store | None, rank: int) -> None:
        self._store = store
        self._rank = rank

    @property
    def store(self) -> Store:
        """The group's store."""
        assert self._store is not None, "a process alone has no board"
        return self._store

    def post(self, note: Note, patience_s: float) -> None:
        """Leave a note, if the store can be reached within `patience_s`."""
        _within(patience_s, lambda: self.store.set(f"strobe/tree/note/{self._rank}", json.dumps(asdict(note))))

    def notes(self, ranks: Sequence[int], patience_s: float) -> dict[int, Note]:
        """Collect the notes of the given ranks, at most `patience_s` long; ranks without a note are absent."""
        read = self._collect([f"strobe/tree/note/{rank}" for rank in ranks], patience_s)
        said = {rank: json.loads(read[f"strobe/tree/note/{rank}"]) for rank in ranks if f"strobe/tree/note/{rank}" in read}
        return {rank: Note(**each | {"blamed": tuple(each["blamed"])}) for rank, each in said.items()}

    def share(self, key: str, value: str, num_ranks: int, timeout_s: float) -> dict[int, str]:
        """Leave a value under a key and collect those of all ranks; ranks that are missing when the time is up are absent."""
        _within(timeout_s, lambda: self.store.set(f"strobe/tree/{key}/{self._rank}", value))
        read = self._collect([f"strobe/tree/{key}/{rank}" for rank in range(num_ranks)], timeout_s)
        return {rank: read[f"strobe/tree/{key}/{rank}"] for rank in range(num_ranks) if f"strobe/tree/{key}/{rank}" in read}

    def _collect(self, keys: Sequence[str], patience_s: float) -> dict[str, str]:
        """Poll the store until all keys are set or the time is up; return those that are. Some stores wait a second or more."""
        found: dict[str, str] = {}
        deadline = time.monotonic() + patience_s

        def read() -> None:
            while len(found) < len(keys) and time.monotonic() < deadline:
                for key in keys:
                    if key not in found and self.store.check([key]):
                        found[key] = self.store.get(key).decode()
                time.sleep(0.002)

        _within(patience_s, read)
        return dict(found)


def _within(patience_s: float, action: Callable[[], None]) -> None:
    """Run an action in a thread, and return when it ends or the time is up: a store's own calls have no timeout."""

    def run() -> None:
        try:
            action()
        except RuntimeError:  # the store's process has gone; the caller sees that nothing came
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
