"""`strobe profile`: one run or one operator, measured and traced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from strobe.bench.cases.call import AttentionCall, AttentionPlan
from strobe.cli.completion import DeviceName, ModelName, PresetName
from strobe.cli.console import OUT, Output, named, section_texts, table_text
from strobe.cli.model import ModelFlags, TraceFlags, at_least, parse_size
from strobe.cli.require import parse_requirement
from strobe.cli.run_folder import TracesOut, check_page, chosen_folder, measure, rotating, tell_case, told_of, write_page
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice

if TYPE_CHECKING:
    import torch

    from strobe.bench.case import ComparePlan
    from strobe.bench.dit import LoadedModel
    from strobe.engine.config import EngineConfig
    from strobe.engine.model import Model
    from strobe.engine.resolve import ResolvedConfig
    from strobe.perf.analysis.runs.breakdown import KernelProfile
    from strobe.perf.report.profile_pages import ProfileFacts

profile = App(
    name="profile",
    help="Measure and trace one run or one operator: times, trace, roofline, what calls what.",
    help_epilogue="Next: strobe report writes the page of what was measured, strobe trace that of a trace.\n",
)


_LONG: Final = 100
"""Frame blocks of a clip from which on the memory is read after each, and the last are held against the first."""
_PIECES: Final = 60
"""Most rows of a breakdown's table."""


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class StreamFlags(ModelFlags):
    """Flags of the stream: repetitions, prompts, model.

    Args:
        compile: with or without torch.compile, whatever the preset says; with it, refused where nothing is compiled.
        rounds: timed clips of a preset; of several presets, palindromes.
        prompt: what to show.
        switch: TIME:PROMPT, a prompt switch at a time (4.5s) or frame block (block=12), one or several.
        blocks: length of a clip in frame blocks; with 100 or more the page holds the last, times and memory, against the first.
        seed: of all noise.
        device: auto, cpu, cuda or cuda:N.
    """

    compile: Annotated[bool | None, Parameter(negative="--no-compile")] = None
    rounds: int = 2
    prompt: str = "a red circle moving left slowly on a navy background"
    switch: tuple[str, ...] = ()
    blocks: int = 8
    seed: int = 0
    device: str = "auto"


@Parameter(name="*", group="Attribution: one more trace, which gives no times")
@dataclass(frozen=True, kw_only=True)
class AttributionFlags:
    """Flags of the attribution run: one more frame block under the profiler, with options that slow it down.

    Args:
        with_stack: record Python frames and modules.
        profile_memory: record every allocation.
        record_shapes: record the input sizes of operators.
        top: rows of a table.
    """

    with_stack: bool = False
    profile_memory: bool = False
    record_shapes: bool = False
    top: int = 20


@profile.command
def stream(
    *presets: Annotated[str, Parameter(name="PRESET")],
    what: StreamFlags = StreamFlags(),
    traced: Annotated[TraceFlags, named("Trace")] = TraceFlags(),
    breakdown: Annotated[bool, Parameter(negative="", group="Trace")] = False,
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
    strobe profile stream --with-stack --record-shapes --top 30  # slow
    ```

    Args:
        presets: the preset to profile, balanced by default; several are compared, the first being the reference.
        breakdown: mark every piece of a pass too, and print where a frame block goes, piece by piece. A preset with CUDA graphs
            is then run without them as well: its graphs are taken apart by that run.
    """
    if attributed.top < 1:
        raise ConfigError("--top: give 1 or more")
    if breakdown and not traced.trace:
        raise ConfigError("--breakdown reads a trace; leave --no-trace out")
    at_least(1, rounds=what.rounds, blocks=what.blocks)
    traced.amounts()
    folder = chosen_folder(out)
    with output.progress("profile"):
        from strobe.bench.cases.stream import Script, StreamCase, runnable
        from strobe.bench.runner import traced_window
        from strobe.core.device import resolve_device
        from strobe.engine.prompts import parse_switch
        from strobe.engine.resolve import idle_knobs

        model = what.load()
        switches = tuple(parse_switch(text, model.defaults) for text in what.switch)
        script = Script(prompt=what.prompt, switches=switches, num_blocks=what.blocks, seed=what.seed)
        configs, absent = runnable(_configs(what, presets or ("balanced",)), what.device)
        where = resolve_device(what.device)
        for config in configs if what.compile else ():
            if reason := idle_knobs(config, model.defaults, where).get("compile"):
                raise ImplUnavailableError("compile", f"on {where} it is {reason}", ["without --compile"], what="knob")
        case = StreamCase(configs, script=script, model=model, device=what.device, absent=absent)
        plan = _plan(what, traced, attributed, breakdown=breakdown, alone=len(configs) == 1)
        recorded = len(traced_window(case.workload, plan))
    tell_case(case, output)
    if recorded < plan.traced_blocks:
        output.note(f"--active {traced.active}: the clip has {recorded} frame blocks to record; --blocks makes it longer")
    code, document = measure(case, plan, folder, (), output, title="profile", into=True)
    if breakdown:
        with output.progress("breakdown"):
            from strobe.perf.report.run_page import breakdown_section
            from strobe.perf.report.study import load_study

            found = breakdown_section(load_study([folder]))
        output.show(*section_texts([] if found is None else [found], _PIECES))
    paths = _attribution(folder, attributed, output)
    output.emit(document | {"attribution": paths})
    return code


def _configs(what: StreamFlags, names: Sequence[str]) -> list[EngineConfig]:
    """Return every preset, renamed where a flag changes it."""
    from strobe.engine.config import replace_knobs

    found = []
    for config in map(what.config, names):
        if what.compile not in (None, config.knobs.compile):
            knobs = replace_knobs(config.knobs, compile=what.compile)
            config = replace(config, name=f"{config.name}-{'compile' if what.compile else 'eager'}", knobs=knobs)
        found.append(config)
    return found


def _plan(what: StreamFlags, traced: TraceFlags, attributed: AttributionFlags, *, breakdown: bool, alone: bool) -> ComparePlan:
    from strobe.bench.case import ComparePlan
    from strobe.core.spans import PIECES, TRACEABLE
    from strobe.perf.measure.profile import Capture

    regions = traced.chosen_regions
    if breakdown:
        regions = (*regions, *PIECES) if regions else TRACEABLE
    options = {name: getattr(attributed, name) for name in ("with_stack", "profile_memory", "record_shapes")}
    return ComparePlan(
        palindromes=what.rounds,
        **traced.amounts(),
        whole_clip=False,
        capture=Capture(warmup=traced.warmup, regions=regions),
        attribution=Capture(regions=regions, **options) if any(options.values()) else None,
        review=False,
        alone=alone,
        memory=what.blocks >= _LONG,
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
        from strobe.perf.trace import read_trace

        traces = [(record.variant, read_trace(file_inside(run.folder, record.path), ops=True)) for record in records]
        report = attribution_report(traces, records[0].options, top=attributed.top)
        paths = write_page(report, folder / "attribution.md")
    output.show(*section_texts(report.sections), *paths)
    return paths


@profile.command
def attention(
    *,
    impls: tuple[str, ...] = ("sdpa", "reference"),
    call: Annotated[
        AttentionCall, named("Call", q_tokens="seq-q", kv_tokens="seq-kv", num_heads="heads", num_kv_heads="kv-heads")
    ] = AttentionCall(),
    device: DeviceName = "auto",
    plan: Annotated[AttentionPlan, named("Times and trace", calls="iterations", traced_calls="active")] = AttentionPlan(),
    trace: Annotated[bool, Parameter(negative="--no-trace", group="Times and trace")] = True,
    require: tuple[str, ...] = (),
    out: TracesOut = None,
    output: Output = Output(),
) -> int:
    """Check, time and trace one attention call by several implementations, and compare them with the device's peaks.

    ```
    strobe profile attention --seq-q 4680 --seq-kv 18720 --heads 12 --head-dim 128 --dtype bfloat16 --impls sdpa  # gpu
    strobe profile attention --seq-q 1024 --heads 4 --head-dim 64 --grid 4 16 16 --sparsity 0.7 --impls sdpa sparse:cpu  # slow
    ```

    Exit code 1 if a gate is red or a requirement does not hold.

    Args:
        impls: implementations of dense attention (sdpa, reference, auto) and of sparse attention (sparse:triton, sparse:cpu,
            sparse:reference); the first is what speedups are measured against.
        device: auto, cpu, cuda or cuda:N.
        trace: take traces at all.
        require: a condition that must hold for every other implementation, such as kernel>=2; see `strobe report --help`.
    """
    requirements = [parse_requirement(text) for text in require]
    folder = chosen_folder(out)
    kept: list[Path] = []
    with output.progress("attention") as advance:
        from strobe.bench.cases.attention import AttentionCase, measure_attention

        case = AttentionCase(call, impls, device=device)
        with rotating(kept)(folder, case.slug) as writer:
            measure_attention(case, writer, plan if trace else replace(plan, traced_calls=0), advance)
    code, document = told_of(folder, requirements, output, kept)
    output.emit(document)
    return code


PROMPTS = ("a red circle moving left slowly on a navy background", "a yellow star moving up slowly on a black background")


@profile.command
def kernels(
    *,
    iterations: int = 500,
    preset: PresetName = "balanced",
    model: ModelName = "shapes",
    device: DeviceName = "auto",
    cold: bool = False,
    out: Annotated[Path, Parameter(alias=OUT)] = Path("kernel_profile.md"),
    output: Output = Output(),
) -> None:
    """Time denoise steps as they run, then every operation of a step, the cache and the decoder by itself.

    ```
    strobe profile kernels --iterations 500 -o kernel_profile.md  # slow
    strobe profile kernels --preset baseline --iterations 20 --json  # slow
    ```

    The operations and a difference line add up to the measured step. On a GPU whose peaks are known each operation is held
    against its roofline.

    Args:
        iterations: calls of each operation by itself, and denoise steps with and without timers inside; a p99 needs 459.
        preset: baseline, quality, balanced, turbo, ultra and others, see `strobe presets`.
        model: shapes, or a folder of weights trained like it.
        device: auto, cpu, cuda or cuda:N.
        cold: overwrite a GPU's cache before each call of an operation by itself.
        out: the page, .md or .html; its JSON twin lies beside it.
    """
    check_page(out)
    at_least(1, iterations=iterations)
    with output.progress("kernels") as advance:
        from strobe.bench.operations import profile_kernels
        from strobe.core.device import resolve_device
        from strobe.engine.load import load
        from strobe.engine.presets import preset as preset_named
        from strobe.engine.resolve import resolve
        from strobe.perf.measure.machine import ClockSampler

        place, loaded, config = resolve_device(device), load(model), preset_named(preset)
        resolved = resolve(config, loaded.defaults, place)
        described = _described(loaded, resolved, cold)
        with ClockSampler(place) as sampler:
            found = profile_kernels(loaded, config, PROMPTS, device=place, iterations=iterations, cold=cold, progress=advance)
        described = replace(described, clocks=sampler.clocks())
        from strobe.perf.report.profile_pages import kernel_report
        from strobe.perf.table.model import encode_report

        report = kernel_report(found, described)
    written = write_page(report, out, out.with_suffix(".json"))
    output.show(*section_texts(report.sections[:2]), " ".join(written))
    output.emit({"written": written, "step": _numbers(found), "report": json.loads(encode_report(report))})


def _numbers(found: KernelProfile) -> dict[str, object]:
    """Return the step's time, its parts and every operation for the JSON document, ns."""
    step = found.step
    return {
        "n": len(step.times_ns),
        "mean_ns": float(step.mean_ns),
        "parts_ns": {kind: float(ns) for kind, ns in step.by_kind()},
        "difference_ns": float(step.difference_ns),
        "operations": {
            each.name: {"calls": each.calls, "n": len(each.times_ns), "mean_ns": float(each.mean_ns), "p50_ns": each.p50_ns}
            for each in (*step.operations, *found.decode.operations, *found.reference)
        },
    }


def _described(model: Model, config: ResolvedConfig, cold: bool) -> ProfileFacts:
    from strobe.bench.operations import dtype_name, steady_pass
    from strobe.perf.measure.machine import describe_machine, utc_now
    from strobe.perf.report.profile_pages import ProfileFacts

    one, dit = steady_pass(model, config), model.dit.config
    machine = describe_machine(config.device)
    heads = f"{dit.num_heads} heads of {dit.head_dim}"
    facts = {
        "Date": utc_now().replace("T", " ").replace("Z", " UTC"),
        "Preset": config.name,
        "Model": f"{model.name}, weights {model.weights_hash[:8]}",
        "Transformer": f"{dit.num_layers} layers, width {dit.dim}, feed-forward {dit.ffn_dim}, {heads}",
        "Tokens": f"{one.q_tokens} of a frame block, {one.kv_tokens} attended, {dit.text_len} of text",
        "Window": f"{config.policy.window} latent frames, sink {config.policy.sink}",
        "Device": f"{machine.device}: {machine.device_name}, {machine.threads} threads",
        "torch": machine.torch or "none",
    }
    return ProfileFacts(
        facts=tuple(facts.items()),
        machine=machine,
        dtype=dtype_name(config),
        cold=cold,
        compiled=config.knobs.compile,
        overlapped=config.knobs.overlap_decode,
    )


MODES: Final = {"on": True, "off": False}
DTYPES: Final = ("auto", "bfloat16", "float32")


@Parameter(name="*", group="Forward pass")
@dataclass(frozen=True, kw_only=True)
class PassFlags:
    """Flags of the forward pass: model, weights, sizes, dtype.

    Args:
        model: wan-1.3b, wan-14b, ltx-2 or hunyuan-video-1.5, with random weights unless --weights says where some are.
        pipe: module:function of your own instead, which is run: it returns a pipeline or transformer, and the arguments of one
            forward pass by name.
        tiny: the model's tiny configuration, which a CPU runs at once.
        weights: folder of the transformer as diffusers saves it.
        size: frame height x width, such as 512x768; the model's own by default.
        frames: pixel frames of the clip; the model's own by default.
        batch: samples.
        dtype: auto, bfloat16 or float32; auto is bfloat16 on a GPU and float32 on a CPU.
        seed: of random weights and latents.
        device: auto, cpu, cuda or cuda:N.
    """

    model: str | None = None
    pipe: str | None = None
    tiny: Annotated[bool, Parameter(negative="")] = False
    weights: Path | None = None
    size: str | None = None
    frames: int | None = None
    batch: int = 1
    dtype: str = "auto"
    seed: int = 0
    device: str = "auto"


VARIANTS: Final = Parameter(group="Variants", consume_multiple=True)
"""Flags of the variants; the first kind of attention, in the first mode, is the reference of all."""


@Parameter(name="*", group="Times and trace")
@dataclass(frozen=True, kw_only=True)
class Runs(TraceFlags):
    """Flags of the timed clips and of the traced clip, which runs separately for each variant.

    Args:
        steps: forward passes of a clip, one denoise step each.
        rounds: palindromes A B C C B A of clips; an interval needs two.
        active: passes that are recorded, as far as the clip has so many.
    """

    steps: int = 4
    rounds: int = 3
    active: int = 2


@profile.command
def dit(
    *,
    what: PassFlags = PassFlags(),
    attention: Annotated[tuple[str, ...], VARIANTS] = ("dense", "vsa"),
    sparsity: Annotated[tuple[float, ...], VARIANTS] = (0.9,),
    compile: Annotated[tuple[str, ...], VARIANTS] = ("off",),
    runs: Runs = Runs(),
    require: tuple[str, ...] = (),
    out: TracesOut = None,
    output: Output = Output(),
) -> int:
    """Time and trace the forward pass of a diffusers transformer under dense and sparse attention, and explain the difference.

    ```
    strobe profile dit --model ltx-2 --size 512x768 --frames 121 --attention dense vsa --sparsity 0.8 0.9 --compile on off  # gpu
    strobe profile dit --model wan-1.3b --tiny --sparsity 0.5 -o dit-traces
    strobe profile dit --pipe my_pipeline:make --attention dense vsa  # needs-files
    ```

    Every variant is checked before it has a number, and all are interleaved in one process. The page has seven sections:
    settings, stages of every clip, attention, kernels, sections with their boundaries, three speedups with the account, notes.

    Args:
        attention: dense (diffusers' own processors), dense-strobe (strobe's dense attention, of HunyuanVideo without the text's
            padding, where it joins dense by itself) and vsa (video sparse attention).
        sparsity: shares of the key tiles that vsa skips, such as 0.8 0.9.
        compile: on, off or both: torch.compile of each block, full graph; refused where nothing is compiled.
        require: a condition that every candidate must meet, such as e2e>=1.5; see `strobe report --help`.
    """
    requirements = [parse_requirement(text) for text in require]
    for mode in compile:
        if mode not in MODES:
            raise unknown_choice("--compile", mode, MODES)
    at_least(1, rounds=runs.rounds, batch=what.batch, warmup=runs.warmup)
    at_least(3, steps=runs.steps)
    amounts = runs.amounts()
    folder = chosen_folder(out)
    if what.pipe is not None:
        output.note(f"runs your code: {what.pipe}")
    with output.progress("profile"):
        from strobe.bench.case import ComparePlan
        from strobe.bench.dit import DitCase, variants_of
        from strobe.core.device import resolve_device
        from strobe.perf.measure.profile import Capture

        device = resolve_device(what.device)
        modes = [MODES[mode] for mode in compile]
        variants_of(attention, sparsity, modes, masked=False)  # a wrong word is told before weights are drawn
        loaded = _loaded(what, device)
        variants = variants_of(attention, sparsity, modes, masked=loaded.masked)
        case = DitCase(loaded, variants, steps=runs.steps, device=device, seed=what.seed)
        plan = ComparePlan(
            palindromes=runs.rounds,
            whole_clip=not runs.chosen_regions,
            capture=Capture(warmup=runs.warmup, regions=runs.chosen_regions),
            **amounts,
        )
    code, document = measure(case, plan, folder, requirements, output, title="profile", into=True)
    with output.progress("report"):
        from strobe.perf.report.run_page import attention_table, bounds_table, paired
        from strobe.perf.report.study import load_study

        study = load_study([folder])
        tables = attention_table(study), bounds_table(paired(study, ()))
    output.show(*map(table_text, tables))
    output.emit(document)
    return code


def _loaded(what: PassFlags, device: torch.device) -> LoadedModel:
    """Load the transformer and the arguments of its forward pass."""
    import torch

    from strobe.bench.dit import Shot, load_named, load_pipe, model_named

    if (what.model is None) == (what.pipe is None):
        raise ConfigError("name one of --model and --pipe, see strobe profile dit --help")
    if what.dtype not in DTYPES:
        raise unknown_choice("dtype", what.dtype, DTYPES)
    if what.pipe is not None:
        if what.tiny or what.weights is not None or what.dtype != "auto":
            raise ConfigError("--pipe brings its own weights, sizes and dtype; leave --tiny, --weights and --dtype out")
        own = Shot(height=0, width=0, frames=0)
    else:
        model = model_named(what.model or "")
        own = model.tiny_shot if what.tiny else model.shot
    height, width = parse_size(what.size) or (own.height, own.width)
    shot = Shot(height=height, width=width, frames=what.frames or own.frames, batch=what.batch)
    if what.pipe is not None:
        return load_pipe(what.pipe, shot, device)
    return load_named(
        what.model or "",
        shot=shot,
        tiny=what.tiny,
        weights=what.weights,
        device=device,
        dtype=getattr(torch, what.dtype if what.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"),
        seed=what.seed,
    )
