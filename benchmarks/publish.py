"""Packs the records of runs for publishing: every `records.jsonl` at or under a folder becomes `records.jsonl.gz`.

    python benchmarks/publish.py benchmarks/engine-h200/compare

Equal records make equal bytes: the gzip holds no date and no name. Every reader of run folders takes either file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from strobe.core.errors import StrobeError
from strobe.perf.records.store import RECORDS, pack


def publish(folders: list[Path]) -> list[Path]:
    """Pack every run at or under the folders.

    Returns:
        the packed files.
    """
    return [pack(file.parent) for folder in folders for file in sorted(folder.rglob(RECORDS))]


def main(folders: list[str]) -> int:
    """Pack what the command line names; returns its exit code."""
    try:
        packed = publish([Path(folder) for folder in folders])
    except StrobeError as error:
        sys.stderr.write(f"publish: {error}\n")
        return 2
    if not packed:
        sys.stderr.write(f"publish: no {RECORDS} at or under {', '.join(folders) or 'no folder'}; name run folders\n")
        return 2
    sys.stdout.writelines(f"{file}\n" for file in packed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
