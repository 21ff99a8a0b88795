"""The cells of an ablation with the configuration of each side."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch

from strobe.bench.cases.ablate.factors import WORKLOAD, Factor, Setup, changed, read_value, value_of
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.engine.config import Knobs, ModelDefaults, resolve
from strobe.perf.records.plan import Kind, PlannedCell


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationCell:
    """A cell with its setups: the base and, unless the cell is of the base alone, a candidate."""

    planned: PlannedCell
    base: Setup
    candidate: Setup | None


def one_at_a_time(
    base: Setup, factors: Sequence[Factor], defaults: ModelDefaults, device: torch.device
) -> Iterator[AblationCell]:
    """Yield a cell for every value of every factor that is not the base's own.

    Raises:
        ConfigError: a value that the factor, the model or the base does not allow.
        ImplUnavailableError: a value that cannot run on the device.
    """
    for factor in factors:
        for value in factor.values:
            if value != value_of(base, factor.name, defaults):
                yield _cell(base, {factor.name: value}, defaults, device)


def products(base: Setup, factors: Sequence[Factor], defaults: ModelDefaults, device: torch.device) -> Iterator[AblationCell]:
    """Yield a cell for every combination of values but the base's own; an impossible one carries the reason.

    Raises:
        ConfigError: a value that its factor does not allow.
    """
    for factor in factors:
        for value in factor.values:
            read_value(factor.name, value, defaults)
    for values in itertools.product(*(factor.values for factor in factors)):
        given = dict(zip((factor.name for factor in factors), values, strict=True))
        changes = {name: value for name, value in given.items() if value != value_of(base, name, defaults)}
        if not changes:
            continue
        try:
            yield _cell(base, changes, defaults, device)
        except (ConfigError, ImplUnavailableError) as error:
            planned = PlannedCell(name=_folder(changes), kind=_kind(changes), changes=changes, refused=str(error))
            yield AblationCell(planned=planned, base=base, candidate=None)


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


def one_in(base: Setup, defaults: ModelDefaults, device: torch.device) -> Iterator[AblationCell]:
    """Yield a cell for every optimisation that has an effect here and that the base lacks, with it alone on."""
    for each in fields(Knobs):
        if value_of(base, each.name, defaults) == "off":
            cell = _cell(base, {each.name: "on"}, defaults, device)
            assert cell.candidate is not None
            if getattr(resolve(cell.candidate.config, defaults, device).knobs, each.name) is True:
                yield cell


def base_alone(base: Setup) -> AblationCell:
    """Return the cell of the base by itself, for ablations in which no other cell shows it."""
    return AblationCell(planned=PlannedCell(name="base", kind="base", changes={}), base=base, candidate=None)


def idle(base: Setup, defaults: ModelDefaults, device: torch.device) -> dict[str, str]:
    """Return optimisations that were requested and have no effect here, with the reason."""
    return {state.name: state.reason for state in resolve(base.config, defaults, device).knob_states if state.reason}


def _cell(base: Setup, changes: Mapping[str, str], defaults: ModelDefaults, device: torch.device) -> AblationCell:
    """Build a cell: changes of the clip go into both sides, all others into the candidate."""
    own = changed(base, {name: value for name, value in changes.items() if name in WORKLOAD}, defaults)
    settings, candidate = {name: value for name, value in changes.items() if name not in WORKLOAD}, None
    if settings:
        candidate = _named(changed(own, settings, defaults), settings)
        resolve(candidate.config, defaults, device)  # what cannot run is told now
    planned = PlannedCell(name=_folder(changes), kind=_kind(changes), changes=dict(changes))
    return AblationCell(planned=planned, base=own, candidate=candidate)


def _named(setup: Setup, changes: Mapping[str, str]) -> Setup:
    if list(changes) == ["preset"]:
        return setup
    return replace(setup, config=replace(setup.config, name=_folder(changes)))


def _kind(changes: Mapping[str, str]) -> Kind:
    if len(changes) > 1:
        return "product"
    return "workload" if next(iter(changes)) in WORKLOAD else "setting"


def _folder(changes: Mapping[str, str]) -> str:
    return "+".join(f"{_word(name)}-{_word(value)}" for name, value in changes.items())


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")


def waiting(cell: AblationCell) -> frozenset[str]:
    """Return the names of the sides that wait for the device inside a pass."""
    return frozenset(side.config.name for side in (cell.base, cell.candidate) if side is not None and side.waits)
