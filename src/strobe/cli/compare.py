"""`strobe compare`: presets measured against each other, one preset with settings changed, or whole programs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from cyclopts import Parameter

from strobe.cli.completion import PRESETS, DeviceName, PresetName
from strobe.cli.console import OUT, Output
from strobe.cli.model import ModelFlags, at_least
from strobe.cli.report import page_of_many, write
from strobe.cli.require import JOULES, Requirement, check_names, parse_requirement
from strobe.cli.run_folder import kept_cells, kept_runs, measure, tell_case, tells_what_is_kept
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.bench.cases.stream import Script
    from strobe.bench.own.programs import Program
    from strobe.engine.config import ModelDefaults


SWITCHES: Final = (
    "3.5s:a yellow star moving down slowly on a black background",
    "6.5s:a white square moving left slowly on a forest background",
)
"""Default prompt switches, used as far as a clip is long enough."""


SEPARATOR: Final = "--"
"""Stands before each command. The command line's own parser takes the first."""


@Parameter(name="*", group="Programs")
@dataclass(frozen=True, kw_only=True)
class ProgramFlags:
    """Flags for running programs.

    Args:
        names: one for each command or commit, for the tables and --require; by default the commands or commits themselves.
        warmup: untimed runs of each program before the first round, 1 by default.
        prepare: a command that runs before every run, not timed, such as one that drops a cache.
        commits: measure one command at these commits of the repository here, the first being the baseline.
        install: a command that runs once at each commit before, in a virtual environment of its own that sees the packages
            beside strobe too.
    """

    names: tuple[str, ...] = ()
    warmup: int | None = None
    prepare: str = ""
    commits: tuple[str, ...] = ()
    install: str = ""


def given(flags: object) -> tuple[str, ...]:
    """The flags of a group that are not as they are by default."""
    stock = type(flags)()
    changed = (each.name for each in fields(flags) if getattr(flags, each.name) != getattr(stock, each.name))  # type: ignore[arg-type]
    return tuple(f"--{name.replace('_', '-')}" for name in changed)


def refuse(flags: Sequence[str], form: str) -> None:
    """Refuse flags that say nothing to one form of the command."""
    if flags:
        raise ConfigError(f"{', '.join(flags)}: {form}; leave {'it' if len(flags) == 1 else 'them'} out")


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class ClipFlags(ModelFlags):
    """Flags of the clip: prompts, length, model and device.

    Args:
        prompt: what to show first.
        switch: TIME:PROMPT, where TIME is seconds (4.5s) or a frame block (block=12), one or several. A clip too
            short for one of the default is made without it; --no-switch: none at all.
        blocks: length of a clip in frame blocks.
        seed: of all noise.
        device: auto, cpu, cuda or cuda:N.
    """

    prompt: str = "a red circle moving right slowly on a navy background"
    switch: Annotated[tuple[str, ...], Parameter(negative="--no-switch")] = SWITCHES
    blocks: int = 14
    seed: int = 17
    device: DeviceName = "auto"

    def script(self, defaults: ModelDefaults) -> Script:
        """Return the clip's prompts and switches in frame blocks of a model."""
        from strobe.bench.cases.stream import Script
        from strobe.engine.prompts import parse_switch

        switches = tuple(parse_switch(text, defaults) for text in self.switch)
        if self.switch == SWITCHES:
            switches = tuple(switch for switch in switches if switch.frame_block < self.blocks)
        return Script(prompt=self.prompt, switches=switches, num_blocks=self.blocks, seed=self.seed)


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class GridFlags(ClipFlags):
    """Flags of the clip, and flags that change settings of one preset instead of naming another.

    Args:
        vary: FACTOR=VALUE,VALUE, one or several. A factor is preset, steps, batch, a field of the configuration or an
            optimisation (`strobe presets` lists both).
        grid: every combination of the values instead of one factor at a time.
        leave_one_out: also turn off each optimisation of the preset, alone.
    """

    vary: tuple[str, ...] = ()
    grid: bool = False
    leave_one_out: bool = False

    @property
    def asked(self) -> bool:
        """Whether settings are changed at all."""
        if self.grid and len(self.vary) < 2:
            raise ConfigError("--grid makes the products of two factors or more; give another to --vary, or leave it out")
        return bool(self.vary or self.leave_one_out)


def compare(
    *sides: Annotated[PresetName, Parameter(name="PRESET")],
    rounds: int = 4,
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    require: tuple[str, ...] = (),
    allow_different: tuple[str, ...] = (),
    clip: GridFlags = GridFlags(),
    programs: ProgramFlags = ProgramFlags(),
    output: Output = Output(),
) -> int:
    """Measure presets, programs or commits against each other: interleaved, every sample kept, then the report.

    `strobe compare PRESET PRESET` runs presets in one process. A preset that cannot run on this machine is left out, and the
    report says so; exit code 3 if none of the candidates can. A preset against itself (A/A) shows the
    error of the measurement.

    `strobe compare PRESET --vary FACTOR=A,B` changes one setting at a time of a preset and measures speed and quality of each
    value, each in a run of its own against the preset. Every finished run is on the disk; the same command goes on where it
    stopped, and `strobe report` makes the page again.

    `strobe compare -- COMMAND -- COMMAND` runs programs, each command behind a `--` of its own, and takes wall time, CPU time
    and peak memory of each run. The output of the programs is thrown away, and they read nothing. A command in one pair of quotes
    goes to a shell only if it needs one. A program that fails is an error. Functions in Python: `strobe.compare`.

    `strobe compare --commits A B -- COMMAND` runs one command at commits of the git repository here, each in a worktree of its
    own that goes away at the end. In its untimed runs a program may leave profiler traces in the folder that the variable
    STROBE_PROFILE_DIR names; the command that compares them is then printed.

    ```
    strobe compare baseline balanced turbo  # slow
    strobe compare balanced balanced --rounds 8  # slow
    strobe compare quality turbo --rounds 8 --require "e2e>=1.2" --json  # slow
    strobe compare balanced --vary window=6,8,10 steps=4,3,2 batch=1,2 --leave-one-out  # slow
    strobe compare -o programs -- 'sleep 0.02' -- 'sleep 0.01'
    strobe compare --names one two --prepare "rm -rf cache" --rounds 8 -- 'python a.py' -- 'python b.py'  # needs-files
    strobe compare --commits main HEAD --install "pip install -e ." -- 'python bench.py'  # needs-files
    ```

    Args:
        sides: presets, or commands each behind a --; the first is the baseline, which every ratio is measured against.
        rounds: palindromes B C1 C2 C2 C1 B; each gives one pair per candidate, an interval needs two.
        out: the folder that the run's own folder is made in, `runs` by default; of --vary and --leave-one-out the folder of
            their runs and page, `grid` by default.
        require: a condition that must hold, such as e2e>=1.5 or turbo:psnr>30; see `strobe report --help`.
        allow_different: what is meant to differ between the presets, such as tokens; see `strobe report --help`.
    """
    from strobe.perf.analysis.comparable import check_allowed
    from strobe.perf.table.model import LevelName

    requirements = [parse_requirement(text) for text in require]
    check_allowed(allow_different)  # a wrong name is told before anything is measured
    at_least(1, rounds=rounds, blocks=clip.blocks)
    if clip.asked:
        refuse((*given(programs), *(["--require"] if require else []), *(["--allow-different"] if allow_different else [])),
               "for whole presets or programs, and here settings of one preset change")  # fmt: skip
        return _vary(sides, clip, rounds, out or Path("grid"), output)
    out = out or Path("runs")
    if SEPARATOR in sides or programs.commits:
        told = (*given(clip), *(["--allow-different"] if allow_different else []))
        refuse(told, "for presets, and these are programs")
        code, document = compare_programs(sides, programs, rounds, out, requirements, output)
        output.emit(document)
        return code
    refuse(given(programs), "for programs, each behind a -- of its own, and these are presets")
    if len(sides) < 2:
        alone = f"{sides[0]!r} needs a candidate to compare it with" if sides else "nothing to compare"
        raise ConfigError(f"{alone}; write strobe compare PRESET PRESET, or strobe compare -- 'COMMAND' -- 'COMMAND'")
    for side in sides:
        words = side.split()
        if words and side not in PRESETS and shutil.which(words[0]) is not None:
            raise ConfigError(f"{side!r} begins with a program and is no preset; write strobe compare -- 'COMMAND' -- 'COMMAND'")
    with output.progress("compare"):
        from strobe.bench.case import ComparePlan
        from strobe.bench.cases.stream import StreamCase, named_apart, runnable
        from strobe.perf.measure.timing import palindrome

        asked = named_apart([clip.config(name) for name in sides])
        configs, absent = runnable(asked, clip.device)  # what is wrong with a name is told before gigabytes are read
        palindrome(configs[0].name, [config.name for config in configs[1:]])
        model = clip.load()
        script = clip.script(model.defaults)
        case = StreamCase(configs, script=script, model=model, device=clip.device, absent=absent)
    check_names(requirements, [config.name for config in asked[1:]], (*get_args(LevelName), JOULES, *case.metrics))
    tell_case(case, output)
    for config, name in zip(asked, sides, strict=True):
        if config.name != name:
            output.note(f"{config.name} is {name} again (A/A): what differs between them is the instrument's error")
    code, document = measure(case, ComparePlan(palindromes=rounds), out, requirements, output, allow_different)
    output.emit(document)
    return code


def _vary(sides: Sequence[str], clip: GridFlags, rounds: int, out: Path, output: Output) -> int:
    """Measure a preset against itself with settings changed, a run for each change, and write their page."""
    if len(sides) != 1:
        raise ConfigError(f"--vary and --leave-one-out change settings of one preset; {len(sides)} are named: {' '.join(sides)}")
    with output.progress("compare") as progress:
        from strobe.bench.case import ComparePlan
        from strobe.bench.cases import ablate
        from strobe.core.device import resolve_device
        from strobe.perf.records.record import PlannedCell

        base = ablate.Setup(config=clip.config(sides[0]))
        factors, device, name = ablate.parse_factors(clip.vary), resolve_device(clip.device), base.config.name
        model = clip.load()
        cells = list(ablate.varied(base, factors, model.defaults, device, grid=clip.grid))
        if factors and not cells:
            raise ConfigError(f"nothing to measure: every value given is that of {name} already; give others")
        if cells and all(cell.candidate is None for cell in cells):
            cells.insert(0, ablate.AblationCell(planned=PlannedCell(name="base", kind="base", changes={}), base=base))
        if clip.leave_one_out:
            cells += ablate.leave_one_out(base, model.defaults, device)
        if not cells:
            raise ConfigError(f"{name} has no optimisation that does anything here; give --vary, or another preset")
        plan, script = ComparePlan(palindromes=rounds), clip.script(model.defaults)
        with tells_what_is_kept(output, lambda: kept_cells(out, f"strobe report {out}")):
            outcome = ablate.run_cells(cells, base, out, progress, script=script, model=model, device=str(device), amount=plan)
    return page_of_many([out], out, output, outcome)


def compare_programs(
    words: Sequence[str], flags: ProgramFlags, rounds: int, out: Path, requirements: Sequence[Requirement], output: Output
) -> tuple[int, dict[str, Any]]:
    """Run programs with a progress bar and write their report; return exit code and what was found."""
    from strobe.bench.own.programs import checked_out, measure_programs, programs_of, told_apart, traces_of
    from strobe.perf.records.store import create_run

    if flags.install and not flags.commits:
        refuse(["--install"], "for commits, and there are none")
    warmup = 1 if flags.warmup is None else flags.warmup
    before = set(out.glob("*"))
    told = tells_what_is_kept(output, lambda: kept_runs(set(out.glob("*")) - before))
    if flags.commits:
        command = words[0] if len(words) == 1 else shlex.join(words)
        names = flags.names or told_apart(flags.commits)
        made: AbstractContextManager[tuple[Program, ...]] = checked_out(flags.commits, names, command, flags.install)
    else:
        # what follows the first `--`, cut at the others; an empty command where nothing stands between two
        cuts = [-1, *(at for at, word in enumerate(words) if word == SEPARATOR), len(words)]
        commands = tuple(tuple(words[first + 1 : last]) or ("",) for first, last in pairwise(cuts))
        programs = programs_of(commands, flags.names)
        names, made = tuple(each.name for each in programs), nullcontext(programs)
    check_names(requirements, names[1:], ("e2e",))
    with told, output.progress("compare") as advance, made as ready:
        folder = measure_programs(
            ready, lambda: create_run(out, "programs"), advance, rounds=rounds, warmup=warmup, prepare=flags.prepare
        )
    code, document = write([folder], folder, requirements, output)
    baseline, *others = (traces_of(folder, number) for number in range(len(names)))
    for number, traces in enumerate(others, start=1):
        if baseline.is_dir() and traces.is_dir():
            sides = f"--baseline-trace {baseline} --candidate-trace {traces}"
            output.note(f"where the time of {names[number]} went: strobe speedup {sides} -o {folder / f'account-{number}'}")
    return code, document
