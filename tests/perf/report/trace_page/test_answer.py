"""The sentences that a trace's page and terminal begin with."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from strobe.perf.report.documents.api import read_trace
from strobe.perf.report.study import TraceOptions, load_trace_study
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.write import render_html, render_markdown
from strobe.perf.table.model import Banner, Notes
from synthetic import event, kernel, launch


def write(path: Path, lengths: list[int]) -> Path:
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


def sentences(path: Path) -> list[str]:
    report = build_trace_report(load_trace_study((path,), TraceOptions()))
    first = report.sections[0]
    assert first.id == "answer"
    return [item for block in first.blocks if isinstance(block, Notes) for item in block.items]


def test_what_the_time_is_and_why_the_device_was_idle(tmp_path: Path) -> None:
    said = sentences(write(tmp_path / "t.json", [300] * 6))
    assert said[0].startswith("device 0: busy for 82.8 % of 2.900 ms; ")  # 6 x 400 of 5 x 500 + 400
    assert said[1] == "Of the busy time: attention 75.0 %, matrix products 25.0 %."
    assert said[2] == "Most time: flash_fwd_kernel 75.0 %, sm90_gemm 25.0 %."
    assert said[3].startswith("Idle for 0.5000 ms, ") and "because the launch call had not started yet (host_late)" in said[3]


def test_the_slowest_step_is_named(tmp_path: Path) -> None:
    even, uneven = (
        sentences(write(tmp_path / f"{n}.json", lengths)) for n, lengths in enumerate(([300] * 6, [300, 300, 800, 300, 300, 300]))
    )
    assert not any("the slowest" in line for line in even)
    (line,) = (line for line in uneven if "the slowest" in line)
    assert "steps, median 0.5000 ms; the slowest, ProfilerStep#2, takes 1.000 ms, 0.1000 of it idle." in line


def test_a_trace_of_the_host_alone_has_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"traceEvents": [launch("1", "5", 1)]}))
    report = build_trace_report(load_trace_study((path,), TraceOptions()))
    assert "answer" not in {section.id for section in report.sections}


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
    report = build_trace_report(load_trace_study((write(tmp_path / "t.json", [300] * 6),), TraceOptions(details=True)))
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
