"""What every executor takes and gives: a cell, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from strobe.core.errors import ConfigError

Status = Literal["done", "failed", "timeout", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What a cell occupies while it runs.

    Args:
        cpus: cores.
        gpus: whole GPUs.
        exclusive: it takes times, so nothing else may run on its machine.
    """

    cpus: int = 1
    gpus: int = 0
    exclusive: bool = True

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0:
            raise ConfigError(f"resources: got {self.cpus} cores and {self.gpus} GPUs, expected 1 or more, and 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One command in processes of its own.

    Args:
        argv: the command; nothing is looked at by a shell.
        env: set in addition to the environment of the caller.
        resources: what it occupies.
        timeout_s: it is ended when it has run that long.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    timeout_s: float

    def __post_init__(self) -> None:
        if not self.argv or self.timeout_s <= 0:
            raise ConfigError(f"cell: got argv {self.argv} and a timeout of {self.timeout_s:g} s, expected a command and above 0")

    @property
    def digest(self) -> str:
        """The same for the same command, environment and resources."""
        what = [self.argv, sorted(self.env.items()), self.resources.cpus, self.resources.gpus, self.resources.exclusive]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What became of a cell.

    Args:
        status: `done`: exit code 0; `failed`: another one, or a signal (then negative); `timeout`, `cancelled`: it was ended.
        code: of the process; None if it never began.
        wall_s: from its start to its end.
        stdout, stderr: the last 64 kB of each.
        swept: processes of the cell that outlived its first one, and were ended.
    """

    status: Status
    code: int | None
    wall_s: float
    stdout: str
    stderr: str
    swept: int


class Handle(Protocol):
    """A cell that was submitted."""

    @property
    def cell(self) -> Cell:
        """What was submitted."""
        ...


class Executor(Protocol):
    """Runs cells, here or elsewhere."""

    def submit(self, cell: Cell) -> Handle:
        """Start a cell, or queue it."""
        ...

    def wait(self, handle: Handle) -> Finished:
        """Wait for its end, at most its timeout and a few seconds; a second call gives the same answer."""
        ...

    def cancel(self, handle: Handle) -> Finished:
        """End it now; what is finished stays finished."""
        ...
