"""Traced runs: which frame blocks, regions and details are in a trace; pieces of a pass are there only if they were asked for."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from forked import run
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.spans import TRACEABLE, span
from strobe.perf.measure.profile import Capture, _slim, trace_blocks, trace_clip

CPU = torch.device("cpu")


def blocks(count: int, made: list[int]) -> Iterator[int]:
    x = torch.ones(8, 8)
    for block in range(count):
        with span("frame_block", block), span("denoise_step", 0), span("attention"), span("kv_write"):
            x = x @ x
        made.append(block)
        yield block


def test_only_the_chosen_blocks_are_traced_and_no_more_are_run(tmp_path: Path) -> None:
    made: list[int] = []
    path = tmp_path / "traces" / "turbo.json.gz"
    trace_blocks(blocks(9, made), device=CPU, first_block=3, num_blocks=2, path=path)
    assert made == [0, 1, 2, 3, 4]
    regions = [name for name in names(path) if "strobe" in name]
    per_block = ["strobe::denoise_step#0", "strobe::attention"]
    assert sorted(regions) == sorted(["strobe::frame_block#3", "strobe::frame_block#4", *per_block, *per_block])
    assert names(path, "cpu_op").count("aten::matmul") == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def names(path: Path, category: str = "user_annotation") -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == category]


def test_options_that_distort_times_are_named_and_do_what_they_say(tmp_path: Path) -> None:
    capture = Capture(with_stack=True, profile_memory=True, record_shapes=True)
    assert capture.options == ("with_stack", "profile_memory", "record_shapes") and Capture().options == ()
    path = tmp_path / "t.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=path, capture=capture)
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    for option, sign in (("with_stack", "python_function"), ("memory", "[memory]"), ("shapes", "Input Dims")):
        assert sign in text, option
    plain = tmp_path / "plain.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=plain)
    assert not names(plain, "python_function")
    assert b"Input Dims" not in gzip.decompress(plain.read_bytes())


def late(count: int, made: list[int]) -> Iterator[int]:
    """A stream whose frames come one frame block late: block `n` is handed out when `n + 1` has been made."""
    for block in range(count):
        with span("frame_block", block), span("denoise_step", 0):
            torch.ones(8, 8) @ torch.ones(8, 8)
        made.append(block)
        if block:
            yield block - 1
    yield count - 1


@pytest.mark.parametrize(
    ("source", "count", "first", "num", "warmup"),
    [(blocks, 9, 4, 1, 3), (late, 9, 3, 2, 1), (late, 4, 2, 2, 1)],
    ids=["after a long warm-up", "frames come late", "late, up to the last block"],
)
def test_the_trace_holds_the_blocks_that_were_made_in_it(
    tmp_path: Path, source: Callable[[int, list[int]], Iterator[int]], count: int, first: int, num: int, warmup: int
) -> None:
    made, path, capture = list[int](), tmp_path / "t.json.gz", Capture(warmup=warmup)
    trace_blocks(source(count, made), device=CPU, first_block=first, num_blocks=num, path=path, capture=capture)
    marked = [name for name in names(path) if "frame_block" in name]
    assert marked == [f"strobe::frame_block#{block}" for block in range(first, first + num)]
    assert made == list(range(first + num))


@pytest.mark.parametrize(
    ("source", "first", "num", "warmup", "says"),
    [
        (blocks, 0, 1, 1, "after 1 of warm-up"),
        (blocks, 1, 0, 1, "at least 1"),
        (blocks, 2, 1, 3, "after 3 of warm-up"),
        (blocks, 3, 2, 1, "the clip has 4 frame blocks, too few"),
        (late, 3, 2, 1, "the clip has 4 frame blocks, too few"),
    ],
)
def test_a_range_that_cannot_be_traced_is_refused(
    tmp_path: Path, source: Callable[[int, list[int]], Iterator[int]], first: int, num: int, warmup: int, says: str
) -> None:
    path, capture = tmp_path / "t.json.gz", Capture(warmup=warmup)
    with pytest.raises(ConfigError, match=says):
        trace_blocks(source(4, []), device=CPU, first_block=first, num_blocks=num, path=path, capture=capture)
    assert not list(tmp_path.iterdir())


def test_without_regions_each_item_is_a_frame_block(tmp_path: Path) -> None:
    made: list[int] = []
    work = ((torch.ones(8, 8) @ torch.ones(8, 8), made.append(item)) for item in range(9))
    path = tmp_path / "t.json.gz"
    trace_blocks(work, device=CPU, first_block=3, num_blocks=2, path=path)
    assert made == [0, 1, 2, 3, 4] and names(path, "cpu_op").count("aten::matmul") == 2


def test_a_whole_clip_is_traced_by_its_regions_without_operators(tmp_path: Path) -> None:
    """All regions are marked, pieces of a pass and those of other threads too; the warm-up is not in the trace."""
    path = tmp_path / "t.json.gz"

    def clip() -> None:
        with ThreadPoolExecutor(1) as worker, span("e2e"):
            for block in range(3):
                with span("frame_block", block), span("dit_forward"), span("ffn_up"):
                    torch.ones(8, 8) @ torch.ones(8, 8)
                worker.submit(decode).result()

    def decode() -> None:
        with span("vae_decode"):
            torch.ones(8, 8) + 1

    trace_clip(clip, device=CPU, path=path, warm_up=lambda: list(blocks(7, [])) and None)
    marked = [name for name in names(path) if "strobe" in name]
    assert sorted(marked) == sorted(
        f"strobe::{name}" for block in range(3) for name in (f"frame_block#{block}", "dit_forward", "ffn_up", "vae_decode")
    )
    assert not names(path, "cpu_op")
    assert span("x") is span("y")


QUIET = """
import sys
from pathlib import Path
import torch
from strobe.perf.measure.profile import trace_blocks
blocks = iter([torch.ones(4) + 1 for _ in range(3)])
trace_blocks(blocks, device=torch.device("cpu"), first_block=1, num_blocks=1, path=Path(sys.argv[1]))
"""


def test_nothing_is_written_to_the_terminal(tmp_path: Path) -> None:
    """In a process of its own: the profiler's library reads its log level at its first use, whoever makes it."""
    done = run(QUIET, tmp_path / "t.json.gz")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "t.json.gz").stat().st_size > 0


def test_a_slim_trace_keeps_what_an_account_reads(tmp_path: Path) -> None:
    def event(category: str, name: str, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": 1.25, "dur": 2.5, "args": args}

    kernel = event("kernel", "k", correlation=7, device=0, stream=3, grid=[1, 2, 3], registers=32)
    launch, other = (
        event("cuda_runtime", "cudaLaunchKernel", correlation=7, cbid=1),
        event("cuda_runtime", "cudaPointer", correlation=8),
    )
    mark = event("user_annotation", "strobe::frame_block#0", extra=1)
    arrows = [{"ph": "s", "cat": "ac2g", "id": 7}, event("gpu_user_annotation", "strobe::frame_block#0")]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [mark, launch, other, *arrows, kernel]}))
    _slim(path)
    trace = json.loads(path.read_text())
    assert trace["schemaVersion"] == 1
    assert [each["name"] for each in trace["traceEvents"]] == ["cudaLaunchKernel", "k", "strobe::frame_block#0"]
    assert trace["traceEvents"][2] == {name: value for name, value in mark.items() if name != "args"}
    assert trace["traceEvents"][1] == {**kernel, "args": {"correlation": 7, "device": 0, "stream": 3, "grid": [1, 2, 3]}}


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from strobe.core.errors import StrobeError
from strobe.perf.measure.profile import trace_blocks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
blocks = (torch.ones(8, 8) @ torch.ones(8, 8) for _ in range(3))
try:
    trace_blocks(blocks, device=torch.device("cpu"), first_block=1, num_blocks=1, path=Path(sys.argv[1]))
except StrobeError as error:
    print(error, end="")
"""


def test_a_trace_that_does_not_fit_is_no_trace_and_leaves_nothing(tmp_path: Path) -> None:
    """The profiler neither fails nor says so when a file cannot grow; it leaves a part under another name."""
    path = tmp_path / "traces" / "t.json.gz"
    done = run(FULL_DISK, path)
    assert (
        done.returncode == 0
        and done.stdout == f"cannot write {path}: the profiler did not come to the end of it; name another place"
    )
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("left", ["nothing", "a part", "a part, renamed"])
def test_a_full_disk_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    def export(self: object, path: str) -> None:
        if left != "nothing":
            Path(path if "renamed" in left else f"{path}.tmp").write_bytes(b'{"traceEvents": [' + b" " * 5000)

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", export)
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    takes = "" if left == "nothing" else ", it takes 5,017 bytes or more"
    with pytest.raises(StrobeError, match=f"t.json.gz: the disk is full{takes}, 4,096 bytes are free there; free some space"):
        trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=tmp_path / "t.json.gz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("regions", "marked"),
    [
        ((), {"frame_block", "denoise_step", "attention"}),
        (TRACEABLE, {"frame_block", "denoise_step", "attention", "kv_write"}),
        (("kv_write",), {"frame_block", "kv_write"}),
        (("attention",), {"frame_block", "attention"}),
    ],
    ids=["usual", "all", "one", "no piece"],
)
def test_a_trace_marks_pieces_if_asked(regions: tuple[str, ...], marked: set[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    trace_blocks(blocks(3, []), device=CPU, first_block=1, num_blocks=1, path=path, capture=Capture(regions=regions))
    found = {name.removeprefix("strobe::").partition("#")[0] for name in names(path) if "strobe::" in name}
    assert found == marked
