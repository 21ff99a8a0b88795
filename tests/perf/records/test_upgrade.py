"""Records of schema version 1: what stood in names and sentences is in fields when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.perf.records.grids import AttentionCell, Contestant, LinkRate, Links, SentMessage, Surroundings, WhatIf
from strobe.perf.records.record import Header
from strobe.perf.records.store import RunRecords, read_run

SPAN = {"record": "span", "variant": "a", "clip": 0, "order": 0, "palindrome": None, "index": 0, "start_ns": 0, "value_ns": 5,
        "clock": "perf_counter", "warmup": False}  # fmt: skip


def read(folder: Path, header: Header, name: str, lines: list[dict[str, Any]]) -> RunRecords:
    """What a run of version 1 reads as."""
    head = msgspec.to_builtins(msgspec.structs.replace(header, run=name, workload=None, model=None)) | {"v": 1}
    del head["kind"]
    folder.mkdir()
    content = b"\n".join(msgspec.json.encode({"v": 1} | line) for line in (head, *lines))
    (folder / "records.jsonl").write_bytes(content + b"\n")
    return read_run(folder)


def quality(variant: str, metric: str, value: float, definition: str = "", reference: str = "") -> dict[str, Any]:
    return {"record": "quality", "variant": variant, "metric": metric, "value": value, "unit": "", "reference": reference,
            "definition": definition, "n": 1, "better": "neither"}  # fmt: skip


def gate(rule: str) -> dict[str, Any]:
    return {"record": "gate", "variant": "a", "reference": "b", "rule": rule, "passed": True, "detail": ""}


def excluded(cause: str) -> dict[str, Any]:
    return {"record": "excluded", "variant": "a", "span": "clip", "clip": None, "indices": [], "cause": cause}


def test_a_cell_of_tree_attention(tmp_path: Path, header: Header) -> None:
    lines = [
        quality("machine", "foreign_load", 0.5, "busy before the ranks began"),
        quality("machine", "lost_machines", 2, "lost"),
        quality("machine", "delay", 5, "rank 3 was held back"),
        {"record": "variant", "name": "peer:ring", "preset": "custom"},
        quality("ring", "error", 1e-8, "largest absolute error on rank 1", "float64, dense, every rank"),
        quality("ring", "predicted", 7.5, "local"),
        quality("ring", "predicted_local", 4.5, "roofline of one rank: flop"),
        quality("ring", "predicted_hidden", 1.0, "beside"),
        quality("ring", "sent:0", 2080, "gather: parts"),
        quality("ring", "alpha:0", 2.0, "gather: parts"),
        quality("ring", "beta:0", 3.0, "gather: parts"),
        quality("ring", "what_if:bandwidth x2", 6.0),
        quality("ring", "what_if:latency /10", 5.0),
        quality("machine", "link:flops_per_s", 1e12),
        quality("machine", "link:launch_s", 1e-6),
        quality("machine", "link:gather_alpha_s", 1e-5),
        quality("machine", "link:merge_host_s", 2e-5),
        quality("machine", "auto_choice", 1.0, "ring"),
        SPAN | {"name": "tree_call"},
        SPAN | {"name": "tree_call/rank1"},
        SPAN | {"name": "serialised/tree_message:gather/rank0"},
        SPAN | {"name": "free-running/comp_local/rank12"},
        {"record": "clip", "variant": "a", "clip": 0, "order": 0, "palindrome": None, "phase": "timed", "num_spans": 4},
        gate("out within 3e-05, scaled by |lse|; lse within 5e-06"),
        excluded("rank 0: refused: no; rank 1: failed: torn"),
    ]
    run = read(tmp_path / "run", header, "ws2_n64_q1_h8x64_b1_float32_cpu", lines)
    assert run.header.kind == "tree"
    assert run.surroundings == Surroundings(busy_cores=0.5, lost_machines=2, delayed_rank=3, delay_ms=5)
    rates = (LinkRate(kind="gather", alpha_s=1e-5), LinkRate(kind="merge", host_s=2e-5))
    assert run.links == Links(flops_per_s=1e12, launch_s=1e-6, rates=rates, auto="ring")
    (found,) = run.predictions
    assert (found.variant, found.total_ns, found.local_ns, found.bound, found.hidden_ns) == ("ring", 7.5, 4.5, "flop", 1.0)
    assert found.messages == (SentMessage(kind="gather", payload="parts", sent_bytes=2080, alpha_ns=2, beta_ns=3),)
    assert found.what_if == (
        WhatIf(faster="bandwidth", factor=2, total_ns=6),
        WhatIf(faster="latency", factor=10, total_ns=5),
    )
    assert [(line.metric, line.rank) for line in run.quality] == [("error", 1)]
    assert [(span.name, span.part, span.rank, span.mode) for span in run.spans] == [
        ("tree_call", "", None, None),
        ("tree_call", "", 1, None),
        ("tree_message", "gather", 0, "serialised"),
        ("comp_local", "", 12, "free-running"),
    ]
    assert run.gates[0].exact and run.excluded[0].kind == "failed"
    assert run.variants[0].contestant == Contestant(work="dense", impl="peer:ring", peer=True)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("wan-1.3b_s0.9_b64_forward", AttentionCell(shape="wan-1.3b", sparsity=0.9, topk=None, block=64, backward=False)),
        ("16k_k32_b128_backward", AttentionCell(shape="16k", sparsity=None, topk=32, block=128, backward=True)),
        ("16k_s1e-05_b128_backward", AttentionCell(shape="16k", sparsity=1e-5, topk=None, block=128, backward=True)),
    ],
)
def test_a_cell_of_the_attention_grid(tmp_path: Path, header: Header, name: str, cell: AttentionCell) -> None:
    cost = {"span": "attention", "flops": 1, "read_bytes": 0, "write_bytes": 0, "dense_flops": 2}
    lines = [
        {"record": "variant", "name": "raster:fa4", "preset": "custom", "costs": [cost]},
        {"record": "variant", "name": "peer:x", "preset": "custom", "costs": [cost | {"span": "attention_kernel"}]},
        {"record": "variant", "name": "matmul", "preset": "custom"},
        SPAN | {"name": "stage:attention_tile"},
        {"record": "clip", "variant": "a", "clip": 0, "order": 0, "palindrome": None, "phase": "timed", "num_spans": 1},
        quality("a", "RMSE", 0.1, "dq: root", "the same selection, float32"),
        quality("a", "LSE error", 0.1, "largest", "full dense attention, float32"),
        gate("output: cosine >= 0.99"),
        gate("output: relative error <= 0.01, lse within 1e-3"),
        excluded("refused: impl 'x' cannot run"),
        excluded("failed: OutOfMemoryError"),
    ]
    run = read(tmp_path / "run", header, name, lines)
    assert (run.header.kind, run.cell) == ("attention", cell) and run.cell.__class__ is AttentionCell
    assert [variant.contestant for variant in run.variants] == [
        Contestant(work="whole", impl="fa4", raster=True),
        Contestant(work="fine", impl="x", peer=True),
        None,
    ]
    assert [(span.name, span.part) for span in run.spans] == [("stage", "attention_tile")]
    assert [(line.against, line.tensor) for line in run.quality] == [("selection", "dq"), ("dense", "lse")]
    assert [line.exact for line in run.gates] == [False, True]
    assert [line.kind for line in run.excluded] == ["refused", "failed"]


def test_a_run_of_streams(tmp_path: Path, header: Header) -> None:
    video = {"record": "video", "variant": "b", "path": "x.mp4", "sha256": "", "frames": 1, "fps": 1, "caption": "b, seed 0"}
    end = {"record": "end", "status": "failed", "date": "", "wall_ns": 1, "message": f"{header.order[-1]}: no memory"}
    lines = [SPAN | {"name": "mine/rank1"}, video, end, *map(excluded, ("warm-up", "compilation", "thermal throttling", "own"))]
    run = read(tmp_path / "run", header, "20260101T120000Z-compare-1a2b3c", lines)
    assert run.header.kind == "operator"  # it has no clip of a model
    assert run.spans[0].name == "mine/rank1"  # of a user's code: it means nothing else
    assert run.videos[0].caption == "seed 0"
    assert run.end is not None and run.end.variant == header.order[-1]
    assert [line.kind for line in run.excluded] == ["warm-up", "compilation", "throttling", "other"]


def test_what_was_damaged_or_made_up_is_no_crash(tmp_path: Path, header: Header) -> None:
    digits = "9" * 5000
    lines = [
        quality("machine", "delay", 1, "nobody"),
        quality("a", "predicted", 1.0),
        quality("b", "predicted", 1.0),
        quality("b", "predicted_local", 1.0),
        quality("b", "sent:0", 1, "pigeon: parts"),
        quality("b", f"what_if:bandwidth x{digits}", 1.0),
        SPAN | {"name": f"tree_call/rank{digits}"},
    ]
    run = read(tmp_path / "run", header, f"ws2_n{digits}_q1_", lines)
    assert run.surroundings is not None and run.surroundings.delayed_rank is None
    (found,) = run.predictions
    assert (found.variant, found.messages, found.what_if) == ("b", (), ())
    assert run.spans[0].rank is None and run.links is None
