"""Maps of which test runs which line of a package, one per test file, kept until something that they depend on changes."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm_pool import Pool, say
from warm_pytest import Warm

Entry = dict[str, Any]


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
                continue  # the time is up, or it cannot be imported here
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
        done = warm.run(
            ["-p", "covered", f"--covered={source}", f"--covered-to={beside}", f"--tier={self.tier}", name], warm.left()
        )
        if beside.exists() and name not in load(beside)["failed"]:
            beside.replace(kept)
        elif done["code"] is not None or warm.left() > 0:
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
