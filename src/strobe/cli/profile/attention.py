"""`strobe profile attention`: one attention call by several implementations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strobe.cli.console import OUT, Output
from strobe.cli.require import parse_requirement
from strobe.cli.run_folder import chosen_folder, rotating, told_of


@Parameter(name="*", group="Call")
@dataclass(frozen=True, kw_only=True)
class AttentionFlags:
    """The call that every implementation computes.

    Args:
        seq_q: tokens of the queries.
        seq_kv: tokens of the keys and values; as many as of the queries by default.
        heads: heads of the queries.
        kv_heads: heads of the keys and values; as many as of the queries by default.
        head_dim: channels of a head.
        batch: samples.
        dtype: auto, bfloat16, float16, float32 or float64; auto is bfloat16 on a GPU and float32 on a CPU.
        grid: tokens in time, height and width, which sparse attention needs.
        sparsity: share of the key tiles that sparse attention skips.
        seed: of q, k and v.
        device: auto, cpu, cuda or cuda:N.
    """

    seq_q: int = 1024
    seq_kv: int | None = None
    heads: int = 12
    kv_heads: int | None = None
    head_dim: int = 128
    batch: int = 1
    dtype: str = "auto"
    grid: tuple[int, int, int] | None = None
    sparsity: float = 0.8
    seed: int = 0
    device: str = "auto"


@Parameter(name="*", group="Times and trace")
@dataclass(frozen=True, kw_only=True)
class RepeatFlags:
    """Flags of how often to call it, timed and traced.

    Args:
        rounds: palindromes of laps, A B B A; an interval needs two.
        iterations: timed calls of an implementation in a lap.
        cold: overwrite a GPU's cache before each call; without it, it holds what the call before left.
        active: calls of each implementation in its trace, a run of its own.
        trace: take traces at all.
    """

    rounds: int = 4
    iterations: int = 60
    cold: bool = False
    active: int = 10
    trace: Annotated[bool, Parameter(negative="--no-trace")] = True


def attention(
    *,
    impls: tuple[str, ...] = ("sdpa", "reference"),
    call: AttentionFlags = AttentionFlags(),
    measured: RepeatFlags = RepeatFlags(),
    require: tuple[str, ...] = (),
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
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
        require: a condition that must hold for every other implementation, such as kernel>=2; see `strobe report --help`.
        out: the folder for records, traces and report; one that holds something is kept as traces.1, traces.2 and so on.
            By default STROBE_PROFILE_DIR, or traces.
    """
    requirements = [parse_requirement(text) for text in require]
    folder = chosen_folder(out)
    kept: list[Path] = []
    with output.progress("attention") as advance:
        from strobe.bench.cases.attention import AttentionCall, AttentionCase, AttentionPlan, measure_attention
        from strobe.bench.runner import FinishedRun

        work = AttentionCall(
            q_tokens=call.seq_q,
            kv_tokens=call.seq_q if call.seq_kv is None else call.seq_kv,
            num_heads=call.heads,
            num_kv_heads=call.kv_heads,
            head_dim=call.head_dim,
            batch=call.batch,
            dtype=call.dtype,
            grid=call.grid,
            sparsity=call.sparsity,
            seed=call.seed,
        )
        plan = AttentionPlan(
            rounds=measured.rounds,
            calls=measured.iterations,
            cold=measured.cold,
            traced_calls=measured.active if measured.trace else 0,
        )
        case = AttentionCase(work, impls, device=call.device)
        with rotating(kept)(folder, case.slug) as writer:
            red = measure_attention(case, writer, plan, advance)
    code, document = told_of(FinishedRun(folder=folder, red=red), requirements, output, kept)
    output.emit(document)
    return code
