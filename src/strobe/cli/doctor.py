"""`strobe doctor`: what this machine has, what would run on it, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from strobe.cli.console import Output
from strobe.core.errors import StrobeError

if TYPE_CHECKING:
    import torch

MISSING: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that every stream needs.

    Args:
        fix: what to do about it; empty if all is well.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


def doctor(
    *,
    device: str = "auto",
    preset: str | None = None,
    model: str = "shapes",
    size: str | None = None,
    samples: int = 1,
    output: Output = Output(),
) -> int:
    """Say what this machine has, which implementation would run and why the others would not.

    ```
    strobe doctor
    strobe doctor --device cpu --json
    strobe doctor --preset balanced --model wan-1.3b --size 480x832
    ```

    Exit code 3 if something that every stream needs is missing.

    Args:
        device: auto, cpu, cuda or cuda:N.
        preset: say what memory a stream with it will take; nothing is loaded.
        model: shapes, wan-1.3b or wan-14b: whose memory.
        size: frame height x width of a Wan model, such as 320x576.
        samples: streams in lockstep.
    """
    checks = [check_torch()]
    if checks[0].ok:
        checks += [check_weights(), check_video()]
    document: dict[str, Any] = {"checks": [asdict(check) for check in checks]}
    if checks[0].ok:
        document |= look(device)
        if preset is not None:
            document["memory"] = predict_memory(preset, model, size, samples, device)
    output.show(*_tables(document))
    output.emit(document)
    return 0 if all(check.ok for check in checks) else MISSING


def check_torch() -> Check:
    """Look for a torch that can be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check(name="torch", ok=False, detail=" ".join(str(error).split()), fix="install torch 2.9 or newer, see README.md")
    return Check(name="torch", ok=True, detail=f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")


def check_weights() -> Check:
    """Read the weights of the bundled model."""
    from strobe.engine.load import load

    try:
        model = load("shapes")
    except StrobeError as error:
        return Check(name="weights", ok=False, detail=str(error), fix="install strobe again, or run strobe train-shapes on a GPU")
    return Check(name="weights", ok=True, detail=f"shapes, sha256 {model.weights_hash[:12]}")


def check_video() -> Check:
    """Ask the encoder library for every format a clip can be written in."""
    from strobe.engine.video import FORMATS, missing_encoders

    missing = missing_encoders()
    if missing:
        return Check(name="video", ok=False, detail=f"no encoder for {', '.join(missing)}", fix="install av from its own wheel")
    return Check(name="video", ok=True, detail=f"writes {', '.join(FORMATS)}")


def look(device: str) -> dict[str, Any]:
    """Describe the machine, and what attention, the presets' optimisations and the quality metrics are on it."""
    import msgspec

    from strobe.core.device import resolve_device
    from strobe.engine.config import DTYPES, knob_states, lacking
    from strobe.engine.load import shapes_defaults
    from strobe.engine.presets import PRESETS
    from strobe.perf.measure.machine import describe_machine
    from strobe.quality.available import METRICS

    where = resolve_device(device)
    presets = {name: make() for name, make in PRESETS.items()}
    return {
        "machine": msgspec.to_builtins(describe_machine(where)),
        "attention": _attention(where, DTYPES["float32" if where.type == "cpu" else "bfloat16"]),
        "presets": {
            name: {
                state.name: {"on": state.on, "reason": state.reason} for state in knob_states(config, shapes_defaults(), where)
            }
            for name, config in presets.items()
        },
        "lacking": {name: reason for name, config in presets.items() if (reason := lacking(config, where))},
        "metrics": {metric.name: metric.not_measured or "measured" for metric in METRICS},
    }


def predict_memory(preset: str, model: str, size: str | None, samples: int, device: str) -> dict[str, Any]:
    """Bytes that a stream will hold, part by part."""
    from strobe.cli.model import parse_size
    from strobe.core.device import resolve_device
    from strobe.core.errors import ConfigError, unknown_choice
    from strobe.engine import memory
    from strobe.engine.config import resolve
    from strobe.engine.load import MODELS, model_parts
    from strobe.engine.presets import preset as find_preset

    if model not in MODELS:
        raise unknown_choice("model", model, MODELS)
    if samples < 1:
        raise ConfigError(f"--samples {samples}: give 1 or more")
    where, parts = resolve_device(device), model_parts(model, parse_size(size))
    found = memory.predict(parts, resolve(replace(find_preset(preset), simulate=True), parts.defaults, where), samples)
    free = memory.free_bytes(where) if where.type == "cuda" else None
    return {
        "preset": preset,
        "model": model,
        "frame_size": list(parts.defaults.frame_size),
        "samples": samples,
        "parts": [asdict(part) for part in found],
        "total_bytes": sum(part.num_bytes for part in found),
        "free_bytes": free,
    }


def _attention(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Ask which implementation would run the bundled model's self-attention with a full window, and what the others are here."""
    import torch

    from strobe.attention.explain import explain
    from strobe.attention.survey import survey
    from strobe.engine.load import shapes_defaults
    from strobe.models.shapes.config import WAN

    defaults = shapes_defaults()
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    tokens = (height // WAN.patch[0]) * (width // WAN.patch[1])
    q = torch.empty(1, defaults.frame_block * tokens, WAN.num_heads, WAN.head_dim, dtype=dtype, device=device)
    kv = q.repeat(1, 4, 1, 1)
    choice = explain(q, kv, kv)
    states = [asdict(state) for state in survey(device)]
    return {"runs": choice.impl.name, "passed_over": dict(choice.passed_over), "impls": states}


def _tables(document: dict[str, Any]) -> Iterator[RenderableType]:
    """The document for a reader."""
    for check in document["checks"]:
        yield f"{'[green]ok[/]     ' if check['ok'] else '[red]missing[/]'}  {check['name']}: {escape(check['detail'])}"
        if not check["ok"]:
            yield f"         {escape(check['fix'])}"
    if "machine" not in document:
        return
    machine = Table(box=None, show_header=False)
    for key, value in document["machine"].items():
        if value not in (None, False) and not isinstance(value, dict):
            machine.add_row(key, str(value))
    yield from ("", "[bold]machine[/]", machine)
    attention = document["attention"]
    yield from ("", f"[bold]attention[/]  runs: {attention['runs']}")
    yield from (f"  not {name}: {escape(reason)}" for name, reason in attention["passed_over"].items())
    yield _impl_table(attention["impls"])
    yield from ("", "[bold]optimisations[/] on this device", _knob_table(document["presets"]))
    reasons = {name: knob["reason"] for knobs in document["presets"].values() for name, knob in knobs.items() if knob["reason"]}
    yield from (f"  {name} is off: {escape(reason)}" for name, reason in reasons.items())
    yield from (
        f"  not here: {escape(reason)}; --simulate computes what it would give" for reason in document["lacking"].values()
    )
    yield from ("", "[bold]quality metrics[/]")
    yield from (f"  {name}: {escape(state)}" for name, state in document["metrics"].items())
    if "memory" in document:
        yield from _memory_table(document["memory"])


def _memory_table(memory: dict[str, Any]) -> Iterator[RenderableType]:
    """Parts of a stream's memory, and whether they fit."""
    height, width = memory["frame_size"]
    yield ""
    yield f"[bold]memory[/] of {memory['preset']}, {memory['model']}, {height}x{width}, {memory['samples']} sample(s), in GiB"
    table = Table("", Column("", justify="right"), "", box=None, show_header=False)
    for part in memory["parts"]:
        table.add_row(f"  {part['name']}", f"{part['num_bytes'] / 2**30:.2f}", "" if part["exact"] else "estimated")
    free = memory["free_bytes"]
    verdict = "" if free is None else f"{'fits' if free >= memory['total_bytes'] else 'does not fit'}: {free / 2**30:.2f} free"
    table.add_row("  total", f"{memory['total_bytes'] / 2**30:.2f}", verdict)
    yield table
    yield "  the text encoder is not counted"


def _impl_table(impls: list[dict[str, str]]) -> Table:
    """Every implementation: gated and where, or untested or missing and why."""
    table = Table(*(Column("", no_wrap=column < 3) for column in range(4)), box=None, show_header=False)
    for impl in impls:
        table.add_row(f"  {impl['operator']}", impl["name"], impl["state"], escape(impl["detail"]))
    return table


def _knob_table(presets: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """Knobs down, presets across; a knob that was asked for and does nothing here is said to be off."""
    table = Table(Column("", no_wrap=True), *presets, box=None)
    for knob in next(iter(presets.values())):
        states = [knobs[knob] for knobs in presets.values()]
        table.add_row(knob, *("on" if state["on"] else "off here" if state["reason"] else "off" for state in states))
    return table
