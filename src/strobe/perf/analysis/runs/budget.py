"""Budget of one denoise step: operations timed by themselves against the step as it runs. All accounts add up exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal

from strobe.core.costs import Cost
from strobe.core.spans import ATTENTION, CROSS_ATTENTION, FFN
from strobe.perf.measure.stats import percentile

REGIONS: Final = (ATTENTION, CROSS_ATTENTION, FFN)
"""Regions of a layer; they tile it."""
REST: Final = "rest of the step"
"""Name of the time of a step outside `REGIONS`: embedding, head, renoise, conditions."""


def mean(times_ns: Sequence[int]) -> Fraction:
    """Return the exact mean."""
    return Fraction(sum(times_ns), len(times_ns))


BudgetLine = Literal[
    "attention kernels", "attention projections", "feed-forward", "key-value cache", "norms, modulation, RoPE",
    "gated residuals", "embedding, head, schedule", "decoder",
]  # fmt: skip
"""Lines of a denoise step's budget."""
KERNELS: Final = "attention kernels"
PROJECTIONS: Final = "attention projections"
FEED_FORWARD: Final = "feed-forward"
CACHE: Final = "key-value cache"
NORMS: Final = "norms, modulation, RoPE"
RESIDUALS: Final = "gated residuals"
EDGES: Final = "embedding, head, schedule"
DECODER: Final = "decoder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation timed by itself.

    Args:
        name: name of the operation.
        what: its work in words.
        kind: the line of the budget that it belongs to.
        inside: one of `REGIONS`, or `REST`; empty if it is no part of a step.
        calls: calls in one step; 0 if it is no part of one.
        times_ns: times of single calls by itself.
        cost: FLOPs and bytes of one call; None where they are not known.
        waits: the call waits for the device, so that launch gaps lie in its times.
    """

    name: str
    what: str
    kind: BudgetLine
    inside: str
    calls: int
    times_ns: tuple[int, ...]
    cost: Cost | None = None
    waits: bool = False

    @property
    def mean_ns(self) -> Fraction:
        """Mean time of one call, ns."""
        return mean(self.times_ns)

    @property
    def p50_ns(self) -> int:
        """Median time of one call, ns."""
        return percentile(self.times_ns, 0.5)

    @property
    def step_ns(self) -> Fraction:
        """Time of all calls in one step at the mean time of a call, ns."""
        return self.calls * self.mean_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of an account: `isolated_ns` is the sum of its operations by themselves, `in_situ_ns` its time in the running step.

    Either is None where it was not measured.
    """

    name: str
    isolated_ns: Fraction | None
    in_situ_ns: Fraction | None

    @property
    def difference_ns(self) -> Fraction | None:
        """Time in the running step minus the sum by themselves, ns; None if either was not measured."""
        if self.isolated_ns is None or self.in_situ_ns is None:
            return None
        return self.in_situ_ns - self.isolated_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A whole that is timed as it runs, with its operations timed by themselves.

    Args:
        times_ns: times of the whole as it runs.
        operations: its parts.
    """

    name: str
    times_ns: tuple[int, ...]
    operations: tuple[Operation, ...]

    @property
    def mean_ns(self) -> Fraction:
        """Mean time of the whole, ns."""
        return mean(self.times_ns)

    @property
    def isolated_ns(self) -> Fraction:
        """Sum of the parts, ns."""
        return sum((operation.step_ns for operation in self.operations), Fraction(0))

    @property
    def difference_ns(self) -> Fraction:
        """Whole minus sum of its parts, ns: launches, framework, other cache contents, fusion (which makes it negative)."""
        return self.mean_ns - self.isolated_ns

    def by_kind(self) -> tuple[tuple[str, Fraction], ...]:
        """Return the sum of the parts by kind, in order of first appearance. With the difference they add up to the whole."""
        found: dict[str, Fraction] = {}
        for operation in self.operations:
            if operation.calls:
                found[operation.kind] = found.get(operation.kind, Fraction(0)) + operation.step_ns
        return tuple(found.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProfile:
    """Measurements of a kernel profile; one denoise step is the unit.

    Args:
        step: denoise steps of a steady stream without timers inside, and the operations of a step.
        fine_ns: steps of the same stream with timers around the regions of every layer, frame blocks of both kinds interleaved.
        regions_ns: by region, its time in each of those steps.
        decode: decoder calls of a frame block, and the decoder's stages.
        stages_ns: other stages of a frame block and of a prompt switch, as they run, by name.
        reference: operations that are no part of a step of this preset, for comparison.
    """

    step: Whole
    fine_ns: tuple[int, ...]
    regions_ns: Mapping[str, tuple[int, ...]]
    decode: Whole
    stages_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reference: tuple[Operation, ...] = ()

    def by_region(self) -> tuple[Line, ...]:
        """Return the step by region. `in_situ_ns` adds up to the mean of the plain steps exactly.

        The regions come from steps with timers inside, the rest of such a step is what no region has, and the last line is what
        the timers cost: plain steps minus those with timers, below 0 as a rule.
        """
        lines = [Line(name=name, isolated_ns=self._inside(name), in_situ_ns=mean(self.regions_ns[name])) for name in REGIONS]
        fine = mean(self.fine_ns)
        rest = fine - sum((line.in_situ_ns for line in lines if line.in_situ_ns is not None), Fraction(0))
        return (
            *lines,
            Line(name=REST, isolated_ns=self._inside(REST), in_situ_ns=rest),
            Line(
                name="plain steps - steps with timers (observer effect, noise)",
                isolated_ns=None,
                in_situ_ns=self.step.mean_ns - fine,
            ),
        )

    def _inside(self, region: str) -> Fraction:
        return sum((each.step_ns for each in self.step.operations if each.inside == region), Fraction(0))
