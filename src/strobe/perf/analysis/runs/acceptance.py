"""The acceptance of a model: its checks, their verdict, and delivered frames per second by column."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import median

from strobe.core.errors import DataError
from strobe.core.spans import FRAME_BLOCK
from strobe.perf.records.checks import Check
from strobe.perf.records.store import RunRecords


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Delivered pixel frames per second of one column.

    Args:
        name: of the column.
        blocks_ns: time of each steady frame block; empty: it cannot be had.
        median_fps, slowest_fps: of the frame blocks; None without any.
        note: what decodes, or why the column cannot be had.
    """

    name: str
    blocks_ns: tuple[int, ...]
    median_fps: float | None
    slowest_fps: float | None
    note: str

    @property
    def spread(self) -> float:
        """By how much the slowest and the fastest frame block differ, over the median."""
        times = self.blocks_ns
        return (max(times) - min(times)) / median(times) if times else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """All checks of a model, and all columns.

    Args:
        checks: as they were made.
        rates: every column, in order.
        complete: the run came to its end.
    """

    checks: tuple[Check, ...]
    rates: tuple[Rate, ...]
    complete: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks whose value is outside of its bounds."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def num_judged(self) -> int:
        """Number of checks with a verdict."""
        return sum(check.passed is not None for check in self.checks)

    @property
    def out_of_order(self) -> tuple[tuple[Rate, Rate], ...]:
        """Columns that came out faster than one that they contain, each after that one.

        Every column of a stream contains denoise steps and commit pass, and that of the file the model's own autoencoder; which
        of the two that is, is not told, so it is held against the faster.
        """
        passes, autoencoders, encode = self.rates[1:2], self.rates[2:4], self.rates[4:5]
        pairs = [*product(passes, (*autoencoders, *encode)), *product(sorted(autoencoders, key=_fps)[-1:], encode)]
        return tuple((inner, outer) for inner, outer in pairs if inner.blocks_ns and _fps(outer) > _fps(inner))

    @property
    def accepted(self) -> bool:
        """Whether every check was made and none failed."""
        return self.complete and not self.failed


def _fps(rate: Rate) -> float:
    return rate.median_fps or 0.0


def is_acceptance(run: RunRecords) -> bool:
    """Return whether the run accepts a model."""
    return run.header.kind == "accept"


def acceptance_of(run: RunRecords) -> Acceptance:
    """Read the checks and columns of a run, complete or not.

    Raises:
        DataError: it accepts no model.
    """
    if not is_acceptance(run) or run.header.workload is None:
        raise DataError(f"{run.folder} accepts no model; `strobe accept` makes such a run")
    frames = run.header.workload.frames_per_block
    notes = {variant.name: variant.decoder for variant in run.variants}
    missing = {each.variant: each.reason for each in run.header.absent}
    rates = []
    for name in run.header.order:
        times = tuple(span.value_ns for span in run.spans if span.variant == name and span.name == FRAME_BLOCK)
        rates.append(
            Rate(
                name=name,
                blocks_ns=times,
                median_fps=frames * 1e9 / median(times) if times else None,
                slowest_fps=frames * 1e9 / max(times) if times else None,
                note=notes.get(name, "") if times else missing.get(name, "the run ended before it"),
            )
        )
    complete = run.end is not None and run.end.status == "complete"
    return Acceptance(checks=run.checks, rates=tuple(rates), complete=complete)
