"""Entry points of the linter: check a text or a file and return its findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError, unknown_choice
from strobe.lint.document import DocumentSection, LintDocument, Sentence, lines_table, read_markdown
from strobe.lint.quantity import readable
from strobe.lint.rules import RULES
from strobe.lint.study import Claim, LintOptions, LintStudy, Rule

MARKDOWN: Final = (".md", ".markdown")
PRINTED: Final = (".txt", ".log", ".out")


def lint_text(text: str, path: str, options: LintOptions | None = None) -> tuple[Claim, ...]:
    """Hold the claims of a Markdown document to the rules.

    Args:
        path: named in every place.
        options: model, shape and device, which the document does not say.
    """
    return _findings(LintStudy(document=read_markdown(text, path), options=options or LintOptions()), RULES)


def lint_file(path: Path, options: LintOptions | None = None, rules: Sequence[Rule] = RULES) -> tuple[Claim, ...]:
    """Hold the claims of a file to the rules: Markdown, or printed output.

    Raises:
        DataError: the file cannot be read or is neither.
    """
    return _findings(_study(path, options or LintOptions()), rules)


def _study(path: Path, options: LintOptions) -> LintStudy:
    name, suffix = path.as_posix(), path.suffix.lower()
    if suffix not in (*MARKDOWN, *PRINTED):
        raise DataError(f"{name}: cannot be linted; give Markdown (.md) or printed output (.txt, .log)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}); give an existing file") from error
    text = data.decode("utf-8", "replace")
    return LintStudy(document=read_markdown(text, name) if suffix in MARKDOWN else _printed(text, name), options=options)


def _printed(text: str, path: str) -> LintDocument:
    numbered = [(number, line) for number, line in enumerate(readable(text).splitlines(), 1)]
    table = lines_table(numbered, DocumentSection())
    code = tuple(Sentence(text=line, line=number, section=DocumentSection()) for number, line in numbered)
    return LintDocument(path=path, tables=(table,) if table else (), code=code)


def chosen_rules(ignore: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules left without those of the ids in `ignore`.

    Raises:
        ConfigError: no rule of that id.
    """
    known = [rule.id for rule in RULES]
    for name in ignore:
        if name not in known:
            raise unknown_choice("rule", name, known)
    return tuple(rule for rule in RULES if rule.id not in ignore)


def _findings(study: LintStudy, rules: Sequence[Rule]) -> tuple[Claim, ...]:
    found = [replace(claim, rule=rule.id, severity=rule.severity) for rule in rules for claim in rule.check(study)]
    kept = [finding for finding in found if not _ignored(study.document, finding)]
    return tuple(sorted(kept, key=lambda finding: finding.place.line))


def _ignored(document: LintDocument, finding: Claim) -> bool:
    return any(rule in ("*", finding.rule) and finding.place.line in lines for lines, rule in document.ignored)
