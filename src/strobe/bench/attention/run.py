"""Run over the grid: one folder per cell, written while it is measured; a finished cell is not measured again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import torch

from strobe.bench import peers
from strobe.bench.attention import ours
from strobe.bench.attention.attempt import Attempt
from strobe.bench.attention.cell import CellPlan, measure_cell
from strobe.bench.attention.contestant import PEER, group_and_impl
from strobe.bench.attention.grid import TILES, GridCell
from strobe.bench.attention.inputs import DATA, draw
from strobe.bench.attention.lines import cell_line
from strobe.bench.case import Progress
from strobe.bench.runner import end_line
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError, DataError, StrobeError, unknown_choice
from strobe.core.files import file_inside, not_written, write_whole
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.grids import CELLS
from strobe.perf.records.store import RunWriter, read_run, rotate

REQUEST: Final = "request.json"
"""File with the request of a folder; a rerun must ask for the same."""
DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all cells of a folder share.

    Args:
        contestants: names, in order.
        dtype: `auto` is bfloat16 on a GPU and float32 on a CPU.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        data: `smooth` or `normal`.
        tile: `auto` or `cube`.
        seed: seed of all tensors.
        seconds: seconds of timed calls in a cell, about.
        traced_calls: in a trace of each contestant; 0 for none.
    """

    contestants: tuple[str, ...]
    dtype: str = "auto"
    device: str = "auto"
    data: str = "smooth"
    tile: str = "auto"
    seed: int = 0
    seconds: float = 4.0
    traced_calls: int = 0

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise unknown_choice("dtype", self.dtype, ["auto", *DTYPES])
        if self.data not in DATA:
            raise unknown_choice("data", self.data, DATA)
        if self.tile not in TILES:
            raise unknown_choice("tile", self.tile, TILES)
        if self.seconds <= 0 or self.traced_calls < 0:
            raise ConfigError(
                f"give more than 0 seconds per cell and 0 or more traced calls, got {self.seconds:g}, {self.traced_calls}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a run: cells measured now, cells that were complete before, and cells that could not be measured."""

    measured: tuple[str, ...]
    kept: tuple[str, ...]
    failed: tuple[str, ...]


def contestants(chosen: Sequence[str], device: torch.device) -> tuple[str, ...]:
    """Resolve the user's words (`kind:impl`, `peer:name`, a kind, an impl, `peers`) to contestants; none: all but slow ones.

    Raises:
        ConfigError: a word that is none of them.
    """
    known = (*ours.names(), *(f"{PEER}:{name}" for name in peers.PEERS))
    if not chosen:
        on_gpu = device.type == "cuda"
        return tuple(name for name in known if _default(name, on_gpu))
    found: dict[str, None] = {}
    for word in chosen:
        named = [name for name in known if word in _words(name)]
        if word in ours.KINDS:  # the slow one is measured by name alone
            named = [name for name in named if group_and_impl(name)[1] != ours.SLOW]
        if not named:
            raise unknown_choice("implementation", word, dict.fromkeys(part for name in known for part in _words(name)))
        found |= dict.fromkeys(named)
    return tuple(name for name in known if name in found)


def _words(name: str) -> tuple[str, ...]:
    """Return the words by which a user may name a contestant: `peers`, its group, its impl, its full name."""
    group, impl = group_and_impl(name)
    return (*(("peers",) if group == PEER else ()), group, impl, name)


def _default(name: str, on_gpu: bool) -> bool:
    group, impl = group_and_impl(name)
    if group == PEER:
        return on_gpu and peers.PEERS[impl].installed()
    return impl not in (ours.SLOW, "cpu" if on_gpu else "flex")  # FlexAttention forms all pairs of tokens on a CPU


def run_grid(cells: Sequence[GridCell], request: Request, folder: Path, progress: Progress) -> Outcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same request.

    Raises:
        ConfigError: the folder holds cells of another request.
        StrobeError: the records cannot be written, or the device is lost.
    """
    device = resolve_device(request.device)
    _claim(folder, request)
    measured, kept, failed = [], [], []
    for number, cell in enumerate(cells):
        place = folder / CELLS / cell.name
        if finished(place):
            kept.append(cell.name)
            continue
        progress(number, len(cells), cell.name)
        if place.exists():
            rotate(place)
        with Attempt() as attempt:
            _measure(cell, request, place, partial(_say, progress, number, len(cells), cell.name))
            measured.append(cell.name)
        if attempt.reason:
            failed.append(f"{cell.name}: {attempt.reason}")
            with Attempt() as alive:
                synchronize(device)
            if alive.reason:
                raise StrobeError(
                    f"the device is lost: {attempt.reason}; the finished cells are kept, run the same command again"
                )
        _release(device)
    return Outcome(measured=tuple(measured), kept=tuple(kept), failed=tuple(failed))


def finished(place: Path) -> bool:
    """Return whether a cell's records have an end line with status `complete`."""
    try:
        end = read_run(place).end
    except DataError:
        return False
    return end is not None and end.status == "complete"


def _claim(folder: Path, request: Request) -> None:
    """Write the request into the folder, or check that the folder holds the same one."""
    file, text = folder / REQUEST, msgspec.json.format(msgspec.json.encode(request)) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if file.exists():
            held = msgspec.json.decode(file_inside(folder, REQUEST).read_bytes(), type=Request)
            differing = [name for name in request.__struct_fields__ if getattr(held, name) != getattr(request, name)]
            if differing:
                raise ConfigError(
                    f"{folder} holds cells that differ in {', '.join(differing)}; give the same, or name another folder"
                )
            return
        write_whole(file, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a request of this command: {error}; name another folder") from error
    except OSError as error:
        raise not_written(file, error) from error


def _say(progress: Progress, number: int, total: int, name: str, what: str) -> None:
    progress(number, total, f"{name}: {what}")


def _measure(cell: GridCell, request: Request, place: Path, say: Callable[[str], None]) -> None:
    device = resolve_device(request.device)
    automatic = torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = automatic if request.dtype == "auto" else DTYPES[request.dtype]
    plan = CellPlan(contestants=request.contestants, seconds=request.seconds, traced_calls=request.traced_calls)
    with RunWriter(place) as writer, end_line(writer):
        writer.append(describe_run(place, device, request.contestants, 0, "attention"), cell_line(cell))
        with Attempt() as attempt:
            inputs = draw(cell, tile=request.tile, data=request.data, dtype=dtype, device=device, seed=request.seed)
            measure_cell(inputs, writer, plan, say)
        if attempt.reason:
            raise StrobeError(attempt.reason)


def _release(device: torch.device) -> None:
    """Free device memory before the next cell."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
