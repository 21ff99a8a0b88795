"""The published pages of the project, and the verb that renders each from the records beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from strobe.perf.report.bench_pages import bench_report, tree_report
from strobe.perf.report.build import build_report
from strobe.perf.report.log_page import vary_report
from strobe.perf.report.serve_page import serve_report
from strobe.perf.table.model import Report

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ROOT / "benchmarks"
Door = Callable[[Path], Report]


def run_page(folder: Path) -> Report:
    """Build the report of `strobe report FOLDER`."""
    return build_report([folder], into=folder)


_RUNS = (
    "presets-h200", "engine-h200/320x576", "engine-h200/compare", "engine-h200/int8", "engine-h200/long",
    "engine-h200/long-default", "engine-h200/low-memory-wan", "engine-h200/vae", "engine-h200/vae-int8", "engine-h200/soak",
    "families-h100/krea", "families-h100/longlive", "families-h100/rolling-forcing", "families-h100/self-forcing",
    "families-h100/text",
)  # fmt: skip
_VARIED = ("batch", "turbo-fp8-sparse", "eight", "eight-low", "sparse-int8")
_SERVED = (
    "families-h100/live-text", "serve-h200/balanced", "serve-h200/balanced-int8", "serve-h200/one", "serve-h200/turbo",
    "serve-h200/turbo-int8", "serve-h200/ultra",
)  # fmt: skip
_ATTENTION = (
    "cpu/bfloat16-d128", "cpu/bfloat16-d64", "cpu/float32-d128", "cpu/float32-d64", "h200/32k", "h200/32k-second-stream",
    "h200/hunyuan-video", "h200/scenarios", "h200/wan-1.3b-480p", "h200/wan-1.3b-480p-gradients", "h200/wan-14b-720p",
)  # fmt: skip
DOORS: Final[dict[str, Door]] = {
    **dict.fromkeys(_RUNS, run_page),
    **dict.fromkeys((f"engine-h200/{name}" for name in _VARIED), vary_report),
    **dict.fromkeys(_SERVED, serve_report),
    **dict.fromkeys((f"attention-{name}" for name in _ATTENTION), bench_report),
    **dict.fromkeys(("tree-cpu/ws2", "tree-cpu/ws4", "tree-h200/bench", "tree-h200/scaling"), tree_report),
}
"""The verb behind the page of each folder."""
