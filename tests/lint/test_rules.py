"""Every rule: a page on which it speaks, alone, and the change that silences it; and its line in the manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.core.errors import ConfigError
from strobe.lint.document import options_of, read_markdown
from strobe.lint.rules import RULES, WARNINGS, chosen_rules, findings

MANUAL = (Path(__file__).parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
MEASURED = options_of(model="wan-1.3b", size=(480, 832), window=12, device="h100")


def table(*rows: str) -> str:
    head, *rest = rows
    return "\n".join(f"| {row} |" for row in (head, " | ".join("---" for _ in head.split("|")), *rest)) + "\n\n"


PRESETS = table("Preset | Mean", "plain | 840.2 ms", "swift | 620.4 ms")
STEPS = (
    "# Runs\n\n## Swift (3 steps)\n\n" + table("Metric | Value", "Mean | 410 ms") + "## Rapid (2 steps)\n\n"
    "" + table("Metric | Value", "Mean | 290 ms") + "## Steps\n\n"
)
LEVELS = """* Attention averages:
  * FA: 14.201377 ms
  * VSA: 8.614902 ms
* Kernel averages:
  * FA kernel: 10.713286 ms
  * VSA kernel: 3.140551 ms
"""

CASES = {
    "fps-latency": (
        table(
            "Preset | Mean | Max | FPS",
            "plain | 840.2 ms | 871.5 ms | 3.57",
            "swift | 620.4 ms | 655.0 ms | 4.84",
            "rapid | 410.0 ms | 452.0 ms | 6.64",
        ),
        ("6.64", "7.32"),
    ),
    "total-sum": (table("Part | Time (ms)", "attention | 52.3", "feed-forward | 48.7", "Total | 144.5"), ("144.5", "101.0")),
    "total-sum of a group": (
        "```\nCOMPUTE (ms):\n  load   : 1.50\n  run    : 6.50\nSUMMARY:\n  Total Compute : 12.00 ms\n```\n",
        ("12.00", "8.00"),
    ),
    "change-column": (
        table(
            "Metric | Baseline | Fast | Change",
            "Mean | 840.2 ms | 620.4 ms | -26.2%",
            "Max | 871.5 ms | 655.0 ms | -24.8%",
            "Memory | 35.63 GB | 39.94 GB | +16.1%",
        ),
        ("+16.1%", "+12.1%"),
    ),
    "statistic-unnamed": (
        table(
            "Preset | Mean | Max | vs baseline",
            "baseline | 840.2 ms | 871.5 ms | -",
            "swift | 620.4 ms | 655.0 ms | -24.8%",
            "rapid | 410.0 ms | 452.0 ms | -48.1%",
        ),
        ("| vs baseline", "| Max vs baseline"),
    ),
    "two-decompositions": (
        PRESETS + "A block is 4 x 155.6 = 622 ms, which matches the swift mean.\n\n"
        "A block is 4 x 155.6 + 50 = 672 ms in theory (620 ms measured).\n",
        ("(620 ms measured)", "(decoding included)"),
    ),
    "superlative": (
        table("Operation | Mean (ms)", "self-attention | 18.1", "up projection | 21.7")
        + "Self-attention is the largest operation.\n",
        ("Self-attention is", "The up projection is"),
    ),
    "memory-fit": (
        table("Preset | Mean | Peak memory", "plain | 840.2 ms | 36.10 GB", "frugal | 702.3 ms | 33.05 GB")
        + "Use frugal on GPUs with < 24 GB.\n",
        ("< 24 GB", "< 40 GB"),
    ),
    "delta-disagrees": (
        "SSIM against the frames of `plain` in float32.\n\n"
        + table("Preset | SSIM", "Baseline | 0.951", "Swift | 0.927")
        + "Swift is a little softer. SSIM: -0.03\n",
        ("-0.03", "-0.024"),
    ),
    "value-of-another": (STEPS + "* 2 steps: 410 ms measured\n", ("* 2 steps: 410", "* 2 steps: 290")),
    "no-unit": (
        table("Preset | Latency | Accuracy", "plain | 840.2 | 0.93", "swift | 620.4 | 0.92"),
        ("Latency", "Latency (ms)"),
    ),
    "label-admitted": ("The log prints `ms`, but the values behave as seconds.\n", ("`ms`, but the values behave as", "")),
    "below-floor": ("* Self attention: ~240 us per layer\n", ("240", "900")),
    "window-free": (table("Window | Mean", "12 frames | 620.4 ms", "6 frames | 615.8 ms"), ("615.8", "440.1")),
    "percentile-samples": (
        "Measured over 100 iterations.\n\n"
        + table("Kernel | Mean (ms) | P99 (ms)", "attention | 18.1 | 19.0", "up | 12.1 | 12.8"),
        ("100", "500"),
    ),
    "quality-reference": (
        "Picture quality.\n\n" + table("Preset | PSNR (dB)", "swift | 31.6", "rapid | 29.9"),
        ("quality.", "quality against the frames of `plain`, float32, same seed."),
    ),
    "coincidence": (LEVELS.replace("VSA: 8.614902 ms", "VSA: 10.713601 ms"), ("10.713601", "9.013601")),
}
"""By rule: a page that breaks it, and what to replace in it. All but three have caught an error of a published analysis."""


@pytest.mark.parametrize("case", CASES)
def test_a_rule_speaks_alone_and_is_silenced(case: str) -> None:
    rule, (text, (wrong, right)) = case.split()[0], CASES[case]
    assert text.count(wrong) == 1
    assert [finding.rule for finding in findings(read_markdown(text), MEASURED)] == [rule]
    assert findings(read_markdown(text.replace(wrong, right)), MEASURED) == ()
    assert (findings(read_markdown(text)) == ()) == (rule in ("below-floor", "window-free"))


def test_every_rule_has_a_case_and_a_line_in_the_manual() -> None:
    assert {case.split()[0] for case in CASES} == set(RULES)
    for rule in RULES:
        (line,) = [line for line in MANUAL.splitlines() if line.startswith(f"| `{rule}` |")]
        assert ("| warning |" in line) == (rule in WARNINGS) and ("--model" in line) == (rule in ("below-floor", "window-free"))


def test_rules_are_left_out_by_id() -> None:
    assert chosen_rules([]) == RULES
    assert set(RULES) - set(chosen_rules(["total-sum", "no-unit"])) == {"total-sum", "no-unit"}
    with pytest.raises(ConfigError, match="unknown rule 'no-unti'"):
        chosen_rules(["no-unti"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "wan-1.3"}, "did you mean 'wan-1.3b'"),
        ({"device": "V100"}, "unknown device 'V100'"),
        ({"size": (480, 832)}, "without --model"),
        ({"window": 12}, "without --model"),
        ({"model": "wan-1.3b", "window": -1}, "positive"),
    ],
)
def test_what_was_measured_is_checked(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_of(**({"model": None, "size": None, "window": None, "device": None} | given))  # type: ignore[arg-type]


def test_a_size_is_tokens() -> None:
    assert MEASURED.tokens_per_frame == 30 * 52 and MEASURED.device is not None
