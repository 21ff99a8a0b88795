"""`strobe profile kernels`: the time of one denoise step, operation by operation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from strobe.cli.completion import DeviceName, ModelName, PresetName
from strobe.cli.console import OUT, Output
from strobe.cli.model import at_least
from strobe.cli.run_folder import check_page, write_page
from strobe.cli.tables import table_text

if TYPE_CHECKING:
    from strobe.engine.model import Model
    from strobe.engine.resolve import ResolvedConfig
    from strobe.perf.analysis.runs.breakdown import KernelProfile
    from strobe.perf.report.profile_pages import ProfileFacts

PROMPTS = ("a red circle moving left slowly on a navy background", "a yellow star moving up slowly on a black background")


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
        preset: baseline, quality, balanced, speed, turbo, ultra and others, see `strobe presets`.
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
        from strobe.perf.table.model import Table, encode_report

        report = kernel_report(found, described)
    written = write_page(report, out, out.with_suffix(".json"))
    first = [block for section in report.sections[:2] for block in section.blocks if isinstance(block, Table)]
    output.show(*map(table_text, first), " ".join(written))
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
    """Return the facts of the run for the page."""
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
