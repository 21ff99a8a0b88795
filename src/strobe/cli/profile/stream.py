"""`strobe profile stream`: a stream timed and traced in one report, and a separate page of what calls what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.cli.model import LENGTH, ModelFlags, TraceFlags, at_least, frame_blocks, tell_length
from strobe.cli.run_folder import TracesOut, chosen_folder, measure, tell_case, write_page
from strobe.cli.tables import table_text
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice

if TYPE_CHECKING:
    from strobe.bench.case import ComparePlan
    from strobe.engine.config import EngineConfig
    from strobe.engine.model import Model

ATTENTIONS: Final = ("preset", "dense", "sparse", "both")
_SPARSITY: Final = 0.8
"""Sparsity for a preset that is dense itself, the same as in the preset `sparse`."""
_LONG: Final = 100
"""Frame blocks of a clip from which on the memory is read after each, and the last are held against the first."""
_PIECES: Final = 60
"""Most rows of a breakdown's table."""


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class StreamFlags(ModelFlags):
    """Flags of the stream: attention, repetitions, prompts, model.

    Args:
        compile: with or without torch.compile, whatever the preset says; with it, refused where nothing is compiled.
        attention: preset (as it says), dense, sparse (0.8 of the past left out, or as it says), or both, to compare them.
        rounds: timed clips of a preset; of several presets, palindromes.
        prompt: what to show.
        switch: TIME:PROMPT, a prompt switch at a time (4.5s) or frame block (block=12), one or several.
        blocks: length of a clip in frame blocks; with 100 or more the page holds the last, times and memory, against the first.
        seconds: length of a clip in seconds of video, instead of --blocks.
        seed: of all noise.
        device: auto, cpu, cuda or cuda:N.
    """

    compile: Annotated[bool | None, Parameter(negative="--no-compile")] = None
    attention: str = "preset"
    rounds: int = 2
    prompt: str = "a red circle moving left slowly on a navy background"
    switch: tuple[str, ...] = ()
    blocks: Annotated[int, Parameter(group=("Clip", LENGTH))] = 8
    seconds: Annotated[float | None, Parameter(group=("Clip", LENGTH))] = None
    seed: int = 0
    device: str = "auto"


@Parameter(name="*", group="Trace")
@dataclass(frozen=True, kw_only=True)
class Traced(TraceFlags):
    """Flags of the traced run.

    Args:
        breakdown: mark every piece of a pass too, and print where a frame block goes, piece by piece. A preset with CUDA graphs
            is then run without them as well: its graphs are taken apart by that run.
    """

    breakdown: Annotated[bool, Parameter(negative="")] = False


@Parameter(name="*", group="Attribution: one more trace, which gives no times")
@dataclass(frozen=True, kw_only=True)
class AttributionFlags:
    """Flags of the attribution run: one more frame block under the profiler, with options that slow it down.

    Args:
        with_stack: record Python frames and modules.
        profile_memory: record every allocation.
        record_shapes: record the input sizes of operators.
        by: order of its rows: device, self_host, host or calls.
        top: rows of a table.
    """

    with_stack: bool = False
    profile_memory: bool = False
    record_shapes: bool = False
    by: str = "device"
    top: int = 20


def stream(
    *presets: Annotated[str, Parameter(name="PRESET")],
    what: StreamFlags = StreamFlags(),
    traced: Traced = Traced(),
    attributed: AttributionFlags = AttributionFlags(),
    out: TracesOut = None,
    output: Output = Output(),
) -> int:
    """Time a stream and trace it, in separate runs, and put both into one report.

    ```
    strobe profile stream balanced --blocks 8 --regions dit_forward attention -o traces  # slow
    strobe profile stream balanced turbo --no-compile --rounds 4  # slow
    strobe profile stream balanced turbo_fp8 --breakdown  # gpu
    strobe profile stream ultra --blocks 1000 --rounds 1 --no-trace  # slow
    strobe profile stream --with-stack --record-shapes --by self_host --top 30  # slow
    ```

    Args:
        presets: the preset to profile, balanced by default; several are compared, the first being the reference.
    """
    from strobe.perf.analysis.operators import SORTS

    if attributed.by not in SORTS or attributed.top < 1:
        raise unknown_choice("order", attributed.by, SORTS) if attributed.top > 0 else ConfigError("--top: give 1 or more")
    if what.attention not in ATTENTIONS:
        raise unknown_choice("attention", what.attention, ATTENTIONS)
    if traced.breakdown and not traced.trace:
        raise ConfigError("--breakdown reads a trace; leave --no-trace out")
    at_least(1, rounds=what.rounds, blocks=what.blocks)
    traced.amounts()
    folder = chosen_folder(out)
    with output.progress("profile"):
        from strobe.bench.cases.stream import Script, StreamCase, runnable
        from strobe.bench.runner import traced_window
        from strobe.engine.prompts import parse_switch

        model = what.load()
        switches = tuple(parse_switch(text, model.defaults) for text in what.switch)
        length = frame_blocks(what.blocks, what.seconds, model.defaults)
        script = Script(prompt=what.prompt, switches=switches, num_blocks=length, seed=what.seed)
        configs, absent = runnable(_configs(what, presets or ("balanced",)), what.device)
        if what.compile:
            _check_compile(configs, model, what.device)
        case = StreamCase(configs, script=script, model=model, device=what.device, absent=absent)
        plan = _plan(length, what.rounds, traced, attributed, alone=len(configs) == 1)
        recorded = len(traced_window(case.workload, plan))
    tell_case(case, output)
    tell_length(what.seconds, length, output)
    if recorded < plan.traced_blocks:
        output.note(
            f"--active {traced.active}: the clip has {recorded} frame blocks to record; --blocks or --seconds makes it longer"
        )
    code, document = measure(case, plan, folder, (), output, progress=output.progress("profile"), into=True)
    if traced.breakdown:
        with output.progress("breakdown"):
            from strobe.perf.report.run_page import breakdown_section
            from strobe.perf.report.study import load_study
            from strobe.perf.table.model import Table

            found = breakdown_section(load_study([folder]))
        tables = [block for block in found.blocks if isinstance(block, Table)] if found is not None else []
        output.show(*(table_text(table, max_rows=_PIECES) for table in tables))
    paths = _attribution(folder, attributed, output)
    output.emit(document | {"attribution": paths})
    return code


def _check_compile(configs: Sequence[EngineConfig], model: Model, device: str) -> None:
    """Refuse --compile where it would do nothing.

    Raises:
        ImplUnavailableError: nothing is compiled there, and why.
    """
    from strobe.core.device import resolve_device
    from strobe.engine.resolve import resolve

    where = resolve_device(device)
    for config in configs:
        for state in resolve(config, model.defaults, where).knob_states:
            if state.name == "compile" and state.reason:
                raise ImplUnavailableError("compile", f"on {where} it is {state.reason}", ["without --compile"], what="knob")


def _configs(what: StreamFlags, names: Sequence[str]) -> list[EngineConfig]:
    """Return every preset, renamed where the flags change it, with the requested kinds of attention, each once."""
    from strobe.engine.config import replace_knobs

    found = []
    for config in map(what.config, names):
        if what.compile not in (None, config.knobs.compile):
            knobs = replace_knobs(config.knobs, compile=what.compile)
            config = replace(config, name=f"{config.name}-{'compile' if what.compile else 'eager'}", knobs=knobs)
        wanted = {"preset": (config.sparsity,), "dense": (0.0,), "sparse": (config.sparsity or _SPARSITY,)}
        for sparsity in wanted.get(what.attention, (0.0, config.sparsity or _SPARSITY)):
            label = config.name if sparsity == config.sparsity else f"{config.name}-{'sparse' if sparsity else 'dense'}"
            found.append(replace(config, name=label, sparsity=sparsity))
    return found


def _plan(blocks: int, rounds: int, traced: Traced, attributed: AttributionFlags, *, alone: bool) -> ComparePlan:
    from strobe.bench.case import ComparePlan
    from strobe.core.spans import PIECES, TRACEABLE
    from strobe.perf.measure.profile import Capture

    regions = traced.chosen_regions
    if traced.breakdown:
        regions = (*regions, *PIECES) if regions else TRACEABLE
    options = {name: getattr(attributed, name) for name in ("with_stack", "profile_memory", "record_shapes")}
    return ComparePlan(
        palindromes=rounds,
        **traced.amounts(),
        whole_clip=False,
        capture=Capture(warmup=traced.warmup, regions=regions),
        attribution=Capture(regions=regions, **options) if any(options.values()) else None,
        review=False,
        alone=alone,
        memory=blocks >= _LONG,
    )


def _attribution(folder: Path, attributed: AttributionFlags, output: Output) -> list[str]:
    """Write and show the attribution page, if there was an attribution run."""
    from strobe.core.files import file_inside
    from strobe.perf.records.store import read_run

    run = read_run(folder)
    records = [record for record in run.traces if record.options]
    if not records:
        return []
    with output.progress("attribution"):
        from strobe.perf.report.profile_pages import attribution_report
        from strobe.perf.table.model import Table
        from strobe.perf.trace import read_trace

        traces = [(record.variant, read_trace(file_inside(run.folder, record.path), ops=True)) for record in records]
        report = attribution_report(traces, records[0].options, sort_by=attributed.by, top=attributed.top)
        paths = write_page(report, folder / "attribution.md")
    output.show(*(table_text(block) for section in report.sections for block in section.blocks if isinstance(block, Table)))
    output.show(*paths)
    return paths
