"""`strobe speedup`: speedup at every level and the ledger of the difference, from logs and traces of any framework."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from strobe.cli.console import OUT, Output, banner_texts, megabytes, styled, table_text
from strobe.cli.report import GATE_FAILED
from strobe.cli.require import Figures, failures, parse_requirement
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.perf.logs.patterns import Unit
    from strobe.perf.report.speedup_page.study import SideRequest, SpeedupStudy
    from strobe.perf.table.model import Block, Report, Speedup


@Parameter(name="*", group="Logs")
@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """Flags of how to read the lines of a log.

    Args:
        patterns: a TOML file that says what a timing line looks like, tried before the shipped patterns; see docs/logs.md.
        unit: ns, us, ms or s: of the values as written, against label and proof.
        stage: regular expression of the stage's name; denois|diffusion by default.
    """

    patterns: Path | None = None
    unit: str | None = None
    stage: str | None = None

    @property
    def known_unit(self) -> Unit | None:
        from strobe.perf.logs.patterns import parse_unit

        return None if self.unit is None else parse_unit(self.unit)


EVIDENCE: Final = Parameter(group="Evidence")


@Parameter(name="*", group="Sides")
@dataclass(frozen=True, kw_only=True)
class Sides:
    """Flags of the two logs, one alone is enough, and of the traces that prove or refute a unit.

    Args:
        baseline_log: log of the baseline, text or .gz, or our records.jsonl.
        candidate_log: log of the candidate.
        names: regular expression of the timer's name, if a log has several: one for both, or two, such as Vanilla VSA.
        between: shortest and longest duration that counts, such as 5ms..50ms, instead of the search for the steady state: one
            for both, or two, the baseline's first.
        baseline_trace: traces of the baseline (files or folders); their focal kernels bound its timer.
        candidate_trace: the same for the candidate.
        focal_baseline: regular expression of the kernel inside the baseline's timer.
        focal_candidate: the same for the candidate.
        range: regular expression of the range in the traces that the timer is around.
        calls_per_stage: attention calls in each round of the stage; counted from the log where its lines say their rank.
    """

    baseline_log: Path | None = None
    candidate_log: Path | None = None
    names: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    baseline_trace: Annotated[tuple[Path, ...], EVIDENCE] = ()
    candidate_trace: Annotated[tuple[Path, ...], EVIDENCE] = ()
    focal_baseline: Annotated[str | None, EVIDENCE] = None
    focal_candidate: Annotated[str | None, EVIDENCE] = None
    range: Annotated[str | None, EVIDENCE] = None
    calls_per_stage: Annotated[int | None, EVIDENCE] = None

    @property
    def calls(self) -> int | None:
        if self.calls_per_stage is not None and self.calls_per_stage < 1:
            raise ConfigError(f"--calls-per-stage {self.calls_per_stage}: a stage has 1 or more; leave it out if nobody counted")
        return self.calls_per_stage


@Parameter(name="*", group="Comparison")
@dataclass(frozen=True, kw_only=True)
class Comparing:
    """Flags of the comparison: sections, steps, and facts known of each side.

    Args:
        section: device time around the focal kernel, such as "memcpy:end -> gather:end": one for both sides, or two, the
            baseline's first, with --allow-unlike.
        allow_unlike: compare sections that are not cut alike (or a section with a kernel), and say so everywhere.
        steps: regular expression of the range or kernel that starts a step; without it, steps are found.
        allow_different: what is meant to differ, such as device model; anything else that differs and must not makes the
            sides not comparable: there is no speedup, and no --require holds.
        fact: NAME=VALUE known of both sides, such as frames=121, or of one, such as candidate:sparsity=0.8.
    """

    section: tuple[str, ...] = ()
    allow_unlike: bool = False
    steps: str | None = None
    allow_different: tuple[str, ...] = ()
    fact: tuple[str, ...] = ()


_TRACES_END: Final = (".json", ".json.gz", ".json.zst", ".json.xz", ".json.bz2", ".sqlite")  # packed by others: refused as traces
SIDES: Final[tuple[Literal["baseline", "candidate"], ...]] = ("baseline", "candidate")
LOGS: Final = LogFlags()
NO_SIDES: Final = Sides()
COMPARING: Final = Comparing()

OPTIONAL: Final = frozenset(("section", "e2e"))
"""Levels whose absence alone is told by --details."""


def speedup(
    *files: Annotated[Path, Parameter(name="FILE")],
    sides: Sides = NO_SIDES,
    comparing: Comparing = COMPARING,
    flags: LogFlags = LOGS,
    require: Annotated[tuple[str, ...], Parameter(group="Result")] = (),
    out: Annotated[Path | None, Parameter(alias=OUT, group="Result")] = None,
    output: Output = Output(),
) -> int:
    """Show how much faster a candidate is at every level, and where the rest of the kernel's speedup is lost.

    ```
    strobe speedup fa.log fa.pt.trace.json.gz vsa.log vsa.pt.trace.json.gz
    strobe speedup --baseline-log fa.log --candidate-log vsa.log --baseline-trace fa/ --candidate-trace vsa/ \\
        --focal-baseline flash --focal-candidate _attn_fwd_sparse --section "memcpy:end -> gather:end" -o report
    ```

    Two logs or two traces are needed; a level that cannot be computed is listed as missing, with the reason.

    Args:
        files: two logs, two traces (.json, .json.gz, .sqlite) or both, the baseline's first.
        require: a condition that must hold, such as kernel>=2; a level is one of kernel, section, attention, step, stage, e2e.
            It holds only if the whole 95 % interval does; kernel~>=2 asks for the point estimate alone. Exit code 1 if not.
        out: folder for report.html, report.md, report.json, speedup.json (exact) and inputs.json, made if absent; without it,
            the tables are only printed.
    """
    requirements = [parse_requirement(text) for text in require]
    if absent := [str(each) for each in files if not each.is_file()]:
        raise ConfigError(f"not a file: {', '.join(absent)}; give two logs or two traces; strobe report DIR compares a run")
    sides = _by_kind(files, sides)
    _check_two_sides(sides)
    baseline, candidate = requests(sides, comparing)
    with output.progress("read") as advance:
        from strobe.perf.analysis.runs.log_times import STAGE
        from strobe.perf.report.speedup_page.study import SpeedupRequest, load_speedup

        request = SpeedupRequest(
            baseline=baseline,
            candidate=candidate,
            patterns=flags.patterns,
            unit=flags.known_unit,
            stage=flags.stage or STAGE,
            timed_range=sides.range,
            calls=sides.calls,
            steps=comparing.steps,
            allow_different=comparing.allow_different,
            allow_unlike=comparing.allow_unlike,
        )
        study = load_speedup(request, megabytes(advance))
    with output.progress("report"):
        from strobe.perf.analysis.comparable import refusal
        from strobe.perf.analysis.ledger.speedup import LEVELS
        from strobe.perf.report.documents.speedup import speedup_document
        from strobe.perf.report.speedup_page.build import build_speedup_report
        from strobe.perf.table.rows import to_json

        report, document = build_speedup_report(study), to_json(speedup_document(study))
        written = _write(study, report, document, out) if out else {}
    refused = refusal(study.checks)
    found: dict[str, Speedup] = {each.level: each for each in report.speedups}
    figures: Figures = {"candidate": {level: found.get(level) for level in LEVELS}}
    obstacles = {"candidate": refused} if refused else {}
    failed = [line for each in requirements for line in failures(each, figures, obstacles=obstacles)]
    _show(study, report, failed, list(written.values()), output)
    output.emit({**document, "written": written, "not_met": failed})
    return GATE_FAILED if failed else 0


def _by_kind(files: Sequence[Path], sides: Sides) -> Sides:
    """Add logs and traces to the sides: of each kind the first is the baseline's, the second the candidate's."""
    traces = [path for path in files if str(path).endswith(_TRACES_END)]
    logs = [file for file in files if file not in traces]
    for kind, found in (("log", logs), ("trace", traces)):
        named = ", ".join(map(str, found))
        if found and any(getattr(sides, f"{side}_{kind}") for side in SIDES):
            raise ConfigError(
                f"{named}: a {kind} is given by a flag too; give both {kind}s as files, the baseline's first, or both by "
                f"--baseline-{kind} and --candidate-{kind}"
            )
        if len(found) == 1:
            raise ConfigError(f"{named} is the only {kind}: add the other side's; the baseline's comes first")
        if len(found) > 2:
            raise ConfigError(f"{named}: these are {len(found)} {kind}s; give two, the baseline's first")
        given: dict[str, Any] = dict(zip((f"baseline_{kind}", f"candidate_{kind}"), found, strict=False))
        sides = replace(sides, **(given if kind == "log" else {name: (path,) for name, path in given.items()}))
    return sides


def _check_two_sides(sides: Sides) -> None:
    """Check that both sides have a log, or both a trace, if anything is given."""
    given = {"log": (sides.baseline_log, sides.candidate_log), "trace": (sides.baseline_trace, sides.candidate_trace)}
    there = [(side, what) for what, pair in given.items() for side, path in zip(SIDES, pair, strict=True) if path]
    if there and not any(all(pair) for pair in given.values()):
        flags = " and ".join(f"--{side}-{what}" for side, what in there)
        wanted = " or ".join(f"--{SIDES[side == 'baseline']}-{what}" for side, what in there)
        raise ConfigError(
            f"a speedup is of two sides, and {flags} is of one: give {wanted} too; one side by itself is what strobe trace and "
            "strobe extract read"
        )


def requests(sides: Sides, comparing: Comparing = COMPARING) -> list[SideRequest]:
    """Return what the flags say of each side."""
    from strobe.perf.analysis.comparable import given_facts
    from strobe.perf.analysis.structure.sections import parse_section
    from strobe.perf.logs.patterns import parse_duration
    from strobe.perf.report.speedup_page.study import SideRequest

    given = {"names": sides.names, "between": sides.between, "section": comparing.section}
    for flag, texts in given.items():
        if len(texts) > 2:
            raise ConfigError(f"--{flag} {' '.join(texts)}: give one for both sides, or two, the baseline's first")
    for what, flags in {"log": ("names", "between", "calls_per_stage"), "trace": ("range",)}.items():
        unread = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(sides, flag)]
        if unread and not any(getattr(sides, f"{side}_{what}") for side in SIDES):
            raise ConfigError(f"{', '.join(unread)}: needs a {what}: --baseline-{what} FILE and --candidate-{what} FILE")
    both = []
    for at, name in enumerate(SIDES):
        timer, between, cut = (texts[-1 if at else 0] if texts else "" for texts in given.values())
        focal, traces = getattr(sides, f"focal_{name}"), getattr(sides, f"{name}_trace")
        if focal is not None and not traces:
            raise ConfigError(f"--focal-{name} needs a trace: --{name}-trace FILE")
        section = parse_section(cut, focal) if cut and traces else None
        shortest, dots, longest = between.partition("..")
        if between and not dots:
            raise ConfigError(f"--between {between}: write SHORTEST..LONGEST, such as 5ms..50ms; either may be left out")
        low, high = (parse_duration(each) if each else None for each in (shortest, longest))
        if low is not None and high is not None and low > high:
            raise ConfigError(f"--between {between}: {shortest} is above {longest}; no value lies between them")
        of_both = [text for text in comparing.fact if text.partition(":")[0] not in SIDES]
        own = [text.removeprefix(f"{name}:") for text in comparing.fact if text.startswith(f"{name}:")]
        both.append(
            SideRequest(
                name=name,
                log=getattr(sides, f"{name}_log"),
                timer=timer,
                traces=traces,
                focal=section.focal if section else focal,
                section=section,
                min_ns=low,
                max_ns=high,
                facts=given_facts(of_both) | given_facts(own),
            )
        )
    return both


def _write(study: SpeedupStudy, report: Report, document: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the page, its twins, the exact figures and the list of input files."""
    from strobe.core.files import write_whole
    from strobe.core.printable import clean_lines
    from strobe.perf.report.speedup_page.study import write_inputs
    from strobe.perf.report.write import write_report

    folder.mkdir(parents=True, exist_ok=True)
    paths = {path.suffix[1:]: str(path) for path in write_report(report, folder)}
    exact = folder / "speedup.json"
    write_whole(exact, clean_lines(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n")
    return {**paths, "exact": str(exact), "inputs": str(write_inputs(study, folder))}


def _show(study: SpeedupStudy, report: Report, failed: Sequence[str], written: Sequence[str], output: Output) -> None:
    """Print the answer: what became faster and why not more, the levels, the parts of the time; with details all tables."""
    from strobe.perf.report.blocks.answer import ANSWER, limit
    from strobe.perf.report.speedup_page.build import not_known, not_measured, story
    from strobe.perf.table import model

    details = output.details
    blocks = {section.id: section.blocks for section in report.sections}
    lead = next(section.lead for section in report.sections if section.id == ANSWER)
    output.show(story(study) or lead, "")
    parts = [block.table if isinstance(block, model.Figure) else block for block in blocks[ANSWER]]
    answer = [table for table in parts if isinstance(table, model.Table)]
    rungs = len(answer) - (study.answer is not None)  # all but the account, which is last
    if not details:
        output.show(*banner_texts(report.banners, ("stop",)), *(table_text(table, notes=False) for table in answer[:rungs]))
    for name in ("speedups", "ledger") if details else ():
        figures = [block.table for block in blocks[name] if isinstance(block, model.Figure)]
        tables = [block for block in blocks[name] if isinstance(block, model.Table) and not block.collapsed]
        output.show(*map(table_text, (*figures, *tables)))
        _show_texts(blocks[name], output)
    if details:
        _show_texts(blocks["notes"], output)
    output.show(*banner_texts(report.banners, ("stop", "caution") if details else ("caution",)))
    if details:
        output.show(lead, "")
    output.show(*(table_text(table, notes=details) for table in answer[rungs:]))
    if study.answer is not None and study.comparable and not details:
        output.show(limit("candidate", study.answer))
    left = model.Notes(tuple(not_known(study)))
    said = [block for block in blocks[ANSWER] if details or block != left]
    _show_texts([*said, *([] if details else [model.Notes(tuple(not_measured(study, OPTIONAL)))])], output)
    output.show(*(styled(("not met", "red"), " ", line) for line in failed), *([" ".join(written)] if written else []))
    if not (details or written):
        output.show("Accounts and notes: --details prints them, -o FOLDER writes them as a page.")


def _show_texts(blocks: Sequence[Block], output: Output) -> None:
    from strobe.perf.table import model

    said = [item for block in blocks if isinstance(block, model.Notes) for item in block.items]
    if said:
        output.show(*said, "")
