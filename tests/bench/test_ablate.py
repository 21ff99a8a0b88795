"""Grids of settings and the log of recorded runs: factors, cells, the rule that keeps or drops, and the pages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from made_records import header_of, machine_of, span_of, workload_of
from strobe.bench.case import ComparePlan
from strobe.bench.cases import ablate
from strobe.bench.cases.ablate import AblationCell, Setup, changed, leave_one_out, parse_factors, run_cells, value_of
from strobe.bench.cases.stream import Script
from strobe.bench.cells import CellsOutcome
from strobe.core.errors import ConfigError, DataError
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.perf.records.record import Clip, End, Gate, Header, Knob, Quality, Record, Variant
from strobe.perf.records.store import RunWriter, read_run
from strobe.perf.report.blocks.grid import front
from strobe.perf.report.log_page import decide, log_report, read_entries, run_folders, vary_report
from strobe.perf.report.write import render_markdown
from terminal import quiet

BASE = Setup(config=preset("balanced"))
CPU = torch.device("cpu")


def varied(model: Model, *factors: str, grid: bool = False) -> list[AblationCell]:
    return [*ablate.varied(BASE, parse_factors(factors), model.defaults, CPU, grid=grid)]


def run_all(cells: Iterable[AblationCell], model: Model, folder: Path, rounds: int = 1, traced: int = 0) -> CellsOutcome:
    script = Script(prompt="red circle", switches=(Switch(frame_block=4, prompt="blue square"),), num_blocks=7)
    amount = ComparePlan(palindromes=rounds, traced_blocks=traced)
    given = {"script": script, "model": model, "device": "cpu", "amount": amount}
    return run_cells([*cells], BASE, folder, quiet, **given)  # type: ignore[arg-type]


def test_steps_are_those_of_the_presets(tiny: Model) -> None:
    found = {count: changed(BASE, {"steps": count}, tiny.defaults).config.timesteps for count in "1234"}
    assert found == {"1": (1000,), "2": (1000, 250), "3": (1000, 500, 250), "4": (1000, 750, 500, 250)}


def test_the_value_of_the_base_is_no_cell(tiny: Model) -> None:
    found = varied(tiny, "window=6,12", "batch=1,2")
    assert [cell.planned.name for cell in found] == ["window-6", "batch-2"]
    assert [cell.planned.kind for cell in found] == ["setting", "workload"]
    window, batch = found
    assert window.candidate is not None and value_of(window.candidate, "window", tiny.defaults) == "6"
    assert (batch.candidate, batch.base.batch) == (None, 2)


def test_a_product_that_cannot_be_is_a_cell_with_the_reason(tiny: Model) -> None:
    found = varied(tiny, "window=12,3", "sink=3,0", grid=True)
    names = {cell.planned.name: cell.planned.refused for cell in found}
    assert list(names) == ["sink-0", "window-3", "window-3+sink-0"]
    assert "smallest window" in names["window-3"]
    assert not names["window-3+sink-0"]
    with pytest.raises(ConfigError, match="whole number"):
        varied(tiny, "window=6,x", "sink=0,1", grid=True)


def test_each_optimisation_in_effect_is_left_out_once_or_says_what_needs_it(tiny: Model) -> None:
    found = list(leave_one_out(BASE, tiny.defaults, CPU))
    off = [cell.planned.factor for cell in found]
    assert {"ring_cache", "rope_table", "modulation_table", "text_once", "block_decode", "commit_kv_only", "fused_qkv"} <= {*off}
    assert len({*off}) == len(off) and not {"compile", "merge_lora"} & {*off}
    for cell in found:
        assert cell.candidate is not None
        assert value_of(cell.candidate, cell.planned.factor, tiny.defaults) == "off"
    sparse = {cell.planned.factor: cell for cell in leave_one_out(Setup(config=preset("sparse")), tiny.defaults, CPU)}
    assert "needs knob ring_cache" in sparse["ring_cache"].planned.refused
    assert not sparse["rope_table"].planned.refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Model) -> Path:
    """Cells, one of which cannot be."""
    root = tmp_path_factory.mktemp("ablation")
    some, refused = varied(tiny, "window=6", "batch=2"), varied(tiny, "window=3", "sink=3", grid=True)
    outcome = run_all([*some, *refused], tiny, root)
    assert outcome.measured == ("window-6", "batch-2")
    assert [line.partition(":")[0] for line in outcome.failed] == ["window-3"]
    left_out = next(leave_one_out(BASE, tiny.defaults, CPU))
    assert run_all([left_out], tiny, root, traced=1).measured == ("without-ring_cache",)
    return root


def test_a_cell_records_what_it_changed(folder: Path) -> None:
    window, batch = (read_run(folder / "cells" / name) for name in ("window-6", "batch-2"))
    assert (window.variant("balanced").window, window.variant("window-6").window) == (12, 6)
    assert all(each.cold_start_ns is not None and each.text_encoder_bytes for each in window.variants)
    assert batch.header.workload is not None and batch.header.workload.batch == 2
    assert batch.header.order == ("balanced",) and not batch.variant("balanced").costs


def test_what_is_finished_is_not_measured_again(folder: Path, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablate, "run_case", lambda *args, **more: pytest.fail("measured again"))
    cells = varied(tiny, "window=6")
    assert run_all(cells, tiny, folder).kept == ("window-6",)
    with pytest.raises(ConfigError, match="that differ in rounds"):
        run_all(cells, tiny, folder, rounds=3)


def test_the_page_has_every_part(folder: Path) -> None:
    page = render_markdown(vary_report(folder))
    for words in ("window: 6 instead of 12", "When the prompt switches", "Speed and quality"):
        assert words in page
    assert "smallest window" in page  # the cell that could not be
    assert "compile is asked for and does nothing here" in page
    table = page.split("**Lines that moved.**")[1].strip().split("\n\n")[0]  # cautions on a noisy machine name it too
    (row,) = (line for line in table.splitlines() if "ring\\_cache-off" in line)
    assert row.count("|") == 7 and "not measured" not in row, row  # what moved, if anything, is up to the machine


def test_a_failing_cell_is_an_entry_and_the_next_one_runs(tmp_path: Path, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Session.stream

    def failing(self: Session, *args: object, **more: object) -> object:
        if self.config.policy.window == 9:
            raise RuntimeError("capture is not allowed")
        return stream(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "stream", failing)
    outcome = run_all(varied(tiny, "window=9,6"), tiny, tmp_path)
    assert outcome.measured == ("window-6",)
    (line,) = outcome.failed
    assert line == "window-9: window-9: RuntimeError: capture is not allowed"  # cell, then side
    run = read_run(tmp_path / "cells" / "window-9")
    assert run.end is not None and run.end.status == "failed"
    assert run.variant("window-9").window == 9  # what it would have run
    page = render_markdown(vary_report(tmp_path))
    assert "capture is not allowed" in page


def test_the_front() -> None:
    inf = float("inf")
    points = {"base": (1.0, inf), "slower and worse": (0.9, 30.0), "the same again": (1.0, inf), "good": (1.8, 50.0)}
    points |= {"beaten": (1.7, 40.0), "fastest": (2.0, 15.0)}
    assert front([*points], points.__getitem__) == ("fastest", "good", "base")


BLOCKS = 8
MS = 1_000_000
WORK = workload_of(BLOCKS, 5)


def header(run: str, order: tuple[str, ...], device: str = "cpu") -> Header:
    date = f"2026-01-01T00:00:{len(run):02}Z"
    return header_of(order, run=run, date=date, machine=machine_of(device=device, cores=64), palindromes=2, workload=WORK)


def clip(name: str, number: int, order: int, lap: int | None, block_ms: float, peak: int) -> list[Record]:
    """A clip whose frame blocks all take as long, a switch twice that, three quarters of it in the transformer."""
    spans: list[Record] = []
    common: dict[str, Any] = {"clip": number, "order": order, "palindrome": lap, "warmup": lap is None}
    start = 0
    for index in range(BLOCKS):
        length = round(block_ms * MS * (2 if index == 5 else 1))
        for what, share in (("denoise_step", 0.5), ("commit", 0.25)):
            spans.append(span_of(name, what, round(length * share), index=0, start_ns=start, parent=index, **common))
        spans.append(span_of(name, "frame_block", length, index=index, start_ns=start, **common))
        start += length
    whole = span_of(name, "e2e", start, **common)
    end = Clip(variant=name, clip=number, order=order, palindrome=lap, phase="timed", num_spans=len(spans) + 1, peak_bytes=peak)
    return [*spans, whole, end]


def write(
    folder: Path, candidate: str, times: tuple[float, float], *, exact: bool = False, psnr: float | None = None,
    note: str = "", gpu_peaks: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """A run of `base` and a candidate with frame blocks of so many milliseconds; on a GPU if its peaks are given."""
    device, peaks = ("cpu", (1 << 30, 1 << 30)) if gpu_peaks is None else ("cuda:0", gpu_peaks)
    rule = "same latents" if exact else "finite latents, with no relative error asked for"  # what it says decides nothing
    names = ("base", candidate)
    with RunWriter(folder) as writer:
        writer.append(header(folder.name, names, device))
        writer.append(Gate(variant=candidate, reference="base", rule=rule, passed=True, detail="", exact=exact))
        for number, name in enumerate(names):
            writer.append(
                Variant(name=name, preset=name, window=12 - 6 * number, steps=4, cold_start_ns=0,
                        knobs=(Knob(name="ring_cache", value="on", on=True),), text_encoder_bytes=1 << 29,
                        text_encoder_on_device=device == "cpu")
            )  # fmt: skip
        order = 0
        for lap in range(2):
            for place, number in enumerate((0, 1, 1, 0)):
                drift = 1 + 0.001 * lap  # or every interval would have no width
                which = 2 * lap + (place > 1)
                writer.append(*clip(names[number], which, order, lap, times[number] * (drift if number else 1), peaks[number]))
                order += 1
        for name, value in (("base", None), (candidate, psnr)):
            writer.append(
                Quality(variant=name, metric="psnr", value=value, unit="dB", reference="quality, float32, cpu", definition="d",
                        n=0 if note else 1, better="higher", note=note)
            )  # fmt: skip
        writer.append(End(status="complete", date="2026-01-01T00:01:00Z", wall_ns=1))


def decisions(root: Path) -> dict[str, tuple[str, str]]:
    entries = read_entries(run_folders([root]))
    return {entry.name: decide(entry, entries) for entry in entries}


def test_the_rule(tmp_path: Path) -> None:
    write(tmp_path / "exact", "exact", (100, 80), exact=True, psnr=110.0)
    write(tmp_path / "lossy", "lossy", (100, 50), psnr=25.0)
    write(tmp_path / "beaten", "beaten", (100, 60), psnr=24.0)
    write(tmp_path / "slower", "slower", (100, 120), psnr=30.0)
    write(tmp_path / "same", "same", (100, 100.2), exact=True, psnr=110.0)
    write(tmp_path / "unknown", "unknown", (100, 40), note="random weights")
    found = decisions(tmp_path)
    assert {name: word for name, (word, _) in found.items()} == {
        "base": "Reference", "exact": "Keep", "lossy": "Keep", "beaten": "Drop", "slower": "Drop", "same": "Drop",
        "unknown": "Open",
    }  # fmt: skip
    assert "lossy is at least as fast" in found["beaten"][1]
    assert "random weights" in found["unknown"][1]
    assert "slower than its reference" in found["slower"][1]


def test_on_a_gpu_memory_alone_keeps_an_entry(tmp_path: Path) -> None:
    write(tmp_path / "light", "light", (100, 120), psnr=30.0, gpu_peaks=(1000, 900))
    write(tmp_path / "heavy", "heavy", (100, 120), psnr=30.0, gpu_peaks=(1000, 990))
    write(tmp_path / "unknown", "unknown", (100, 120), note="random weights", gpu_peaks=(1000, 900))
    found = decisions(tmp_path)
    assert (
        found["unknown"][0] == "Open" and "memory 10 % below" in found["unknown"][1] and "random weights" in found["unknown"][1]
    )
    assert found["light"] == ("Keep", "for memory, 10 % below its reference; slower than its reference")
    assert found["heavy"][0] == "Drop"


def test_the_page(tmp_path: Path) -> None:
    write(tmp_path / "a" / "run", "fast", (100, 50), psnr=25.0)
    write(tmp_path / "b" / "again", "slow", (100, 120), psnr=30.0)
    page = render_markdown(log_report(run_folders([tmp_path]), tmp_path))
    assert "measured in 2 runs" in page  # one entry of the base, not two
    assert "window: 6 instead of 12" in page
    assert "quality, float32, cpu" in page and "25.00" in page
    assert "0.500 GiB" in page  # 1 GiB as measured, less the text encoder
    assert "p99 needs 459 samples" in page
    assert page == render_markdown(log_report(run_folders([tmp_path]), tmp_path))


def test_a_run_that_failed_is_an_entry(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header("run", ("base", "graphs")), Variant(name="graphs", preset="custom", window=12))
        writer.append(End(status="failed", date="2026-01-01T00:01:00Z", wall_ns=1, message="graphs: RuntimeError: no capture"))
    entries = read_entries(run_folders([tmp_path]))
    failed = next(entry for entry in entries if entry.name == "graphs")
    assert decide(failed, entries) == ("Drop", "graphs: RuntimeError: no capture")
    page = render_markdown(log_report(run_folders([tmp_path]), tmp_path))
    assert "no capture" in page


def test_what_was_measured_again_counts_once_and_what_is_no_stream_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "run", "fast", (100, 50))
    write(tmp_path / "run.1", "fast", (100, 50))
    assert run_folders([tmp_path]) == (tmp_path / "run",)
    with pytest.raises(DataError, match="no ablation at"):
        vary_report(tmp_path)
    with pytest.raises(DataError, match="nothing was measured"):
        run_folders([tmp_path / "absent"])
    with RunWriter(tmp_path / "other" / "run") as writer:
        writer.append(msgspec.structs.replace(header("run", ("a",)), workload=None))
    with pytest.raises(DataError, match="no stream"):
        read_entries(run_folders([tmp_path / "other"]))
