"""Freeze the values of every stored run, page, trace and log: `python tests/oracle/freeze.py`.

It prints what moved against the values that were frozen before; commit the new file with the reason. Subjects whose folder is not
on this machine (`STROBE_TEST_TRACES`) keep the values that they had.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from frozen import VALUES, moves, other_subjects, read_frozen, subjects, write_frozen
from published import ROOT

_SHOWN: Final = 200


def freeze() -> int:
    """Write the packed file and print what moved; returns 0."""
    before = read_frozen()["values"] if VALUES.exists() else {}
    others = other_subjects()
    now = {name: subject.value() for name, subject in {**subjects(), **(others or {})}.items()}
    kept = {} if others is not None else {name: value for name, value in before.items() if name.startswith("other ")}
    moved = [each for name in sorted(before.keys() & now.keys()) for each in moves(name, before[name], now[name])]
    for name in sorted(before.keys() ^ (now.keys() | kept.keys())):
        sys.stdout.write(f"{name}: {'new' if name in now else 'gone'}\n")
    sys.stdout.writelines(f"{line}\n" for line, _ in moved[:_SHOWN])
    write_frozen({**now, **kept})
    numbers = sum(is_number for _, is_number in moved)
    sys.stdout.write(
        f"{len(now)} subjects frozen, {len(moved)} values moved, {numbers} of them numbers; {VALUES.relative_to(ROOT)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(freeze())
