"""Operators and modules of a trace with stacks or shapes, with the device work that each of them launched.

Recording stacks or shapes slows a trace down unevenly: its times show the order of operators, they are no measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from strobe.core.errors import unknown_choice
from strobe.perf.analysis.device.device_work import events_by_device
from strobe.perf.analysis.structure.operators import operators
from strobe.perf.analysis.structure.scopes import NOWHERE, Cuts, launched_in, nest
from strobe.perf.trace.events import HostEvents, Trace

SortBy = Literal["device", "self_host", "host", "calls"]
SORTS: Final[tuple[SortBy, ...]] = get_args(SortBy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attributed:
    """All calls of one operator or module.

    Args:
        name: name of the operator, or of the module's class with its number.
        calls: number of calls.
        host_ns: their time on the host, with everything they call.
        self_host_ns: without it; of a module 0, its operators have it.
        device_ns: device work launched while this operator or module was the innermost one.
    """

    name: str
    calls: int
    host_ns: int
    self_host_ns: int
    device_ns: int


def attribute_operators(trace: Trace, sort_by: str = "device") -> tuple[Attributed, ...]:
    """Return the operators of a trace that was read with its operators, largest first.

    Args:
        sort_by: one of `SORTS`; a trace without device events has no device time, and ties go by `self_host`.

    Raises:
        ConfigError: there is no such order.
    """
    found = operators(trace)
    device = _device_ns(trace, trace.ops)
    rows = [
        Attributed(
            name=row.name,
            calls=row.calls.n,
            host_ns=row.calls.sum_ns,
            self_host_ns=row.self_ns,
            device_ns=device.get(row.name, 0),
        )
        for row in (found.rows if found else ())
    ]
    return _sorted(rows, sort_by)


def attribute_modules(trace: Trace, sort_by: str = "device") -> tuple[Attributed, ...]:
    """Return the `nn.Module` calls of a trace with Python frames, largest first; empty without frames."""
    modules = trace.modules
    device = _device_ns(trace, modules)
    calls: dict[str, list[int]] = {}
    for event in modules:
        calls.setdefault(event.name, []).append(event.end_ns - event.start_ns)
    rows = [
        Attributed(name=name, calls=len(times), host_ns=sum(times), self_host_ns=0, device_ns=device.get(name, 0))
        for name, times in calls.items()
    ]
    return _sorted(rows, sort_by)


def _sorted(rows: list[Attributed], sort_by: str) -> tuple[Attributed, ...]:
    if sort_by not in SORTS:
        raise unknown_choice("order", sort_by, SORTS)
    keys = {"device": "device_ns", "self_host": "self_host_ns", "host": "host_ns", "calls": "calls"}
    return tuple(sorted(rows, key=lambda row: (-getattr(row, keys[sort_by]), -row.self_host_ns, -row.host_ns, row.name)))


def _device_ns(trace: Trace, scopes: HostEvents) -> dict[str, int]:
    """Return device time by the name of the innermost scope that launched it; time without such a scope is left out."""
    total = np.zeros(len(scopes.names), np.int64)
    nesting, cuts, name = nest(scopes), Cuts.around(scopes), np.asarray(scopes.name)
    owner = nesting.owners(cuts)
    owned = owner != NOWHERE
    for _, work in events_by_device(trace):
        np.add.at(total, name[owner[owned]], launched_in(trace, work, None, cuts).sum_ns[owned])
    return {text: ns for text, ns in zip(scopes.names, total.tolist(), strict=True) if ns}
