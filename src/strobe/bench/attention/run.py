"""Run over the grid: one folder per cell, written while it is measured; a finished cell is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import torch

from strobe.bench import peers
from strobe.bench.attempt import Attempt
from strobe.bench.attention import ours
from strobe.bench.attention.cell import CellPlan, measure_cell
from strobe.bench.attention.contestant import PEER, group_and_impl
from strobe.bench.attention.grid import TILES, GridCell
from strobe.bench.attention.inputs import DATA, draw
from strobe.bench.attention.lines import cell_line
from strobe.bench.case import Progress
from strobe.bench.cells import Outcome, claim, measure_cells
from strobe.bench.runner import end_line
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, StrobeError, unknown_choice
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.store import RunWriter

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
    claim(folder, request)
    asked = [(cell.name, partial(_measure, cell, request)) for cell in cells]
    return measure_cells(asked, folder, resolve_device(request.device), progress)


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
