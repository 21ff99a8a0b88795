"""`strobe log`: every recorded run as an entry, kept or dropped by a stated rule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from strobe.cli.ablate import tell
from strobe.cli.completion import DeviceName, PresetName
from strobe.cli.console import OUT, Output
from strobe.cli.interrupted import kept_cells, tells_what_is_kept
from strobe.cli.model import ModelFlags
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.bench.cases.ablate import Length
    from strobe.bench.cells import Outcome


@Parameter(name="*", group="Measurement")
@dataclass(frozen=True, kw_only=True)
class Measured:
    """Flags of what to measure before the log is written; without --quick or --full nothing is.

    Args:
        quick: clips of 100 latent frames and then 10 prompt switches.
        full: clips of 1000 latent frames and then 50 prompt switches: enough for a p99.
        latents: another number of latent frames.
        switches: another number of prompt switches.
        presets: presets to measure; all of them if neither these nor --knobs are given.
        knobs: measure every optimisation alone on top of the base.
        base: the preset that everything is compared with.
        rounds: palindromes B C C B of every run; an interval needs two.
        samples: clips, each with noise of its own, that quality is judged on.
    """

    quick: Annotated[bool, Parameter(negative="")] = False
    full: Annotated[bool, Parameter(negative="")] = False
    latents: int | None = None
    switches: int | None = None
    presets: tuple[PresetName, ...] = ()
    knobs: Annotated[bool, Parameter(negative="")] = False
    base: str = "baseline"
    rounds: int = 2
    samples: int = 2

    def length(self) -> Length | None:
        """Return the length of a clip; None if nothing is to be measured.

        Raises:
            ConfigError: both lengths, or a flag of a measurement without one.
        """
        from strobe.bench.cases.ablate import FULL, QUICK, Length

        if self.quick and self.full:
            raise ConfigError("--quick and --full: name one of them")
        if not self.quick and not self.full:
            if self.latents is not None or self.switches is not None or self.presets or self.knobs:
                raise ConfigError("--latents, --switches, --presets and --knobs say what is measured; add --quick or --full")
            return None
        given = FULL if self.full else QUICK
        latents = given.latents if self.latents is None else self.latents
        return Length(latents=latents, switches=given.switches if self.switches is None else self.switches)


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class LogClip(ModelFlags):
    """Flags of the clip: prompts, model and device.

    Args:
        prompt: what to show first.
        then: prompts that it switches to, in turn, one or several.
        seed: of all noise.
        device: auto, cpu, cuda or cuda:N.
    """

    prompt: str = "a red circle moving left slowly on a navy background"
    then: tuple[str, ...] = (
        "a yellow star moving up slowly on a black background",
        "a white square moving right fast on a forest background",
    )
    seed: int = 0
    device: DeviceName = "auto"


def log(
    *folders: Annotated[Path, Parameter(name="DIR")],
    measured: Measured = Measured(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("log"),
    clip: LogClip = LogClip(),
    output: Output = Output(),
) -> int:
    """Write the optimisation log of recorded runs: configuration, latencies, rates, memory, quality, decision and why.

    ```
    strobe log runs
    strobe log --quick  # slow
    strobe log --quick --presets turbo ultra --knobs --out log  # gpu
    strobe log runs ablation --out log
    ```

    A run that failed, or whose gate was red, is an entry too. A measurement that was interrupted goes on with the same command.
    Exit code 1 if a run failed.

    Args:
        folders: run folders, or folders that hold some at any depth; with --quick or --full beside what is measured.
        out: folder for the log, and for the runs that are measured.
    """
    length = measured.length()
    if length is None and not folders:
        raise ConfigError("name a folder with recorded runs, or measure some with --quick or --full")
    outcome = None if length is None else _measure(measured, length, out, clip, output)
    with output.progress("log"):
        from strobe.perf.report.blocks.optimisation_log import run_folders
        from strobe.perf.report.log_page import log_report
        from strobe.perf.report.write import write_report

        found = run_folders((*folders, *(() if outcome is None else (out,))))
        out.mkdir(parents=True, exist_ok=True)
        report = log_report(found, out)
        paths = write_report(report, out)
    return tell(report, paths, outcome, output)


def _measure(measured: Measured, length: Length, out: Path, clip: LogClip, output: Output) -> Outcome:
    """Measure the requested runs into the folder of the log."""
    with output.progress("log") as progress:
        from strobe.bench.case import Plan
        from strobe.bench.cases.ablate import Setup, job, log_cells, run_cells, script
        from strobe.core.device import resolve_device

        device, base, model = resolve_device(clip.device), Setup(config=clip.config(measured.base)), clip.load()
        cells = log_cells(base, measured.presets, model.defaults, device, knobs=measured.knobs)
        shown = script(length, (clip.prompt, *clip.then), model.defaults, clip.seed)
        work = job(base, shown, model, str(device), Plan(palindromes=measured.rounds, traced_blocks=0), measured.samples)
        with tells_what_is_kept(output, lambda: kept_cells(out, f"strobe log {out} --out {out}")):
            return run_cells(cells, work, out, progress)
