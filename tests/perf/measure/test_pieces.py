"""Pieces of a pass: never timed, and in a trace only if they were asked for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strobe.bench.runner import WaitingRecorder
from strobe.core.spans import PIECES, TRACEABLE, recording, span
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.measure.timing import TimingRecorder

CPU = torch.device("cpu")


def blocks() -> Iterator[int]:
    for block in range(3):
        with span("frame_block", block), span("denoise_step", 0), span("attention"), span("kv_write"):
            torch.ones(4, 4) @ torch.ones(4, 4)
        yield block


@pytest.mark.parametrize(
    "recorder", [TimingRecorder(CPU), TimingRecorder(CPU, fine=True), WaitingRecorder(CPU)], ids=["plain", "fine", "waiting"]
)
def test_no_timer_sees_a_piece(recorder: TimingRecorder) -> None:
    recorder.start_clip()
    with recording(recorder):
        for _ in blocks():
            pass
    names = {region.name for region in recorder.finish_clip()}
    assert {"frame_block", "denoise_step"} <= names and names.isdisjoint(PIECES)


@pytest.mark.parametrize(
    ("regions", "marked"),
    [
        ((), {"frame_block", "denoise_step", "attention"}),
        (TRACEABLE, {"frame_block", "denoise_step", "attention", "kv_write"}),
        (("kv_write",), {"frame_block", "kv_write"}),
    ],
    ids=["usual", "all", "one"],
)
def test_a_trace_marks_pieces_if_asked(regions: tuple[str, ...], marked: set[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    trace_blocks(blocks(), device=CPU, first_block=1, num_blocks=1, path=path, capture=Capture(regions=regions))
    events = json.loads(gzip.decompress(path.read_bytes()).decode(errors="replace"))["traceEvents"]
    found = {event["name"].removeprefix("strobe::").partition("#")[0] for event in events if "strobe::" in event["name"]}
    assert found == marked
