"""A case that is measured into a folder, and reported; what the folder held, and what was finished at Ctrl-C, is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from strobe.cli.console import OUT, Output
from strobe.cli.report import GATE_FAILED, write
from strobe.cli.require import Requirement
from strobe.core.errors import ConfigError, DataError
from strobe.core.settings import read_settings

if TYPE_CHECKING:
    from strobe.bench.case import ComparePlan
    from strobe.bench.cases.stream import StreamCase
    from strobe.bench.dit import DitCase
    from strobe.perf.records.store import RunWriter
    from strobe.perf.table.model import Report

TracesOut = Annotated[
    Path | None,
    Parameter(
        alias=OUT,
        help="the folder for records, traces and report; one that holds something is kept as traces.1, traces.2 and so on. By "
        "default STROBE_PROFILE_DIR, or traces.",
    ),
]


def chosen_folder(out: Path | None) -> Path:
    """Return the folder to write to: the given one, else STROBE_PROFILE_DIR, else `traces`."""
    return out or Path(read_settings().profile_dir or "traces")


def rotating(kept: list[Path]) -> Callable[[Path, str], RunWriter]:
    """Open a run in the given folder; its former contents are kept under another name and listed."""
    from strobe.perf.records.store import RunWriter, rotate

    def open_run(folder: Path, slug: str) -> RunWriter:
        moved = rotate(folder)
        if moved is not None:
            kept.append(moved)
        return RunWriter(folder)

    return open_run


def tell_kept(kept: Sequence[Path], output: Output) -> None:
    """Print what was moved out of the way."""
    for path in kept:
        output.note(f"the folder was not empty: what it held is kept as {path}")


@contextmanager
def tells_what_is_kept(output: Output, kept: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Print what is kept if the body is interrupted; nothing if it finished nothing."""
    try:
        yield
    except KeyboardInterrupt:
        for line in kept():
            output.note(line)
        raise


def kept_runs(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each run that has finished clips."""
    from strobe.perf.records.store import read_run

    for folder in folders:
        try:
            run = read_run(folder)
        except DataError:
            continue  # not even begun
        if run.clips:
            yield f"the {len(run.clips)} finished clips are kept: strobe report {folder}"


def kept_cells(folder: Path, show: str) -> Iterator[str]:
    """Yield a line with the number of finished cells in a folder; none if there are none.

    Args:
        show: the command that makes a page of them.
    """
    from strobe.bench.cells import finished

    count = sum(finished(place) for place in folder.glob("cells/*") if place.is_dir())
    if count:
        yield f"the {count} finished cells are kept: the same command goes on from there, {show} makes the page of them"


def tell_case(case: StreamCase, output: Output) -> None:
    """Report how the model's settings were chosen, and the presets that cannot run here and are left out."""
    for note in case.notes:
        output.note(note)
    for each in case.absent:
        output.note(f"{each.variant}: not on this machine: {each.reason}")


def measure(
    case: StreamCase | DitCase,
    plan: ComparePlan,
    out: Path,
    requirements: Sequence[Requirement],
    output: Output,
    allow_different: tuple[str, ...] = (),
    title: str = "compare",
    *,
    into: bool = False,
) -> tuple[int, dict[str, Any]]:
    """Run a comparison with a progress bar and write its report.

    Args:
        into: the records go into `out` itself, whose former contents are kept under another name, not into a folder inside.

    Returns:
        exit code: 1 if a requirement does not hold or a candidate's gate was red; and what was found.
    """
    from strobe.bench.runner import run_case
    from strobe.perf.records.store import create_run

    before, kept = set(out.glob("*")), list[Path]()
    told = tells_what_is_kept(output, lambda: kept_runs([out] if into else set(out.glob("*")) - before))
    with told, closing(case), output.progress(title) as advance:
        folder = run_case(case, root=out, plan=plan, progress=advance, open_run=rotating(kept) if into else create_run)
    return told_of(folder, requirements, output, kept, allow_different)


PAGES: Final = (".html", ".md", ".json")


def check_page(out: Path) -> None:
    """Refuse a page in no format that a report has."""
    if out.suffix not in PAGES:
        raise ConfigError(f"-o {out}: cannot write {out.suffix or 'a file without a suffix'}; allowed: {', '.join(PAGES)}")


def write_page(report: Report, *paths: Path) -> list[str]:
    """Write a report into files whose suffixes say the format; return them, each once."""
    from strobe.core.files import write_whole
    from strobe.perf.report.write import FORMATS, render

    formats = {f".{name}": name for name in FORMATS}
    for path in (found := dict.fromkeys(paths)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(report, formats[path.suffix]))
    return [str(path) for path in found]


def told_of(
    folder: Path, requirements: Sequence[Requirement], output: Output, kept: Sequence[Path], allow_different: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """Write the report of a run that was measured, and print what it found, was red, and was moved out of the way.

    Returns: as `measure`.
    """
    from strobe.perf.records.store import read_run

    tell_kept(kept, output)
    red = [gate for gate in read_run(folder).gates if not gate.passed]
    for gate in red:
        output.note(f"{gate.variant} is left out: {gate.rule} does not hold ({gate.detail})")
    code, document = write([folder], folder, requirements, output, allow_different=allow_different)
    document |= {"red": {gate.variant: f"{gate.rule}: {gate.detail}" for gate in red}, "kept": [str(path) for path in kept]}
    return GATE_FAILED if red else code, document
