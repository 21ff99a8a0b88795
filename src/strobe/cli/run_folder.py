"""Output folder of a profile; its former contents are kept under another name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.cli.console import Output
from strobe.core.settings import read_settings

if TYPE_CHECKING:
    from strobe.perf.records.store import RunWriter

FOLDER: Final = Path("traces")


def chosen_folder(out: Path | None) -> Path:
    """Return the folder to write to: the given one, else STROBE_PROFILE_DIR, else `traces`."""
    return out or Path(read_settings().profile_dir or FOLDER)


def rotating(kept: list[Path]) -> Callable[[Path, str], RunWriter]:
    """Open a run in the given folder; its former contents are kept under another name and listed."""
    from strobe.perf.records.store import RunWriter, rotate

    def open_run(folder: Path, slug: str) -> RunWriter:
        moved = rotate(folder)
        if moved is not None:
            kept.append(moved)
        return RunWriter(folder)

    return open_run


def tell_kept(kept: Sequence[Path], output: Output) -> None:
    """Print what was moved out of the way."""
    for path in kept:
        output.note(f"the folder was not empty: what it held is kept as {path}")
