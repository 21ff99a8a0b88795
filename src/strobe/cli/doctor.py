"""`strobe doctor`: the machine, the implementations that would run on it, what is missing, and the memory of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.table import Column, Table

from strobe.cli.completion import DeviceName, ModelName, PresetName
from strobe.cli.console import Output, styled
from strobe.cli.defaults import find_file
from strobe.cli.model import at_least, parse_size
from strobe.core.errors import ConfigError, StrobeError, unknown_choice
from strobe.core.libraries import DISTRIBUTION
from strobe.core.printable import ByteUnit, bytes_in

if TYPE_CHECKING:
    import torch

    from strobe.attention.impls import GateRun

MISSING: Final = 3


def doctor(
    *,
    device: DeviceName = "auto",
    preset: PresetName | None = None,
    model: ModelName = "shapes",
    size: str | None = None,
    samples: int = 1,
    gate: bool = False,
    output: Output = Output(),
) -> int:
    """Show what this machine has, which attention implementation would run, and why the others would not.

    ```
    strobe doctor
    strobe doctor --device cpu --json
    strobe doctor --preset balanced --model wan-1.3b --size 480x832
    strobe doctor --gate  # gpu
    ```

    Exit code 3 if something that every stream needs is missing, or if there is no GPU for --gate; 1 if a gate failed.

    Args:
        device: auto, cpu, cuda or cuda:N.
        preset: say what memory a stream with it will take; nothing is loaded.
        model: shapes, wan-1.3b, wan-14b, wan-5b or a recipe such as krea: whose memory, and what to download.
        size: frame height x width of a Wan model, such as 320x576.
        samples: streams in lockstep.
        gate: first check every implementation of attention on this GPU against the reference (minutes), and record in your data
            folder which passed: `auto` reads it.
    """
    if preset is None and (model, size, samples) != ("shapes", None, 1):
        raise ConfigError("--model, --size and --samples say whose memory is predicted; give --preset too")
    at_least(1, samples=samples)
    checks = list(_checks())
    usable = checks[0]["ok"]
    file = find_file(output.config)
    document: dict[str, Any] = {"checks": checks, "defaults": None if file is None else str(file)}
    gates: tuple[GateRun, ...] = ()
    if usable and gate:
        document["gate"], gates = run_gate(device, output)
    if usable:
        from strobe.attention import impls

        document |= look(device, gates)
        told = ("group", "name", "place", "package", "broken")
        document["plugins"] = [{key: getattr(each, key) for key in told} for each in impls.registered()]
        if preset is not None:
            document["memory"] = predict_memory(preset, model, size, samples, device)
            document["memory"]["lacking"] = document["lacking"].get(preset)
    output.show(*_tables(document, details=output.details))
    output.emit(document)
    gated = document.get("gate", {})
    if gated.get("reason") or not all(check["ok"] for check in checks):
        return MISSING
    return 1 if any(each["failed"] for each in gated.get("gates", ())) else 0


def _check(name: str, detail: str, fix: str = "") -> dict[str, Any]:
    """Describe one requirement of every stream; it is met unless something is to be done about it."""
    return {"name": name, "ok": not fix, "detail": " ".join(detail.split()), "fix": fix}


def _checks() -> Iterator[dict[str, Any]]:
    """Yield what every stream needs: torch, and with it weights of the bundled model and encoders of every format of a clip."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield _check("torch", str(error), "pip install 'torch>=2.9'")
        return
    yield _check("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")
    from strobe.engine.load import load
    from strobe.engine.video import FORMATS, can_encode

    try:
        yield _check("weights", f"shapes, sha256 {load('shapes').weights_hash[:12]}")
    except StrobeError as error:
        yield _check("weights", str(error), f"install {DISTRIBUTION} again")
    try:
        found = can_encode()
    except ImportError as error:
        yield _check("video", str(error), "pip install 'av>=14.1'")
        return
    if found:
        yield _check("video", f"writes {', '.join(FORMATS)}")
    else:
        yield _check("video", f"no encoder for {', '.join(FORMATS)}", "install av from its own wheel")


def run_gate(device: str, output: Output) -> tuple[dict[str, Any], tuple[GateRun, ...]]:
    """Run the gates of a GPU and record each as it ends, or report why none can be run."""
    from strobe.attention.gates.run import record, run_gates
    from strobe.attention.impls import gate_file
    from strobe.core.device import resolve_device
    from strobe.perf.measure.machine import describe_machine

    where, place = resolve_device(device), gate_file()
    if where.type != "cuda":
        reason = "there is no GPU to run the gates on; what auto takes on a CPU needs none"
        return {"reason": reason, "record": "", "gates": []}, ()
    if place is None:
        return {"reason": "there is no folder to record gates in; set XDG_DATA_HOME", "record": "", "gates": []}, ()
    record([], place)  # a folder that cannot be written is told before the work
    done: list[GateRun] = []
    told = []
    with output.progress("gate") as advance:
        for outcome in run_gates(where, describe_machine(where).driver, advance):
            own: dict[str, Any] = {"ran": False, "tests": 0, "failed": ""}
            if (gate := outcome.gate) is not None:
                record([gate], place)
                done.append(gate)
                own = {"ran": True, "tests": gate.tests, "failed": gate.failed}
            told.append({"operator": outcome.operator, "impl": outcome.impl, **own, "refused": outcome.refused})
    return {"reason": "", "record": str(place), "gates": told}, tuple(done)


def look(device: str, gates: tuple[GateRun, ...] = ()) -> dict[str, Any]:
    """Describe the machine, and the attention, optimisations and quality metrics available on it."""
    import msgspec

    from strobe.core.device import resolve_device
    from strobe.engine.config import DTYPES
    from strobe.engine.load import shapes_defaults
    from strobe.engine.presets import PRESETS
    from strobe.engine.resolve import idle_knobs, lacking
    from strobe.perf.measure.machine import describe_machine
    from strobe.quality.available import METRICS

    where = resolve_device(device)
    presets = {name: make() for name, make in PRESETS.items()}
    idle = {name: idle_knobs(config, shapes_defaults(), where) for name, config in presets.items()}
    machine = describe_machine(where)
    return {
        "machine": msgspec.to_builtins(machine),
        "attention": _attention(where, DTYPES["float32" if where.type == "cpu" else "bfloat16"], gates, machine.driver),
        "presets": {
            name: {
                knob: {"on": asked and knob not in idle[name], "reason": idle[name].get(knob, "")}
                for knob, asked in asdict(config.knobs).items()
            }
            for name, config in presets.items()
        },
        "lacking": {name: reason for name, config in presets.items() if (reason := lacking(config, where))},
        "metrics": {metric.name: metric.not_measured or "measured" for metric in METRICS},
    }


def _attention(device: torch.device, dtype: torch.dtype, gates: tuple[GateRun, ...], driver: str | None) -> dict[str, Any]:
    """Return the implementation that would run the bundled model's full-window self-attention, and the state of the others."""
    import torch

    from strobe.attention.explain import explain, survey
    from strobe.attention.gates.run import LIBRARIES, versions_here
    from strobe.attention.impls import GATES
    from strobe.engine.load import shapes_defaults
    from strobe.models.shapes.config import WAN

    defaults = shapes_defaults()
    height, width = defaults.stride.latent_size(*defaults.frame_size)
    tokens = (height // WAN.patch[0]) * (width // WAN.patch[1])
    q = torch.empty(1, defaults.frame_block * tokens, WAN.num_heads, WAN.head_dim, dtype=dtype, device=device)
    kv = q.repeat(1, 4, 1, 1)
    choice = explain(q, kv, kv)
    here: dict[str, str] = {}
    for impl in LIBRARIES:
        here |= versions_here(impl, driver)
    states = [asdict(state) for state in survey(device, gates=(*gates, *GATES), versions=here)]
    return {"runs": choice.impl.name, "passed_over": dict(choice.passed_over), "impls": states}


def _tables(document: dict[str, Any], *, details: bool) -> Iterator[RenderableType]:
    """Yield what runs here and what does not as text for a terminal; with details every table."""
    for check in document["checks"]:
        yield styled(("ok     ", "green") if check["ok"] else ("missing", "red"), f"  {check['name']}: {check['detail']}")
        if not check["ok"]:
            yield f"         {check['fix']}"
    if document["defaults"] is not None:
        yield f"defaults of flags: {document['defaults']}"
    if "machine" not in document:
        return
    found = document["machine"]
    memory = f"{bytes_in(found['memory_bytes'], 'GiB'):.1f} GiB" if found.get("memory_bytes") else ""
    cpu = f"{found['cpu_name']}, {found['cores']} cores" if found.get("cpu_name") else f"{found['cores']} cores"
    gpu = "no GPU" if found["device"] == "cpu" else found["device_name"]
    driver = f"driver {found['driver']}" if found.get("driver") else ""
    machine = (gpu, driver, cpu, memory, f"torch {found['torch']}", f"Python {found['python']}", found["os"])
    yield from ("", f"machine  {', '.join(filter(None, machine))}")
    if "gate" in document:
        yield from _gate_lines(document["gate"])
    attention = document["attention"]
    lacking_gpu = "needs a GPU" if found["device"] == "cpu" else "missing"
    impls = [{**impl, "state": lacking_gpu if impl["state"] == "missing" else impl["state"]} for impl in attention["impls"]]
    yield from ("", styled(("attention", "bold"), f"  runs: {attention['runs']}"))
    if details:
        yield from (f"  not {name}: {reason}" for name, reason in attention["passed_over"].items())
        table = Table(*(Column("", no_wrap=column < 3) for column in range(4)), box=None, show_header=False)
        for impl in impls:
            table.add_row(f"  {impl['operator']}", impl["name"], impl["state"], impl["detail"])
        yield table
    for operator in () if details else dict.fromkeys(impl["operator"] for impl in impls):
        own = _by_second([(impl["name"], impl["state"]) for impl in impls if impl["operator"] == operator])
        said = (f"{state}: {', '.join(names)}" for state, names in own)
        yield f"  {operator}  {'; '.join(said)}"
    yield from ("", styled(("optimisations", "bold"), "  off on this machine:"))
    knobs = [(name, knob["reason"]) for knobs in document["presets"].values() for name, knob in knobs.items() if knob["reason"]]
    yield from (f"  {', '.join(names)}: {reason}" for reason, names in _by_second(knobs))
    lacking = [(name, reason.removeprefix(f"{name} ")) for name, reason in document["lacking"].items()]
    yield from (f"  {', '.join(names)} cannot run: each {reason}" for reason, names in _by_second(lacking))
    yield from ("", styled(("quality metrics", "bold"), "  measured and not:"))
    yield from (f"  {', '.join(names)}: {state}" for state, names in _by_second(list(document["metrics"].items())))
    if document["plugins"]:
        yield from ("", styled(("plug-ins", "bold")))
        for each in document["plugins"]:
            why = f"broken: {each['broken']}" if each["broken"] else "found"
            yield f"  {each['group']} {each['name']} ({each['place']} of {each['package']}): {why}"
    if "memory" in document:
        yield from memory_table(document["memory"])
    if not details:
        yield from ("", "Each implementation with its reason: --details.")


def _by_second(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Group names by what is said of them; each name once."""
    groups: dict[str, list[str]] = {}
    for name, said in dict.fromkeys(pairs):
        groups.setdefault(said, []).append(name)
    return list(groups.items())


def _gate_lines(gate: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the result of each gate and the file it is recorded in."""
    yield from ("", styled(("gates", "bold"), f"  not run: {gate['reason']}" if gate["reason"] else ""))
    for each in gate["gates"]:
        what = f"{each['tests']} cases passed, {each['refused']}" if each["ran"] else f"not run: {each['refused']}"
        said = (("failed", "red"), f" at {each['failed']}") if each["failed"] else (what,)
        yield styled(f"  {each['operator']} {each['impl']}: ", *said)
    if gate["record"]:
        yield f"  recorded in {gate['record']}"


def predict_memory(preset: str, model: str, size: str | None, samples: int, device: str) -> dict[str, Any]:
    """Predict the memory of a stream, part by part, bytes; nothing is loaded."""
    from strobe.core.device import resolve_device
    from strobe.engine import memory
    from strobe.engine.load import model_parts, names
    from strobe.engine.presets import preset as find_preset
    from strobe.engine.resolve import resolve
    from strobe.models.wan.recipes import RECIPES

    if model not in names():
        raise unknown_choice("model", model, names())
    parts = model_parts(model, parse_size(size))
    config = resolve(replace(find_preset(preset), simulate=True), parts.defaults, resolve_device(device))
    held = memory.predict(parts, config, samples)
    return {
        "preset": config.name,
        "model": model,
        "needs": RECIPES[model].needs if model in RECIPES else "",
        "frame_size": list(parts.defaults.frame_size),
        "samples": samples,
        "dtype": str(config.dtype).removeprefix("torch."),
        "parts": [{"name": name, "num_bytes": num_bytes, "exact": name != memory.LARGEST} for name, num_bytes in held.items()],
        "total_bytes": sum(held.values()),
        "free_bytes": memory.free_bytes(config.device),
    }


def memory_table(memory: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the table of a stream's memory by part, and whether it fits."""
    height, width = memory["frame_size"]
    yield ""
    what = f"{height}x{width}, {memory['samples']} sample(s), {memory['dtype']}"
    unit: ByteUnit = "GiB" if memory["total_bytes"] >= 1 << 30 else "MiB"
    yield styled(("memory", "bold"), f" of {memory['preset']}, {memory['model']}, {what}, in {unit}")
    table = Table("", Column("", justify="right"), "", box=None, show_header=False)
    for part in memory["parts"]:
        table.add_row(f"  {part['name']}", _amount(part["num_bytes"], unit), "" if part["exact"] else "estimated")
    free = memory["free_bytes"]
    verdict = "" if free is None else f"{'fits' if free >= memory['total_bytes'] else 'does not fit'}: {_amount(free, unit)} free"
    table.add_row("  total", _amount(memory["total_bytes"], unit), verdict)
    yield table
    yield "  the text encoder is not counted"
    if memory["needs"]:
        yield f"  to download: {memory['needs']}"
    if memory["lacking"]:
        yield styled("  ", ("does not run here", "red"), f": {memory['lacking']}")


def _amount(num_bytes: float, unit: ByteUnit) -> str:
    return f"{bytes_in(num_bytes, unit):,.2f}"
