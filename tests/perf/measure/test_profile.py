from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.core.spans import span
from strobe.perf.measure.profile import trace_blocks

CPU = torch.device("cpu")


def blocks(count: int, made: list[int]) -> Iterator[int]:
    x = torch.ones(8, 8)
    for block in range(count):
        with span("frame_block", block), span("denoise_step", 0), span("attention"):
            x = x @ x
        made.append(block)
        yield block


def test_only_the_chosen_blocks_are_traced_and_no_more_are_run(tmp_path: Path) -> None:
    made: list[int] = []
    path = tmp_path / "traces" / "turbo.json.gz"
    found = trace_blocks(blocks(9, made), device=CPU, first_block=3, num_blocks=2, path=path)
    assert made == [0, 1, 2, 3, 4]
    assert (found.path, found.size_bytes) == (path, path.stat().st_size)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    regions = [event["name"] for event in events if event.get("cat") == "user_annotation" and "strobe" in event["name"]]
    per_block = ["strobe::denoise_step#0", "strobe::attention"]
    assert sorted(regions) == sorted(["strobe::frame_block#3", "strobe::frame_block#4", *per_block, *per_block])
    assert sum(event["name"] == "aten::matmul" for event in events) == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def test_spans_are_free_again_afterwards(tmp_path: Path) -> None:
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=tmp_path / "t.json.gz")
    assert span("x") is span("y")


@pytest.mark.parametrize(("first_block", "num_blocks"), [(0, 1), (1, 0), (3, 2)])
def test_a_range_that_cannot_be_traced_is_refused(tmp_path: Path, first_block: int, num_blocks: int) -> None:
    with pytest.raises(ConfigError):
        trace_blocks(blocks(4, []), device=CPU, first_block=first_block, num_blocks=num_blocks, path=tmp_path / "t.json.gz")
    assert not list(tmp_path.iterdir())


QUIET = """
import sys
from pathlib import Path
import torch
from strobe.perf.measure.profile import trace_blocks
trace_blocks(iter([torch.ones(4) + 1 for _ in range(3)]), device=torch.device("cpu"), first_block=1, num_blocks=1, path=Path(sys.argv[1]))
"""


def test_nothing_is_written_to_the_terminal(tmp_path: Path) -> None:
    """In a process of its own: the profiler's library reads its log level at its first use, whoever makes it."""
    done = subprocess.run([sys.executable, "-c", QUIET, tmp_path / "t.json.gz"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "t.json.gz").stat().st_size > 0
