"""The pages of `strobe bench attention`, from records made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from made_records import header_of, machine_of, span_of
from strobe.bench.runner import number
from strobe.core.errors import DataError
from strobe.perf.records.record import AttentionCell, Clip, Clocks, Contestant, End, Gate, Quality, Record, SpanCost, Variant
from strobe.perf.records.store import RunWriter
from strobe.perf.report.bench_pages import bench_report, read_cells, shown_tables
from strobe.perf.report.blocks.grid import answer, judge_methods
from strobe.perf.report.write import render_markdown
from strobe.perf.table.model import Figure, Missing, Plane, Report, Table, cell_text

MS = 1_000_000
DENSE = [(10, 10), (11, 9), (10.2, 10.2)]


def cell_of(sparsity: float | None, *, backward: bool = False, **call: Any) -> AttentionCell:
    shape = {"shape": "shape", "topk": None, "block": 64} | call
    return AttentionCell(sparsity=sparsity, backward=backward, **shape)


def contestant(name: str) -> Contestant:
    group, _, impl = name.partition(":")
    impl, _, level = impl.partition("@")
    work = "dense" if group == "dense" else "fine" if group == "fine" else "whole"
    share = float(level) if level else None
    return Contestant(work=work, impl=impl, peer=group == "peer", raster=group == "raster", level=share)


def span_name(name: str) -> str:
    return "attention" if contestant(name).work == "whole" else "attention_kernel"


def figure(name: str, metric: str, value: float, against: str | None = None, tensor: str = "") -> Quality:
    return number(name, metric, value, "words", reference="words", against=against, tensor=tensor)


def settings(name: str, *, density: float = 1.0, recall: float = 1.0) -> list[Record]:
    """What is known of a contestant before it is timed."""
    dense, flops, blocks = density == 1, 4_000_000_000, round(density * 256)
    cost = SpanCost(
        span=span_name(name), flops=round(flops * density), read_bytes=0, write_bytes=0, dense_flops=None if dense else flops
    )
    sizes = {
        "batch": 1, "tokens": 1000, "heads": 1, "head_dim": 64, "block": 64, "rows": 1024, "blocks_per_row": blocks // 16,
        "blocks_in_all": 16, "selected_blocks": 0 if dense else blocks, "padded_flops": round(flops * density * 1.05),
        "tile_t": 4, "tile_h": 4, "tile_w": 4, "grid_t": 10, "grid_h": 10, "grid_w": 10,
    }  # fmt: skip
    variant = Variant(
        name=name, preset="custom", attention_impl=name, sparsity=1 - density, costs=(cost,), sizes=sizes, dtype="bfloat16",
        contestant=contestant(name),
    )  # fmt: skip
    return [
        variant,
        Gate(variant=name, reference="the same selection, float32", rule="close", passed=True, detail="0.001"),
        figure(name, "cosine similarity", 0.999, "selection", "out"),
        figure(name, "recall", recall, "dense"),
    ]


def timed(name: str, first: int, rounds: Sequence[tuple[float, float]], clocks: Clocks | None) -> list[Record]:
    """Calls of so many ms, two in each round."""
    found: list[Record] = []
    for order, (lap, ms) in enumerate(((lap, ms) for lap, pair in enumerate(rounds) for ms in pair), start=first):
        at: dict[str, Any] = {"clip": order, "order": order, "palindrome": lap}
        found.append(span_of(name, span_name(name), round(ms * MS), index=0, clock="cuda_event", **at))
        found.append(span_of(name, "host_call", 30_000, index=0, **at))
        found.append(Clip(variant=name, phase="timed", num_spans=2, clocks=clocks, **at))
    return found


def write(
    root: Path, cell: AttentionCell, times: Mapping[str, Sequence[tuple[float, float]]], *, more: Sequence[Record] = (),
    serialised: bool = False, attempt: str = "", end: bool = True, **contestants: dict[str, Any],
) -> Path:  # fmt: skip
    """Write a cell: times in ms by contestant and round, and `kind_impl={...}` of those whose settings or clocks are others."""
    name = f"{cell.shape}_{cell.budget}_b{cell.block}_{cell.direction}{attempt}"
    with RunWriter(root / "cells" / name) as writer:
        machine = machine_of(device="cuda:0", device_name="NVIDIA H200", gpu_count=1, launch_blocking=serialised)
        header = header_of(tuple(times), run=name, machine=machine, baseline="dense:a", palindromes=0, kind="attention")
        writer.append(header, cell)
        for place, (each, rounds) in enumerate(times.items()):
            own = {"density": 1.0 if each.startswith("dense") else 0.125, **contestants.get(each.replace(":", "_"), {})}
            mhz = own.pop("sm_mhz", None)
            clocks = None if mhz is None else Clocks(source="nvml", samples=8, sm_mhz=mhz)
            if rounds:
                writer.append(*settings(each, **own), *timed(each, 6 * place, rounds, clocks))
        writer.append(*more)
        if end:
            writer.append(End(status="complete", date="2026-01-01T00:00:00Z", wall_ns=1))
    return root


FAST = {"dense:a": DENSE, "fine:x": [(1, 1), (1.1, 0.9), (1, 1)], "raster:x": [(1.3, 1.3)] * 3}


def tables(report: Report) -> dict[str, Table]:
    blocks = [block for section in report.sections for block in section.blocks]
    return {block.caption: block for block in blocks if isinstance(block, Table)} | {
        block.title: block.table for block in blocks if isinstance(block, Figure)
    }


def row(table: Table, *words: object) -> dict[str, object]:
    """The first row whose leading cells say these words."""
    for each in table.rows:
        texts = [cell_text(cell, column) for cell, column in zip(each.cells, table.columns, strict=True)]
        if all(str(word) in texts for word in words):
            return {column.title: cell for column, cell in zip(table.columns, each.cells, strict=True)}
    raise AssertionError(f"no row with {words}")


def test_a_serialised_run_is_labelled_and_never_compared(tmp_path: Path) -> None:
    report = bench_report(write(tmp_path, cell_of(0.9), FAST, serialised=True))
    assert report.banners[0].level == "stop" and "CUDA_LAUNCH_BLOCKING" in report.banners[0].items[0]
    speed = row(tables(report)["shape, forward: speed."], "s0.9", "fine:x")
    assert isinstance(speed["speedup"], Missing) and speed["speedup"].label == "serialised"
    assert not report.speedups and not [title for title in tables(report) if title.startswith("speedup over dense")]


def test_cells_are_told_that_were_cut_short_or_cannot_be_read_and_earlier_attempts_left_out(tmp_path: Path) -> None:
    wrong = Gate(variant="fine:x", reference="r", rule="close", passed=False, detail="dq 0.5")
    write(tmp_path, cell_of(0.9, backward=True), {"dense:a": DENSE, "fine:x": ()}, more=(wrong,))
    write(tmp_path, cell_of(None, topk=16, block=256), FAST)
    for sparsity in (0.9, 0.5):
        write(tmp_path, cell_of(sparsity), FAST)
    write(tmp_path, cell_of(0.7), {"dense:a": ()}, end=False)
    write(tmp_path, cell_of(0.9), {"dense:a": ()}, attempt=".1")
    broken = tmp_path / "cells" / "shape_s0.8_b64_forward"
    broken.mkdir()
    (broken / "records.jsonl").write_text("{}\n")
    cells, (unread,) = read_cells(tmp_path, "attention")
    names = ("s0.7_b64_forward", "s0.5_b64_forward", "s0.9_b64_forward", "k16_b256_forward", "s0.9_b64_backward")
    assert [cell.name for cell in cells] == [f"shape_{name}" for name in names]
    assert cells[0].entries[0].reason == "not reached: the cell was cut short"
    assert unread.startswith("shape_s0.8_b64_forward: ") and "no header" in unread
    assert "Some cells could not be read" in render_markdown(bench_report(tmp_path))


def test_a_folder_without_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no cells at"):
        read_cells(tmp_path, "attention")
    (tmp_path / "cells" / "a_b_b64_d").mkdir(parents=True)
    with pytest.raises(DataError, match="has records"):
        read_cells(tmp_path, "attention")


@pytest.mark.parametrize(
    ("clocks", "cells", "said"),
    [
        (
            {"dense_a": {"sm_mhz": 1500}, "fine_a": {"sm_mhz": 1800}, "fine_b": {}},
            ["42.4 % | 51.8 % | at 1,500 MHz", "42.4 % | 43.2 % | at 1,800 MHz", "42.4 % | - | -"],
            "",
        ),
        (
            {"dense_a": {"sm_mhz": 1872}, "fine_a": {"sm_mhz": 1872}},
            ["42.4 % | 41.5 % | at 1,872 MHz"] * 2,
            "sampled over whole rounds of all contestants",
        ),
        ({"dense_a": {}}, ["42.4 %"], "SM clock: not sampled, which needs NVML"),
    ],
    ids=["of each", "of rounds", "not sampled"],
)
def test_rates_are_held_against_the_peak_at_the_clock_that_ran(
    clocks: dict[str, Any], cells: list[str], said: str, tmp_path: Path
) -> None:
    """4 GFLOP and 5 % of padding in 0.01 ms are 420 TFLOP/s: 42 % of 989.4 at 1,830 MHz, 52 % of what 1,500 MHz allow."""
    own = {name: {"density": 1.0 if name == "dense_a" else 0.5, **clock} for name, clock in clocks.items()}
    times = {name.replace("_", ":"): [(0.01 * each["density"],) * 2] * 3 for name, each in own.items()}
    table = tables(bench_report(write(tmp_path, cell_of(0.5), times, **own)))["shape, forward: speed."]
    heads = ("of peak", "of peak at its clock", "SM clock")
    shown = [[(column, cell) for column, cell in zip(table.columns, each.cells, strict=True) if column.title in heads]
             for each in table.rows]  # fmt: skip
    assert [" | ".join(cell_text(cell, column) for column, cell in each) for each in shown] == cells
    assert any(said in note for note in table.notes)


# --------------------------------------------------------------------------------------------------------------- referee


def refereed(root: Path, *, text: int = 0) -> Path:
    """Two layers: dense 10 ms; count and sub-block at two levels; a peer's fine stage; one method on a single call alone."""
    methods = {
        "vsa:count@0.8": (5.0, 0.8, {"early": 0.004, "late": 0.012}),
        "vsa:count@0.9": (2.5, 0.5, {"early": 0.05, "late": 0.07}),
        "vsa:sub-block@0.8": (6.0, 0.85, {"early": 0.02, "late": 0.02}),
        "vsa:sub-block@0.9": (2.6, 0.6, {"early": 0.03, "late": 0.03}),
        "fine:x": (1.0, 0.9, {"early": 0.001, "late": 0.001}),
        "dense:a": (10.0, 1.0, {"early": 1e-6, "late": 1e-6}),
    }
    for layer in ("early", "late"):
        times = {"dense:a": DENSE, **{name: [(ms, ms)] * 3 for name, (ms, _, _) in methods.items() if name != "dense:a"}}
        more: list[Record] = [
            figure(name, metric, factor * errors[layer], "dense", "out")
            for name, (_, _, errors) in methods.items()
            for metric, factor in (("relative error", 1), ("relative error of the worst head", 2))
        ]
        if layer == "late":
            more.append(Gate(variant="vsa:share@0.9", reference="r", rule="close", passed=False, detail="out 0.5"))
        times["vsa:share@0.9"] = [(0.5, 0.5)] * 3 if layer == "early" else ()
        own = {name.replace(":", "_"): {"recall": recall} for name, (_, recall, _) in methods.items()}
        write(root, cell_of(None, shape="model", layer=layer, step=0, text_tokens=text), times, more=more, **own)
    return root


def test_the_answer_is_the_first_line_and_the_front_is_joined(tmp_path: Path) -> None:
    report = bench_report(refereed(tmp_path, text=4))
    table, absent = shown_tables(read_cells(tmp_path, "attention")[0])
    assert report.title == "At an error of at most 1 % VSA by count at 80 % is 2.00x as fast as dense attention"
    assert report.sections[0].lead.startswith(f"{report.title}. 2 captured calls: 2 layers, 1 steps.")
    columns = {column.title: column for column in table.columns}
    texts = {name: {title: cell_text(cell, columns[title]) for title, cell in row(table, name).items()}  # type: ignore[arg-type]
             for name in ("VSA by count at 80 %", "VSA by sub-block at 80 %", "fine (x)")}  # fmt: skip
    count, beaten, fine = texts.values()
    assert (count["error"], count["worst head"], count["worst layer"]) == ("0.800 %", "2.400 %", "1.200 %")
    assert (count["which"], count["weight kept"], count["median"], count["front"]) == ("late", "80.0 %", "5.000", "yes")
    assert (beaten["front"], fine["front"]) == ("", "selection not timed")
    assert any("4 text tokens" in note for note in table.notes)
    drawn = report.sections[0].blocks[0]
    assert isinstance(drawn, Figure) and isinstance(drawn.picture, Plane)
    labels = [drawn.picture.marks[at].label for at in drawn.picture.joined]
    assert labels == ["VSA by count at 90 %", "VSA by sub-block at 90 %", "VSA by count at 80 %", "dense (a)"]
    assert [mark.hollow for mark in drawn.picture.marks].count(False) == 4
    assert "share" not in str(drawn.picture), "it was not measured on every call"
    assert "model, forward: speed." in tables(report) and absent.caption == "Entries without a number."


def test_the_answer_where_nothing_is_exact_enough_or_fast_enough(tmp_path: Path) -> None:
    _, judged = judge_methods(read_cells(refereed(tmp_path), "attention")[0])
    words = (
        "At an error of at most 5 % VSA by sub-block at 90 % is 3.85x as fast as dense attention; at 1 % none is faster, on a CPU"
    )
    assert answer([each for each in judged if each.error > 0.02], on_gpu=False) == words
    slow = [each for each in judged if each.entry.name.startswith("dense")]
    assert answer(slow, on_gpu=True) == "No method is faster than dense attention at an error of 50 % or less"
