"""The sentences that the page of a trace begins with, and its operators against the device, from the file to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from layouts import compact, write
from strobe.perf.report.documents.api import read_trace
from strobe.perf.report.study import TraceOptions, load_trace_study
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.write import render, render_html, render_markdown
from strobe.perf.table.model import Banner, Notes, Report
from synthetic import META, event, kernel, launch


def steps_file(path: Path, lengths: list[int]) -> Path:
    """Steps of an attention kernel of so many microseconds and a product of 100, then 100 idle, launched late."""
    events, at = [], 1000
    for step, length in enumerate(lengths):
        number = 2 * step + 1
        events += [launch(str(at - 10), "5", number), launch(str(at - 5), "5", number + 1)]
        events += [event("user_annotation", f"ProfilerStep#{step}", str(at - 20), str(length + 200))]
        events += [kernel("flash_fwd_kernel", str(at), str(length), number)]
        events += [kernel("sm90_gemm_128x128", str(at + length), "100", number + 1)]
        at += length + 200
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def built(path: Path, **options: Any) -> Report:
    return build_trace_report(load_trace_study((path,), TraceOptions(**options)))


def sentences(path: Path) -> list[str]:
    first = built(path).sections[0]
    assert first.id == "answer"
    return [item for block in first.blocks if isinstance(block, Notes) for item in block.items]


def test_what_the_time_is_and_why_the_device_was_idle(tmp_path: Path) -> None:
    said = sentences(steps_file(tmp_path / "t.json", [300] * 6))
    assert said[0].startswith("device 0: busy for 82.8 % of 2.900 ms; ")  # 6 x 400 of 5 x 500 + 400
    assert said[1] == "Of the busy time: attention 75.0 %, matrix products 25.0 %."
    assert said[2] == "Most time: flash_fwd_kernel 75.0 %, sm90_gemm 25.0 %."
    assert said[3].startswith("Idle for 0.5000 ms, ") and "because the launch call had not started yet (host_late)" in said[3]


def test_the_slowest_step_is_named(tmp_path: Path) -> None:
    even, uneven = (
        sentences(steps_file(tmp_path / f"{n}.json", lengths))
        for n, lengths in enumerate(([300] * 6, [300, 300, 800, 300, 300, 300]))
    )
    assert not any("the slowest" in line for line in even)
    (line,) = (line for line in uneven if "the slowest" in line)
    assert "steps, median 0.5000 ms; the slowest, ProfilerStep#2, takes 1.000 ms, 0.1000 of it idle." in line


def test_the_time_before_the_first_kernel_and_the_first_step_are_told(tmp_path: Path) -> None:
    steps = (("0", "50000", 46000), ("50000", "500", 50100), ("50600", "500", 50700), ("51200", "500", 51300))
    events = [event("cuda_driver", "cuModuleLoadData", "100", "20000"), event("user_annotation", "autotune", "20200", "25000")]
    for number, (start, length, at) in enumerate(steps):
        events += [event("user_annotation", f"ProfilerStep#{number}", start, length), launch(str(at - 10), "5", number + 1)]
        events += [kernel("flash_fwd_kernel", str(at), "300", number + 1)]
    path = tmp_path / "first.json"
    path.write_text(json.dumps({"traceEvents": events}))
    said = sentences(path)
    before = "Before the first kernel the host spent 46.00 ms: 25.00 ms in autotune, 20.00 ms in cuModuleLoadData, "
    assert any(line.startswith(before) for line in said), said
    assert any("ProfilerStep#0, takes 50.00 ms on the host, 0.3000 of it busy on the device." in line for line in said), said


def layers(path: Path, lengths: list[int]) -> Path:
    """Blocks of one step, each a range around the launch of a kernel of so many microseconds, and a kernel after them."""
    events, at = [event("user_annotation", "step", "900", "9000")], 1000
    for number, length in enumerate([*lengths, 100]):
        if number < len(lengths):
            events.append(event("user_annotation", f"WanBlock_{number}", str(at - 20), "15"))
        events += [launch(str(at - 10), "4", number + 1), kernel("gemm", str(at), str(length), number + 1)]
        at += length + 50
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_layers_are_one_line_and_a_slow_one_is_named(tmp_path: Path) -> None:
    told = (sentences(layers(tmp_path / f"{n}.json", [100, 100, last, 100])) for n, last in enumerate((100, 200)))
    even, slow = ([line for line in said if line.startswith("Layers: ")] for said in told)
    rows = [row for row in read_trace(tmp_path / "1.json").layers if row.layers == "WanBlock"]
    assert [(row.place, row.name, row.device_p50_ns, row.kernels) for row in rows] == [
        (place, f"WanBlock_{place}", ns, 1) for place, ns in enumerate((100_000, 100_000, 200_000, 100_000))
    ]
    assert even == ["Layers: 4 of WanBlock, 0.1000 ms each (median), 80.0 % of the work."]
    assert slow == [
        "Layers: 4 of WanBlock, 0.1000 ms each (median), 83.3 % of the work; the slowest, WanBlock_2, takes 0.2000 ms."
    ]


def test_the_page_has_what_would_help_second_and_warnings_that_change_no_figure_below(tmp_path: Path) -> None:
    report = built(steps_file(tmp_path / "t.json", [300] * 6), details=True)
    assert [section.id for section in report.sections[:3]] == ["answer", "what-if", "overview"]
    warned = replace(report, banners=(Banner("caution", "weakens", ("a",)), Banner("stop", "voids", ("b",))))
    for text in (render_html(warned), render_markdown(warned)):
        places = [text.rindex(word) for word in ("voids", "The answer", "weakens", "What would help")]
        assert places == sorted(places)


def test_ranges_that_no_call_encloses_are_steps_and_no_layers(tmp_path: Path) -> None:
    path = layers(tmp_path / "t.json", [100, 100, 100, 100])
    data = json.loads(path.read_text())
    path.write_text(json.dumps({"traceEvents": data["traceEvents"][1:]}))
    assert not [line for line in sentences(path) if line.startswith("Layers: ")]


def test_layers_beside_each_other_are_no_more_than_all_work(tmp_path: Path) -> None:
    path = layers(tmp_path / "t.json", [100, 100, 100, 100])
    events = json.loads(path.read_text())["traceEvents"]
    for number, one in enumerate(one for one in events if one["cat"] == "kernel"):
        one |= {"ts": str(1000 + 40 * number), "args": {**one["args"], "stream": number}}
    calls = [one for one in events if one["cat"] != "kernel" and one["name"] != "step"]
    for number, one in enumerate(calls):
        one |= {"ts": str(900 + 10 * number), "dur": "15" if one["cat"] == "user_annotation" else "4"}
    path.write_text(json.dumps({"traceEvents": events}))
    (said,) = [line for line in sentences(path) if line.startswith("Layers: ")]
    assert ", 80.0 % of the work" in said


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
    return render_markdown(built(path, by=by, details=details))


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


@pytest.mark.parametrize(
    ("size", "us", "options", "said", "unsaid"),
    [
        (4096, "100", {}, "ANOMALY, aten::mm: 1374 TFLOP/s is above the bfloat16 peak", "TF32"),
        (4096, "100", {"dtype": "float"}, "whether TF32 ran instead is not in the trace", "ANOMALY"),
        (64, "1", {"by": "name"}, "Against the device", "ANOMALY"),
        (64, "1", {}, "the cost is known of operators that own 50.0 % of the busy time", "ANOMALY"),
        (64, "1", {"details": False}, "Kernels", "Against the device"),
        (64, "1", {"details": False}, "Kernels", "GPU time by operator"),
    ],
)
def test_what_is_known_of_rates_is_said(
    tmp_path: Path, size: int, us: str, options: dict[str, Any], said: str, unsaid: str
) -> None:
    page = _page(tmp_path, [[size, size], [size, size]], us, **options)
    assert said in page and unsaid not in page


@pytest.mark.parametrize(
    ("meta", "said"),
    [(META, "shapes not recorded: capture with record\\_shapes=True"), (H200, "no operator with recorded inputs launched")],
)
def test_nothing_recorded_is_said(meta: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", compact([kernel("mm", "10", "1", 1)], meta))
    page = render_markdown(built(path, by="shape"))
    assert "Against the device's peaks" in page and said in page


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
    page, html, _ = (render(built(path, by="shape"), form) for form in ("md", "html", "json"))
    assert "| mm | 4096x4096, 4096x4096 | bfloat16 | 1 | 0.200000 |" in page and "gemm" in html
