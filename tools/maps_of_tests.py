"""Maps of which test runs which line of a package, one per test file, kept until something that they depend on changes; and the
copies of a checkout, each with a process that runs pytest in forks of itself, that make them and run mutants."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import queue
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warm_pytest import Warm

Entry = dict[str, Any]
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
def pool(root: Path, number: int, tier: str) -> Iterator[Pool]:
    """Make copies of a checkout and start their processes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        workers: queue.SimpleQueue[Warm] = queue.SimpleQueue()
        first = Path(folder) / "0"
        shutil.copytree(root, first, ignore=left_out(root))
        hashed = ["-m", "compileall", "-q", "-j", str(number), "--invalidation-mode", "checked-hash", "src"]
        subprocess.run([sys.executable, *hashed], cwd=first, check=False)  # a mutant of the same size and second is compiled too
        held = [Warm(first)]
        for index in range(1, number):
            shutil.copytree(first, Path(folder) / str(index))
            held.append(Warm(Path(folder) / str(index)))
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


@dataclass(frozen=True, slots=True)
class Maps:
    """The maps of a checkout.

    Args:
        root: of the checkout.
        name: of its package.
        folder: where they are kept.
        tier: of the tests.
    """

    root: Path
    name: str
    folder: Path
    tier: str

    def make(self, packages: Iterable[str], pool: Pool) -> None:
        """Make those that are missing, those of the longest files first, and keep each at once."""
        missing = []
        for package in packages:
            kept = self._kept(package)
            own = [(package, file, path) for file, path in kept.items() if not path.exists()]
            if own:
                say(f"{package}: finding out which test runs which line, in {len(own)} of {len(kept)} files")
            missing += own
        missing.sort(key=lambda each: -each[1].stat().st_size)
        for _ in pool.map(lambda warm, each: self._map(*each, warm), missing):
            pass

    def covered(self, package: str) -> Entry:
        """Return the tests of a package and, by file and line, their numbers.

        A line that runs at import counts for every test of a file that imports its module by name, beside those of the map.
        """
        found: Entry = {"tests": [], "lines": defaultdict(lambda: defaultdict(list))}
        for file, kept in self._kept(package).items():
            if not kept.exists():
                continue  # it cannot be imported here
            each, first = load(kept), len(found["tests"])
            found["tests"] += each["tests"]
            every, named = range(len(each["tests"])), self._named(file)
            for path, lines in each["lines"].items():
                early = at_import(self.root / path) if path in named else set()
                for line, numbers in lines.items():
                    found["lines"][path][line] += [first + number for number in (every if int(line) in early else numbers)]
            if each["failed"]:
                say(f"{file.relative_to(self.root)}: {len(each['failed'])} tests fail without a mutant and are left out")
        return found

    def _kept(self, package: str) -> dict[Path, Path]:
        """Return the test files of a package, and where the map of each is kept."""
        tests, shared = self.root / "tests" / package, hashlib.sha256()
        files = sorted(tests.rglob("test_*.py"))
        for path in sorted({*(self.root / "src" / self.name / package).rglob("*.py"), *tests.rglob("*.py")} - set(files)):
            shared.update(f"{path.relative_to(self.root)} {path.stat().st_size} ".encode() + path.read_bytes())
        kept = {}
        for file in files:
            digest = hashlib.sha256(shared.digest() + file.read_bytes()).hexdigest()[:16]
            stem = file.relative_to(self.root).as_posix().replace("/", ".")
            kept[file] = self.folder / package.replace("/", ".") / f"{stem}-{digest}.json.gz"
        return kept

    def _named(self, file: Path) -> set[str]:
        """Return the sources that a test file imports by name."""
        found = set()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = f"src/{node.module.replace('.', '/')}"
                found |= {f"{module}.py", f"{module}/__init__.py", *(f"{module}/{each.name}.py" for each in node.names)}
            elif isinstance(node, ast.Import):
                found |= {f"src/{each.name.replace('.', '/')}.py" for each in node.names}
        return found

    def _map(self, package: str, file: Path, kept: Path, warm: Warm) -> None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in kept.parent.glob(f"{kept.name.rsplit('-', 1)[0]}-*"):
            old.unlink()
        name = file.relative_to(self.root).as_posix()
        source, beside = warm.root / "src" / self.name / package, kept.resolve().with_suffix(".partial")
        done = warm.run(["-p", "covered", f"--covered={source}", f"--covered-to={beside}", f"--tier={self.tier}", name])
        if beside.exists() and name not in load(beside)["failed"]:
            beside.replace(kept)
        else:
            say(f"{name}: no map, its tests are left out ({done['code']}): {done['said'][-300:]}")


def at_import(path: Path) -> set[int]:
    """Return the numbers of the lines of a source outside functions."""
    source = path.read_bytes()
    lines = set(range(1, source.count(b"\n") + 2))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines -= set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def load(kept: Path) -> Entry:
    """Read a map."""
    found: Entry = json.loads(gzip.decompress(kept.read_bytes()))
    return found
