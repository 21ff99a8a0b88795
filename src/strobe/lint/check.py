"""The rules, and entry points of the linter: check a text or a file and return its findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError, unknown_choice
from strobe.lint import arithmetic, claims
from strobe.lint.document import Claim, LintDocument, LintOptions
from strobe.lint.markdown import read_markdown, read_printed

MARKDOWN: Final = (".md", ".markdown")
PRINTED: Final = (".txt", ".log", ".out")
Rules = Mapping[str, Callable[[LintDocument], Iterable[Claim]]]
RULES: Final[Rules] = {
    "fps-latency": arithmetic.fps_latency,
    "change-column": arithmetic.change_column,
    "statistic-unnamed": arithmetic.statistic_unnamed,
    "delta-disagrees": arithmetic.delta_disagrees,
    "total-sum": arithmetic.total_sum,
    "two-decompositions": arithmetic.two_decompositions,
    "superlative": claims.superlative,
    "memory-fit": claims.memory_fit,
    "value-of-another": claims.value_of_another,
    "label-admitted": claims.label_admitted,
    "no-unit": claims.no_unit,
    "percentile-samples": claims.percentile_samples,
    "quality-reference": claims.quality_reference,
    "coincidence": claims.coincidence,
    "below-floor": claims.below_floor,
    "window-free": claims.window_free,
}
"""All rules by id, in the order in which findings of one line are listed; docs/lint.md says what each holds."""
WARNINGS: Final = frozenset({"statistic-unnamed", "percentile-samples", "quality-reference", "coincidence"})
"""Rules that find what is missing to judge a figure; the others find numbers that contradict each other or the hardware."""


def lint_text(text: str, options: LintOptions | None = None) -> tuple[Claim, ...]:
    """Hold the claims of a Markdown document to the rules.

    Args:
        options: model, shape and device, which the document does not say.
    """
    return _findings(read_markdown(text), options, RULES)


def lint_file(path: Path, options: LintOptions | None = None, rules: Rules = RULES) -> tuple[Claim, ...]:
    """Hold the claims of a file to the rules: Markdown, or printed output.

    Raises:
        DataError: the file cannot be read or is neither.
    """
    name, suffix = path.as_posix(), path.suffix.lower()
    if suffix not in (*MARKDOWN, *PRINTED):
        raise DataError(f"{name}: cannot be linted; give Markdown (.md) or printed output (.txt, .log)")
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}); give an existing file") from error
    return _findings(read_markdown(text) if suffix in MARKDOWN else read_printed(text), options, rules)


def chosen_rules(ignore: Collection[str]) -> Rules:
    """Return the rules left without those of the ids in `ignore`.

    Raises:
        ConfigError: no rule of that id.
    """
    for name in ignore:
        if name not in RULES:
            raise unknown_choice("rule", name, RULES)
    return {name: check for name, check in RULES.items() if name not in ignore}


def _findings(document: LintDocument, options: LintOptions | None, rules: Rules) -> tuple[Claim, ...]:
    document = replace(document, options=options or document.options)
    found = [
        replace(claim, rule=name, severity="warning" if name in WARNINGS else "error")
        for name, check in rules.items()
        for claim in check(document)
        if not any(ignored in ("*", name) and claim.place.line in lines for lines, ignored in document.ignored)
    ]
    return tuple(sorted(found, key=lambda claim: claim.place.line))
