"""Builder of the report of a `SpeedupStudy`, and of its input files. No clock, no randomness."""

from __future__ import annotations

import msgspec

from strobe.perf.report.blocks.logs import attention_section, input_file, inputs_section, stages_section
from strobe.perf.report.blocks.page import page
from strobe.perf.report.model import Fact, Number, Paragraph, Report, Section
from strobe.perf.report.speedup_page.answer import answer_section
from strobe.perf.report.speedup_page.kernels import focal_kernels, sections_section
from strobe.perf.report.speedup_page.ledger import ledger_section
from strobe.perf.report.speedup_page.levels import LEVEL_TITLES, levels_section, speedups
from strobe.perf.report.speedup_page.notes import notes_section
from strobe.perf.report.speedup_page.pictures import flame_section, timeline_section
from strobe.perf.report.speedup_page.settings import banners, settings_section
from strobe.perf.report.speedup_page.study import SpeedupStudy


def build_speedup_report(study: SpeedupStudy) -> Report:
    """Build the report: the answer, and folded sections on settings, stages, attention, kernels, speedups and the ledger."""
    sections = (
        answer_section(study),
        settings_section(study),
        _stages(study),
        _attention(study),
        focal_kernels(study),
        sections_section(study),
        levels_section(study),
        ledger_section(study),
        timeline_section(study),
        flame_section(study),
        notes_section(study),
        _inputs(study),
    )
    return page(
        speedups=speedups(study),
        title="Speedup: candidate against baseline" if study.comparable else "Not comparable: candidate against baseline",
        subtitle=_subtitle(study),
        facts=_facts(study),
        banners=banners(study),
        sections=tuple(
            msgspec.structs.replace(section, folded=place > 0) for place, section in enumerate(filter(None, sections))
        ),
    )


def _subtitle(study: SpeedupStudy) -> str:
    focal = [side.request.focal for side in study.sides]
    if focal[0] and focal[1]:
        return f"{focal[1]} against {focal[0]}"
    return "from logs and traces"


def _facts(study: SpeedupStudy) -> tuple[Fact, ...]:
    found = []
    for figure in study.levels if study.comparable else ():
        if figure.ratio is not None:
            name = LEVEL_TITLES[figure.level] + (" (unlike)" if figure.unlike else "")
            found.append(Fact(name, Number(float(figure.ratio), 4, "x")))
    return tuple(found)


def _stages(study: SpeedupStudy) -> Section:
    logs = []
    for side in study.sides:
        timings = side.side.timings
        rounds = tuple(each for each in (timings.stage, timings.e2e) if not isinstance(each, str))
        if rounds:
            logs.append((side.request.name, rounds))
    if logs:
        return stages_section(logs)
    reasons = (f"{side.request.name}: {side.side.timings.stage}" for side in study.sides)
    return Section("stages", "Stages", "", (Paragraph(f"No stage table; {'; '.join(reasons)}."),))


def _attention(study: SpeedupStudy) -> Section:
    logs = [(side.request.name, side.side.timings.timers, side.remarks) for side in study.sides if side.side.timings.timers]
    if logs:
        return attention_section(logs)
    reasons = (f"{side.request.name}: {side.side.timings.attention}" for side in study.sides)
    return Section("attention", "Attention end to end", "", (Paragraph(f"No attention timers; {'; '.join(reasons)}."),))


def _inputs(study: SpeedupStudy) -> Section:
    paths = dict.fromkeys(path for side in study.sides for path in side.files)
    logs = [side.log for side in study.sides if side.log is not None]
    return inputs_section([input_file(path) for path in paths], logs)
