"""Entries of recorded runs, and the rule that keeps or drops them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from made_records import header_of, machine_of, span_of, workload_of
from strobe.core.errors import DataError
from strobe.perf.records.record import Clip, End, Gate, Header, Knob, Quality, Record, Variant
from strobe.perf.records.store import RunWriter
from strobe.perf.report.log_page import decide, log_report, read_entries, run_folders
from strobe.perf.report.write import render_markdown

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
    with pytest.raises(DataError, match="nothing was measured"):
        run_folders([tmp_path / "absent"])
    with RunWriter(tmp_path / "other" / "run") as writer:
        writer.append(msgspec.structs.replace(header("run", ("a",)), workload=None))
    with pytest.raises(DataError, match="no stream"):
        read_entries(run_folders([tmp_path / "other"]))
