"""`kill -9` at a random moment: of a process that appends records, of one that writes pages, of one that makes a clip."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import strobe
from strobe.perf.records.store import read_run

RECORDS: Final = """
import sys
from pathlib import Path
from strobe.perf.records.record import *
from strobe.perf.records.store import RunWriter
writer = RunWriter(Path(sys.argv[1]) / "run")
machine = Machine(device="cpu", device_name="", gpu_count=0, gpu_memory_bytes=None, driver=None, cuda=None, torch=None, python="",
                  os="", cpu_name="", cores=1, threads=1, memory_bytes=None, clocks=Clocks(source="none"))
writer.append(Header(run="r", date="", strobe="", git=Git(commit=None, dirty=None), argv=(), machine=machine, baseline="b",
                     order=("b",), palindromes=1))
for number in range(1_000_000):
    common = dict(variant="b", clip=number, order=number, palindrome=number)
    spans = [Span(**common, name="e2e", index=None, start_ns=0, value_ns=number, clock="perf_counter", warmup=False)] * 3
    writer.append(*spans, Clip(**common, phase="timed", num_spans=3))
    print(number, flush=True)
"""
PAGES: Final = """
import sys
from pathlib import Path
from strobe.core.files import write_whole
for number in range(1_000_000):
    write_whole(Path(sys.argv[1]) / "report.html", f"{number} " * 20_000)
    print(number, flush=True)
"""
CLIP: Final = """
import sys, torch
from strobe.engine.video import VideoFile
video = VideoFile(sys.argv[1] + "/clip.mp4", fps=16)
for number in range(1_000_000):
    video.write(torch.randint(0, 255, (8, 64, 64, 3), dtype=torch.uint8))
    print(number, flush=True)
"""


def killed(seed: int, folder: Path) -> None:
    """Kill a process that writes: 6 times of 10 records, 3 times pages, once a clip."""
    if seed % 10 == 9:
        _clip(seed, folder)
    elif seed % 10 > 5:
        _page(seed, folder)
    else:
        _records(seed, folder)


def _kill(code: str, seed: int, folder: Path, after_line: int = 0) -> int:
    """Start a process, let it write, kill it; return the number of the last item that it reported as finished."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env={"PYTHONPATH": str(Path(strobe.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(after_line + 1)]
    time.sleep(random.Random(seed).uniform(0, 0.1))
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    return int([line for line in said if line.endswith("\n")][-1])


def _records(seed: int, folder: Path) -> None:
    last = _kill(RECORDS, seed, folder)
    run = read_run(folder / "run")
    clips = [clip.clip for clip in run.clips]
    assert clips == list(range(len(clips))) and len(clips) > last
    assert all(sum(span.clip == clip for span in run.spans) == 3 for clip in clips[-20:])  # the newest may be there in part
    assert run.damage == () and run.end is None


def _page(seed: int, folder: Path) -> None:
    last = _kill(PAGES, seed, folder)
    numbers = (folder / "report.html").read_text().split()
    assert len(numbers) == 20_000 and set(numbers) <= {str(last), str(last + 1)}


def _clip(seed: int, folder: Path) -> None:
    import av

    (folder / "clip.mp4").write_bytes(b"an earlier clip")
    made = 8 * (1 + _kill(CLIP, seed, folder, after_line=4))
    assert (folder / "clip.mp4").read_bytes() == b"an earlier clip"
    played = 0
    with av.open(str(folder / "clip.partial.mp4")) as file, suppress(av.InvalidDataError):
        for _ in file.decode(video=0):
            played += 1
    assert made - 8 <= played, (made, played)  # the newest frames are still in the encoder
