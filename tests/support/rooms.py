"""Lines, files and classes of each room, of one checkout or of two side by side.

`python tests/support/rooms.py [BEFORE] [AFTER]`; a checkout of an older commit comes from `git worktree add FOLDER COMMIT`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path


def room_of(path: Path) -> str:
    """Return the room of a file below `src/strobe`: its folder, one deeper in `perf`."""
    first, *rest = path.parts
    return f"perf/{rest[0]}" if first == "perf" and len(rest) > 1 else first if rest else "(package)"


def count(checkout: Path) -> dict[str, tuple[int, int, int]]:
    """Count lines, files and classes by room; `ClassDef` anywhere in a file counts."""
    package = checkout / "src" / "strobe"
    found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))
        room = room_of(file.relative_to(package))
        for name in (room, "perf", "all") if room.startswith("perf") else (room, "all"):
            lines, files, nouns = found[name]
            found[name] = (lines + len(text.splitlines()), files + 1, nouns + classes)
    return dict(found)


def main(checkouts: list[str]) -> None:
    """Print a Markdown table with a column of `lines / files / classes` for each checkout."""
    counts = [count(Path(each)) for each in checkouts or [Path(__file__).parents[2]]]
    rooms = sorted(set().union(*counts))
    sys.stdout.write(f"| room | {' | '.join(checkouts or ['lines / files / classes'])} |\n|---|{'---|' * len(counts)}\n")
    for room in rooms:
        cells = (" / ".join(f"{number:,}" for number in each.get(room, (0, 0, 0))) for each in counts)
        sys.stdout.write(f"| `{room}` | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(sys.argv[1:])
