"""A notice board of a process group: what a rank says before it fails, for those who ask why it is silent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What a rank leaves behind when its call fails.

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
        """Which call, and what happened."""
        return f"in call {self.number} ({self.call}): {self.reason}"


class Board:
    """Notes in the group's key-value store. It may live in a process that is gone: nothing here waits longer than it says.

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
        """Leave a note, if the store can be reached within that time."""
        _within(patience_s, lambda: self.store.set(f"strobe/tree/note/{self._rank}", json.dumps(asdict(note))))

    def notes(self, ranks: Sequence[int], patience_s: float) -> dict[int, Note]:
        """What the given ranks have said, waiting for those who have not."""
        read = self._collect([f"strobe/tree/note/{rank}" for rank in ranks], patience_s)
        said = {rank: json.loads(read[f"strobe/tree/note/{rank}"]) for rank in ranks if f"strobe/tree/note/{rank}" in read}
        return {rank: Note(**each | {"blamed": tuple(each["blamed"])}) for rank, each in said.items()}

    def share(self, key: str, value: str, num_ranks: int, timeout_s: float) -> dict[int, str]:
        """Leave a value under a key and collect those of all ranks; the ranks that are missing when the time is up are absent."""
        _within(timeout_s, lambda: self.store.set(f"strobe/tree/{key}/{self._rank}", value))
        read = self._collect([f"strobe/tree/{key}/{rank}" for rank in range(num_ranks)], timeout_s)
        return {rank: read[f"strobe/tree/{key}/{rank}"] for rank in range(num_ranks) if f"strobe/tree/{key}/{rank}" in read}

    def _collect(self, keys: Sequence[str], patience_s: float) -> dict[str, str]:
        """The values of those keys that are set in time. Asked again and again: not every store waits for less than a second."""
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
    """Run an action in a thread that is left behind if it takes longer: a store's own calls have no timeout of their own."""

    def run() -> None:
        try:
            action()
        except RuntimeError:  # the store's process has gone; the caller sees that nothing came
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
