"""Verbs under torchrun: all processes do the work, rank 0 writes files and prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from strobe.cli.console import Output
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.settings import read_settings

if TYPE_CHECKING:
    from strobe.engine.parallel import DeviceGroup


def follows() -> bool:
    """Return whether another process leads, so that this one writes and prints nothing."""
    return read_settings().rank > 0


def said_by_rank_0(output: Output) -> Output:
    """Return the output of a verb, silent in a process that follows."""
    return replace(output, quiet=True, json=False) if follows() else output


def says(code: int, error: BaseException) -> bool:
    """Return whether this process prints the error, so that each is printed once.

    Rank 0 prints every error. On the other ranks, local rank 0 of each machine prints what is missing there, and any rank prints
    an error, other than of the command line, that rank 0 may not know.

    Args:
        code: exit code of the error; 2: the same command line fails on every rank.
        error: one that names ranks is known to all that are not named.
    """
    if not follows():
        return True
    if isinstance(error, ImplUnavailableError):
        return read_settings().local_rank == 0
    return code != 2 and 0 in getattr(error, "ranks", (0,))


@contextmanager
def joined(device: str, ulysses: int | None = None) -> Iterator[str | DeviceGroup]:
    """Yield `device`, or under torchrun the group of all its processes, each with a device of that kind.

    Args:
        device: of this process, or of each.
        ulysses: processes that share the heads; None: as many as can.
    """
    if not read_settings().torchrun:
        if ulysses is not None:
            raise ConfigError(
                f"--ulysses {ulysses}: this process runs alone and shares nothing; start it by torchrun --nproc-per-node N "
                "-m strobe ..., or leave it out"
            )
        yield device
        return
    from strobe.engine.parallel import DeviceGroup

    with DeviceGroup.join(device, ulysses=ulysses) as devices:
        yield devices
