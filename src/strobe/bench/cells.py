"""Cells of one folder: claimed, each measured once; an error of others becomes text."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import msgspec
import torch

from strobe.bench.case import Progress
from strobe.core.device import synchronize
from strobe.core.errors import ConfigError, DataError, ImplUnavailableError, StrobeError
from strobe.core.files import file_inside, not_written, write_whole
from strobe.perf.records.record import CELLS
from strobe.perf.records.store import read_run, rotate

_MAX: Final = 400


class Attempt:
    """Run the body and keep an error as text instead of raising it. Ctrl-C and SystemExit are raised.

    Attributes:
        refused: it cannot run here, and said so.
        reason: error message on one line; empty without an error.
        error: the raised error; None without one.
    """

    def __init__(self) -> None:
        self.refused = False
        self.reason = ""
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        self.refused = isinstance(error, ImplUnavailableError | NotImplementedError)
        words = " ".join(str(error).split()) or "no reason given"
        text = words if isinstance(error, StrobeError) else f"{type(error).__name__}: {words}"
        self.reason = text if len(text) <= _MAX else f"{text[: _MAX - 3]}..."
        return True


REQUEST: Final = "request.json"
Measure: TypeAlias = Callable[[Path, Callable[[str], None]], None]
"""Measures a cell into its folder, and says what it is at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellsOutcome:
    """Result of a run: cells measured now, cells that were complete before, and those not measured, with reasons."""

    measured: tuple[str, ...]
    kept: tuple[str, ...]
    failed: tuple[str, ...]


def finished(place: Path) -> bool:
    """Return whether a cell's records have an end line with status `complete`."""
    try:
        end = read_run(place).end
    except DataError:
        return False
    return end is not None and end.status == "complete"


def claim(folder: Path, request: Any) -> None:
    """Write what was asked for into the folder, or check that the folder holds cells of the same."""
    file = folder / REQUEST
    try:
        if file.exists():
            held = msgspec.json.decode(file_inside(folder, REQUEST).read_bytes(), type=type(request))
            check_same(folder, *(msgspec.to_builtins(each) for each in (held, request)))
        else:
            write_json(file, request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a request of this command: {error}; name another folder") from error
    except OSError as error:
        raise not_written(file, error) from error


def write_json(file: Path, value: Any) -> None:
    """Write a value as JSON, into a folder that is made if absent."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(file, error) from error
    write_whole(file, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


def check_same(folder: Path, held: Mapping[str, object], asked: Mapping[str, object]) -> None:
    """Check that a folder's cells were asked for with the same settings."""
    differing = [name for name in asked if held.get(name) != asked[name]]
    if differing:
        raise ConfigError(f"{folder} holds cells that differ in {', '.join(differing)}; give the same, or name another folder")


def measure_cells(
    cells: Sequence[tuple[str, Measure | str]], folder: Path, device: torch.device, progress: Progress
) -> CellsOutcome:
    """Measure every cell that is not complete yet, one after the other, in this process.

    Args:
        cells: each with its name, and how it is measured or why it is not.
        device: that the cells use; its memory is freed between two of them.

    Raises:
        StrobeError: the device is lost.
    """
    measures = {name: measure for name, measure in cells if not isinstance(measure, str)}
    measured, kept = list[str](), list[str]()
    failed = [f"{name}: {why}" for name, why in cells if isinstance(why, str)]
    for number, (name, measure) in enumerate(measures.items()):
        place = folder / CELLS / name
        if finished(place):
            kept.append(name)
            continue
        progress(number, len(measures), name)
        if place.exists():
            rotate(place)
        with Attempt() as attempt:
            measure(place, lambda what, at=number, cell=name: progress(at, len(measures), f"{cell}: {what}"))  # type: ignore[misc]
            measured.append(name)
        if attempt.reason:
            failed.append(f"{name}: {attempt.reason}")
            with Attempt() as alive:
                synchronize(device)
            if alive.reason:
                raise StrobeError(
                    f"the device is lost: {attempt.reason}; the finished cells are kept, run the same command again"
                )
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return CellsOutcome(measured=tuple(measured), kept=tuple(kept), failed=tuple(failed))
