"""The table of faults: one function for each kind, which tries one fault and raises if it was not survived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fault_disks import full_disk
from fault_folders import HOSTILE, hostile_file
from fault_kills import killed
from fault_records import damaged_records
from fault_snapshots import damaged_snapshot


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Args:
        tries: how often `make faults` tries it, with the seeds 0, 1, 2 and so on.
        survived: what must hold afterwards.
        attempt: tries one, with a seed, in an empty folder.
    """

    name: str
    tries: int
    survived: str
    attempt: Callable[[int, Path], None]


KINDS: Final = (
    Kind(
        name="kill -9",
        tries=100,
        survived="Finished records can be read; a page is the old or the new; the earlier clip and the frames made are there.",
        attempt=killed,
    ),
    Kind(
        name="full disk, 20 sizes",
        tries=20,
        survived="One line says that the disk is full; no half page, no temporary file; what was written before can be read.",
        attempt=full_disk,
    ),
    Kind(
        name="damaged records",
        tries=500,
        survived="The report says the same as before, or a banner names the damage, or one line says why there is none.",
        attempt=damaged_records,
    ),
    Kind(
        name="damaged snapshots",
        tries=200,
        survived="The snapshot is refused with one error, or what is read is bit-equal to what was written.",
        attempt=damaged_snapshot,
    ),
    Kind(
        name="hostile files in a run folder",
        tries=len(HOSTILE),
        survived="Nothing outside is read or changed, nothing hangs, the terminal obeys nothing; at most one line of error.",
        attempt=hostile_file,
    ),
)
