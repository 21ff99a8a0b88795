"""Small logs and traces as foreign runs leave them; their means are the numbers of the worked example to the digit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

FA, VSA = "flash_fwd_kernel", "_attn_fwd_sparse"
SECTION = "memcpy:end -> gather:end"

FA_KERNELS_NS = (9_534_080, 9_535_080, 9_534_580)
VSA_KERNELS_NS = (2_762_085, 2_761_085, 2_763_085)
VSA_SECTION_NS = 5_513_097
FA_CALLS_S = ("0.012998318", "0.013000318", "0.012999318") * 4
VSA_CALLS_S = ("0.009533198", "0.009535198", "0.009534198") * 4
FA_STAGES_MS = ("9811.5", "7200.90759", "7200.70759", "7200.80759")
VSA_STAGES_MS = ("8123.25", "5754.60869", "5754.50869", "5754.70869")


def write_log(path: Path, timer: str, stages_ms: tuple[str, ...], calls_s: tuple[str, ...]) -> Path:
    """Write a log: timed rounds, the first of them warm-up, then a pass with attention timers labelled ms but in seconds."""
    lines = [f"INFO [DenoisingStage] finished in {value} ms" for value in stages_ms]
    lines += [f">>>> {timer} time: {value} ms" for value in calls_s]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_trace(path: Path, layers: list[list[tuple[str, str, int]]], rank: int | None = None) -> Path:
    """Write a trace of one stream: `(category, name, ns)` of a layer back to back, layers 10 µs apart, launched well before."""
    events, at, correlation = [], 1_000_000, 0

    def add(category: str, name: str, start_ns: int, length_ns: int, where: int, **args: int) -> None:
        ts, dur = (json.loads(f"{ns // 1000}.{ns % 1000:03d}") for ns in (start_ns, length_ns))
        place = {"pid": int(where == 1), "tid": where}
        events.append({"ph": "X", "cat": category, "name": name, **place, "ts": ts, "dur": dur, "args": args})

    for layer in layers:
        for category, name, length in layer:
            correlation += 1
            add("cuda_runtime", "cudaLaunchKernel", 1_000 * correlation, 900, 1, correlation=correlation)
            add(category, name, at, length, 7, correlation=correlation, device=0, stream=7)
            at += length
        at += 10_000
    document: dict[str, object] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Example GPU"}]}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    document["traceEvents"] = events
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return path


def fa_layers(gemm_ns: int = 3_000_000) -> list[list[tuple[str, str, int]]]:
    """List the kernels of layers with dense attention."""
    return [[("kernel", "elementwise", 400_000), ("kernel", FA, ns), ("kernel", "gemm", gemm_ns)] for ns in FA_KERNELS_NS]


def vsa_layers(gemm_ns: int = 3_000_000) -> list[list[tuple[str, str, int]]]:
    """List the kernels of layers with sparse attention and the operations around it."""
    return [
        [
            ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 50_000),
            ("kernel", "tile_kernel", 1_200_000),
            ("kernel", VSA, ns),
            ("kernel", "vectorized_gather_kernel", VSA_SECTION_NS - 1_200_000 - ns),
            ("kernel", "gemm", gemm_ns),
        ]
        for ns in VSA_KERNELS_NS
    ]


def write_guide(folder: Path) -> dict[str, Path]:
    """Write both logs and both traces."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "fa_log": write_log(folder / "fa.log", "Vanilla", FA_STAGES_MS, FA_CALLS_S),
        "vsa_log": write_log(folder / "vsa.log", "VSA", VSA_STAGES_MS, VSA_CALLS_S),
        "fa_trace": write_trace(folder / "fa.pt.trace.json.gz", fa_layers()),
        "vsa_trace": write_trace(folder / "vsa.pt.trace.json.gz", vsa_layers()),
    }
