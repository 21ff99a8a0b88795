"""Copies of a checkout, each with a process that runs pytest in forks of itself, for work that changes sources."""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warm_pytest import Warm

LEFT_AT_ROOT = {".git", ".venv", "build", "runs", "dist", "site", ".hypothesis", "shared"}
"""What a copy of a checkout does not need. Packages have such names too."""


@dataclass(slots=True)
class Pool:
    """Copies of a checkout, each with a process that runs its tests.

    Args:
        workers: the free ones.
        number: of all.
        tier: of the tests that they run.
        sound: names of tests, and whether they pass without a mutant, as far as that is known.
    """

    workers: queue.SimpleQueue[Warm]
    number: int
    tier: str
    sound: dict[str, bool] = field(default_factory=dict)

    def map(self, work: Any, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what work makes of each item with a worker, in the order of ending."""

        def one(item: Any) -> None:
            worker = self.workers.get()
            try:
                ended.put((work(worker, item), None))
            except BaseException as error:  # noqa: BLE001  (it is raised where the results are read)
                ended.put((None, error))
            finally:
                self.workers.put(worker)

        ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        held = list(items)
        with ThreadPoolExecutor(self.number) as threads:
            for item in held:
                threads.submit(one, item)
            for _ in held:
                value, error = ended.get()
                if error is not None:
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise error
                yield value


@contextmanager
def pool(root: Path, number: int, seconds: float | None, tier: str) -> Iterator[Pool]:
    """Make copies of a checkout and start their processes; each of them stops what it runs when the seconds are over."""
    ends = None if seconds is None else time.monotonic() + seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        workers: queue.SimpleQueue[Warm] = queue.SimpleQueue()
        first = Path(folder) / "0"
        shutil.copytree(root, first, ignore=left_out(root))
        hashed = ["-m", "compileall", "-q", "-j", str(number), "--invalidation-mode", "checked-hash", "src"]
        subprocess.run([sys.executable, *hashed], cwd=first, check=False)  # a mutant of the same size and second is compiled too
        held = [Warm(first, ends)]
        for index in range(1, number):
            shutil.copytree(first, Path(folder) / str(index))
            held.append(Warm(Path(folder) / str(index), ends))
        for each in held:
            workers.put(each)
        try:
            yield Pool(workers, number, tier)
        finally:
            for each in held:
                each.close()


def left_out(root: Path) -> Callable[[str, list[str]], set[str]]:
    """Return what `copytree` leaves out of a copy of a checkout."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {each for each in names if each == "__pycache__" or (Path(folder) == root and each in LEFT_AT_ROOT)}

    return ignored


def say(line: str) -> None:
    """Write a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
