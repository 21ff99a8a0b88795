"""Run of an ablation: one folder per cell, written while it is measured; a finished cell is not measured again."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from strobe.bench.attention.attempt import Attempt
from strobe.bench.attention.run import finished
from strobe.bench.case import Plan as Amount
from strobe.bench.case import Progress
from strobe.bench.cases.ablate.case import CellCase, script_of
from strobe.bench.cases.ablate.cells import AblationCell, idle, waiting
from strobe.bench.cases.ablate.factors import Setup, names, value_of
from strobe.bench.cases.stream import Script
from strobe.bench.runner import run_case
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.files import not_written, write_whole
from strobe.engine.load import Model
from strobe.perf.records.plan import CELLS, PLAN, Plan, read_plan
from strobe.perf.records.store import RunWriter, rotate


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Settings that all cells of an ablation share.

    Args:
        base: name of the preset that everything is held against.
        values: value of the base by factor, as text.
        idle: optimisations that the base asks for and that do nothing here, and why.
        script: the clip.
        model: the weights.
        device: "auto", "cpu", "cuda" or "cuda:N".
        amount: how much is measured; `waits` is filled in.
        review_samples: clips that quality is judged on.
    """

    base: str
    values: Mapping[str, str]
    idle: Mapping[str, str]
    script: Script
    model: Model
    device: str
    amount: Amount
    review_samples: int = 2

    @property
    def request(self) -> dict[str, str]:
        """Settings that must agree between the cells of a folder, as text by name."""
        switches = "; ".join(f"{each.frame_block} {each.mode}: {each.prompt}" for each in self.script.switches)
        return {
            "model": self.model.name,
            "weights": self.model.weights_hash,
            "frame size": "x".join(map(str, self.model.defaults.frame_size)),
            "device": str(resolve_device(self.device)),
            "prompt": self.script.prompt,
            "switches": switches,
            "frame blocks": str(self.script.num_blocks),
            "seed": str(self.script.seed),
            "rounds": str(self.amount.palindromes),
            "review samples": str(self.review_samples),
        }


def job(base: Setup, script: Script, model: Model, device: str, amount: Amount, review_samples: int) -> Job:
    """Collect the shared settings of an ablation from its base."""
    defaults = model.defaults
    return Job(
        base=base.config.name,
        values={name: value_of(base, name, defaults) for name in names()},
        idle=idle(base, defaults, resolve_device(device)),
        script=script,
        model=model,
        device=device,
        amount=amount,
        review_samples=review_samples,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a run: cells measured now, cells that were complete before, and failed cells with the reason."""

    measured: tuple[str, ...]
    kept: tuple[str, ...]
    failed: tuple[str, ...]


def run_cells(cells: Sequence[AblationCell], job: Job, folder: Path, progress: Progress) -> Outcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same base and request.

    Raises:
        ConfigError: the folder holds cells of another request, or a cell's switch is after the end of the clip.
        StrobeError: the records cannot be written, or the device is lost.
    """
    for cell in cells:
        script_of(job.script, cell.base)
    claim(folder, job, cells)
    measured, kept, failed = [], [], []
    for number, cell in enumerate(cells):
        name, place = cell.planned.name, folder / CELLS / cell.planned.name
        if cell.planned.refused:
            failed.append(f"{name}: {cell.planned.refused}")
            continue
        if finished(place):
            kept.append(name)
            continue
        progress(number, len(cells), name)
        if place.exists():
            rotate(place)
        with Attempt() as attempt:
            _measure(cell, job, place, partial(_say, progress, number, len(cells), name))
            measured.append(name)
        if attempt.reason:
            failed.append(f"{name}: {attempt.reason}")
            _check_alive(job.device, attempt.reason)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return Outcome(measured=tuple(measured), kept=tuple(kept), failed=tuple(failed))


def claim(folder: Path, job: Job, cells: Sequence[AblationCell]) -> None:
    """Write the plan, with the cells of earlier runs, or refuse a folder of another request.

    Raises:
        ConfigError: the folder's cells have another base or another request.
        StrobeError: the plan cannot be written.
    """
    earlier: dict[str, object] = {}
    planned = {cell.planned.name: cell.planned for cell in cells}
    if (folder / PLAN).exists():
        held = read_plan(folder)
        earlier = {"base": held.base, **held.request}
        planned = {each.name: each for each in held.cells} | planned
    asked = {"base": job.base, **job.request}
    differing = [name for name in asked if earlier and earlier.get(name) != asked[name]]
    if differing:
        changed = ", ".join(differing)
        raise ConfigError(f"{folder} holds cells that differ in {changed}; give the same, or name another folder")
    plan = Plan(base=job.base, request=job.request, values=dict(job.values), idle=dict(job.idle), cells=tuple(planned.values()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder / PLAN, error) from error
    write_whole(folder / PLAN, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")


def _measure(cell: AblationCell, job: Job, place: Path, say: Progress) -> None:
    amount = replace(job.amount, waits=waiting(cell), alone=cell.candidate is None)
    case = CellCase(cell, script=job.script, model=job.model, device=job.device, review_samples=job.review_samples)

    def open_run(root: Path, slug: str) -> RunWriter:
        case.writer = RunWriter(place)
        return case.writer

    with closing(case):
        run_case(case, root=place.parent, plan=amount, progress=say, open_run=open_run)


def _say(progress: Progress, number: int, total: int, name: str, done: int, of: int, what: str) -> None:
    progress(number, total, f"{name}: {what}")


def _check_alive(device: str, reason: str) -> None:
    with Attempt() as alive:
        synchronize(resolve_device(device))
    if alive.reason:
        raise StrobeError(f"the device is lost: {reason}; the finished cells are kept, run the same command again")
