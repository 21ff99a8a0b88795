"""Grids of settings: what is varied, and the cells of a grid, each measured as a comparison."""

from __future__ import annotations

import itertools
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import torch
from torch import nn

from strobe.bench.case import ComparePlan as Amount
from strobe.bench.case import Progress
from strobe.bench.cases.stream import Script, StreamCase, unwritten
from strobe.bench.cells import Attempt, CellsOutcome, check_same, measure_cells, write_json
from strobe.bench.runner import VariantError, run_case
from strobe.cache.policy import check_window
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice
from strobe.engine import presets
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, replace_knobs
from strobe.engine.model import Model
from strobe.engine.resolve import filled, idle_knobs, resolve
from strobe.engine.session import Session
from strobe.perf.records import record
from strobe.perf.records.record import PLAN, Kind, Plan, PlannedCell, read_plan
from strobe.perf.records.store import RunWriter

SWITCH: Final[dict[str, bool]] = {"on": True, "off": False}
BATCH: Final = "batch"
"""The factor that changes the clip itself; such a cell is compared with its own base alone."""
_REVIEW_SAMPLES: Final = 2
"""Clips that quality is judged on."""
_KNOBS: Final[dict[str, Any]] = get_type_hints(Knobs)
_HINTS: Final[dict[str, Any]] = get_type_hints(EngineConfig) | _KNOBS


Factors: TypeAlias = Mapping[str, tuple[str, ...]]
"""The values to try of each factor, as text, in the order given and once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One side of a cell: its stream, and how many run in lockstep."""

    config: EngineConfig
    batch: int = 1


def parse_factors(texts: Sequence[str]) -> Factors:
    """Read `NAME=VALUE,VALUE ...`, one text per factor.

    Raises:
        ConfigError: no factor of that name (names the nearest), no value, or a factor twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        values = tuple(dict.fromkeys(value.strip() for value in rest.split(",")))
        if not equals or not name or not all(values):
            raise ConfigError(f"{text!r} is not a factor; write NAME=VALUE,VALUE like window=6,8,12")
        if name in found:
            raise ConfigError(f"factor {name!r} is given twice; list all its values at once: {name}=A,B,C")
        if name not in names():
            raise unknown_choice("factor", name, names())
        found[name] = values
    return found


def names() -> tuple[str, ...]:
    """Return the names of all factors: of the configuration, of the clip, optimisations."""
    own = (each.name for each in fields(EngineConfig) if each.name not in ("name", "knobs", "timesteps"))
    return ("preset", "steps", *own, BATCH, *(each.name for each in fields(Knobs)))


def read_value(name: str, text: str, defaults: ModelDefaults) -> object:
    """Parse one value of a factor. `changed` checks that it goes with the others.

    Raises:
        ConfigError: the value is not one that the factor may have; says which it may.
    """
    if name == "preset":
        return presets.preset(text)
    if name == "steps":  # timesteps are dropped evenly; the first and, from two on, the last stay
        full, count = defaults.timesteps, _count(name, text)
        if count > len(full):
            raise ConfigError(f"steps={text}: the model's schedule has {len(full)} timesteps; give 1 to {len(full)}")
        gaps = max(1, count - 1)
        return tuple(full[(2 * i * (len(full) - 1) + gaps) // (2 * gaps)] for i in range(count))
    if name == BATCH:
        return _count(name, text)
    return _value(name, text, _HINTS[name])


def changed(setup: Setup, changes: Mapping[str, str], defaults: ModelDefaults) -> Setup:
    """Set several factors at once; a preset among them comes first, because it replaces all others.

    Raises:
        ConfigError: a value is not allowed, or not together with the others.
    """
    values: dict[str, Any] = {name: read_value(name, text, defaults) for name, text in changes.items()}
    config: Any = replace(values.pop("preset", setup.config), simulate=setup.config.simulate)
    timesteps = {"timesteps": values.pop("steps")} if "steps" in values else {}
    batch = values.pop(BATCH, setup.batch)
    knobs: dict[str, Any] = {name: values.pop(name) for name in list(values) if name in _KNOBS}
    frames = {name: value for name in ("window", "sink") if (value := values.get(name)) is not None}
    asked = replace(filled(config, defaults), **frames)
    check_window(asked.window, max(0, asked.sink), defaults.frame_block)
    held = replace(config, knobs=replace_knobs(config.knobs, **knobs), **values, **timesteps)
    return Setup(config=held, batch=batch)


def value_of(setup: Setup, name: str, defaults: ModelDefaults) -> str:
    """Return the value of a factor as text, in the form that `read_value` accepts."""
    config, own = setup.config, filled(setup.config, defaults)
    special: dict[str, object] = {"preset": config.name, "steps": len(config.timesteps or defaults.timesteps), BATCH: setup.batch}
    holder = next((each for each in (config.knobs, own) if hasattr(each, name)), config)
    value = special[name] if name in special else getattr(holder, name)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}={text}: give a whole number of 1 or more")
    return int(text)


def _value(name: str, text: str, hint: Any) -> Any:
    """Convert text to a field's type; the configuration itself checks its range."""
    if hint is bool:
        if text not in SWITCH:
            raise ConfigError(f"{name}={text}: give {' or '.join(SWITCH)}")
        return SWITCH[text]
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if text == "model" and type(None) in options:
            return None
        return _value(name, text, next(each for each in options if each is not type(None)))
    if origin is Literal:
        if text not in options:
            raise unknown_choice(f"value of {name}", text, options)
        return text
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError as error:
            raise ConfigError(f"{name}={text}: give a {'whole ' if hint is int else ''}number") from error
    if hint is str:
        return text
    raise ConfigError(f"factor {name!r} cannot be written as one word; name a preset that has it instead")


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationCell:
    """A cell with its setups: the base and, unless the cell is of the base alone, a candidate."""

    planned: PlannedCell
    base: Setup
    candidate: Setup | None = None


def varied(
    base: Setup, factors: Factors, defaults: ModelDefaults, device: torch.device, *, grid: bool = False
) -> Iterator[AblationCell]:
    """Yield a cell for every value of every factor that is not the base's own.

    Args:
        grid: for every combination of values instead; an impossible one carries the reason.

    Raises:
        ConfigError: a value that the factor, the model or the base does not allow.
        ImplUnavailableError: a value that cannot run on the device.
    """
    each = [{name: value} for name, values in factors.items() for value in values]
    if grid:
        for name, values in factors.items():
            for value in values:
                read_value(name, value, defaults)
        each = [dict(zip(factors, chosen, strict=True)) for chosen in itertools.product(*factors.values())]
    for given in each:
        changes = {name: value for name, value in given.items() if value != value_of(base, name, defaults)}
        if not changes:
            continue
        try:
            yield _cell(base, changes, defaults, device)
        except (ConfigError, ImplUnavailableError) as error:
            if not grid:
                raise
            yield AblationCell(planned=_planned(changes, str(error)), base=base)


def leave_one_out(base: Setup, defaults: ModelDefaults, device: torch.device) -> Iterator[AblationCell]:
    """Yield a cell for every active optimisation, with it alone off; one that others need carries the reason."""
    resolved = resolve(base.config, defaults, device).knobs
    for each in fields(Knobs):
        if getattr(resolved, each.name) is not True:
            continue
        name, changes = f"without-{_word(each.name)}", {each.name: "off"}
        refused, candidate = "", None
        try:
            candidate = _named(changed(base, changes, defaults), changes)
        except ConfigError as error:
            refused = str(error)
        planned = PlannedCell(name=name, kind="leave-one-out", changes=changes, refused=refused)
        yield AblationCell(planned=planned, base=base, candidate=candidate)


def _cell(base: Setup, changes: Mapping[str, str], defaults: ModelDefaults, device: torch.device) -> AblationCell:
    """Build a cell: changes of the clip go into both sides, all others into the candidate."""
    own = changed(base, {name: value for name, value in changes.items() if name == BATCH}, defaults)
    settings, candidate = {name: value for name, value in changes.items() if name != BATCH}, None
    if settings:
        candidate = _named(changed(own, settings, defaults), settings)
        resolve(candidate.config, defaults, device)  # what cannot run is told now
    return AblationCell(planned=_planned(changes), base=own, candidate=candidate)


def _planned(changes: Mapping[str, str], refused: str = "") -> PlannedCell:
    kind: Kind = "product" if len(changes) > 1 else "workload" if BATCH in changes else "setting"
    return PlannedCell(name=_folder(changes), kind=kind, changes=dict(changes), refused=refused)


def _named(setup: Setup, changes: Mapping[str, str]) -> Setup:
    if list(changes) == ["preset"]:
        return setup
    return replace(setup, config=replace(setup.config, name=_folder(changes)))


def _folder(changes: Mapping[str, str]) -> str:
    return "+".join(f"{_word(name)}-{_word(value)}" for name, value in changes.items())


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")


class CellCase(StreamCase):
    """The base of a cell and its candidate, if it has one; a `strobe.bench.case.Case`.

    Whatever a side raises is told as a `StrobeError`, after its settings were written: a run that fails is an entry too.

    Raises:
        ConfigError: a word that the model does not know.
    """

    def __init__(self, cell: AblationCell, *, script: Script, model: Model, device: str) -> None:
        self._batch = cell.base.batch
        self._cold_ns: dict[str, int] = {}
        self._written: set[str] = set()
        self.writer: RunWriter | None = None
        super().__init__(
            [side.config for side in (cell.base, cell.candidate) if side is not None],
            script=script,
            model=model,
            device=device,
            review_samples=_REVIEW_SAMPLES,
        )

    def gate(self, name: str) -> record.Gate:
        """Check the candidate against the base; for a red gate write the settings too, since nothing else will."""
        with self._told(name):
            found = super().gate(name)
        if not found.passed:
            self._write(name)
        return found

    def prepare(self, name: str) -> None:
        with self._told(name):
            super().prepare(name)

    def blocks(self, name: str) -> Iterator[object]:
        with self._told(name):
            yield from super().blocks(name)

    def settings(self, name: str) -> record.Variant:
        self._written.add(name)
        found = super().settings(name)
        text = self._loaded.text
        return msgspec.structs.replace(
            found,
            costs=found.costs if self._batch == 1 else (),
            cold_start_ns=self._cold_ns.get(name),
            text_encoder_bytes=sum(each.nbytes for each in text.state_dict().values()) if isinstance(text, nn.Module) else None,
            text_encoder_on_device=self.device.type == "cpu" if isinstance(text, nn.Module) else None,
        )

    def review(self, name: str, folder: Path) -> Iterator[record.Quality | record.Video]:
        with self._told(name):
            yield from super().review(name, folder)

    def _workload(self) -> record.Workload:
        return msgspec.structs.replace(super()._workload(), batch=self._batch)

    def _check_room(self) -> None:
        """Skip the check of free memory: a side that does not fit becomes an entry with its session's error."""

    def _session(self, name: str) -> Session:
        if name in self._sessions:
            return self._sessions[name][0]
        began = time.perf_counter_ns()
        session = Session(
            preset=self._configs[name], model=self._loaded, seed=self._script.seed, samples=range(self._batch), device=self.device
        )
        start = unwritten(session.snapshot())
        cold_ns = self._short_clip(session, began)
        session.restore(start)
        warm_ns = self._short_clip(session, time.perf_counter_ns())
        session.restore(start)
        self._cold_ns[name] = max(0, cold_ns - warm_ns)
        self._sessions[name] = session, start
        return session

    def _short_clip(self, session: Session, began_ns: int) -> int:
        """Measure the time from a moment to the end of a clip that fills the window, evicts and switches the prompt."""
        for _ in self._gate_stream(session):
            pass
        synchronize(self.device)
        return time.perf_counter_ns() - began_ns

    def _write(self, name: str) -> None:
        if self.writer is not None and name not in self._written:
            self.writer.append(self.settings(name))

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Write the settings of a side before whatever it raises, which becomes an error of ours."""
        with Attempt() as attempt:
            yield
        if attempt.reason:
            self._write(name)
            raise attempt.error if isinstance(attempt.error, VariantError) else VariantError(name, attempt.reason)


def run_cells(
    cells: Sequence[AblationCell],
    base: Setup,
    folder: Path,
    progress: Progress,
    *,
    script: Script,
    model: Model,
    device: str,
    amount: Amount,
) -> CellsOutcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same base and request.
    """
    defaults, place = model.defaults, resolve_device(device)
    request = {  # what must agree between all cells of a folder
        "model": model.name,
        "weights": model.weights_hash,
        "frame size": "x".join(map(str, defaults.frame_size)),
        "device": str(place),
        "prompt": script.prompt,
        "switches": "; ".join(f"{each.frame_block} {each.mode}: {each.prompt}" for each in script.switches),
        "frame blocks": str(script.num_blocks),
        "seed": str(script.seed),
        "rounds": str(amount.palindromes),
        "review samples": str(_REVIEW_SAMPLES),
    }
    values = {name: value_of(base, name, defaults) for name in names()}
    idle = idle_knobs(base.config, defaults, place)
    planned = tuple(cell.planned for cell in cells)
    whole = Plan(base=base.config.name, request=request, values=values, idle=idle, cells=planned)
    if (folder / PLAN).exists():  # keeps the cells of earlier runs
        held = read_plan(folder)
        check_same(folder, {"base": held.base, **held.request}, {"base": whole.base, **whole.request})
        known = {each.name: each for each in (*held.cells, *whole.cells)}
        whole = msgspec.structs.replace(whole, cells=tuple(known.values()))
    write_json(folder / PLAN, whole)

    def measure(cell: AblationCell, into: Path, say: Callable[[str], None]) -> None:
        plan = replace(amount, alone=cell.candidate is None)
        case = CellCase(cell, script=script, model=model, device=device)

        def open_run(root: Path, slug: str) -> RunWriter:
            case.writer = RunWriter(into)
            return case.writer

        with closing(case):
            run_case(case, root=into.parent, plan=plan, progress=lambda _, __, what: say(what), open_run=open_run)

    asked = [(cell.planned.name, cell.planned.refused or partial(measure, cell)) for cell in cells]
    return measure_cells(asked, folder, place, progress)
