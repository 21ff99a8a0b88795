"""Try every kind of fault as often as the table says and write docs/faults.md: `make faults`.

Usage: python tests/faults/run_faults.py [KIND ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from fault_kinds import KINDS, Kind

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
HEAD: Final = """# Faults

What was tried to break, and what held. `make faults` tries them again and writes this page; the same functions, with fewer tries,
are tests (`tests/faults`). A try is one seed: it makes one fault in an empty folder and fails if what is said does not hold.

| fault | tried | survived | what must hold |
|---|---|---|---|
"""


def attempts(kind: Kind, tries: int) -> dict[int, str]:
    """Try a kind with the seeds from 0; the seeds that were not survived, and why."""
    failed: dict[int, str] = {}
    for seed in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            try:
                kind.attempt(seed, Path(folder))
            except Exception as error:  # noqa: BLE001  # whatever it is, the fault was not survived
                failed[seed] = f"{type(error).__name__}: {error}"
    return failed


def row(kind: Kind, failed: int) -> str:
    """Its line in the page."""
    return f"| {kind.name} | {kind.tries} | {kind.tries - failed} | {kind.survived} |\n"


def main() -> int:
    """Try the kinds named, or all; only all of them make the page."""
    wanted = [kind for kind in KINDS if not sys.argv[1:] or kind.name in sys.argv[1:]]
    rows = []
    for kind in wanted:
        began = time.monotonic()
        failed = attempts(kind, kind.tries)
        rows.append(row(kind, len(failed)))
        sys.stderr.write(f"{kind.name}: {kind.tries - len(failed)} of {kind.tries} in {time.monotonic() - began:.0f} s\n")
        sys.stderr.writelines(f"  seed {seed}: {why[:300]}\n" for seed, why in failed.items())
    if len(wanted) == len(KINDS):
        PAGE.write_text(HEAD + "".join(rows), encoding="utf-8")
    return int(any(f"| {kind.tries} | {kind.tries} |" not in line for kind, line in zip(wanted, rows, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
