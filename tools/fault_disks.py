"""A full disk: a small file system where this user may mount one, else a limit on the size of a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import strobe

STEP_BYTES: Final = 16 << 10
WRITER: Final = """
import resource, signal, sys, torch
from pathlib import Path
from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
from strobe.engine.video import VideoFile
from strobe.perf.measure.profile import trace_blocks
from strobe.perf.records.record import *
from strobe.perf.records.store import RunWriter, read_run

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
ENDS = ("the disk is full", "File too large", "did not come to the end of it")
torch.manual_seed(0)

def said(write):
    try:
        write()
    except StrobeError as error:
        assert any(end in str(error) for end in ENDS) and "\\n" not in str(error), error
        assert str(folder) in str(error), error
        return str(error)
    return ""

def blocks():
    for _ in range(3):
        x = torch.randn(8, 8)
        for _ in range(300):
            x = x @ x
        yield x

def clip():
    with VideoFile(folder / "clip.mp4", fps=16) as video:
        for _ in range(6):
            video.write(torch.randint(0, 255, (8, 64, 64, 3), dtype=torch.uint8))

def records():
    machine = Machine(device="cpu", device_name="", gpu_count=0, gpu_memory_bytes=None, driver=None, cuda=None, torch=None,
                      python="", os="", cpu_name="", cores=1, threads=1, memory_bytes=None, clocks=Clocks(source="none"))
    writer = RunWriter(folder / "run")
    writer.append(Header(run="r", date="", strobe="", git=Git(commit=None, dirty=None), argv=(), machine=machine, baseline="b",
                         order=("b",), palindromes=1))
    for number in range(2000):
        common = dict(variant="b", clip=number, order=number, palindrome=number)
        span = Span(**common, name="e2e", index=None, start_ns=0, value_ns=number, clock="perf_counter", warmup=False)
        writer.append(span, Clip(**common, phase="timed", num_spans=1))

page = folder / "report.html"
assert not said(lambda: write_whole(page, "old"))
trace = folder / "traces" / "t.json.gz"
told = [said(lambda: trace_blocks(blocks(), device=torch.device("cpu"), first_block=1, num_blocks=1, path=trace))]
left = [path for path in folder.rglob("*") if path.is_file()]
assert left == [page] + ([] if told[0] else [trace]), left
told += [said(lambda: write_whole(page, "x" * 100_000))]
assert page.read_text() == ("old" if told[1] else "x" * 100_000)
told += [said(clip)]
assert [path.name for path in folder.glob("*clip*")] == ([] if "nothing of it plays" in told[2] else ["clip.mp4"]), told
told += [said(records)]
assert told[3], "2,000 clips fit into no disk of these sizes"
if "the 0 records" not in told[3]:
    run = read_run(folder / "run")
    assert [each.clip for each in run.clips] == list(range(len(run.clips))) and not run.damage and not run.truncated
    assert f"the {1 + 2 * len(run.clips)} records" in told[3], told[3]
"""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[int]:
    """Give a folder little room; yields the limit on a file where no file system could be mounted, else 0."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield size_bytes
        return
    try:
        yield 0
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(seed: int, folder: Path) -> None:
    """Write a trace, a page, a clip and records where there is room for some of them."""
    with small_disk(folder, (seed % 20 + 1) * STEP_BYTES) as limit:
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(folder), str(limit)],
            env={"PYTHONPATH": str(Path(strobe.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
