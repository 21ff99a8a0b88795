"""Entry points of the linter: check a text or a file and return its findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.errors import DataError, unknown_choice
from strobe.core.files import found_inside
from strobe.lint.document import CodeLine, Document, DocumentSection
from strobe.lint.finding import Claim, Finding, Rule
from strobe.lint.lines import lines_table
from strobe.lint.markdown import read_markdown
from strobe.lint.quantity import readable
from strobe.lint.report_json import read_report
from strobe.lint.rules import RULES
from strobe.lint.study import LintStudy, Numbered, Options
from strobe.perf.records.packed import FILES, RECORDS, read_bytes, records_in
from strobe.perf.records.record import Record
from strobe.perf.records.store import read_run

MARKDOWN: Final = (".md", ".markdown")
PRINTED: Final = (".txt", ".log", ".out")


def lint_text(text: str, path: str, options: Options | None = None, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """Hold the claims of a Markdown document to the rules.

    Args:
        path: named in every place.
        options: model, shape and device, which the document does not say.
    """
    return _findings(LintStudy(document=read_markdown(text, path), options=options or Options()), rules)


def lint_file(path: Path, options: Options | None = None, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """Hold the claims of a file to the rules: Markdown, `report.json`, `records.jsonl`, or printed output.

    Raises:
        DataError: the file cannot be read or is none of these.
    """
    return _findings(_study(path, options or Options()), rules)


def _study(path: Path, options: Options) -> LintStudy:
    name, suffix = path.as_posix(), path.suffix.lower()
    if suffix == ".jsonl" or path.name in FILES:
        return _recorded(path, options)
    if suffix not in (*MARKDOWN, *PRINTED, ".json"):
        raise DataError(
            f"{name}: cannot be linted; give Markdown (.md), a report.json, a {RECORDS} or printed output (.txt, .log)"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}); give an existing file") from error
    if suffix == ".json":
        return LintStudy(document=read_report(data, name), options=options)
    text = data.decode("utf-8", "replace")
    return LintStudy(document=read_markdown(text, name) if suffix in MARKDOWN else _printed(text, name), options=options)


def _printed(text: str, path: str) -> Document:
    numbered = [(number, line) for number, line in enumerate(readable(text).splitlines(), 1)]
    table = lines_table(numbered, DocumentSection())
    code = tuple(CodeLine(text=line, line=number, section=DocumentSection()) for number, line in numbered)
    return Document(path=path, tables=(table,) if table else (), code=code)


def _recorded(path: Path, options: Options) -> LintStudy:
    """Read records with their line numbers, once the reader of runs has accepted the file."""
    run = read_run(path)
    lines = enumerate(read_bytes(path)[0].split(b"\n")[:-1], 1)
    decoder = msgspec.json.Decoder(Record)
    return LintStudy(
        document=Document(path=path.as_posix()),
        options=options,
        records=tuple(Numbered(line=at, record=decoder.decode(line)) for at, line in lines if at not in run.bad_lines),
        damaged=(*run.bad_lines, *([0] if run.missing_lines else [])),
        broken=run.broken,
    )


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or the records and reports of a run folder.

    Raises:
        DataError: a folder without any of them.
    """
    if not path.is_dir():
        return (path,)
    records, reports = records_in(path), (found_inside(path, name) for name in ("report.json", "report.md"))
    found = tuple(file for file in (records, *reports) if file is not None)
    if not found:
        raise DataError(f"{path}: holds neither {RECORDS} nor a report; name the files to lint")
    return found


def chosen_rules(ignore: Collection[str], only: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules left after `only` and `ignore`, both lists of rule ids.

    Raises:
        ConfigError: no rule of that id.
    """
    known = [rule.id for rule in RULES]
    for name in (*ignore, *only):
        if name not in known:
            raise unknown_choice("rule", name, known)
    return tuple(rule for rule in RULES if rule.id not in ignore and (not only or rule.id in only))


def _findings(study: LintStudy, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    found = [_finding(rule, claim) for rule in rules for claim in rule.check(study)]
    kept = [finding for finding in found if not _ignored(study.document, finding)]
    return tuple(sorted(kept, key=lambda finding: finding.place.line))


def _finding(rule: Rule, claim: Claim) -> Finding:
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        place=claim.place,
        said=claim.said,
        corrected=claim.corrected,
        why=claim.why,
        also=claim.also,
    )


def _ignored(document: Document, finding: Finding) -> bool:
    return any(each.rule in ("*", finding.rule) and each.first <= finding.place.line <= each.last for each in document.ignored)
