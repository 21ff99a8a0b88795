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
        survived="Finished records can be read. A page is the old or the new page. The earlier clip is unchanged, and the new "
        "frames are kept.",
        attempt=killed,
    ),
    Kind(
        name="full disk, 20 sizes",
        tries=20,
        survived="One line says that the disk is full. There is no half page and no temporary file. Earlier files can be read.",
        attempt=full_disk,
    ),
    Kind(
        name="damaged records",
        tries=500,
        survived="The report is unchanged, or a banner names the damage, or one line says why there is no report.",
        attempt=damaged_records,
    ),
    Kind(
        name="damaged snapshots",
        tries=200,
        survived="The snapshot is refused with one error, or it is read without a changed bit.",
        attempt=damaged_snapshot,
    ),
    Kind(
        name="hostile files in a run folder",
        tries=len(HOSTILE),
        survived="No file outside is read or changed. Nothing hangs. "
        "Control characters in a file do not act on the terminal. An error is one line.",
        attempt=hostile_file,
    ),
)
