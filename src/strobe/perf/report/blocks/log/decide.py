"""The rule that keeps or drops an entry; the page states it and measurements decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from strobe.perf.measure.stats import FLOOR
from strobe.perf.report.blocks.log.entries import METRIC, LogEntry

Word = Literal["Keep", "Drop", "Open", "Reference"]
LIGHTER: Final = 0.05
"""Share of the reference's peak memory that an entry must save to be kept for its memory."""

RULE: Final = (
    "The first of these that fits decides.",
    "Drop: it failed, or its gate was red.",
    "Open: it has no finished pair of clips, or no interval (one round).",
    f"Keep: not proven faster, but on a GPU its peak memory is at least {100 * LIGHTER:g} % below its reference's, and its gate "
    "found the values of the reference or its quality was measured; Open if neither.",
    f"Drop: not proven faster: the 95 % interval of its speedup does not exclude 1, or it is below {100 * FLOOR:g} %.",
    "Keep: faster, and its gate found the values of the reference.",
    "Open: faster, other values, and their quality was not measured.",
    f"Drop: another entry of the same reference, model, clip and device is at least as fast and at least as good ({METRIC}), and "
    f"in one of them better.",
    "Keep: faster, and nothing measured is both as fast and as good.",
)
"""The rule in words, in the order in which `decide` checks it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Verdict on an entry and its reason."""

    word: Word
    why: str


def decide(entry: LogEntry, entries: Sequence[LogEntry]) -> Decision:
    """Apply the rule to an entry among all entries of a log."""
    if entry.error:
        return Decision(word="Drop", why=entry.error)
    if entry.is_reference:
        return Decision(word="Reference", why="what the others are held against")
    if isinstance(entry.e2e, str):
        return Decision(word="Open", why=entry.e2e)
    if entry.e2e.interval is None:
        return Decision(word="Open", why="one round has no interval; measure more rounds")
    if entry.e2e.verdict != "faster":
        return _not_faster(entry, entries)
    if entry.exact:
        return Decision(word="Keep", why="faster, and the values are those of the reference")
    if entry.score is None:
        return Decision(word="Open", why=f"faster, but quality was not measured: {_reason(entry)}")
    above = next((other for other in entries if dominates(other, entry)), None)
    if above is not None:
        return Decision(word="Drop", why=f"{above.label} is at least as fast and at least as good")
    return Decision(word="Keep", why="faster, and nothing measured is both as fast and as good")


def dominates(other: LogEntry, entry: LogEntry) -> bool:
    """Return whether another entry of the group is at least as fast and as good, and better in one of the two."""
    if other is entry or other.group != entry.group or other.error:
        return False
    pairs = (other.speed, entry.speed), (other.score, entry.score)
    if any(each is None for pair in pairs for each in pair):
        return False
    (fast, own_fast), (good, own_good) = pairs
    assert fast is not None and own_fast is not None and good is not None and own_good is not None
    return fast >= own_fast and good >= own_good and (fast > own_fast or good > own_good)


def _not_faster(entry: LogEntry, entries: Sequence[LogEntry]) -> Decision:
    assert not isinstance(entry.e2e, str)
    words = {"slower": "slower than its reference", "no difference": "no difference to its reference"}
    why = words.get(entry.e2e.verdict, "not proven faster: the interval includes 1")
    reference = next((each for each in entries if each.is_reference and each.group == entry.group), None)
    peaks = entry.peak_bytes, reference.peak_bytes if reference else None
    on_gpu = entry.run.header.machine.on_gpu
    if on_gpu and peaks[0] is not None and peaks[1] is not None and peaks[0] <= (1 - LIGHTER) * peaks[1]:
        lighter = f"{100 * (1 - peaks[0] / peaks[1]):.0f} % below its reference; {why}"
        if not entry.exact and entry.score is None:
            return Decision(word="Open", why=f"memory {lighter}; but quality was not measured: {_reason(entry)}")
        return Decision(word="Keep", why=f"for memory, {lighter}")
    return Decision(word="Drop", why=why)


def _reason(entry: LogEntry) -> str:
    line = entry.quality
    return "no line of quality in the records" if line is None else line.note or "no reason given"
