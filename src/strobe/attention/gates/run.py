"""Run the gates of a card, and record them.

Each implementation's cases run in a process of their own: what breaks a device, ends a process or never returns makes that gate
red and nothing else. The first case that fails ends its gate.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from strobe.attention.dense.api import PLUGGED as DENSE
from strobe.attention.explain import plain_calls
from strobe.attention.gates import dense, eightbit, sparse
from strobe.attention.gates.case import CaseRefusedError, GateCase
from strobe.attention.impls import GateRun, Impl, hash_of, parse_gates
from strobe.attention.sparse.impls import PLUGGED as SPARSE
from strobe.core.device import card_of
from strobe.core.errors import DataError
from strobe.core.files import write_whole
from strobe.core.libraries import tried

CASES: Final = {"dense": dense.cases, "sparse": sparse.cases, "eightbit": eightbit.cases}
GATED: Final = {
    "dense": (*dense.IMPLS, *(impl.name for impl in DENSE if impl.kernel)),
    "sparse": (*sparse.IMPLS, *(impl.name for impl in SPARSE if impl.kernel)),
    "eightbit": eightbit.IMPLS,
}
"""Implementations that have a gate: of ours, and every one that another package adds."""
LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cutlass-dsl"),
    "fa4": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "triton": ("triton",),
    "gluon": ("triton",),
    "flex": ("triton",),
}
"""Distributions whose versions are recorded beside that of torch."""
PATIENCE_S: Final = 600.0
"""How long a case may take before its gate is red: it compiles kernels first."""
_LONGEST: Final = 200

Find = Callable[[str, str, torch.device], Sequence[GateCase]]
Advance = Callable[[int, int, str], None]


def cases_hash(operator: str) -> str:
    """Hash the sources of an operator's cases."""
    return hash_of(*(f"gates/{name}.py" for name in (operator, "case", "operands")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of one gate.

    Args:
        operator, impl: whose.
        gate: what is recorded; None if it was not run.
        refused: cases that it does not take; or why the gate was not run.
    """

    operator: str
    impl: str
    gate: GateRun | None
    refused: str


def versions_here(impl: str, driver: str | None) -> dict[str, str]:
    """Look up the versions that a gate is recorded with, where known: driver, torch and the implementation's libraries."""
    found = {} if driver is None else {"driver": driver}
    for name in ("torch", *LIBRARIES.get(impl, ())):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def find_cases(operator: str, impl: str, device: torch.device) -> tuple[GateCase, ...]:
    """List the cases of a gate that a device can run."""
    return tuple(case for case in CASES[operator](impl, device) if device.type == "cuda" or not case.needs_gpu)


def run_gates(
    device: torch.device, driver: str | None, advance: Advance, *, only: Sequence[str] = (), find: Find = find_cases
) -> Iterator[Outcome]:
    """Run the gate of every implementation that runs on a device, one after the other.

    Args:
        device: a GPU.
        driver: its version, to record.
        advance: told of every case: how many are done, of how many, which comes next.
        only: gates to run, such as `sparse:triton`; all if empty.
        find: the cases of a gate; a function that another process can import.
    """
    card = card_of(device)
    for impl, spec in plain_calls(device, card):
        name = f"{impl.operator}:{impl.name}"
        if impl.name not in GATED[impl.operator] or (only and name not in only):
            continue
        if reason := impl.refuses(spec):
            yield Outcome(operator=impl.operator, impl=impl.name, gate=None, refused=reason)
            continue
        passed, refused, failed = run_gate(impl, device, partial(_named, advance, name), find)
        if passed == 0 and not failed:
            yield Outcome(operator=impl.operator, impl=impl.name, gate=None, refused="it takes none of the cases")
            continue
        gate = GateRun(
            operator=impl.operator,
            impl=impl.name,
            vendor=card.vendor,
            architecture=card.architecture,
            device=card.name,
            versions=versions_here(impl.name, driver),
            date=datetime.date.today().isoformat(),
            tests=passed,
            kernel=impl.kernel,
            failed=failed,
            cases=cases_hash(impl.operator),
        )
        yield Outcome(operator=impl.operator, impl=impl.name, gate=gate, refused=f"{refused} cases that it does not take")


def _named(advance: Advance, name: str, done: int, total: int, what: str) -> None:
    advance(done, total, f"{name}, {what}")


def run_gate(impl: Impl[Any], device: torch.device, advance: Advance, find: Find = find_cases) -> tuple[int, int, str]:
    """Run one gate in a process of its own.

    Returns:
        Cases that passed, cases that were refused, and the first that failed and why, empty if none did.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(theirs, impl.operator, impl.name, str(device), find))
    process.start()
    theirs.close()
    passed = refused = 0
    at, failed, ended = "its first case", "", False
    try:
        while not ended and not failed:
            if not ours.poll(PATIENCE_S):
                failed = f"{at}: no answer in {PATIENCE_S:g} s"
                break
            said = ours.recv()
            passed, refused = passed + (said.last == "passed"), refused + (said.last == "refused")
            at, failed, ended = said.name or at, said.failed, said.done == said.total
            advance(said.done, said.total, said.name)
    except EOFError:
        process.join()
        failed = f"{at}: the process ended with code {process.exitcode}"
    finally:
        if not ended:  # it hangs, or whoever waits was interrupted
            process.kill()
        process.join()
        ours.close()
    return passed, refused, failed


@dataclass(frozen=True, kw_only=True, slots=True)
class _GateMessage:
    """One progress message from the process that runs a gate: `name` comes next, `last` came of the case before it."""

    done: int
    total: int
    name: str = ""
    last: str = ""
    failed: str = ""


def serve(line: Connection, operator: str, impl: str, device: str, find: Find) -> None:
    """Run the cases of a gate in this child process and send progress; what the libraries print is discarded."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    tell(line, find(operator, impl, where))


def tell(line: Connection, cases: Sequence[GateCase]) -> None:
    """Run cases up to the first that fails; send one message before each case and one at the end."""
    last = ""
    for number, case in enumerate(cases):
        line.send(_GateMessage(done=number, total=len(cases), name=case.name, last=last))
        refused, failed = tried(partial(_refuses, case))
        if failed:
            line.send(_GateMessage(done=number, total=len(cases), failed=f"{case.name}: {failed[:_LONGEST]}"))
            return
        last = "refused" if refused else "passed"
    line.send(_GateMessage(done=len(cases), total=len(cases), last=last))


def _refuses(case: GateCase) -> bool:
    """Run a case; return whether the implementation refuses it."""
    try:
        case.run()
    except CaseRefusedError:
        return True
    return False


def record(new: Sequence[GateRun], place: Path) -> None:
    """Write gates to a record in place of those of the same operator, implementation and architecture; all others stay.

    A file that is no record is kept beside it as `*.unreadable`.

    Raises:
        OSError: its folder cannot be made.
        StrobeError: it cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    gates: tuple[GateRun, ...] = ()
    others: tuple[msgspec.Raw, ...] = ()
    if place.exists():
        try:
            gates, others = parse_gates(place.read_bytes())
        except DataError:
            place.replace(place.with_name(f"{place.name}.unreadable"))
    fresh = {_key(gate) for gate in new}
    kept = sorted([*(gate for gate in gates if _key(gate) not in fresh), *new], key=_key)
    write_whole(place, msgspec.json.format(msgspec.json.encode([*kept, *others]), indent=2) + b"\n")


def _key(gate: GateRun) -> tuple[str, str, str, str]:
    return gate.operator, gate.impl, gate.vendor, gate.architecture
