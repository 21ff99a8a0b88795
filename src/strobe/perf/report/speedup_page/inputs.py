"""Input files of a report: hashed beside it, and copied if asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from strobe.core.errors import DataError
from strobe.core.files import write_whole, writing_whole
from strobe.core.printable import clean_lines
from strobe.perf.report.blocks.logs import input_file
from strobe.perf.report.speedup_page.study import SpeedupStudy


def write_inputs(study: SpeedupStudy, folder: Path, *, store: bool) -> Path:
    """Write `inputs.json`: side, path, size and SHA-256 of every file that was read.

    Args:
        folder: where the report lies.
        store: also copy the files into `inputs/` below it.

    Raises:
        DataError: a file changed between reading and copying.
    """
    listed = []
    for side in study.sides:
        taken: set[str] = set()
        for number, path in enumerate(side.files):
            read = input_file(path)
            entry = {"side": side.request.name, "path": str(path), "size_bytes": read.size_bytes, "sha256": read.sha256}
            if store:
                name = path.name if path.name not in taken else f"{number}-{path.name}"
                taken.add(name)
                copy = folder / "inputs" / side.request.name / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                if not (copy.exists() and copy.samefile(path)):
                    _copy(path, copy)
                if input_file(copy).sha256 != read.sha256:
                    raise DataError(f"{path} changed while it was copied to {copy}; run again when it is finished")
                entry["stored"] = copy.relative_to(folder).as_posix()
            listed.append(entry)
    target = folder / "inputs.json"
    return write_whole(target, clean_lines(json.dumps({"v": 1, "inputs": listed}, indent=2, ensure_ascii=False)) + "\n")


def _copy(path: Path, copy: Path) -> None:
    with path.open("rb") as source, writing_whole(copy) as file:
        shutil.copyfileobj(source, file, 1 << 20)
