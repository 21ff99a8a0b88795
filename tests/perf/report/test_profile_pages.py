"""The pages of profiles: kernels of a step, calls of attention, operators, modules, and the breakdown of a traced run."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_records import header_of, machine_of, span_of
from made_traces import trace_of
from passes import LAYER, LAYERS, STEP_NS, STEPS, Recorder, stream
from reports import by_title, column, section, tables
from strobe.core.costs import Cost, device_peaks
from strobe.perf.analysis.runs.breakdown import REGIONS, REST, KernelProfile, Operation, Whole, breakdown
from strobe.perf.analysis.runs.timeline import passes_of
from strobe.perf.measure.stats import outliers
from strobe.perf.records import record as rec
from strobe.perf.records.record import Clocks, SpanCost
from strobe.perf.records.store import RunWriter
from strobe.perf.report.blocks.breakdown import Roofs, breakdown_blocks, gains_table, layers_table, stages_table
from strobe.perf.report.build import build_report
from strobe.perf.report.profile_pages import ProfileFacts, attribution_report, kernel_report
from strobe.perf.report.write import render_markdown
from strobe.perf.table.model import Cell, Missing, Notes, Number, Ratio, Report, Share, Table, Text, Time
from strobe.perf.trace.events import HostEvent, MemoryTrack, Trace

MS = 1_000_000


def operation(name: str, kind: str, inside: str, calls: int, *times_ns: int, **more: Any) -> Operation:
    return Operation(name=name, what="what it is", kind=kind, inside=inside, calls=calls, times_ns=times_ns, **more)


def profile(kernel_flops: int = 10**11, samples: int = 3) -> KernelProfile:
    kernel = Cost(flops=kernel_flops, read_bytes=10**8)
    operations = (
        operation("norm_modulate", "norms, modulation, RoPE", "attention", 8, MS // 10, cost=Cost(read_bytes=10**7)),
        operation("qkv_projection", "attention projections", "attention", 8, MS // 2),
        operation("kv_write", "key-value cache", "attention", 8, MS // 4, waits=True),
        operation("attention_kernel", "attention kernels", "attention", 8, *[MS] * samples, cost=kernel),
        operation("cross_attention_kernel", "attention kernels", "cross_attention", 8, MS // 8),
        operation("ffn_up", "feed-forward", "ffn", 8, 2 * MS),
        operation("head", "embedding, head, schedule", REST, 1, MS),
    )
    return KernelProfile(
        step=Whole(name="denoise_step", times_ns=(40 * MS, 42 * MS), operations=operations),
        fine_ns=(44 * MS,),
        regions_ns={"attention": (20 * MS,), "cross_attention": (2 * MS,), "ffn": (18 * MS,)},
        decode=Whole(name="vae_decode", times_ns=(30 * MS,), operations=(operation("vae_enter", "decoder", "", 3, MS),)),
        stages_ns={"frame_block": (250 * MS,), "commit": (35 * MS,), "vae_decode": (30 * MS,), "recache": (90 * MS, 91 * MS)},
        reference=(operation("kv_window_concat", "key-value cache", "", 0, MS // 5),),
    )


def described(device_name: str = "a CPU", load: float = 0.1, **more: Any) -> ProfileFacts:
    device = "cpu" if device_name == "a CPU" else "cuda:0"
    machine = machine_of(device=device, device_name=device_name, clocks=Clocks(source="none", load=load))
    given = {"dtype": "bfloat16", "cold": False, "compiled": False, "overlapped": False} | more
    return ProfileFacts(facts=(("Preset", "balanced"),), machine=machine, **given)


def table(report: Report, id: str, number: int = 0) -> Table:
    return tables(section(report, id))[number]


def test_an_outlier_is_kept_and_its_effect_said() -> None:
    """Eleven steps of 40 ms and one of 400: the mean is 70 ms, without it 40. Three samples have no quartiles."""
    base = profile()
    found = replace(base, step=replace(base.step, times_ns=(*[40 * MS] * 11, 400 * MS)), reference=())
    notes = " ".join(table(kernel_report(found, described()), "budget").notes)
    assert "1 of 12 steps lie outside Tukey's fences and are kept; without them the mean would change by -43 %" in notes
    assert outliers([1, 2, 3, 3, 4, 6], "") == outliers([1, 1, 100], "") == (), "fences 0 and 6"


def test_the_printed_budget_adds_up_to_the_measured_step() -> None:
    found = table(kernel_report(profile(), described()), "budget")
    *parts, total = [cell.ns for cell in column(found, "per step")]
    assert total == 41 * MS and sum(parts) == pytest.approx(total)
    assert [cell.text for cell in column(found, "component")] == [
        "norms, modulation, RoPE", "attention projections", "key-value cache", "attention kernels", "feed-forward",
        "embedding, head, schedule", "difference: as it runs - sum of the parts", "one denoise step",
    ]  # fmt: skip
    assert parts[3] == 9 * MS and parts[-1] == pytest.approx((41 - 0.8 - 4 - 2 - 9 - 16 - 1) * MS)
    *shares, whole = [cell.value for cell in column(found, "share of step")]
    assert sum(shares) == pytest.approx(1) and whole == 1
    assert [cell.text for cell in column(found, "measured")] == ["by itself"] * 6 + ["subtracted", "as it runs, mean of 2"]
    assert found.rows[-1].strong


def test_the_regions_add_up_too_and_say_what_timers_cost() -> None:
    found = table(kernel_report(profile(), described()), "regions")
    *parts, total = [cell.ns for cell in column(found, "as it runs")]
    assert parts == [20 * MS, 2 * MS, 18 * MS, 4 * MS, -3 * MS] and total == sum(parts) == 41 * MS
    names = [cell.text for cell in column(found, "region of the step")]
    assert names == [*REGIONS, REST, "plain steps - steps with timers (observer effect, noise)", "denoise_step"]
    assert isinstance(column(found, "difference")[4], Missing)


def test_every_operation_says_how_often_it_was_called_and_a_p99_needs_459() -> None:
    few = table(kernel_report(profile(), described()), "details-attention")
    many = table(kernel_report(profile(samples=459), described()), "details-attention")
    names = [cell.text for cell in column(few, "operation")]
    assert names == ["qkv_projection", "attention_kernel", "cross_attention_kernel"]
    assert [cell.note for cell in column(few, "slow end")] == ["max of 1", "max of 3", "max of 1"]
    assert [cell.note for cell in column(many, "slow end")] == ["max of 1", "p99 of 459", "max of 1"]
    assert column(few, "per step")[1] == Time(8.0 * MS) and column(few, "share of step")[1] == Share(8 / 41)
    assert "by itself" in few.caption


def test_what_is_known_of_a_device_is_held_against_it() -> None:
    found = table(kernel_report(profile(), described()), "details-attention")
    assert "of peak" not in [column.title for column in found.columns]
    assert any("No published peaks are known for a CPU" in note for note in found.notes)
    report = kernel_report(profile(), described("NVIDIA H100 80GB HBM3", cold=True))
    found, cache = table(report, "details-attention"), table(report, "details-cache")
    without, share, *_ = column(found, "of peak")
    assert isinstance(share, Share) and share.value == pytest.approx(1e11 / 1e-3 / 989.4e12) and isinstance(without, Missing)
    assert any("caches overwritten before each call" in note for note in found.notes)
    assert any("Launch gaps lie in the times of kv_write" in note for note in cache.notes)
    assert report.banners == ()
    (banner,) = kernel_report(profile(kernel_flops=10**13), described("NVIDIA H100 80GB HBM3")).banners
    assert banner.level == "stop" and banner.items[0].startswith("attention_kernel: 1e+04 TFLOP/s is above the bfloat16 peak")


def test_what_is_no_part_of_a_step_is_apart() -> None:
    found = table(kernel_report(profile(), described()), "details-cache", 1)
    assert [cell.text for cell in column(found, "operation")] == ["kv_window_concat"]
    assert "share of step" not in [column.title for column in found.columns] and "no part of a denoise step" in found.caption


def test_the_decoder_is_held_against_what_it_takes() -> None:
    report = kernel_report(profile(), described(overlapped=True))
    parts, account = table(report, "decoder", 0), table(report, "decoder", 1)
    assert column(parts, "per decode") == [Time(3.0 * MS)] and column(parts, "share of decode") == [Share(0.1)]
    assert [cell.ns for cell in column(account, "per decode")] == [3 * MS, 27 * MS, 30 * MS]
    assert any("beside the commit pass" in note for note in account.notes)


def test_what_makes_times_doubtful_is_told() -> None:
    report = kernel_report(profile(), described(load=9.5, compiled=True))
    assert "load 9.5 on 2 cores" in report.banners[0].items[0]
    assert any("fusion: the stream ran compiled" in note for note in table(report, "budget").notes)
    clocks = {"source": "nvml", "sm_mhz_max": 1980, "samples": 9}
    varied = Clocks(sm_mhz_min=1700, throttle=("sw_power_cap",), **clocks)
    (banner,) = kernel_report(profile(), described(clocks=varied)).banners
    assert banner.items == (
        "SM clock varied by more than 2 % while it was measured: 1700 to 1980 MHz", "the GPU was throttled: sw_power_cap"
    )  # fmt: skip
    assert kernel_report(profile(), described(clocks=Clocks(sm_mhz_min=1950, **clocks))).banners == ()


TIMES = {"sdpa": (1_000_000, 1_100_000), "sparse:x": (400_000, 500_000)}
"""Nanoseconds of the kernel and of the section in lap 0; a lap later everything takes 1 % longer."""


def page(tmp_path: Path, device_name: str = "NVIDIA H200", sparse_flops: int = 10**11) -> Report:
    folder = tmp_path / "run"
    flops = {"sdpa": (5 * 10**11, None), "sparse:x": (sparse_flops, 5 * 10**11)}
    with RunWriter(folder) as writer:
        machine = machine_of(device="cuda:0", device_name=device_name, gpu_count=1)
        writer.append(header_of(("sdpa", "sparse:x", "sparse:x", "sdpa"), run=folder.name, machine=machine))
        for name, (own, dense) in flops.items():
            cost = rec.SpanCost(span="attention_kernel", flops=own, read_bytes=10**8, write_bytes=10**7, dense_flops=dense)
            gate = rec.Gate(variant=name, reference="reference, float64", rule="r", passed=True, detail="1e-3")
            sparsity = 0.0 if dense is None else 0.8
            settings = rec.Variant(
                name=name, preset="custom", attention_impl=name, sparsity=sparsity, dtype="bfloat16", costs=(cost,),
                sizes={"q_tokens": 4680}, calls_per_stage={"attention_kernel": 2, "attention": 2},
            )  # fmt: skip
            writer.append(gate, settings)
        laps(writer)
        writer.append(rec.End(status="complete", date="2026-11-01T09:31:00Z", wall_ns=1))
    return build_report([folder])


def laps(writer: RunWriter) -> None:
    counts, order = {"sdpa": 0, "sparse:x": 0}, 0
    for lap in range(3):
        for name in ("sdpa", "sparse:x", "sparse:x", "sdpa"):
            common: dict[str, Any] = {"variant": name, "clip": counts[name], "order": order, "palindrome": lap}
            for what, base in zip(("attention_kernel", "attention"), TIMES[name], strict=True):
                for index in range(2):
                    value = base * (100 + lap) // 100 + index
                    writer.append(span_of(name=what, value_ns=value, index=index, **common | {"clock": "cuda_event"}))
            writer.append(rec.Clip(**common, phase="timed", num_spans=4))
            counts[name] += 1
            order += 1


def rows(report: Report, id: str, number: int = 0) -> tuple[Table, list[dict[str, Any]]]:
    table = tables(section(report, id))[number]
    return table, by_title(table)


def test_times_of_single_calls(tmp_path: Path) -> None:
    table, found = rows(page(tmp_path), "times", 1)
    kinds = [(name, what) for name in TIMES for what in ("kernel", "section")]
    assert [(row["implementation"].text, row["what"].text) for row in found] == kinds
    kernel = [400_000 * (100 + lap) // 100 + index for lap in range(3) for index in (0, 1, 0, 1)]
    row = found[2]
    assert (row["calls"].value, row["min"].ns, row["mean"].ns) == (12, min(kernel), statistics.fmean(kernel))
    assert (row["slow end"].ns, row["slow end"].note) == (max(kernel), "max of 12")
    for said in ("CUDA events", "dense attention has nothing but"):
        assert any(said in note for note in table.notes)


def test_speedups_compare_like_with_like(tmp_path: Path) -> None:
    report = page(tmp_path)
    found = {each.level: each for each in report.speedups}
    assert [found[level].ratio.value for level in ("kernel", "section")] == pytest.approx([2.5, 2.2], rel=1e-5)
    assert found["kernel"].ratio.low is not None and found["kernel"].saved_ns == pytest.approx(606_000, rel=1e-3)
    assert {(each.candidate, each.reference) for each in report.speedups} == {("sparse:x", "sdpa")}
    _, table = rows(report, "speedups")
    assert [(row["what"].text, row["verdict"].text, row["pairs"].value) for row in table] == [
        ("kernel", "faster", 3), ("section", "faster", 3)
    ]  # fmt: skip


def test_the_roofline_of_sparse_attention_counts_what_is_computed(tmp_path: Path) -> None:
    _, (dense, sparse) = rows(page(tmp_path), "roofline")
    assert isinstance(dense["effective TFLOP/s"], Missing)
    mean = sparse["mean"].ns
    assert sparse["TFLOP/s"].value == pytest.approx(1e11 / mean * 1e9 / 1e12)
    assert isinstance(sparse["of peak"], Share) and sparse["of peak"].value == pytest.approx(1e11 / mean * 1e9 / 989.5e12)
    assert sparse["effective TFLOP/s"].value == pytest.approx(5 * sparse["TFLOP/s"].value)
    assert sparse["sparsity"] == Share(0.8)


def test_a_rate_above_the_peak_is_flagged_and_an_unknown_device_has_no_shares(tmp_path: Path) -> None:
    table, _ = rows(page(tmp_path / "fast", sparse_flops=5 * 10**11), "roofline")
    assert any(note.startswith("ANOMALY, sparse:x") for note in table.notes)
    table, (_, sparse) = rows(page(tmp_path, "a GPU of tomorrow"), "roofline")
    assert "of peak" not in sparse and sparse["effective TFLOP/s"].value > 0
    assert any("No published peaks are known for a GPU of tomorrow" in note for note in table.notes)


def trace(ops: int = 3, modules: bool = True, memory: bool = True) -> Trace:
    rows = [HostEvent(f"aten::op{number}", 100 * number, 100 * number + 10 * (number + 1), 0) for number in range(ops)]
    calls = [HostEvent("Linear_0", 0, 90, 0)] if modules else []
    track = MemoryTrack(device="cpu", step_ns=10, start_ns=(0, 10), allocated_bytes=(2**20, 5 * 2**20), reserved_bytes=(0, 0))
    return trace_of(ops=rows, modules=calls, memory=(track,) if memory else ())


def test_the_page_says_that_it_is_no_measurement_and_shows_what_was_recorded() -> None:
    report = attribution_report([("balanced", trace())], ("with_stack",), top=2)
    (banner,) = report.banners
    assert "with_stack" in banner.items[0] and "no measurement" in banner.items[0]
    operators, modules, memory = report.sections[0].blocks
    assert operators.caption == "Operators by self_host: 2 of 3."  # no device events: the host's own time
    assert [row.cells[0].text for row in operators.rows] == ["aten::op2", "aten::op1"]
    assert [cell.ns for cell in operators.rows[0].cells[2:]] == [0, 30, 30]
    assert [row.cells[0].text for row in modules.rows] == ["Linear_0"]
    assert (memory.rows[0].cells[1].value, memory.rows[0].cells[1].unit) == (5.0, "MiB")
    assert "aten::op2" in render_markdown(report)
    report = attribution_report([("a", trace(modules=False, memory=False))], ("record_shapes",), top=9)
    assert len(report.sections[0].blocks) == 1


H200 = device_peaks("NVIDIA H200")
COST = SpanCost(span="attention_kernel", flops=80_000_000, read_bytes=100_000, write_bytes=20_000)
ROOFS = Roofs(costs={COST.span: COST}, peaks=H200, device_name="NVIDIA H200", dtype="bfloat16")


def cells(table: Table) -> dict[str, dict[str, Cell]]:
    """Cells by the words of the first column and the title of theirs."""
    return {row.cells[0].text: cells for row, cells in zip(table.rows, by_title(table), strict=True)}


@pytest.fixture(scope="module")
def traced() -> Trace:
    return stream(Recorder(pause=500), blocks=2)


def test_the_first_layer_takes_twice_as_long() -> None:
    """The host is fast, so that no gap lies between the kernels: the first of all waits alone."""
    found = breakdown(stream(Recorder(pause=0, delay=0, scale=10), blocks=2))
    table = cells(layers_table("mine", found, ROOFS))
    row = table["attention / attention_kernel"]
    assert row["first / later"] == Ratio(2.0)
    assert (row["first layer"], row["later layers"]) == (Time(2000.0), Time(1000.0))
    assert (row["calls in a layer"].value, row["kernels"].value) == (1, 1)  # type: ignore[union-attr]
    rate = COST.flops / (1000 * (LAYERS + 1) / LAYERS * 1e-9)
    assert isinstance(row["TFLOP/s"], Number) and row["TFLOP/s"].value == pytest.approx(rate / 1e12)
    assert isinstance(row["of peak"], Share) and row["of peak"].value == pytest.approx(rate / 989.5e12)
    assert isinstance(table["ffn / ffn_up"]["TFLOP/s"], Missing)
    assert table["a layer"]["first / later"] == Ratio(2.0)
    assert table["a layer"]["kernels"].value == len(LAYER)  # type: ignore[union-attr]


def test_a_rate_above_the_peak_is_flagged(traced: Trace) -> None:
    fast = Roofs(
        costs={COST.span: SpanCost(span=COST.span, flops=10**12, read_bytes=0, write_bytes=0)}, peaks=H200, dtype="bfloat16"
    )
    notes = [
        line for block in breakdown_blocks("mine", breakdown(traced), fast) if isinstance(block, Notes) for line in block.items
    ]
    assert [line.partition(":")[0] for line in notes] == ["ANOMALY, mine, attention_kernel"]


def test_stages(traced: Trace) -> None:
    found = breakdown(traced)
    table = cells(stages_table("mine", found, Roofs()))
    assert table["denoise_step"]["calls in a frame block"].value == STEPS  # type: ignore[union-attr]
    assert table["commit"]["busy"] == Time(float(STEP_NS))
    assert table["frame block"]["one call"] == Time(found.total_ns / 2)


def test_gains_piece_by_piece(traced: Trace) -> None:
    """The candidate's kernels take half the time; the commit pass counts in what is saved."""
    slow, fast = breakdown(stream(Recorder(scale=2), blocks=2)), breakdown(stream(Recorder(scale=1), blocks=2))
    table = cells(gains_table(("native", "fp8"), slow, fast))
    row = table["ffn / ffn_up"]
    assert row["speedup of a call"] == Ratio(2.0)
    assert row["fp8"] == Time(70 * (LAYERS + 1) / LAYERS) and row["calls in a frame block"] == Text(str((STEPS + 1) * LAYERS))
    saved = [side.of(None, ("ffn", "ffn_up"), deep=True).total_ns / 2 for side in (slow, fast)]
    assert row["saved in a frame block"] == Time(saved[0] - saved[1])
    assert table["frame block"]["saved in a frame block"] == Time((slow.total_ns - fast.total_ns) / 2)


def test_graphs_are_told() -> None:
    found = breakdown(stream(Recorder(), graphs=True), passes_of(stream(Recorder())))
    (notes,) = [block for block in breakdown_blocks("mine", found) if isinstance(block, Notes)]
    kernels = (STEPS + 1) * LAYERS * len(LAYER)
    assert f"{STEPS + 1} of {STEPS + 1} were taken apart, {kernels} of {kernels} kernels matched" in notes.items[0]
