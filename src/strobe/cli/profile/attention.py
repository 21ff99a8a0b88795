"""`strobe profile attention`: one attention call by several implementations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strobe.bench.cases.call import AttentionCall, AttentionPlan
from strobe.cli.completion import DeviceName
from strobe.cli.console import Output, named
from strobe.cli.require import parse_requirement
from strobe.cli.run_folder import TracesOut, chosen_folder, rotating, told_of


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
