"""Sizes of the house, of one checkout or two side by side: lines and nouns of rooms, flags, words, tests, the tracked tree.

`python tools/rooms.py [BEFORE] [AFTER]`; a checkout of an older commit comes from `git worktree add FOLDER COMMIT`. Flags are
counted by the command line of the checkout itself, so its libraries must be installed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

FLAGS = """
from strobe.cli.app import app

def verbs(parent):
    for name in parent:
        if not name.startswith("-"):
            inner = list(verbs(parent[name]))
            yield from inner or [parent[name]]

def flags(verb):
    return {each.name for each in verb.assemble_argument_collection() if each.name.startswith("--")}

found = [flags(verb) for verb in verbs(app)]
print(len(set().union(*found) - {"--config", "--debug"}), len(found))
"""


def room_of(path: Path) -> str:
    """Return the room of a file below `src/strobe`: its folder, one deeper in `perf`."""
    first, *rest = path.parts
    return f"perf/{rest[0]}" if first == "perf" and len(rest) > 1 else first if rest else "(package)"


def count_rooms(checkout: Path) -> dict[str, tuple[int, int, int]]:
    """Count lines, files and classes by room; `ClassDef` anywhere in a file counts."""
    package = checkout / "src" / "strobe"
    found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for file in package.rglob("*.py"):
        room = room_of(file.relative_to(package))
        for name in (room, "perf", "all") if room.startswith("perf") else (room, "all"):
            lines, files, nouns = found[name]
            found[name] = (lines + num_lines(file), files + 1, nouns + len(classes(file)))
    return dict(found)


def num_lines(*places: Path) -> int:
    """Count lines of files, or of the Python files in folders; of what is not there, none."""
    files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files if file.is_file())


def classes(file: Path) -> list[str]:
    """Names of the classes of a file."""
    return [node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]


def num_shared_names(folder: Path) -> int:
    """Count class names that stand for several classes."""
    return sum(times > 1 for times in Counter(name for file in folder.rglob("*.py") for name in classes(file)).values())


def num_words(checkout: Path) -> tuple[int, int]:
    """Count words of the pages in `docs`: those that a person writes, and those that `docs/generate.py` does."""
    made = set(re.findall(r'folder / "(\w+\.md)"', (checkout / "docs" / "generate.py").read_text(encoding="utf-8")))
    words = {file.name: len(file.read_text(encoding="utf-8").split()) for file in (checkout / "docs").glob("*.md")}
    generated = sum(number for name, number in words.items() if name in made)
    return sum(words.values()) - generated, generated


def num_flags(checkout: Path) -> tuple[int, int]:
    """Count distinct flags, and verbs that run."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    told = subprocess.run([sys.executable, "-c", FLAGS], env=environment, capture_output=True, text=True, check=True).stdout
    flags, verbs = told.split()
    return int(flags), int(verbs)


def tracked_mb(checkout: Path) -> float:
    """Sum the files that git tracks, as they are on disk."""
    told = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    files = [checkout / name for name in told.split("\0") if name]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def sizes(checkout: Path) -> dict[str, str]:
    """Measure what the whole house is held to."""
    package = checkout / "src" / "strobe"
    rooms = [package / room for room in ("perf", "lint", "bench", "cli")]
    by_hand, generated = num_words(checkout)
    flags, verbs = num_flags(checkout)
    return {
        "lines of `src/strobe`": f"{num_lines(package):,}",
        "lines of `perf`, `lint`, `bench`, `cli`": f"{num_lines(*(room for room in rooms if room.is_dir())):,}",
        "classes: all / in `perf`": " / ".join(
            f"{sum(len(classes(file)) for file in folder.rglob('*.py')):,}" for folder in (package, package / "perf")
        ),
        "class names that stand for several classes: all / in `perf`": (
            f"{num_shared_names(package)} / {num_shared_names(package / 'perf')}"
        ),
        "distinct flags / verbs": f"{flags} / {verbs}",
        "words of `docs`: by hand / generated": f"{by_hand:,} / {generated:,}",
        "lines of tests / of tools": f"{num_lines(checkout / 'tests'):,} / {num_lines(checkout / 'tools'):,}",
        "tracked tree, MB": f"{tracked_mb(checkout):.1f}",
    }


def main(checkouts: list[str]) -> None:
    """Print two Markdown tables with a column for each checkout: the house, and `lines / files / classes` of its rooms."""
    paths = [Path(each) for each in checkouts or [Path(__file__).parents[1]]]
    whole, rooms = [sizes(path) for path in paths], [count_rooms(path) for path in paths]
    _table("size", checkouts or ["now"], [(name, [each[name] for each in whole]) for name in whole[0]])
    cells = {room: [each.get(room, (0, 0, 0)) for each in rooms] for room in sorted(set().union(*rooms))}
    shown = [(f"`{room}`", [" / ".join(f"{number:,}" for number in each) for each in of]) for room, of in cells.items()]
    _table("room", checkouts or ["lines / files / classes"], shown)


def _table(title: str, heads: list[str], rows: list[tuple[str, list[str]]]) -> None:
    lines = [f"| {title} | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    sys.stdout.write("\n".join([*lines, *(f"| {name} | {' | '.join(values)} |" for name, values in rows)]) + "\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
