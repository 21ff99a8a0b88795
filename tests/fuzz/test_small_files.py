"""Small files that the project writes or takes: what is too deep, no text, or cut off is refused in one line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strobe.cli.recipe import read_recipe
from strobe.core.errors import StrobeError
from strobe.engine.snapshot import read_snapshot
from strobe.models.wan.weights.checkpoint import read_json
from strobe.perf.analysis.runs.timeline import read_passes
from strobe.perf.logs.patterns import load_patterns
from strobe.perf.logs.reader import read_log
from strobe.perf.records.record import PLAN, read_plan

DEEP = b'{"a":' * 100_000
WRONG = {"deep": DEEP, "lists": b"[" * 100_000, "no-text": b'{"v": "\xff\xfe"}', "cut": b'{"v": ', "empty": b""}


def plan(path: Path) -> object:
    return read_plan(path.rename(path.parent / PLAN).parent)


def passes(path: Path) -> object:
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed)
    return read_passes(path)


def torn(path: Path) -> object:
    """A compressed file whose deflate stream is none."""
    packed = bytearray(gzip.compress(path.read_bytes() + bytes(500)))
    packed[10:20] = b"\xff" * 10
    path.write_bytes(packed)
    return read_passes(path)


def snapshot(path: Path) -> object:
    save_file({"history": torch.ones(1)}, path, {"strobe": path.read_bytes().decode("latin-1")})
    return read_snapshot(path, torch.device("cpu"))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "read",
    [
        plan,
        passes,
        torn,
        snapshot,
        read_recipe,
        read_json,
        load_patterns,
    ],
    ids=["plan", "passes", "torn", "snapshot", "recipe", "json", "patterns"],
)
def test_what_is_no_such_file_is_refused(read: Callable[[Path], Any], wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(WRONG[wrong] if read is not load_patterns else WRONG[wrong] or b"a = ")
    with pytest.raises(StrobeError) as told:
        read(path)
    assert len(str(told.value).splitlines()) <= 3 and len(str(told.value)) < 2000


def test_a_log_line_that_begins_like_a_record_and_has_no_end_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(DEEP + b"\nattention time: 3.5 ms\n")
    assert read_log(path) is not None
