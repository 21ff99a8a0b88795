"""`strobe bench soak`: one long stream, to see whether it slows down or holds more and more memory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from strobe.cli.completion import PresetName
from strobe.cli.console import OUT, Output
from strobe.cli.interrupted import kept_runs, tells_what_is_kept
from strobe.cli.log import LogClip
from strobe.cli.report import GATE_FAILED
from strobe.cli.run_folder import rotating, tell_kept
from strobe.cli.tables import banner_texts, table_text
from strobe.core.errors import ConfigError

_CLIP: Final = LogClip()


def soak(
    *,
    preset: PresetName = "balanced",
    blocks: int = 1000,
    switch_every: int = 0,
    minutes: float | None = None,
    check: Annotated[bool, Parameter(negative="")] = False,
    out: Annotated[Path, Parameter(alias=OUT)] = Path("soak"),
    clip: LogClip = _CLIP,
    output: Output = Output(),
) -> int:
    """Run one stream for a long time, and compare its last frame blocks with the first: times and memory held.

    ```
    strobe bench soak --preset balanced --blocks 1000  # slow
    strobe bench soak --blocks 1000 --switch-every 50 --minutes 8 --check  # slow
    strobe bench soak --model wan-1.3b --random-weights --preset turbo_fp8  # gpu
    ```

    Every frame block is written to disk at once, so that `strobe report` also makes the page of a soak that was killed.

    Args:
        preset: what runs.
        blocks: frame blocks of the stream.
        switch_every: frame blocks under each prompt, the prompts taking turns; 0: no switch.
        minutes: stop then, whatever is left.
        check: exit code 1 if a figure grew by more than it may.
        out: folder for records and page; one that holds something is kept as soak.1, soak.2 and so on.
    """
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes {minutes:g}: give more than 0, or leave it out")
    kept: list[Path] = []
    with output.progress("soak"):
        from strobe.bench.cases.soak import run_soak, soak_script
        from strobe.bench.cases.stream import StreamCase
        from strobe.perf.analysis.runs.soak import counted

        script = soak_script((clip.prompt, *clip.then), blocks, switch_every, clip.seed)
        case = StreamCase([clip.config(preset)], script=script, model=clip.load(), device=clip.device)
        counted(case.settings(preset), case.workload, blocks)  # too few to compare: told now
    limit_s = None if minutes is None else 60 * minutes
    told = tells_what_is_kept(output, lambda: kept_runs([out]))
    with told, closing(case), output.progress("soak") as advance:
        folder = run_soak(case, root=out, limit_s=limit_s, progress=advance, open_run=rotating(kept))
    tell_kept(kept, output)
    with output.progress("report"):
        from strobe.perf.analysis.runs.soak import soak_of
        from strobe.perf.records.store import read_run
        from strobe.perf.report.soak_page import soak_report, verdict_table
        from strobe.perf.report.write import write_report

        found, report = soak_of(read_run(folder)), soak_report(folder)
        paths = write_report(report, folder)
    output.show(*banner_texts(report.banners, ("stop",)), table_text(verdict_table(found)), " ".join(map(str, paths)))
    compared = (*found.times, *found.held)
    output.emit(
        {
            "run": str(folder),
            "blocks": len(found.blocks_ns),
            "drift": found.drift,
            "figures": {
                each.what: {"first": each.first, "last": each.last, "may_grow": each.may_grow, "holds": each.holds}
                for each in compared
            },
            "report": {path.suffix[1:]: str(path) for path in paths},
        }
    )
    return GATE_FAILED if check and not all(each.holds for each in compared) else 0
