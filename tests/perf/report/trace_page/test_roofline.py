"""Operators of a trace against the device, from the file to the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layouts import compact, write
from strobe.perf.report.study import TraceOptions, load_trace_study
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.write import render, render_markdown
from synthetic import META, event, kernel

H200 = META | {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "record_shapes": 1}
PEAK, BANDWIDTH = 989.5e12, 4.8e12


def _page(
    tmp_path: Path,
    dims: list[list[int]],
    us: str,
    by: str = "shape",
    meta: dict[str, Any] = H200,
    dtype: str = "c10::BFloat16",
    details: bool | None = None,
) -> str:
    said = {"External id": 1, "Input Dims": dims, "Input type": [dtype] * 2, "Concrete Inputs": ["", ""]}
    events = [event("cpu_op", "aten::mm", "1", "2", **said), kernel("gemm", "10", us, 1, **{"External id": 1})]
    path = write(tmp_path / "t.json", compact([*events, kernel("other", "9000", us, 2)], meta))
    options = TraceOptions(by=by, details=details)  # type: ignore[arg-type]
    return render_markdown(build_trace_report(load_trace_study([path], options)))


def _row(page: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(("| mm | 4096x4096", "| mm | 64x64"))]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_product_that_computes(tmp_path: Path) -> None:
    row = _row(_page(tmp_path, [[4096, 4096], [4096, 4096]], "200"))
    flops, moved, s = 2 * 4096**3, 3 * 2 * 4096**2, 200e-6
    assert row[:7] == ["mm", "4096x4096, 4096x4096", "bfloat16", "1", "0.200000", "50.0 %", "200.0"]
    of_peak, of_bandwidth = (f"{share:.1%}".replace("%", " %") for share in (flops / s / PEAK, moved / s / BANDWIDTH))
    rates = f"{flops / 1e9:.3f}", f"{flops / s / 1e12:.1f}", f"{moved / s / 1e9:.1f}"
    assert row[7:] == [*rates, of_peak, of_bandwidth, "compute", f"{flops / PEAK * 1e3:.4f}", of_peak]


def test_a_rate_that_cannot_be_is_flagged(tmp_path: Path) -> None:
    page = _page(tmp_path, [[4096, 4096], [4096, 4096]], "100")
    assert "ANOMALY, aten::mm: 1374 TFLOP/s is above the bfloat16 peak" in page
    page = _page(tmp_path, [[4096, 4096], [4096, 4096]], "100", dtype="float")
    assert "ANOMALY" not in page and "whether TF32 ran instead is not in the trace" in page


@pytest.mark.parametrize(
    ("meta", "said"),
    [(META, "shapes not recorded: capture with record\\_shapes=True"), (H200, "no operator with recorded inputs launched")],
)
def test_nothing_recorded_is_said(meta: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", compact([kernel("mm", "10", "1", 1)], meta))
    page = render_markdown(build_trace_report(load_trace_study([path], TraceOptions(by="shape"))))
    assert "Against the device's peaks" in page and said in page


def test_only_where_details_are_read(tmp_path: Path) -> None:
    assert "Against the device" in _page(tmp_path, [[64, 64], [64, 64]], "1", by="name")
    page = _page(tmp_path, [[64, 64], [64, 64]], "1", details=False)
    assert "Against the device" not in page and "GPU time by operator" not in page


def test_the_share_that_is_covered_is_said(tmp_path: Path) -> None:
    assert "the cost is known of operators that own 50.0 % of the busy time" in _page(tmp_path, [[64, 64], [64, 64]], "1")


def test_a_device_without_known_peaks_has_rates_only(tmp_path: Path) -> None:
    row = _row(_page(tmp_path, [[64, 64], [64, 64]], "1", meta=META))
    assert len(row) == 10 and row[7:] == ["0.001", "0.5243", "24.58"]


@pytest.mark.parametrize("size", ["-4", "-1e3", "9" * 400, "9" * 5000, "1e400"])
def test_one_operator_with_impossible_sizes_leaves_the_page_whole(size: str, tmp_path: Path) -> None:
    said = {"Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": ["", ""]}
    events = []
    for number, rows in enumerate([4096, 123456789], 1):
        own = said | {"External id": number, "Input Dims": [[rows, 4096], [4096, 4096]]}
        place = {"External id": number}
        events += [event("cpu_op", "aten::mm", "1", "2", **own), kernel("gemm", str(900 * number), "200", number, **place)]
    path = write(tmp_path / "t.json", compact(events, H200).replace("123456789", size))
    report = build_trace_report(load_trace_study([path], TraceOptions(by="shape")))
    page, html, _ = (render(report, form) for form in ("md", "html", "json"))
    assert "| mm | 4096x4096, 4096x4096 | bfloat16 | 1 | 0.200000 |" in page and "gemm" in html
