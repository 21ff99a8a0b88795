"""What a page of a comparison begins with."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from strobe.perf.analysis.ledger.account import total
from strobe.perf.analysis.ledger.speedup import Answer, PartLine
from strobe.perf.analysis.parts import Part
from strobe.perf.report.blocks.answer import COMPUTE_BOUND, answers_of, limit
from strobe.perf.report.build import build_report

MakeRun = Callable[..., Path]


def test_the_fastest_proven_candidate_is_answered_first_and_printed_last(make_run: MakeRun) -> None:
    setting, settings = make_run.__globals__["Setting"], make_run.__globals__["SETTINGS"]
    step_ms = min(each.step_ms for each in settings) / 2
    report = build_report([make_run(settings=(settings[0], setting("swift", step_ms, 4, 12, 0.3), *settings[1:]))])
    assert report.sections[0].lead.startswith("swift against baseline: ")
    assert [table.caption.split()[0] for table in answers_of(report)] == [*(each.name for each in settings[1:]), "swift"]


def answer_of(times: dict[Part, tuple[int, int]]) -> Answer:
    """The answer of a step with these times of both sides."""
    lines = [
        PartLine(parts=(part,), baseline_ns=Fraction(b), candidate_ns=Fraction(c), share=None, elsewhere_ns=Fraction(0))
        for part, (b, c) in times.items()
    ]
    return Answer(
        lines=tuple(lines),
        baseline_ns=total(line.baseline_ns for line in lines),
        candidate_ns=total(line.candidate_ns for line in lines),
        unit="step",
        explained_time_share=1.0,
        explained_saving_share=None,
    )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (
            {Part.FOCAL: 2762, Part.SECTION: 2752, Part.MATRIX: 3000, Part.GAPS: 59},
            "the focal kernel and the section around it, 64 % of a step (0.005514 of 0.008573 ms)",
        ),
        ({Part.FOCAL: 1000, Part.SECTION: 1000, Part.MATRIX: 3000}, "matrix products, 60 % of a step (0.003000 of 0.005000 ms)"),
        ({Part.FOCAL: 3000, Part.SECTION: 1000, Part.MATRIX: 1000}, "focal kernel, 60 % of a step (0.003000 of 0.005000 ms)"),
        (
            {Part.ATTENTION_KERNEL: 20, Part.ATTENTION_AROUND: 30, Part.FEED_FORWARD: 40, Part.NORMS: 10},
            "attention and the work around its kernel, 50 % of a step (0.00005000 of 0.0001000 ms)",
        ),
    ],
)
def test_a_kernel_and_its_section_limit_together_where_neither_is_the_largest_part(times: dict[Part, int], said: str) -> None:
    found = answer_of({part: (ns, ns) for part, ns in times.items()})
    assert limit("sparse", found) == f"sparse's largest part now: {said}."


def test_a_kernel_is_bound_by_its_flops_only_near_the_peak() -> None:
    """Of the largest part nothing but its rate says what bounds it; a side that waits for the host is bound by that."""

    def said(of_peak: float, waiting: int = 0, part: Part = Part.ATTENTION_KERNEL, waited: int = 0) -> str:
        times = {part: 60, Part.FEED_FORWARD: 40, Part.WAITING: waiting}
        found = answer_of({one: (waited if one is Part.WAITING else ns, ns) for one, ns in times.items()})
        return limit("sparse", found, f" at {100 * of_peak:.0f} % of the peak", of_peak)

    assert said(0.46).startswith("sparse's largest part now: attention kernel, 60 % of a step")
    assert said(0.46).endswith(" at 46 % of the peak.") and "bound" not in said(0.62)
    assert said(COMPUTE_BOUND).startswith("sparse is bound by attention FLOPs now, 60 % of a step")
    assert said(0.9, part=Part.NORMS).startswith("sparse's largest part now: norms and glue"), "the rate is attention's"
    assert said(0.9, waiting=100).startswith("sparse is bound by the host now: the GPU waits for it in 50 % of a step")
    assert said(0.9, waiting=100, waited=300).startswith(
        "sparse is still bound by the host, as the baseline (75 %): the GPU waits"
    )
