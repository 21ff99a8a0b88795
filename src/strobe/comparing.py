"""`strobe.compare`: functions of the caller's own, from the first call to the page. Above both what measures and what reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.files import write_whole
from strobe.core.notebook import html_table
from strobe.perf.records.store import create_run
from strobe.perf.report.build import build_report
from strobe.perf.report.documents.api import compare_runs
from strobe.perf.report.documents.runs import CallsRow, RunDocument
from strobe.perf.report.model import Ratio
from strobe.perf.report.text import ratio_text, significant
from strobe.perf.report.write import FORMATS, Format, render

if TYPE_CHECKING:
    import torch

_SHOWN: Final = (
    "name",
    "mean_ns",
    "low_ns",
    "high_ns",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "peak_bytes",
    "equal_output",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCalls:
    """What `strobe.compare` found.

    Args:
        folder: the run folder; `strobe report` renders it again. Without `out=` it is removed with this value.
        document: everything as tables, as `strobe.compare_runs(folder)` returns it.
    """

    folder: Path
    document: RunDocument
    _scratch: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    def rows(self, table: str = "calls") -> list[dict[str, Any]]:
        """Return a table as one dictionary per row: `pandas.DataFrame(found.rows())`.

        Args:
            table: calls, with one row per function; lines, with the account of each candidate; or another of `RunDocument`.

        Raises:
            ConfigError: there is no such table.
        """
        return self.document.rows(table)

    def __getitem__(self, name: str) -> CallsRow:
        """Return what was found of one function: `found["compiled"].ratio`."""
        for row in self.document.calls:
            if row.name == name:
                return row
        raise unknown_choice("function", name, [row.name for row in self.document.calls])

    def __iter__(self) -> Iterator[CallsRow]:
        return iter(self.document.calls)

    def between(self, baseline: str, candidate: str) -> RunDocument:
        """Compare any two of the functions, with the account where samples were traced or have regions.

        Raises:
            ConfigError: there is no such function, it was not timed, or they are the same.
        """
        return compare_runs(self.folder, pair=(baseline, candidate))

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the page, one file that needs no other, and return its path.

        Args:
            path: the file; its ending says the format: .html, .md or .json.

        Raises:
            ConfigError: another ending.
            StrobeError: the file cannot be written.
        """
        file = Path(fspath(path))
        kind = file.suffix.removeprefix(".").lower()
        if kind not in get_args(Format):
            raise ConfigError(f"{file}: the ending says the format: {', '.join(f'.{each}' for each in FORMATS)}")
        file.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(file, render(build_report([self.folder], into=file.parent), cast("Format", kind)))

    def __str__(self) -> str:
        return "\n".join(map(_line, self.document.calls))

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each function."""
        rows = [{key: row[key] for key in _SHOWN} for row in self.rows()]
        return html_table("time of one call, against " + self.document.calls[0].reference, rows)


def compare(
    functions: Mapping[str, Callable[..., object]],
    *,
    inputs: object = (),
    tolerance: float | None = None,
    rounds: int = 10,
    warmup: int = 3,
    device: str | torch.device = "auto",
    trace: bool = False,
    out: str | PathLike[str] | None = None,
) -> ComparedCalls:
    """Say how much faster functions are than the first of them, and whether they return the same.

    ```python
    found = strobe.compare({"eager": f, "compiled": torch.compile(f)}, inputs=(x,))
    found["compiled"].ratio, found["compiled"].verdict
    found.report("page.html")
    ```

    1. Each function is called once with equal inputs and equal random numbers. One whose output differs from the first's gets no
       numbers.
    2. Each is called `warmup` times.
    3. Samples run interleaved, `A B C C B A`, from an idle device to an idle device; short calls are repeated in a sample.

    Args:
        functions: by name; the first is the baseline.
        inputs: of every call: a tuple of arguments, a dictionary of named ones, one argument, or a function without arguments
            that makes either anew for each call, which is not timed. Tensors, arrays and the containers that hold them are copied
            for each function; if a function changes its inputs in place, every call gets copies of its own. Other objects, such
            as models, are handed over as they are.
        tolerance: largest relative error of an output (root mean square); None: by dtype, 1e-5 for float32; `math.inf`: outputs
            are not compared.
        rounds: of the order `A B C C B A`; an interval needs 2.
        warmup: calls of each function before anything is timed, at least 1.
        device: where the functions work. auto: on a GPU, if the process has used one by the end of the warm-up, else on the CPU.
        trace: run one more sample of each under the profiler, for the account of where the difference went.
        out: folder that the run's own folder is made in; None: the records are kept as long as the result is.

    Raises:
        ConfigError: fewer than two functions, inputs that can be read only once, outputs that cannot be compared, or
            `device="cpu"` for a function that works on a GPU.

    Whatever a function raises is raised here, with a note that says which function it was, and in which round.
    """
    from strobe.bench.own.calls import CallsPlan, check_functions, measure_calls

    check_functions(functions)
    plan = CallsPlan(rounds=rounds, warmup=warmup, tolerance=tolerance, trace=trace)
    scratch = TemporaryDirectory(prefix="strobe-") if out is None else None
    root = Path(scratch.name if scratch is not None else fspath(cast("str | PathLike[str]", out)))
    outcome = measure_calls(functions, inputs, plan, lambda: create_run(root, "calls"), device=str(device))
    return ComparedCalls(folder=outcome.folder, document=compare_runs(outcome.folder), _scratch=scratch)


def _line(row: CallsRow) -> str:
    """One function in a line."""
    if row.mean_ns is None:
        return f"{row.name}: not timed, {row.output or 'nothing is left to compare it with'}"
    took = f"{row.name}: {significant(row.mean_ns / 1e6)} ms"
    if row.ratio is None:
        return took
    return f"{took}, {ratio_text(Ratio(row.ratio, row.ratio_low, row.ratio_high))} {row.reference}, {row.verdict}"
