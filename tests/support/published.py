"""The published pages of the project, and the verb that renders each from the records beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from strobe.perf.report.attention_bench import bench_report
from strobe.perf.report.build import build_report
from strobe.perf.report.log_page import vary_report
from strobe.perf.report.serve_page import serve_report
from strobe.perf.report.tree_bench import tree_report
from strobe.perf.table.model import Report

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ROOT / "benchmarks"
Door = Callable[[Path], Report]


def run_page(folder: Path) -> Report:
    """Build the report of `strobe report FOLDER`."""
    return build_report([folder], into=folder)


DOORS: Final[dict[str, Door]] = {
    "presets-h200": run_page,
    "engine-h200/320x576": run_page,
    "engine-h200/compare": run_page,
    "engine-h200/long": run_page,
    "engine-h200/long-default": run_page,
    "engine-h200/low-memory-wan": run_page,
    "engine-h200/vae": run_page,
    "engine-h200/vae-int8": run_page,
    "engine-h200/soak": run_page,
    "engine-h200/batch": vary_report,
    "engine-h200/turbo-fp8-sparse": vary_report,
    "engine-h200/eight": vary_report,
    "engine-h200/eight-fp8": vary_report,
    "engine-h200/eight-low": vary_report,
    "families-h100/krea": run_page,
    "families-h100/live-text": serve_report,
    "families-h100/longlive": run_page,
    "families-h100/rolling-forcing": run_page,
    "families-h100/self-forcing": run_page,
    "families-h100/text": run_page,
    "serve-h200/balanced": serve_report,
    "serve-h200/int8": serve_report,
    "serve-h200/one": serve_report,
    "serve-h200/turbo": serve_report,
    "serve-h200/ultra": serve_report,
    "attention-cpu/bfloat16-d128": bench_report,
    "attention-cpu/bfloat16-d64": bench_report,
    "attention-cpu/float32-d128": bench_report,
    "attention-cpu/float32-d64": bench_report,
    "attention-h200/32k": bench_report,
    "attention-h200/32k-second-stream": bench_report,
    "attention-h200/hunyuan-video": bench_report,
    "attention-h200/scenarios": bench_report,
    "attention-h200/wan-1.3b-480p": bench_report,
    "attention-h200/wan-1.3b-480p-gradients": bench_report,
    "attention-h200/wan-14b-720p": bench_report,
    "tree-cpu/ws2": tree_report,
    "tree-cpu/ws4": tree_report,
    "tree-h200/bench": tree_report,
    "tree-h200/scaling": partial(tree_report, scaling=True),
}
"""The verb behind the page of each folder."""
