"""Errors between ranks in one line: which rank, in which call, with which shapes."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from strobe.core.errors import StrobeError


class CollectiveError(StrobeError, RuntimeError):
    """A call that several ranks make together failed; every rank that is alive raises it.

    Args:
        message: one line.
        ranks: the ranks that are to blame, as ranks of the group; empty if it is not known.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        self.ranks = tuple(ranks)
        super().__init__(message)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def disagreement(odd: Sequence[int], what: str, calls: Mapping[int, str]) -> str:
    """Return `rank 1 disagrees on the arguments: rank 0 is in call 7: ...; rank 1 is in call 7: ...`."""
    usual = min(rank for rank in calls if rank not in odd)
    told = "; ".join(f"rank {rank} is in {calls[rank]}" for rank in (usual, *odd))
    return f"{name_ranks(odd)} disagree{'s' * (len(odd) == 1)} on the {what}: {told}"


def machine_id() -> int:
    """Compute a number that is equal for two processes only if they can look up each other's process id."""
    space = Path("/proc/self/ns/pid")
    names = [socket.gethostname(), os.readlink(space) if space.exists() else ""]
    boot = Path("/proc/sys/kernel/random/boot_id")
    names.append(boot.read_text() if boot.exists() else "")
    return zlib.crc32("\n".join(names).encode())


def start_of(pid: int) -> int:
    """Return the start time of a process of this machine, in ticks since boot; 0 if it has ended (or the system does not say)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
