"""Interface of executors: a cell to run, its resources and its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from strobe.core.errors import ConfigError

Status = Literal["done", "failed", "timeout", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Resources that a cell occupies while it runs.

    Args:
        cpus: cores of each machine.
        gpus: whole GPUs of each machine.
        exclusive: it measures times, so no other cell may run on its machine.
        nodes: machines, all at once; its command runs on each, and `torchrun` without `--standalone` joins them into one world.
    """

    cpus: int = 1
    gpus: int = 0
    exclusive: bool = True
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0 or self.nodes < 1:
            raise ConfigError(
                f"resources: got {self.cpus} cores and {self.gpus} GPUs on {self.nodes} machines, "
                "expected 1 or more, 0 or more, and 1 or more"
            )

    def __str__(self) -> str:
        """Return the resources in words."""
        alone = ", nothing else there" if self.exclusive else ""
        return f"{self.nodes} machine{'s' * (self.nodes > 1)} of {self.cpus} CPU and {self.gpus} GPU{alone}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One command in processes of its own.

    Args:
        argv: the command; nothing is looked at by a shell. It runs in a folder of its own. A first word that is this Python
            becomes that of the machine where it runs.
        env: set in addition to the environment of whoever starts it there.
        files: put into the folder before, by relative path.
        resources: resources that it occupies.
        timeout_s: it is ended when it has run that long.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    resources: Resources = Resources()
    timeout_s: float

    def __post_init__(self) -> None:
        if not self.argv or self.timeout_s <= 0:
            raise ConfigError(f"cell: got argv {self.argv} and a timeout of {self.timeout_s:g} s, expected a command and above 0")

    @property
    def digest(self) -> str:
        """Hash of command, environment, files and resources."""
        files = [(path, hashlib.sha256(content).hexdigest()) for path, content in sorted(self.files.items())]
        what = [self.argv, sorted(self.env.items()), files, asdict(self.resources)]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Result of a cell: status, exit code, output and files.

    Args:
        status: `done`: exit code 0; `failed`: another one, or a signal (then negative); `timeout`, `cancelled`: it was ended;
            `lost`: its machine was lost, more often than is retried; stderr holds the reason.
        code: exit code of the process; None if it never began, or is not known.
        wall_s: from its start to its end.
        stdout, stderr: the last 64 kB of each.
        swept: processes of the cell that outlived its first one, and were ended.
        files: files left in its folder, by relative path, without the given files that did not change.
        node: the machine it ran on, as the executor names it; empty: this one.
        lost: machines that were lost while it ran there, before it ran on `node`.
    """

    status: Status
    code: int | None
    wall_s: float
    stdout: str
    stderr: str
    swept: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    node: str = ""
    lost: tuple[str, ...] = ()


class Handle(Protocol):
    """A cell that was submitted."""

    @property
    def cell(self) -> Cell:
        """Submitted cell."""
        ...


class Executor(Protocol):
    """Interface that runs cells, here or elsewhere."""

    def at_once(self, resources: Resources) -> int:
        """Return how many cells with these resources to submit before waiting for the first."""
        ...

    def submit(self, cell: Cell) -> Handle:
        """Start a cell, or queue it."""
        ...

    def wait(self, handle: Handle) -> Finished:
        """Wait for the cell's end, at most its timeout and a few seconds once it runs; repeated calls give the same result."""
        ...

    def cancel(self, handle: Handle) -> Finished:
        """End the cell now; a finished cell stays finished."""
        ...
