"""A fuzzer of the readers of foreign files for a given time; reports the executions and findings of each target.

    python tools/run_fuzz.py --seconds 600 [--target traces ...] [--seed 1] [--processes 2] [--findings FOLDER]

Executions run in child processes, some hundred in each: one that takes over 10 s of a processor is killed, one that needs over
300 MB fails. An input that crashes, hangs, takes too much or raises anything but `StrobeError` is kept in the folder of
findings; the exit code is then 1. Inputs are drawn from the seed: the same seed and number of processes give the same ones.
`--count FILE` adds a line per target; those of tests/fuzz/executions.jsonl are what docs/testing.md sums up (`--page` writes it
again).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from strobe.core.errors import StrobeError
from targets import ROOT, Mutator, Target, kept, targets
from testing_page import put

HANG_S = 10
"""Seconds of a processor that an execution may take; a busy machine makes it no hang."""
STALL = 12
"""Times that on the clock, for what waits."""
MEMORY_BYTES = 300 << 20
BATCH = 300
MAX_INPUT = 1 << 20
Count = dict[str, Any]
IN_MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where inputs are written: a file of a disk costs as much as to read a small one."""
HEAD: Final = """## Fuzzing

`make fuzz` gives damaged input to each reader of foreign files. An execution fails in four cases:

* it raises an error that is not meant for damaged files;
* it takes over 10 s;
* it needs over 300 MB;
* it ends the process.

CI repeats the starting inputs and all earlier findings (`tests/fuzz`).

| reader | executions | hours | a minute | findings |
|---|---:|---:|---:|---:|"""
_HEAD = struct.Struct("<QQ")  # executions that ended, length of the input that runs


class _Shared:
    """Memory shared with a child process, in which it notes its progress."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _HEAD.size + MAX_INPUT)

    def begin(self, done: int, data: bytes) -> None:
        """Note the input that runs now."""
        self._map[: _HEAD.size + len(data)] = _HEAD.pack(done, len(data)) + data

    @property
    def done(self) -> int:
        """Number of executions that have ended."""
        return _HEAD.unpack_from(self._map)[0]

    @property
    def running(self) -> bytes:
        """Input that ran last."""
        size = _HEAD.unpack_from(self._map)[1]
        return self._map[_HEAD.size : _HEAD.size + size]


def run_batch(target: Target, inputs: list[bytes], folder: Path, ends: float = math.inf) -> tuple[int, bytes, str]:
    """Execute inputs in a child process until one of them fails, or the time `ends` of the monotonic clock is past.

    Returns:
        Executions, the input that failed, and how; empty if none did.
    """
    shared, (read_end, write_end) = _Shared(), os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        _child(target, inputs, folder, ends, shared, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        said = f"hang: over {HANG_S} s" if number in (signal.SIGALRM, signal.SIGPROF) else f"crash: signal {number}"
    return shared.done + bool(said), shared.running if said else b"", said


def _child(target: Target, inputs: list[bytes], folder: Path, ends: float, shared: _Shared, write_end: int) -> None:
    """Execute inputs in the child process; it never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process in whatever code it is
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
    code = 0
    for done, data in enumerate(inputs):
        shared.begin(done, data)
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        signal.alarm(STALL * HANG_S)
        try:
            with contextlib.suppress(StrobeError):
                target.check(data, folder)
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
            _stop_clocks()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
            where = traceback.extract_tb(error.__traceback__)[-1]
            os.write(
                write_end, f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500].encode("utf-8", "replace")
            )
            code = 1
            break
        _stop_clocks()
        shared.begin(done + 1, b"")
        if time.monotonic() >= ends:
            break
    os._exit(code)


def _stop_clocks() -> None:
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, 0)


def fuzz(name: str, target: Target, seconds: float, seed: int, findings: Path) -> tuple[int, float, int]:
    """Fuzz one target for some seconds; return executions, seconds taken and distinct findings."""
    target = target._replace(seeds=(*target.seeds, *kept(name)))
    drawn = chain(target.seeds, Mutator(target, seed))
    inputs: Iterator[bytes] = (data for data in drawn if len(data) <= MAX_INPUT)
    known: set[str] = set()
    executions, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        while (left := begin + seconds - time.monotonic()) > 0:
            batch = list(islice(inputs, BATCH))
            while batch and left > 0:
                done, data, said = run_batch(target, batch, Path(folder), begin + seconds)
                executions += done
                batch, left = batch[done:], begin + seconds - time.monotonic()
                kind = said.split(": ")[0]
                if said and kind not in known:
                    known.add(kind)
                    path = findings / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    sys.stdout.write(f"{name}: {said}\n  input: {path}\n")
    return executions, time.monotonic() - begin, len(known)


def _worker(made: dict[str, Target], seconds: float, seed: int, findings: Path, write_end: int) -> None:
    """Fuzz targets one after the other in a process of its own, and write what came of each to a pipe; it never returns."""
    code = 70
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with os.fdopen(write_end, "w", encoding="utf-8", buffering=1) as pipe:
            for name, target in made.items():
                executions, spent, found = fuzz(name, target, seconds, seed, findings)
                pipe.write(json.dumps({"target": name, "executions": executions, "s": spent, "findings": found}) + "\n")
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def fuzz_all(names: list[str], seconds: float, seed: int, processes: int, findings: Path) -> list[Count]:
    """Fuzz targets, each for some seconds, in processes that draw different inputs; return what came of each target."""
    counts = {name: {"target": name, "executions": 0, "s": 0.0, "findings": 0} for name in names}
    made = {name: targets()[name]() for name in names}  # their libraries are loaded once
    sys.stdout.flush()
    pipes = {}
    try:
        for number in range(processes):
            read_end, write_end = os.pipe()
            child = os.fork()
            if not child:
                _worker(made, seconds, processes * seed + number, findings, write_end)
            os.close(write_end)
            pipes[child] = os.fdopen(read_end, encoding="utf-8")
        for pipe in pipes.values():
            for line in pipe:
                part = json.loads(line)
                whole = counts[part["target"]]
                for key in ("executions", "s", "findings"):
                    whole[key] += part[key]
    except BaseException:
        for child in pipes:
            os.kill(child, signal.SIGKILL)
        raise
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in pipes]
    if any(codes):
        raise RuntimeError(f"a process that fuzzes ended with {max(codes, key=abs)}")
    return list(counts.values())


def page(counts: list[Count]) -> str:
    """Format the section of docs/testing.md from counts of any number of runs."""
    rows = []
    for name in targets():
        own = [count for count in counts if count["target"] == name]
        done, spent, wrong = (sum(count[key] for count in own) for key in ("executions", "s", "findings"))
        rate = f"{60 * done / spent:,.0f}" if spent else "-"
        rows.append(f"| {name} | {done:,} | {spent / 3600:.2f} | {rate} | {wrong} |")
    done, spent, wrong = (sum(count[key] for count in counts) for key in ("executions", "s", "findings"))
    return "\n".join([HEAD, *rows, f"| all | {done:,} | {spent / 3600:.2f} | {60 * done / max(spent, 1):,.0f} | {wrong} |", ""])


def main() -> int:
    """Fuzz and report; return 1 if something was found."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of foreign files.")
    parser.add_argument("--seconds", type=float, default=600, help="in all, divided evenly among the targets")
    parser.add_argument("--target", action="append", choices=tuple(targets()), help="this one only; may be given several times")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the inputs; default: the time")
    parser.add_argument("--processes", type=int, default=1, help="at a time, each with inputs of its own")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for the inputs that failed")
    parser.add_argument("--count", type=Path, help="file that gets a line for each target")
    parser.add_argument("--page", action="store_true", help="only write docs/testing.md from the counts that are kept")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # no process outlives this one
    if options.page:
        lines = (ROOT / "tests" / "fuzz" / "executions.jsonl").read_text(encoding="utf-8").splitlines()
        put(page([json.loads(line) for line in lines]))
        return 0
    chosen = options.target or list(targets())
    counts = fuzz_all(chosen, options.seconds / len(chosen), options.seed, options.processes, options.findings)
    for count in counts:
        name, done, spent = count["target"], count["executions"], count["s"]
        said = f"{done} executions in {spent:.0f} s, {60 * done / max(spent, 0.001):.0f} a minute and process"
        sys.stdout.write(f"{name}: {said}, {count['findings']} findings\n")
        if options.count:
            with options.count.open("a", encoding="utf-8") as file:
                kept_count = count | {"s": round(spent, 1), "seed": options.seed, "processes": options.processes}
                file.write(json.dumps(kept_count) + "\n")
    wrong = sum(count["findings"] for count in counts)
    total = sum(count["executions"] for count in counts)
    sys.stdout.write(f"{total} executions, seed {options.seed}, {wrong} findings\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
