"""Settings of runs and of contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from strobe.perf.records.record import CUSTOM, Clocks, Gate, Header, Variant
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.fields import DAMAGED, run_facts
from strobe.perf.report.study import Profile, RunStudy, Subject, damage_of
from strobe.perf.table.fields import Field, beside, table_of
from strobe.perf.table.model import Banner, Cell, Code, Count, Fact, Section, Table, Text, bytes_cell
from strobe.perf.table.rows import gathered

_NONE: Final = Text("none", "muted")
_UNKNOWN: Final = Text("not known", "muted")


def settings_section(study: RunStudy) -> Section:
    """Build the section on environment, variants and optimisations."""
    blocks = [environment_table(study), _variants(study)]
    if any(subject.settings.knobs for subject in study.subjects):
        blocks.append(_knobs(study))
    lead = "What ran, as it was resolved on this machine and not as it was asked for."
    return Section("settings", "Settings", lead, tuple(blocks))


def timed_facts(head: Header, reference: str, timed: str, number: int, *, commit: str = "", model: str = "") -> tuple[Fact, ...]:
    """Return the facts of a run whose variants took turns; `reference`, `timed`: names of its baseline and of its calls."""
    named = (("Commit", commit), ("Device", f"{head.machine.device}, {head.machine.cores} cores, {head.machine.threads} threads"),
             ("torch", head.machine.torch or "not used"), ("Model", model), (reference, head.baseline),
             (timed, f"{number}, interleaved"))  # fmt: skip
    return (*run_facts(head), *(Fact(name, Text(value)) for name, value in named if value))


def gates_table(caption: str, heads: tuple[str, str], words: tuple[str, str], gates: Sequence[Gate]) -> Table:
    """Build the table of gates; `words`: of one that passed, and of a red one."""
    fields: tuple[Field[Gate], ...] = (
        Field(heads[0], lambda gate: gate.variant, Code),
        Field(heads[1], lambda gate: Text(words[0], "good") if gate.passed else Text(words[1], "bad")),
        Field("rule", lambda gate: gate.rule),
        Field("measured", lambda gate: gate.detail),
    )
    return table_of(caption, fields, gates)


def _clocks(clocks: Clocks) -> Cell:
    parts = [
        f"{value} {unit}"
        for value, unit in (
            (clocks.cpu_mhz, "MHz CPU"), (clocks.governor, "governor"), (clocks.sm_mhz, "MHz SM"),
            (clocks.memory_mhz, "MHz memory"), (clocks.temperature_c, "degrees C"), (clocks.load, "load"),
        )
        if value is not None
    ]  # fmt: skip
    return Text(", ".join([*parts, *clocks.throttle]) + f" ({clocks.source})") if parts else Text("not readable here", "muted")


def _bytes(value: int | None) -> Cell:
    return _UNKNOWN if value is None else bytes_cell(value, "GiB", 1)


def _or_none(value: object) -> Cell:
    return _NONE if value is None or value == "" else Text(str(value))


def _environment(run: RunRecords) -> Iterator[tuple[str, object]]:
    """Yield what a run says of its machine, then of its model and clip, and of its files, each with its name."""
    head, machine, git = run.header, run.header.machine, run.header.git
    state = "changed files" if git.dirty else "clean"
    yield from (
        ("run", head.run),
        ("date", head.date),
        ("strobe", head.strobe),
        ("commit", Text("not a checkout", "muted") if git.commit is None else f"{git.commit[:12]} ({state})"),
        ("command", " ".join(head.argv)),
        ("device", f"{machine.device}: {machine.device_name}"),
        ("GPUs", Count(machine.gpu_count)),
        ("GPU memory", _bytes(machine.gpu_memory_bytes) if machine.gpu_count else Text("no GPU", "muted")),
        ("driver, CUDA", _or_none(", ".join(filter(None, (machine.driver, machine.cuda))))),
        ("torch, Python", f"{machine.torch or 'none'}, {machine.python}"),
        ("system", machine.os),
        ("CPU", machine.cpu_name),
        ("cores, threads of one operator", f"{machine.cores}, {machine.threads}"),
        ("memory", _bytes(machine.memory_bytes)),
        ("clocks at the start", _clocks(machine.clocks)),
        ("world size, SP, TP", f"{head.world_size}, {head.sp_degree}, {head.tp_degree}"),
        ("order of one palindrome", " ".join(head.order)),
        ("palindromes planned", Count(head.palindromes)),
    )
    yield from _gpu(run)
    model, work = head.model, head.workload
    if model is not None:
        yield from (("model", model.name), ("weights SHA-256", Code(model.weights_sha256[:16])))
        yield "transformer parameters", Count(model.num_params)
    if work is not None:
        yield "pixels", f"{work.width} x {work.height}"
        yield "frames, frames per second of playback", f"{work.frames}, {work.fps}"
        yield "frame blocks, latent frames in each", f"{work.frame_blocks}, {work.latents_per_block}"
        yield "batch, seed", f"{work.batch}, {work.seed}"
        for prompt in work.prompts:
            yield f"prompt from frame block {prompt.frame_block} ({prompt.mode})", prompt.text
    for trace in run.traces:
        blocks = f", frame blocks {trace.first_block} to {trace.first_block + trace.num_blocks - 1}"
        where = "" if head.kind == "calls" else blocks
        told = f", with {' and '.join(trace.options)}: no times" if trace.options else ""
        yield f"trace of {trace.variant}{where}{told}", Code(f"{trace.path} (SHA-256 {trace.sha256[:16]})")
    yield from (("log", path) for path in head.logs)


def _gpu(run: RunRecords) -> Iterator[tuple[str, object]]:
    state = run.header.machine.gpu
    if state is not None:
        words = {"persistence mode": state.persistence, "MIG": state.mig}
        parts = [f"{name} {'on' if on else 'off'}" for name, on in words.items() if on is not None]
        parts += [f"power limit {state.power_limit_mw / 1000:g} W"] if state.power_limit_mw else []
        parts += [f"up to {state.max_sm_mhz} MHz SM"] if state.max_sm_mhz else []
        workspace = run.header.machine.cublaslt_workspace_kib
        parts += [] if workspace is None else [f"cuBLASLt workspace {workspace} KiB"]
        yield "GPU set-up", ", ".join(parts) or Text("not readable here", "muted")
    read = [clip.clocks for clip in run.clips if clip.phase == "timed" and clip.clocks is not None and clip.clocks.samples]
    low, high = [item.sm_mhz_min for item in read if item.sm_mhz_min], [item.sm_mhz_max for item in read if item.sm_mhz_max]
    if low and high:
        count, cost = sum(item.samples or 0 for item in read), sum(item.read_ns or 0 for item in read)
        ran = f"{min(low)} to {max(high)} MHz SM, up to {max(item.power_mw or 0 for item in read) / 1000:.0f} W"
        yield "GPU in timed clips", f"{ran}; {count} readings beside the clips took {cost / 1e6:.3g} ms"


def environment_table(study: RunStudy, caption: str = "Environment, model and clip.") -> Table:
    """Return machine, versions and files of every run; of our own streams model and clip too."""
    found = [dict(_environment(run)) for run in study.runs]
    names = dict.fromkeys(name for own in found for name in own)
    fields = beside("", ("value" if len(study.runs) == 1 else run.header.run for run in study.runs))
    return table_of(caption, fields, [(name, *(own.get(name, _NONE) for own in found)) for name in names])


def _calls(variant: Variant) -> Cell:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(variant.calls_per_stage.items()))
    return Text(counts) if counts else Text("not counted", "muted")


_SETTINGS: Final[tuple[tuple[str, Callable[[Variant], Cell]], ...]] = (
    ("preset", lambda variant: Text(variant.preset)),
    ("attention implementation that ran", lambda variant: _or_none(variant.attention_impl)),
    ("why not another", lambda variant: _or_none(variant.attention_reason)),
    ("sparsity", lambda variant: _or_none(variant.sparsity)),
    ("window, latent frames", lambda variant: _or_none(variant.window)),
    ("sink, latent frames", lambda variant: _or_none(variant.sink)),
    ("positions", lambda variant: _or_none(variant.positions)),
    ("denoise steps", lambda variant: _or_none(variant.steps)),
    (
        "timesteps before the shift",
        lambda variant: Text(", ".join(f"{each:g}" for each in variant.timesteps)) if variant.timesteps else _NONE,
    ),
    ("shift", lambda variant: _or_none(variant.shift)),
    ("dtype", lambda variant: _or_none(variant.dtype)),
    ("linear layers", lambda variant: _or_none(variant.linear_format)),
    ("keys and values", lambda variant: _or_none(variant.kv_format)),
    (
        "self-attention",
        lambda variant: _or_none(variant.attention_format or (variant.kv_format and "native")),
    ),  # as it was before
    ("LoRA", lambda variant: _or_none(variant.lora)),
    ("compile mode", lambda variant: _or_none(variant.compile_mode)),
    ("tokens per frame block", lambda variant: _or_none(variant.tokens_per_block)),
    ("calls per clip", _calls),
)


def _variants(study: RunStudy) -> Table:
    rows: list[Sequence[object]] = []
    for name, cell in _SETTINGS:
        cells = []
        for subject in study.subjects:
            reference = study.reference_of(subject)
            own = cell(subject.settings)
            same = reference is not None and reference is not subject and own == cell(reference.settings)
            cells.append(Text(own.text, "muted") if same and isinstance(own, Text) else own)
        rows.append((name, *cells))
    if any(subject.settings.predicted_bytes is not None for subject in study.subjects):
        rows.append(("memory of one session, predicted", *(_bytes(each.settings.predicted_bytes) for each in study.subjects)))
    rows.append(("peak memory so far, largest of its clips", *(_bytes(_peak(subject)) for subject in study.subjects)))
    notes = ("Grey: the same as the reference of the run.", "Peak memory: of the device on CUDA, of the whole process on a CPU.")
    fields = beside("", (subject.label for subject in study.subjects))
    return table_of("Settings of every variant as it ran.", fields, rows, notes=notes)


def _peak(subject: Subject) -> int | None:
    clips = subject.run.clips
    return max((clip.peak_bytes for clip in clips if clip.variant == subject.name and clip.peak_bytes is not None), default=None)


def _knobs(study: RunStudy) -> Table:
    """Build the table of optimisations in which variants differ, or which could not be turned on."""
    by_subject = [{knob.name: knob for knob in subject.settings.knobs} for subject in study.subjects]
    names = dict.fromkeys(name for knobs in by_subject for name in knobs)
    rows: list[Sequence[object]] = []
    same = []
    for name in names:
        knobs = [knobs.get(name) for knobs in by_subject]
        differs = len({(knob.value, knob.on) if knob else None for knob in knobs}) > 1
        if differs or any(knob and knob.reason for knob in knobs):
            cells = (Text(knob.value, "plain" if knob.on else "muted", knob.reason) if knob else _NONE for knob in knobs)
            rows.append((name, *cells))
        else:
            same.append(f"{name} ({knobs[0].value if knobs[0] else 'none'})")
    notes = (f"The same everywhere: {', '.join(same)}.",) if same else ()
    fields = beside("knob", (subject.label for subject in study.subjects))
    return table_of("Optimisations that differ, or that this device cannot run.", fields, rows, notes=notes)


_MUST_AGREE: Final[tuple[tuple[str, Callable[[Header], object]], ...]] = (
    ("commit", lambda header: header.git.commit),
    ("strobe", lambda header: header.strobe),
    ("device", lambda header: header.machine.device_name),
    ("driver", lambda header: header.machine.driver),
    ("CUDA", lambda header: header.machine.cuda),
    ("torch", lambda header: header.machine.torch),
    ("cores", lambda header: header.machine.cores),
    ("threads", lambda header: header.machine.threads),
    ("launch blocking", lambda header: header.machine.launch_blocking),
    ("cuBLASLt workspace", lambda header: header.machine.cublaslt_workspace_kib),
    ("weights", lambda header: header.model.weights_sha256[:16] if header.model else None),
    ("clip", lambda header: header.workload),
    ("world size", lambda header: (header.world_size, header.sp_degree, header.tp_degree)),
)


def banners(study: RunStudy, *, gather: bool = False, any_clip: bool = False) -> tuple[Banner, ...]:
    """Return banners on what makes the numbers not comparable, and on what makes them doubtful.

    Args:
        gather: the same remark on many runs is one line: they are the cells of a grid.
        any_clip: clips may differ, for runs of different clips are not compared.
    """
    several = len(study.runs) > 1
    doubts = [(run.header.run if several else "", line) for run in study.runs for line in _doubts(run)]
    damage = [(run.header.run, line) for run in study.runs for line in damage_of(run)]
    profiles = [(one.label, one.profile) for one in study.subjects if isinstance(one.profile, Profile)]
    damage += [(f"trace of {label}", line) for label, profile in profiles for line in profile.trace.damage]
    absent = (f"{each.variant}: not on this machine: {each.reason}" for run in study.runs for each in run.header.absent)
    red = (
        f"{gate.variant} failed its gate against {gate.reference}: {gate.rule}, measured {gate.detail}"
        for run in study.runs
        for gate in run.gates
        if not gate.passed
    )
    found = (
        Banner(
            "stop",
            "Not comparable: these differ where they must not, ratios across them mean nothing.",
            tuple(differences(study, any_clip=any_clip)),
        ),
        Banner("stop", "Red gate: these candidates do not compute what they should and have no numbers.", tuple(red)),
        Banner("caution", "Left out: these could not run on this machine.", tuple(absent)),
        Banner("stop", DAMAGED, remarks(damage, gather=gather)),
        Banner("caution", "Read the numbers with this in mind.", remarks(doubts, gather=gather)),
    )
    return tuple(banner for banner in found if banner.items)


def remarks(found: Sequence[tuple[str, str]], *, gather: bool) -> tuple[str, ...]:
    """Return remarks as lines, each with the name of its run if it has one; `gather`: what several runs say is one line."""
    if not gather:
        return tuple(f"{run}: {remark}" if run else remark for run, remark in found)
    return tuple(
        f"{len(own)} cells: {remark}" if len(own) > 1 else f"{own[0]}: {remark}" if own[0] else remark
        for remark, own in gathered((remark, run) for run, remark in found).items()
    )


def differences(study: RunStudy, *, any_clip: bool = False) -> list[str]:
    """Return what differs between runs, or between variants of one, although it must agree; `any_clip` lets clips differ."""
    found = []
    for name, value in _MUST_AGREE:
        values = [value(run.header) for run in study.runs]
        if any(other != values[0] for other in values) and not (any_clip and name == "clip"):
            shown = "" if name == "clip" else ": " + " / ".join(str(item) for item in values)
            found.append(f"{name} differs between the runs{shown}")
    tokens = ((run.header.run, {variant.tokens_per_block for variant in run.variants}) for run in study.runs)
    odd = ((run, sorted(map(str, own))) for run, own in tokens if len(own) > 1)
    return [*found, *(f"{run}: variants differ in tokens per frame block: {own}" for run, own in odd)]


def _doubts(run: RunRecords) -> list[str]:
    head = run.header
    found: list[str] = []
    if run.end is None:
        found.append(f"the run was cut short (it has no last line): {run.made}, and what came after them is missing")
    elif run.end.status != "complete":
        found.append(f"the run is {run.end.status} ({run.end.message or 'no reason given'}): {run.made}")
    if run.truncated:
        found.append("the last line of the records is cut short and not read")
    if head.git.dirty:
        found.append("the checkout had changed files, so the commit does not name the code that ran")
    if head.machine.launch_blocking:
        found.append("CUDA_LAUNCH_BLOCKING was set: launches were serialised")
    reference = next((variant for variant in run.variants if variant.name == head.baseline), None)
    found += [
        f"{variant.name} is {variant.preset} again (A/A): what differs between them is the instrument's error"
        for variant in run.variants
        if reference is not None and variant is not reference and variant.preset == reference.preset != CUSTOM
    ]
    load = head.machine.clocks.load
    if load is not None and load > head.machine.cores:
        found.append(f"the machine was busy when the run began: load {load:g} on {head.machine.cores} cores")
    return found + _clock_doubts(run)


def _clock_doubts(run: RunRecords) -> list[str]:
    clocks = [clip.clocks for clip in run.clips if clip.phase == "timed" and clip.clocks is not None]
    found = []
    ends = ((item.sm_mhz_min or item.sm_mhz, item.sm_mhz_max or item.sm_mhz) for item in clocks)
    for name, values in (
        ("CPU clock", [item.cpu_mhz for item in clocks if item.cpu_mhz]),
        ("SM clock", [mhz for pair in ends for mhz in pair if mhz]),
    ):
        if values and max(values) - min(values) > 0.02 * max(values):
            found.append(f"{name} varied by more than 2 % between or within timed clips: {min(values)} to {max(values)} MHz")
    if any(item.source == "nvidia-smi" for item in clocks):
        found.append("GPU clocks were read when clips had ended, not while they ran; with the extra nvml they are read inside")
    elif run.header.machine.on_gpu and any(item.source != "nvml" for item in clocks):
        found.append("GPU clocks are not known; with the extra nvml they are read while clips run")
    reasons = sorted({reason for item in clocks for reason in item.throttle})
    return [*found, f"the GPU was throttled: {', '.join(reasons)}"] if reasons else found
