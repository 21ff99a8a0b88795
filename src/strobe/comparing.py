"""`strobe.compare`: functions of the caller's own, from the first call to the page. Above both what measures and what reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from strobe.bench.own.calls import measure_calls
from strobe.perf.records.store import create_run
from strobe.perf.report.documents.api import ComparedCalls, compare_runs

if TYPE_CHECKING:
    import torch


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
            `device="cpu"` in a process that works on a GPU.

    Whatever a function raises is raised here, with a note that says which function it was, and in which round.
    """
    scratch = TemporaryDirectory(prefix="strobe-") if out is None else None
    root = Path(fspath(out or ".")) if scratch is None else Path(scratch.name)
    folder = measure_calls(
        functions,
        inputs,
        lambda: create_run(root, "calls"),
        rounds=rounds,
        warmup=warmup,
        tolerance=tolerance,
        trace=trace,
        device=str(device),
    )
    return ComparedCalls(folder=folder, document=compare_runs(folder), scratch=scratch)
