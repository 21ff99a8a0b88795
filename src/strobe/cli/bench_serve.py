"""`strobe bench serve`: viewers come to a server of live streams, steer and leave; what do they see?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from strobe.bench.cases.visits import Load
from strobe.cli.console import OUT, Output, named
from strobe.cli.interrupted import kept_runs, tells_what_is_kept
from strobe.cli.model import ModelFlags
from strobe.cli.report import GATE_FAILED
from strobe.cli.require import check_names, failures, parse_requirement
from strobe.cli.run_folder import rotating, tell_kept
from strobe.cli.serve import check_installed
from strobe.cli.tables import banner_texts, table_text

VIEWERS: Final = named("Viewers", levels="sessions", stay_s="stay", prompt_every_s="prompt-every")
FIGURES: Final = ("on_time", "play_ratio", "stalls", "refused", "failed")
"""What `--require` may name of a load."""
_SHOWN: Final = (
    "load", "at_once", "came", "refused", "failed", "on_time", "play_ratio", "stalls", "stall_ns", "first_picture_ns",
    "prompt_to_pixel_ns", "held",
)  # fmt: skip


def serve(
    *,
    device: str = "auto",
    require: tuple[str, ...] = (),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("serve-load"),
    model: ModelFlags = ModelFlags(),
    load: Annotated[Load, VIEWERS] = Load(),
    output: Output = Output(),
) -> int:
    """Load a server of live streams with viewers: first picture, prompt to pixel, pictures on time, stalls, refusals.

    ```
    strobe bench serve --sessions 1 2 --seconds 60  # slow
    strobe bench serve --model wan-1.3b --random-weights --preset ultra --sessions 4 8 --arrivals together --seconds 180  # gpu
    strobe bench serve --url http://127.0.0.1:7860 --sessions 2  # needs-files
    ```

    Without `--url` it starts `strobe serve` in a process of its own, and ends it. A viewer is a client that plays with a start
    buffer and a clock; it decodes nothing. The load is the rate at which viewers come, and no viewer waits for another.

    Args:
        device: of the server that is started: auto, cpu, cuda or cuda:N.
        require: a condition that every load must meet, such as on_time>=0.99 (share of the pictures) or refused<=0; also
            play_ratio, stalls and failed. Exit code 1 if one does not.
        out: folder for records and page; one that holds something is kept as serve-load.1, serve-load.2 and so on.
    """
    check_installed()
    requirements = [parse_requirement(text) for text in require]
    check_names(requirements, [f"load-{level:g}" for level in load.levels], FIGURES)
    kept: list[Path] = []
    told = tells_what_is_kept(output, lambda: kept_runs([out]))
    with told, _server(load, device, model) as (address, where), output.progress("load") as advance:
        from strobe.bench.cases.live import run_load

        folder = run_load(
            load, url=address, own=not load.url, device=where, root=out, progress=advance,
            open_run=rotating(kept),
        )  # fmt: skip
    tell_kept(kept, output)
    with output.progress("report"):
        from strobe.perf.analysis.runs.latency import figures_of
        from strobe.perf.records.store import read_run
        from strobe.perf.report.serve_page import load_table, serve_report
        from strobe.perf.report.write import write_report

        found, report = figures_of(read_run(folder)), serve_report(folder)
        paths = write_report(report, folder)
    figures = {f"load-{each.load:g}": {name: getattr(each, name) for name in FIGURES} for each in found}
    failed = [line for each in requirements for line in failures(each, figures)]
    output.show(*banner_texts(report.banners, ("stop",)), report.subtitle, table_text(load_table(found)))
    output.show(*(f"not met: {line}" for line in failed), " ".join(map(str, paths)))
    output.emit(
        {
            "run": str(folder),
            "loads": [{name: getattr(each, name) for name in _SHOWN} for each in found],
            "report": {path.suffix[1:]: str(path) for path in paths},
            "not_met": failed,
        }
    )
    return GATE_FAILED if failed else 0


@contextmanager
def _server(load: Load, device: str, model: ModelFlags) -> Iterator[tuple[str, str]]:
    """Address and device of the server that is loaded; one that is started here ends with the body."""
    if load.url:
        yield load.url, ""
        return
    from strobe.bench.cases.live import own_server

    with own_server(["--preset", load.preset, "--device", device, *model.arguments()]) as started:
        yield started
