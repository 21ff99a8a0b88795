"""Try every kind of fault as often as the table says and write the section of docs/testing.md: `make faults`.

Usage: python tools/run_faults.py [KIND ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from fault_kinds import KINDS, Kind
from testing_page import put, section

HEAD: Final = """## Faults

`make faults` breaks something on purpose in an empty folder, as often as the table says. `tests/faults` does it a few times.

| fault | tried | survived | what must hold |
|---|---|---|---|
"""


def attempts(kind: Kind, tries: int) -> dict[int, str]:
    """Try a kind of fault with seeds from 0; return the seeds that failed, with the error."""
    failed: dict[int, str] = {}
    for seed in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            try:
                kind.attempt(seed, Path(folder))
            except Exception as error:  # noqa: BLE001  # whatever it is, the fault was not survived
                failed[seed] = f"{type(error).__name__}: {error}"
    return failed


def row(kind: Kind, failed: int) -> str:
    """Format the kind's row in the page."""
    return f"| {kind.name} | {kind.tries} | {kind.tries - failed} | {kind.survived} |\n"


def written(rows: dict[str, str]) -> str:
    """Return the section with these rows; kinds that were not tried keep their present row."""
    lines = section("Faults").splitlines(keepends=True)
    kept = {line.split("|")[1].strip(): line for line in lines if line.startswith("|")}
    known = kept | rows
    return HEAD + "".join(known[kind.name] for kind in KINDS if kind.name in known)


def main() -> int:
    """Try the kinds named, or all, and write their rows."""
    unknown = set(sys.argv[1:]) - {kind.name for kind in KINDS}
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(kind.name for kind in KINDS)}\n")
        return 2
    all_survived = True
    for kind in KINDS:
        if sys.argv[1:] and kind.name not in sys.argv[1:]:
            continue
        began = time.monotonic()
        failed = attempts(kind, kind.tries)
        sys.stderr.write(f"{kind.name}: {kind.tries - len(failed)} of {kind.tries} in {time.monotonic() - began:.0f} s\n")
        sys.stderr.writelines(f"  seed {seed}: {why[:300]}\n" for seed, why in failed.items())
        put(written({kind.name: row(kind, len(failed))}))
        all_survived = all_survived and not failed
    return 0 if all_survived else 1


if __name__ == "__main__":
    sys.exit(main())
