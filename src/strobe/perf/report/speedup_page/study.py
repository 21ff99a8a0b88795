"""Input of a speedup report: logs and traces of two sides, read, cut into labels and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, TypeAlias

from strobe.core.errors import ConfigError, DataError
from strobe.core.files import write_whole
from strobe.core.printable import clean_lines
from strobe.perf.analysis.comparable import (
    Checks,
    CommonPart,
    Facts,
    Value,
    check_allowed,
    common_kernels,
    compare_facts,
    obstacles,
    record_facts,
    trace_facts,
)
from strobe.perf.analysis.ledger.account import Ledger
from strobe.perf.analysis.ledger.speedup import (
    HOST_ONLY,
    OVERLAP,
    Answer,
    LevelFigure,
    TimedSide,
    account_answer,
    host_step,
    level_figures,
    rank_ledgers,
)
from strobe.perf.analysis.ledger.traces import (
    ChosenTrace,
    ImpliedCalls,
    PathTree,
    TracedSide,
    call_ledger,
    coincidences,
    implied_calls,
    label_trace,
    path_tree,
    same_steps,
)
from strobe.perf.analysis.runs.log_times import STAGE, LogRequest, timings_of, unsynchronised
from strobe.perf.analysis.structure.collectives import CollectiveSkew, collective_skew
from strobe.perf.analysis.structure.sections import SectionDefinition, attention_kernel, check_alike, trace_evidence
from strobe.perf.logs import load_patterns, read_log
from strobe.perf.logs.patterns import Unit
from strobe.perf.logs.series import Log
from strobe.perf.records.store import FILES, read_run
from strobe.perf.report.blocks.logs import input_file
from strobe.perf.report.study import is_small, trace_labels
from strobe.perf.trace import Trace, find_traces, read_trace

SideName = Literal["baseline", "candidate"]
Progress: TypeAlias = Callable[[int, int, str], None]
NO_TRACE: Final = "no trace given"


@dataclass(frozen=True, kw_only=True, slots=True)
class SideRequest:
    """Input files and settings of one side.

    Args:
        log: text log, or our records.
        timer: regular expression of the attention timer's name, if the log has several.
        focal: regular expression of the focal kernel.
        min_ns: shorter attention calls are left out.
        facts: what the user says of the run.
    """

    name: SideName
    log: Path | None = None
    traces: tuple[Path, ...] = ()
    timer: str = ""
    focal: str | None = None
    section: SectionDefinition | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedupRequest:
    """Both sides to compare, and the settings of the comparison.

    Args:
        patterns: what a timing line looks like.
        unit: of the attention timers' values as written.
        stage: regular expression of the stage's name.
        timed_range: regular expression of the range that the attention timer is around.
        calls: focal calls in a stage.
        steps: regular expression of what starts a step.
        allow_different: facts that are meant to differ.
        allow_unlike: compare sections that are not cut alike, and say so everywhere.
    """

    baseline: SideRequest
    candidate: SideRequest
    patterns: Path | None = None
    unit: Unit | None = None
    stage: str = STAGE
    timed_range: str | None = None
    calls: int | None = None
    steps: str | None = None
    allow_different: tuple[str, ...] = ()
    allow_unlike: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSide(TimedSide):
    """Log and traces of one side, as read.

    Args:
        silent: what traces without device events leave out; empty if all have some.
        met: what the collectives of its ranks were spent on; `None` if fewer than two devices communicate.
        remarks: findings about the log's timers.
        facts: what is known of the run, found or else stated by the user.
        contradicted: the facts that the user states and that something else was found for.
    """

    request: SideRequest
    log: Log | None
    traces: tuple[Trace, ...]
    labels: tuple[str, ...]
    silent: str
    met: CollectiveSkew | None
    remarks: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    contradicted: Facts = field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        return (*([self.log.path] if self.log else []), *(trace.path for trace in self.traces))

    @property
    def chosen_trace(self) -> ChosenTrace | None:
        own = self.chosen
        return None if own is None or isinstance(self.traced, str) else (self.traces[self.traced.index(own)], own)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedupStudy:
    """Data behind a speedup report: both sides, their levels, and the accounts of their difference.

    Args:
        common: the kernels that both sides ran; `None` if a side ran none.
        unlike: empty, or how the sections differ in what they are.
        levels: times of each level; where the sides are not comparable, without a ratio.
        call_account: from one kernel to the stage; `None` if nothing was measured on both sides.
        accounts: the traces' accounts: of the slowest ranks, then of each rank.
        implied: the calls that would explain the stage's saving.
        equal: different quantities that are suspiciously equal.
        tree: time by module, operator and kernel; `None` unless both sides were traced.
    """

    request: SpeedupRequest
    baseline: LoadedSide
    candidate: LoadedSide
    checks: Checks
    common: CommonPart | None
    unlike: str
    levels: tuple[LevelFigure, ...]
    call_account: Ledger | None
    accounts: tuple[Ledger, ...]
    implied: ImpliedCalls | None
    equal: tuple[tuple[str, str, Fraction], ...]
    tree: PathTree | None

    @property
    def comparable(self) -> bool:
        """Whether nothing differs that must agree, so that ratios are meaningful."""
        return not obstacles(self.checks)

    @property
    def sides(self) -> tuple[LoadedSide, LoadedSide]:
        return self.baseline, self.candidate

    @property
    def answer(self) -> Answer | None:
        found = account_answer(self.accounts[0]) if self.accounts else None
        if found is None or self.comparable:
            return found
        return replace(found, explained_saving_share=None, lines=tuple(replace(line, share=None) for line in found.lines))

    def level(self, name: str) -> LevelFigure:
        return next(figure for figure in self.levels if figure.level == name)


def load_speedup(request: SpeedupRequest, progress: Progress | None = None) -> SpeedupStudy:
    """Read the files of both sides, cut them into labels, and compare them.

    Raises:
        ConfigError: nothing to compare, sections that are not alike, a pattern or fact that is none.
        DataError: a file that cannot be read, a focal kernel or timer that is not there, a timer whose unit is not known.
    """
    sides = request.baseline, request.candidate
    if not any(side.log or side.traces for side in sides):
        raise ConfigError("nothing to compare: give logs (--baseline-log, --candidate-log), traces (--baseline-trace, "
                          "--candidate-trace); strobe report RUN_DIR compares a run")  # fmt: skip
    check_allowed(request.allow_different)
    asked = ["kernel" if side.section is None else side.section.boundaries for side in sides]
    unlike = check_alike(asked[0], asked[1], allow_unlike=request.allow_unlike)
    details = all(is_small(path) for side in sides for path in _paths(side))
    read = []
    for side in sides:
        traces = [read_trace(path, ops=False, shapes=True, details=details, progress=progress) for path in _paths(side)]
        read.append(tuple(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0, str(trace.path)))))
    if not any(side.focal or side.section for side in sides):
        first, second = (attention_kernel(traces) for traces in read)
        if first and second:  # the one attention kernel that each ran
            sides = replace(sides[0], focal=first), replace(sides[1], focal=second)
    baseline, candidate = (_load(request, side, own, progress) for side, own in zip(sides, read, strict=True))
    both = baseline, candidate
    for loaded in both:
        _check_calls(request.calls, loaded)
    if not unlike and request.allow_unlike:
        unlike = _stands_in(baseline, candidate, asked[0])
    lacking = [isinstance(each.times("section"), str) for each in both]
    stands = [bool(unlike) and none for none in lacking]
    cut = unlike != "" or not any(lacking)
    times = [each.call_times(with_section=cut, kernel_is_section=stand) for each, stand in zip(both, stands, strict=True)]
    alike = baseline.chosen is None or candidate.chosen is None or same_steps((baseline.chosen, candidate.chosen))
    checks = compare_facts(baseline.facts, candidate.facts, request.allow_different)
    levels = level_figures(baseline, candidate, unlike=unlike, alike_steps=alike)
    if obstacles(checks):
        levels = tuple(
            replace(each, ratio=None, low=None, high=None, verdict=None, realised=None, costs_ns=None) for each in levels
        )
    accounts = rank_ledgers(baseline, candidate)
    return SpeedupStudy(
        request=request,
        baseline=baseline,
        candidate=candidate,
        checks=checks,
        common=common_kernels(baseline.traces, candidate.traces),
        unlike=unlike,
        levels=levels,
        call_account=call_ledger(times[0], times[1], (baseline.timings.calls, candidate.timings.calls), stands_in=any(stands)),
        accounts=accounts,
        implied=implied_calls(times[0], times[1], given=request.calls),
        equal=coincidences(times[0], times[1]),
        tree=path_tree(baseline.chosen_trace, candidate.chosen_trace, accounts[0].unit) if accounts else None,
    )


def _stands_in(baseline: TimedSide, candidate: TimedSide, boundaries: str) -> str:
    """Return how the sections differ if one side's kernel stands in for its missing section; empty if both or none have it."""
    without = [
        side.name
        for side in (baseline, candidate)
        if isinstance(side.times("section"), str) and not isinstance(side.times("kernel"), str)
    ]
    if len(without) != 1:
        return ""
    words = {side: "kernel" if side in without else boundaries for side in ("baseline", "candidate")}
    return check_alike(words["baseline"], words["candidate"], allow_unlike=True)


def _paths(side: SideRequest) -> tuple[Path, ...]:
    return find_traces(side.traces) if side.traces else ()


def _load(request: SpeedupRequest, side: SideRequest, traces: tuple[Trace, ...], progress: Progress | None) -> LoadedSide:
    labels = trace_labels(traces) if traces else ()
    of_host = tuple(label for trace, label in zip(traces, labels, strict=True) if not len(trace.device_events))
    on_host = host_step(traces, request.steps)
    if 0 < len(of_host) < len(traces):
        traces = tuple(trace for trace in traces if len(trace.device_events))
        labels = tuple(label for label in labels if label not in of_host)
    traced: tuple[TracedSide, ...] | str = NO_TRACE
    host_only = len(of_host) == len(traces) > 0
    if host_only:
        traced = HOST_ONLY
    elif traces:
        traced = tuple(
            label_trace(trace, label, side.focal, side.section, steps=request.steps)
            for trace, label in zip(traces, labels, strict=True)
        )
    bounds, span = ((), None) if host_only or not traces else trace_evidence(traces, side.focal, request.timed_range)
    log = None if side.log is None else read_log(side.log, load_patterns(request.patterns), progress=progress)
    limits = {"min_ns": side.min_ns, "max_ns": side.max_ns}
    wanted = None if log is None else LogRequest(log=log, constraints=bounds, unit=request.unit, **limits)
    said = [trace.world_size for trace in traces if trace.world_size is not None]
    processes = max(*said, len(traces)) if said else len(traces) if len(traces) > 1 else None
    timings = timings_of(wanted, request.stage, side.timer, calls=request.calls, processes=processes)
    own = LoadedSide(
        name=side.name,
        traced=traced,
        timings=timings,
        host_step=on_host,
        request=side,
        log=log,
        traces=traces,
        labels=labels,
        silent=_silent(of_host, host_only),
        met=collective_skew(traces),
    ).with_calls(given=request.calls is not None)
    found = _facts(own)
    contradicted = {name: value for name, value in side.facts.items() if found.get(name, value) != value}
    return replace(own, remarks=_remarks(own, span), facts={**side.facts, **found}, contradicted=contradicted)


def _check_calls(calls: int | None, side: TimedSide) -> None:
    """Check that as many focal kernels as a stage is said to have fit into it."""
    kernel, stage = side.times("kernel"), side.times("stage")
    if calls is None or isinstance(kernel, str) or isinstance(stage, str):
        return
    if calls * kernel.mean_ns > stage.mean_ns * OVERLAP:
        took, whole = (f"{float(ns) / 1e6:.4g} ms" for ns in (calls * kernel.mean_ns, stage.mean_ns))
        raise DataError(
            f"--calls-per-stage {calls}: so many focal kernels of the {side.name} take {took}, and its stage takes {whole}; "
            f"at most {int(stage.mean_ns * OVERLAP / kernel.mean_ns)} fit"
        )


def _silent(of_host: Sequence[str], host_only: bool) -> str:
    named = ", ".join(of_host)
    if host_only:
        return f"{named}: {HOST_ONLY}. Steps are compared by their ranges on the host, logs as always, and nothing else"
    return f"{named}: no device events, left out of every figure" if of_host else ""


def _remarks(side: TimedSide, span: tuple[int, str] | None) -> tuple[str, ...]:
    """Return remarks on timers that did not wait for the device; `span`: of the range that they are around."""
    spans = [] if span is None else [span]
    section = side.times("section")
    if not isinstance(section, str):
        spans.append((int(section.mean_ns), "the section around the focal kernel"))
    found = (unsynchronised(timer, device_ns, what) for timer in side.timings.timers for device_ns, what in spans)
    return tuple(remark for remark in found if remark)


def _facts(own: LoadedSide) -> dict[str, Value]:
    side = own.request
    facts = trace_facts(own.traces, side.focal)
    if side.log is not None and side.log.name in FILES:
        run = read_run(side.log)
        timed = {span.variant for span in run.spans if re.search(side.timer, f"{span.variant}/{span.label}")}
        meant = [variant for variant in run.variants if variant.name in timed]
        facts |= record_facts(run.header, meant[0] if len(meant) == 1 else None)
    if own.timings.calls is not None:
        facts["calls"] = str(own.timings.calls)
    if not isinstance(own.timings.steps, str):
        facts["steps"] = str(own.timings.steps[0])
    chosen = own.chosen
    if chosen is not None and chosen.num_focal:
        facts["calls_per_step"] = f"{chosen.num_focal / len(chosen.tiles):g}"
    return facts


def write_inputs(study: SpeedupStudy, folder: Path) -> Path:
    """Write `inputs.json` into the folder of the report: side, path, size and SHA-256 of every file that was read."""
    read = ((side.name, input_file(path)) for side in study.sides for path in side.files)
    listed = [{"side": name, "path": str(each.path), "size_bytes": each.size_bytes, "sha256": each.sha256} for name, each in read]
    target = folder / "inputs.json"
    return write_whole(target, clean_lines(json.dumps({"v": 1, "inputs": listed}, indent=2, ensure_ascii=False)) + "\n")
