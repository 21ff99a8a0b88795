"""Run of an ablation: one folder per cell, written while it is measured; a finished cell is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from strobe.bench.case import Plan as Amount
from strobe.bench.case import Progress
from strobe.bench.cases.ablate.case import CellCase, script_of
from strobe.bench.cases.ablate.cells import AblationCell, idle, waiting
from strobe.bench.cases.ablate.factors import Setup, names, value_of
from strobe.bench.cases.stream import Script
from strobe.bench.cells import Outcome, measure_cells
from strobe.bench.runner import run_case
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError
from strobe.core.files import not_written, write_whole
from strobe.engine.load import Model
from strobe.perf.records.plan import PLAN, Plan, read_plan
from strobe.perf.records.store import RunWriter


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
    asked = [(cell.planned.name, cell.planned.refused or partial(_measure, cell, job)) for cell in cells]
    return measure_cells(asked, folder, resolve_device(job.device), progress)


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


def _measure(cell: AblationCell, job: Job, place: Path, say: Callable[[str], None]) -> None:
    amount = replace(job.amount, waits=waiting(cell), alone=cell.candidate is None)
    case = CellCase(cell, script=job.script, model=job.model, device=job.device, review_samples=job.review_samples)

    def open_run(root: Path, slug: str) -> RunWriter:
        case.writer = RunWriter(place)
        return case.writer

    with closing(case):
        run_case(case, root=place.parent, plan=amount, progress=lambda _, __, what: say(what), open_run=open_run)
