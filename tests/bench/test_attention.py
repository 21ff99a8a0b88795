from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from strobe.attention.dense import impl as dense_impl
from strobe.attention.types import AttentionOutput
from strobe.bench.cases import attention
from strobe.bench.cases.attention import AttentionCase, measure_attention
from strobe.bench.cases.call import AttentionCall, AttentionPlan
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.perf.analysis.runs.compare import compare_stage
from strobe.perf.records.store import RunRecords, RunWriter, read_run

CALL = AttentionCall(q_tokens=70, kv_tokens=100, num_heads=4, num_kv_heads=2, head_dim=8)
VIDEO = AttentionCall(q_tokens=2 * 5 * 9, kv_tokens=2 * 5 * 9, num_heads=2, head_dim=32, grid=(2, 5, 9), sparsity=0.5)


def measured(folder: Path, case: AttentionCase, plan: AttentionPlan) -> RunRecords:
    with RunWriter(folder) as writer:
        measure_attention(case, writer, plan, lambda done, total, what: None)
    return read_run(folder)


def test_a_call_is_gated_timed_and_traced(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    case = AttentionCase(CALL, ["sdpa", "reference"], device="cpu")
    with RunWriter(tmp_path / "run") as writer:
        plan = AttentionPlan(rounds=2, calls=5, traced_calls=3)
        measure_attention(case, writer, plan, lambda *step: said.append(step))
    run = read_run(tmp_path / "run")
    assert run.header.order == ("sdpa", "reference", "reference", "sdpa") and run.header.workload is None
    assert [(each.variant, each.passed) for each in run.gates] == [("sdpa", True), ("reference", True)]
    timed = [clip for clip in run.clips if clip.phase == "timed"]
    assert [clip.variant for clip in timed] == list(run.header.order) * 2
    assert {clip.num_spans for clip in timed} == {5}
    assert {span.name for span in run.spans} == {"attention_kernel"} and len(run.spans) == 8 * 5
    first = [span for span in run.spans if span.order == 0]
    assert [span.index for span in first] == list(range(5))
    assert all(one.start_ns + one.value_ns == two.start_ns for one, two in pairwise(first))
    assert compare_stage(run, "reference", "attention_kernel", per_call=True).interval is not None
    assert run.end is not None and run.end.status == "complete"
    assert [done for done, _, _ in said] == list(range(len(said))) and {total for _, total, _ in said} == {len(said)}
    for trace in run.traces:
        events = json.loads(gzip.decompress((run.folder / trace.path).read_bytes()))["traceEvents"]
        assert sum(event["name"] == "strobe::attention_kernel" for event in events) == 3


def test_the_settings_say_what_one_call_costs(tmp_path: Path) -> None:
    case = AttentionCase(CALL, ["sdpa"], device="cpu")
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=1, traced_calls=0))
    (variant,) = run.variants
    assert variant.sizes == {"batch": 1, "q_tokens": 70, "kv_tokens": 100, "heads": 4, "kv_heads": 2, "head_dim": 8}
    (cost,) = variant.costs
    assert (cost.flops, cost.dense_flops) == (4 * 4 * 8 * 70 * 100, None)
    assert cost.read_bytes + cost.write_bytes == 4 * (2 * 70 * 4 * 8 + 2 * 100 * 2 * 8)
    assert (variant.attention_impl, variant.dtype, variant.sparsity) == ("sdpa", "float32", 0.0)
    assert (run.header.order, run.traces) == (("sdpa",), ())


def test_sparse_attention_is_timed_as_kernel_and_as_section(tmp_path: Path) -> None:
    case = AttentionCase(VIDEO, ["sdpa", "sparse:cpu"], device="cpu")
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=2, traced_calls=1))
    assert {(span.variant, span.name) for span in run.spans} == {
        (name, what) for name in ("sdpa", "sparse:cpu") for what in ("attention_kernel", "attention")
    }
    first = [span for span in run.spans if span.order == 0]
    assert [span.name for span in first] == ["attention_kernel"] * 2 + ["attention"] * 2
    assert all(one.start_ns + one.value_ns == two.start_ns for one, two in pairwise(first)), "the section after the kernel"
    dense, sparse = (run.variant(name) for name in ("sdpa", "sparse:cpu"))
    assert sparse.costs[0].dense_flops == dense.costs[0].flops > sparse.costs[0].flops
    assert sparse.sparsity == pytest.approx(1 - sparse.costs[0].flops / dense.costs[0].flops)
    assert [trace.path for trace in run.traces] == ["traces/sdpa.json.gz", "traces/sparse-cpu.json.gz"]


def test_a_red_gate_has_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase(CALL, ["reference", "sdpa"], device="cpu")
    right = dense_impl.sdpa.F.scaled_dot_product_attention
    monkeypatch.setattr(dense_impl.sdpa.F, "scaled_dot_product_attention", lambda *args, **kw: right(*args, **kw) * 1.001)
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=2, traced_calls=0))
    assert [(each.variant, each.passed) for each in run.gates] == [("reference", True), ("sdpa", False)]
    assert "relative error to the reference in float64 <= 1e-05" in run.gates[1].rule
    assert {span.variant for span in run.spans} == {"reference"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_gate_holds_in_every_dtype(dtype: str) -> None:
    call = AttentionCall(q_tokens=33, kv_tokens=65, num_heads=2, head_dim=16, dtype=dtype)
    case = AttentionCase(call, ["sdpa", "reference"], device="cpu")
    for name, variant in case.variants.items():
        passed, rule, detail, _ = variant.check()
        assert passed, f"{name}: {rule}, {detail}"


def test_a_sparse_gate_sees_a_wrong_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase(VIDEO, ["sparse:cpu"], device="cpu")
    assert case.variants["sparse:cpu"].check()[0]
    right = attention.block_sparse_attention

    def wrong(*tensors: Any, impl: str) -> AttentionOutput:
        found = right(*tensors, impl=impl)
        if impl == "reference":
            return found
        return AttentionOutput(out=torch.cat((found.out[:, :-64], found.out[:, -64:] + 0.01), dim=1), lse=None)

    monkeypatch.setattr(attention, "block_sparse_attention", wrong)
    passed, rule, detail, _ = case.variants["sparse:cpu"].check()
    assert not passed and "3 tiles of the output" in rule and float(detail) > 1e-3


@pytest.mark.gpu
@pytest.mark.alone
def test_a_call_is_timed_in_a_full_queue_on_a_gpu(tmp_path: Path) -> None:
    call = AttentionCall(q_tokens=1024, kv_tokens=4096, num_heads=12, head_dim=128)
    run = measured(tmp_path / "run", AttentionCase(call, ["sdpa", "reference"], device="cuda"), AttentionPlan(rounds=2, calls=70))
    assert all(each.passed for each in run.gates) and {span.clock for span in run.spans} == {"cuda_event"}
    assert {variant.dtype for variant in run.variants} == {"bfloat16"}
    events = json.loads(gzip.decompress((run.folder / run.traces[0].path).read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)


def test_what_cannot_run_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="name one implementation"):
        AttentionCase(CALL, [], device="cpu")
    with pytest.raises(ImplUnavailableError):
        AttentionCase(VIDEO, ["sparse:triton"], device="cpu")
