"""`strobe lint`: a check of a document's numbers against each other, arithmetic and the hardware."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from strobe.cli.console import Output, joined_lines, styled
from strobe.cli.model import parse_size
from strobe.core.errors import ConfigError
from strobe.core.printable import clean, counted

if TYPE_CHECKING:
    from strobe.lint.document import Claim

FOUND = 1


Fact = Parameter(group="What was measured")


def lint(
    *files: Annotated[Path, Parameter(name="FILE")],
    ignore: tuple[str, ...] = (),
    model: Annotated[str | None, Fact] = None,
    size: Annotated[str | None, Fact] = None,
    window: Annotated[int | None, Fact] = None,
    device: Annotated[str | None, Fact] = None,
    output: Output = Output(),
) -> int:
    """Find claims that cannot be true: in a README, a benchmark table, a report or printed output.

    ```
    strobe lint README.md docs/*.md
    strobe lint optimisation-log.md --model wan-1.3b --size 480x832 --window 12 --device h100
    strobe lint runs/20260101T120000Z-compare-1a2b3c/report.md --json
    ```

    A printed number stands for every value that prints so. Exit code 1 if anything was found. A comment before a table or a
    paragraph, `<!-- strobe lint: ignore RULE: reason -->`, takes that block out of one rule. docs/lint.md lists the rules.

    Args:
        files: Markdown, or printed output (.txt, .log).
        ignore: rules to leave out.
        model: the transformer, such as wan-1.3b: its FLOPs bound the times of its parts.
        size: height x width in pixels, such as 480x832.
        window: latent frames attended in self-attention, the ones made included.
        device: the GPU, such as h100 or "A100 80GB SXM".
    """
    from strobe.lint.document import options_of
    from strobe.lint.rules import chosen_rules, lint_file

    if not files:
        raise ConfigError("name at least one file: Markdown, or printed output (.txt, .log)")
    rules = chosen_rules(ignore)
    options = options_of(model=model, size=parse_size(size), window=window, device=device)
    found: list[tuple[Path, Claim]] = []
    with output.progress("lint") as advance:
        for number, file in enumerate(files):
            advance(number, len(files), file.name)
            found += [(file, claim) for claim in lint_file(file, options, rules)]
    output.show(*(_text(file, claim) for file, claim in found))
    output.note(f"{counted(len(found), 'finding')} in {counted(len(files), 'file')}, {counted(len(rules), 'rule')}")
    listed = []
    for file, claim in found:
        place, *also = ({"path": file.as_posix(), **asdict(each)} for each in (claim.place, *claim.also))
        listed.append(asdict(claim) | {"place": place, "also": also})
    output.emit({"files": [str(file) for file in files], "findings": listed})
    return FOUND if found else 0


def _text(file: Path, finding: Claim) -> Text:
    place = finding.place
    inside = ", ".join(part for part in (place.table, place.row, place.column) if part)
    colour = "red" if finding.severity == "error" else "yellow"
    also = ", ".join(dict.fromkeys(str(each.line) for each in finding.also if each.line != place.line))
    said = styled((f"{file.as_posix()}:{place.line}", "bold"), " ", (finding.rule, colour))
    because = styled(f"  because  {finding.why}")
    return joined_lines(
        (
            said.append(f" {clean(inside)}", "dim") if inside else said,
            f"  said     {finding.said}",
            styled("  correct  ", (finding.corrected, "green")),
            because.append(f" (also lines {also})", "dim") if also else because,
        )
    )
