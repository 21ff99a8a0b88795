"""Settings of both sides, their differences, and the warnings that come before the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final

from strobe.perf.analysis.comparable.checks import FACTS, Check, Verdict, shown
from strobe.perf.analysis.comparable.traces import CommonKernels
from strobe.perf.report.blocks.damage import damage_banners
from strobe.perf.report.blocks.fields import beside, table_of
from strobe.perf.report.blocks.logs import input_file
from strobe.perf.report.model import Banner, Code, Missing, Section, Share, Text, Tone
from strobe.perf.report.speedup_page.notes import coincidences, contradictions
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy

_HALF: Final = Fraction(1, 2)
_SAID: Final[dict[Verdict, tuple[str, Tone]]] = {
    "same": ("same", "muted"), "differs": ("differs", "bad"), "allowed": ("differs, as meant", "good"),
    "unknown": ("unknown", "muted"),
}  # fmt: skip


def settings_section(study: SpeedupStudy) -> Section:
    """Build the section with every fact that the comparison depends on, recorded or not, and the files."""
    rows = [_row(check) for check in study.comparability.checks]
    rows += [] if study.common is None else [_common(study.common)]
    for title, text in _READ.items():
        cells = (Code(found) if (found := text(side)) else Missing("", "none") for side in study.sides)
        rows.append((title, *cells, ""))
    named = ", ".join(check.title for check in study.comparability.unknown)
    unknown = (f"Not recorded on both sides, so nobody knows whether they agree: {named}.",) if named else ()
    notes = (
        "A fact that nobody recorded is unknown, not equal; state it with --fact, --baseline-fact, --candidate-fact NAME=VALUE.",
        "--allow-different NAME declares what is meant to differ.",
        "What a trace or a record says of a fact is not replaced by what is stated.",
        *unknown,
    )
    lead = "What ran on both sides, as their traces, records and the command line say it."
    table = table_of("Settings and metadata.", beside("", ("baseline", "candidate", "verdict")), rows, notes=notes)
    return Section("settings", "Experiment settings", lead, (table,))


def _row(check: Check) -> Sequence[object]:
    sides = (Missing("", "not recorded") if value is None else Text(shown(value)) for value in (check.baseline, check.candidate))
    if check.weight == "told":
        return check.title, *sides, ""
    word, tone = _SAID[check.verdict]
    return check.title, *sides, Text(word, tone)


def _common(common: CommonKernels) -> Sequence[object]:
    shares = (Share(float(share)) for share in (common.baseline_share, common.candidate_share))
    return "kernel time in kernels that both sides ran", *shares, f"{len(common.names)} kernels"


_READ: Final[dict[str, Callable[[Loaded], str]]] = {
    "log": lambda side: "" if side.log is None else str(side.log.path),
    "traces": lambda side: ", ".join(str(trace.path) for trace in side.traces),
    "focal kernel": lambda side: side.request.focal or "",
    "section": lambda side: "" if side.request.section is None else str(side.request.section),
}
"""What was read of a side, by title; empty: nothing."""


def banners(study: SpeedupStudy) -> tuple[Banner, ...]:
    """Return banners on why the sides are not comparable, on contradicting figures, and on what weakens the comparison."""
    found = study.comparability
    doubts = [*_same_files(study), *(f"{check} differ" for check in found.doubts)]
    doubts += _unlike_kernels(study)
    for side in study.sides:
        doubts += [
            f"{FACTS[name][0]} of the {side.request.name} is stated as {shown(value)}, and {shown(side.facts[name])} was found: "
            "that counts"
            for name, value in side.contradicted.items()
        ]
    doubts += coincidences(study)
    if study.unlike:
        doubts.append(f"section level, {study.unlike}")
    resolved = [timer.resolved for side in study.sides for timer in side.side.timings.timers]
    relabelled = (each for each in resolved for choice in each.choices if choice.differs and not choice.violated)
    doubts += dict.fromkeys(note for each in relabelled for note in each.notes)
    for side in study.sides:
        for trace, label in zip(side.traces, side.labels, strict=True):
            counts = trace.counts
            if not counts.clean:
                cut = ", and it ends before its JSON does" if counts.truncated else ""
                doubts.append(f"trace {label} of the {side.request.name}: {counts.lost} events lost, {counts.mended} mended{cut}")
            if trace.foreign:
                doubts.append(f"trace {label} of the {side.request.name}: {trace.foreign}")
    names = " ".join(each.name for each in found.obstacles)
    advice = (f"if that is meant, say so: --allow-different {names}",) if names else ()
    groups = (
        Banner("stop", "Not comparable, so there is no speedup.",
               (*map(str, found.obstacles), *advice)),
        Banner("stop", "Figures contradict each other: at least one of each is wrong.", tuple(contradictions(study))),
        Banner("caution", "Read the numbers with this in mind.", tuple(doubts)),
    )  # fmt: skip
    damage = [(f"log of the {side.request.name}", side.log.damage) for side in study.sides if side.log]
    for side in study.sides:
        told = zip(side.traces, side.labels, strict=True)
        damage += [(f"trace {label} of the {side.request.name}", trace.damage) for trace, label in told]
    return (*damage_banners(damage), *(banner for banner in groups if banner.items))


def _same_files(study: SpeedupStudy) -> Iterator[str]:
    """Yield a warning for each file of the baseline that the candidate has too, byte for byte."""
    ours, theirs = (side.files for side in study.sides)
    for path in ours:
        alike = [each for each in theirs if each.stat().st_size == path.stat().st_size]
        if any(each.samefile(path) or input_file(each).sha256 == input_file(path).sha256 for each in alike):
            yield f"{path.name} is the same file on both sides"


def _unlike_kernels(study: SpeedupStudy) -> Iterator[str]:
    """Yield a warning if no evidence ties the two models and most of their kernels differ."""
    known = {check.name: check.verdict for check in study.comparability.checks}
    if study.common is None or (known["model"], known["weights"]) != ("unknown", "unknown"):
        return
    shares = study.common.baseline_share, study.common.candidate_share
    if min(shares) < _HALF:
        yield (
            "nothing in the traces names the model, and kernels that both sides ran take "
            f"{100 * float(shares[0]):.1f} % of the kernel time of the baseline and {100 * float(shares[1]):.1f} % of the "
            "candidate's: record with stacks or shapes, or state --fact model=NAME"
        )
