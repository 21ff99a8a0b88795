"""The pages of `strobe bench attention`, from records made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from made_records import header_of, machine_of, span_of
from strobe.bench.runner import number
from strobe.core.errors import DataError
from strobe.perf.records.record import AttentionCell, Clip, Clocks, Contestant, End, Excluded, Gate, Quality, SpanCost, Variant
from strobe.perf.records.store import RunWriter
from strobe.perf.report.attention_bench import bench_report, read_cells, shown_tables
from strobe.perf.report.blocks.grid import answer, judge_methods
from strobe.perf.report.blocks.settings import remarks
from strobe.perf.report.write import render_markdown
from strobe.perf.table.model import Figure, Missing, Plane, Report, Table, cell_text

MS = 1_000_000
TOKENS = 1000


class CellWriter:
    """Records of one cell: contestants with times in ms, by round."""

    def __init__(
        self, root: Path, cell: AttentionCell, contestants: Iterable[str], *, serialised: bool = False, attempt: str = ""
    ) -> None:
        name = f"{cell.shape}_{cell.budget}_b{cell.block}_{cell.direction}{attempt}"
        self.writer = RunWriter(root / "cells" / name)
        self.order = 0
        self.block = cell.block
        machine = machine_of(device="cuda:0", device_name="NVIDIA H200", gpu_count=1, launch_blocking=serialised)
        order = tuple(contestants)
        header = header_of(order, run=name, machine=machine, baseline="dense:a", palindromes=0, kind="attention")
        self.writer.append(header, cell)

    def measured(
        self,
        name: str,
        rounds: list[tuple[float, float]],
        *,
        density: float = 1.0,
        memory: float = 0.0,
        recall: float | None = None,
        sm_mhz: int | None = None,
    ) -> None:
        dense = density == 1
        whole = name.startswith(("tiled", "raster"))
        flops = 0 if name == "matmul" else 4_000_000_000
        span = "matmul" if name == "matmul" else "attention" if whole else "attention_kernel"
        cost = SpanCost(
            span=span,
            flops=2_000_000_000 if name == "matmul" else round(flops * density),
            read_bytes=0,
            write_bytes=0,
            dense_flops=None if dense else flops,
        )
        blocks = 0 if dense else round(density * 256)
        sizes = {
            "batch": 1, "tokens": TOKENS, "heads": 1, "head_dim": 64, "block": self.block, "rows": 1024,
            "blocks_per_row": blocks // 16,
            "blocks_in_all": 16, "selected_blocks": blocks, "padded_flops": round(flops * density * 1.05), "tile_t": 4,
            "tile_h": 4, "tile_w": 4, "grid_t": 10, "grid_h": 10, "grid_w": 10,
        }  # fmt: skip
        self.writer.append(
            Variant(
                name=name,
                preset="custom",
                attention_impl=name,
                sparsity=1 - density,
                costs=(cost,),
                sizes=sizes,
                dtype="bfloat16",
                contestant=None if name == "matmul" else contestant(name),
            ),
            Gate(variant=name, reference="the same selection, float32", rule="close", passed=True, detail="0.001"),
            self.number(name, "cosine similarity", 0.999, "selection", "out"),
            self.number(name, "cosine similarity", 0.9 * (recall or 1), "dense", "out"),
            self.number(name, "temporary memory", memory * 1e6),
        )
        if recall is not None:
            self.writer.append(self.number(name, "recall", recall, "dense"))
        clocks = None if sm_mhz is None else Clocks(source="nvml", samples=8, sm_mhz=sm_mhz)
        for lap, pair in enumerate(rounds):
            for value in pair:
                self.line(name, span, round(value * MS), lap, "cuda_event")
                self.line(name, "host_call", 30_000, lap, "perf_counter")
                self.clip(name, lap, clocks=clocks)

    def number(self, name: str, metric: str, value: float, against: str | None = None, tensor: str = "") -> Quality:
        return number(name, metric, value, "words", reference="words", against=against, tensor=tensor)

    def line(self, variant: str, name: str, ns: int, palindrome: int | None, clock: str, part: str = "") -> None:
        at = {"clip": self.order, "order": self.order, "palindrome": palindrome}
        self.writer.append(span_of(variant, name, ns, index=0, clock=clock, part=part, **at))

    def clip(self, variant: str, palindrome: int | None, num_spans: int = 2, clocks: Clocks | None = None) -> None:
        where = {"variant": variant, "clip": self.order, "order": self.order, "palindrome": palindrome}
        self.writer.append(Clip(**where, phase="timed", num_spans=num_spans, clocks=clocks))  # type: ignore[arg-type]
        self.order += 1

    def stages(self, variant: str, **times: int) -> None:
        for name, ns in times.items():
            self.line(variant, "stage", ns, None, "cuda_event", name.replace("_call", " call"))
        self.clip(variant, None, len(times))

    def refused(self, name: str, cause: str) -> None:
        self.writer.append(Excluded(variant=name, span="clip", clip=None, indices=(), kind="refused", cause=cause))

    def end(self) -> None:
        self.writer.append(End(status="complete", date="2026-01-01T00:00:00Z", wall_ns=1))
        self.writer.close()


def contestant(name: str) -> Contestant:
    group, _, impl = name.partition(":")
    impl, _, level = impl.partition("@")
    work = "dense" if group == "dense" else "fine" if group == "fine" else "whole"
    share = float(level) if level else None
    return Contestant(work=work, impl=impl, peer=group == "peer", raster=group == "raster", level=share)


def cell_of(budget: float | int, block: int = 64, *, shape: str = "shape", backward: bool = False) -> AttentionCell:
    """A share of the tiles skipped as a float, or a number of tiles selected."""
    sparsity, topk = (budget, None) if isinstance(budget, float) else (None, budget)
    return AttentionCell(shape=shape, sparsity=sparsity, topk=topk, block=block, backward=backward)


def run(root: Path, *, serialised: bool = False) -> Path:
    """Three forward cells and one backward: dense a 10 ms (b is slower), fine 1 ms, whole operators between."""
    for budget, block, density, fast, recall, memory in (
        (0.9, 64, 0.125, 1.0, 0.8, 30.0),
        (0.5, 64, 0.5, 4.0, 0.95, 90.0),
        (16, 256, 0.0625, 0.8, 0.6, 5.0),
    ):
        names = ("dense:b", "dense:a", "fine:x", "tiled:x", "raster:x", "raster:y", "peer:p", "matmul")
        cell = CellWriter(root, cell_of(budget, block), names, serialised=serialised)
        cell.measured("dense:b", [(12, 12)] * 3)
        cell.measured("dense:a", [(10, 10), (11, 9), (10.2, 10.2)])
        cell.measured(
            "fine:x", [(fast, fast), (fast * 1.1, fast * 0.9), (fast, fast)], density=density, recall=recall, memory=memory
        )
        cell.measured("tiled:x", [(fast * 1.1,) * 2] * 3, density=density, recall=recall, memory=memory * 1.5)
        cell.measured("raster:x", [(fast * 1.3,) * 2] * 3, density=density, recall=recall, memory=memory * 2)
        cell.measured("raster:y", [(fast * 1.2,) * 2] * 3, density=density, recall=recall, memory=memory * 3)
        cell.measured("matmul", [(2.5, 2.5)] * 3)
        cell.stages("raster:x", attention_tile=200_000, attention_kernel=1_000_000, whole_call=1_300_000)
        cell.refused("peer:p", "refused: impl 'peer:p' cannot run: p is not installed")
        cell.end()
    wrong = CellWriter(root, cell_of(0.9, backward=True), ("dense:a", "fine:x"))
    wrong.measured("dense:a", [(25, 25)] * 3)
    wrong.writer.append(Gate(variant="fine:x", reference="r", rule="close", passed=False, detail="dq 0.5"))
    wrong.end()
    return root


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
    folder = run(tmp_path, serialised=True)
    report = bench_report(folder)
    assert report.banners[0].level == "stop" and "CUDA_LAUNCH_BLOCKING" in report.banners[0].items[0]
    speed = row(tables(report)["shape, forward: speed."], "s0.9", "fine:x")
    assert isinstance(speed["speedup"], Missing) and speed["speedup"].label == "serialised"
    assert not [each for each in report.speedups if "forward" in each.candidate]
    assert not [title for title in tables(report) if title.startswith("speedup over dense")]


def test_cells_that_were_cut_short_are_told_and_earlier_attempts_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path)
    cut = CellWriter(folder, cell_of(0.7), ("dense:a", "fine:x"))
    cut.writer.close()
    earlier = CellWriter(folder, cell_of(0.9), ("dense:a",), attempt=".1")
    earlier.end()
    names = ("s0.7_b64_forward", "s0.5_b64_forward", "s0.9_b64_forward", "k16_b256_forward", "s0.9_b64_backward")
    assert [cell.name for cell in read_cells(folder)[0]] == [f"shape_{name}" for name in names]
    entry = next(cell for cell in read_cells(folder)[0] if cell.grid.budget == "s0.7").entries[0]
    assert entry.reason == "not reached: the cell was cut short"
    assert bench_report(folder).sections


def test_cells_that_cannot_be_read_are_named_and_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path)
    broken = folder / "cells" / "shape_s0.8_b64_forward"
    broken.mkdir()
    (broken / "records.jsonl").write_text("{}\n")
    cells, (unread,) = read_cells(folder)
    assert len(cells) == 4 and unread.startswith("shape_s0.8_b64_forward: ")
    assert "no header" in unread and "Some cells could not be read" in render_markdown(bench_report(folder))
    with pytest.raises(DataError, match="no cells at"):
        read_cells(tmp_path / "none")
    (tmp_path / "none" / "cells" / "a_b_b64_d").mkdir(parents=True)
    with pytest.raises(DataError, match="has records"):
        read_cells(tmp_path / "none")


def test_remarks_on_many_cells_are_one_line_and_on_one_cell_stay_as_they_are() -> None:
    """A page of one cell does not name it, and a remark may have a colon of its own."""
    found = [("a", "clock: 1380"), ("b", "clock: 1380"), ("c", "throttled"), ("", "files had changed")]
    assert remarks(found, gather=True) == ("2 cells: clock: 1380", "c: throttled", "files had changed")
    assert remarks(found, gather=False) == ("a: clock: 1380", "b: clock: 1380", "c: throttled", "files had changed")


def clocked(table: Table) -> list[list[str]]:
    """The columns of clocks and peaks as a reader sees them."""
    titles = [column.title for column in table.columns]
    places = [titles.index(head) for head in ("of peak", "of peak at its clock", "SM clock")]
    return [[cell_text(each.cells[at], table.columns[at]) for at in places] for each in table.rows]


def test_rates_are_held_against_the_peak_at_the_clock_that_ran(tmp_path: Path) -> None:
    """4 GFLOP and 5 % of padding in 0.01 ms are 420 TFLOP/s: 42 % of 989.4 at 1,830 MHz, 52 % of what 1,500 MHz allow."""
    cell = CellWriter(tmp_path, cell_of(0.5), ["dense:a", "fine:a", "fine:b"])
    cell.measured("dense:a", [(0.01, 0.01)] * 3, sm_mhz=1500)
    cell.measured("fine:a", [(0.005, 0.005)] * 3, density=0.5, sm_mhz=1800)
    cell.measured("fine:b", [(0.006, 0.006)] * 3, density=0.5)
    cell.end()
    (table,) = (table for caption, table in tables(bench_report(tmp_path)).items() if caption.endswith(": speed."))
    assert clocked(table) == [
        ["42.4 %", "51.8 %", "at 1,500 MHz"],
        ["42.4 %", "43.2 %", "at 1,800 MHz"],
        ["35.4 %", "-", "-"],
    ]


def speed_of(root: Path, **clocks: dict[str, Any]) -> Table:
    """The table of speeds of a cell whose contestants had these clocks."""
    times = {"dense:a": 0.01, "fine:a": 0.005}
    cell = CellWriter(root, cell_of(0.5), list(times)[: len(clocks)])
    for (name, ms), clock in zip(times.items(), clocks.values(), strict=False):
        cell.measured(name, [(ms, ms)] * 3, density=1.0 if name == "dense:a" else 0.5, **clock)
    cell.end()
    (table,) = (table for caption, table in tables(bench_report(root)).items() if caption.endswith(": speed."))
    return table


def test_what_is_not_known_of_clocks_is_said(tmp_path: Path) -> None:
    same = {"sm_mhz": 1872}
    table = speed_of(tmp_path / "same", dense=same, fine=same)
    assert any("sampled over whole rounds of all contestants" in note for note in table.notes)
    table = speed_of(tmp_path / "none", dense={})
    assert any(note.startswith("SM clock: not sampled, which needs NVML") for note in table.notes)
    assert "of peak" in (titles := [column.title for column in table.columns]) and "SM clock" not in titles


# --------------------------------------------------------------------------------------------------------------- referee


def texts_of(table: Table, *words: object) -> dict[str, str]:
    columns = {column.title: column for column in table.columns}
    return {title: cell_text(cell, columns[title]) for title, cell in row(table, *words).items()}  # type: ignore[arg-type]


def refereed(root: Path, *, text: int = 0) -> Path:
    """Two layers: dense 10 ms; count and sub-block at two levels; a peer's fine stage; one method on a single call alone."""
    methods = {
        "vsa:count@0.8": (5.0, 0.8, {"early": 0.004, "late": 0.012}),
        "vsa:count@0.9": (2.5, 0.5, {"early": 0.05, "late": 0.07}),
        "vsa:sub-block@0.8": (6.0, 0.85, {"early": 0.02, "late": 0.02}),
        "vsa:sub-block@0.9": (2.6, 0.6, {"early": 0.03, "late": 0.03}),
        "fine:x": (1.0, 0.9, {"early": 0.001, "late": 0.001}),
    }
    for layer in ("early", "late"):
        line = AttentionCell(
            shape="model", sparsity=None, topk=None, block=64, backward=False, layer=layer, step=0, text_tokens=text
        )
        cell = CellWriter(root, line, ("dense:a", *methods, "vsa:share@0.9"))
        cell.measured("dense:a", [(10, 10), (11, 9), (10.2, 10.2)])
        cell.writer.append(cell.number("dense:a", "relative error", 1e-6, "dense", "out"))
        cell.writer.append(cell.number("dense:a", "relative error of the worst head", 1e-6, "dense", "out"))
        for name, (ms, recall, errors) in methods.items():
            cell.measured(name, [(ms, ms)] * 3, density=0.2, recall=recall)
            cell.writer.append(cell.number(name, "relative error", errors[layer], "dense", "out"))
            cell.writer.append(cell.number(name, "relative error of the worst head", 2 * errors[layer], "dense", "out"))
        if layer == "early":
            cell.measured("vsa:share@0.9", [(0.5, 0.5)] * 3, density=0.2, recall=0.9)
        else:
            cell.writer.append(Gate(variant="vsa:share@0.9", reference="r", rule="close", passed=False, detail="out 0.5"))
        cell.end()
    return root


def plane_of(report: Report) -> Plane:
    figure = report.sections[0].blocks[0]
    assert isinstance(figure, Figure) and isinstance(figure.picture, Plane)
    return figure.picture


def test_the_answer_is_the_first_line_and_the_front_is_joined(tmp_path: Path) -> None:
    report = bench_report(refereed(tmp_path, text=4))
    table, absent = shown_tables(read_cells(tmp_path)[0])
    assert report.title == "At an error of at most 1 % VSA by count at 80 % is 2.00x as fast as dense attention"
    assert report.sections[0].lead.startswith(f"{report.title}. 2 captured calls: 2 layers, 1 steps.")
    count = texts_of(table, "VSA by count at 80 %")
    assert (count["error"], count["worst head"], count["worst layer"]) == ("0.800 %", "2.400 %", "1.200 %")
    assert (count["which"], count["weight kept"], count["median"], count["front"]) == ("late", "80.0 %", "5.000", "yes")
    assert texts_of(table, "VSA by sub-block at 80 %")["front"] == "", "count at 80 % is faster and better"
    assert texts_of(table, "fine (x)")["front"] == "selection not timed"
    assert any("4 text tokens" in note for note in table.notes)
    picture = plane_of(report)
    labels = [picture.marks[at].label for at in picture.joined]
    assert labels == ["VSA by count at 90 %", "VSA by sub-block at 90 %", "VSA by count at 80 %", "dense (a)"]
    assert [mark.hollow for mark in picture.marks].count(False) == 4
    assert "share" not in str(picture), "it was not measured on every call"
    titles = {block.caption for section in report.sections for block in section.blocks if isinstance(block, Table)}
    assert "model, forward: speed." in titles and absent.caption == "Entries without a number."


def test_the_answer_where_nothing_is_exact_enough_or_fast_enough(tmp_path: Path) -> None:
    _, judged = judge_methods(read_cells(refereed(tmp_path))[0])
    coarse = [each for each in judged if each.error > 0.02]
    words = (
        "At an error of at most 5 % VSA by sub-block at 90 % is 3.85x as fast as dense attention; at 1 % none is faster, on a CPU"
    )
    assert answer(coarse, on_gpu=False) == words
    slow = [each for each in judged if each.entry.name.startswith("dense")]
    assert answer(slow, on_gpu=True) == "No method is faster than dense attention at an error of 50 % or less"
