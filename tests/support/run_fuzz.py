"""A fuzzer of the readers of foreign files for a given time; reports the executions and findings of each target.

    python tests/support/run_fuzz.py --seconds 600 [--target traces ...] [--seed 1] [--findings FOLDER]

Executions run in child processes, some hundred in each: one that takes over 10 s is killed, one that needs over 300 MB fails. An
input that crashes, hangs, takes too much or raises anything but `StrobeError` is kept in the folder of findings; the exit code is
then 1. Inputs are drawn from the seed: the same seed gives the same ones.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
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

from strobe.core.errors import StrobeError
from targets import Mutator, Target, kept, targets

HANG_S = 10
MEMORY_BYTES = 300 << 20
BATCH = 300
MAX_INPUT = 1 << 20
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


def run_batch(target: Target, inputs: list[bytes], folder: Path) -> tuple[int, bytes, str]:
    """Execute inputs in a child process until one of them fails.

    Returns:
        Executions, the input that failed, and how; empty if none did.
    """
    shared, (read_end, write_end) = _Shared(), os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        _child(target, inputs, folder, shared, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        said = f"hang: over {HANG_S} s" if number == signal.SIGALRM else f"crash: signal {number}"
    return shared.done + bool(said), shared.running if said else b"", said


def _child(target: Target, inputs: list[bytes], folder: Path, shared: _Shared, write_end: int) -> None:
    """Execute inputs in the child process; it never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process in whatever code it is
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
    code = 0
    for done, data in enumerate(inputs):
        shared.begin(done, data)
        signal.alarm(HANG_S)
        try:
            with contextlib.suppress(StrobeError):
                target.check(data, folder)
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
            signal.alarm(0)
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
            where = traceback.extract_tb(error.__traceback__)[-1]
            os.write(
                write_end, f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500].encode("utf-8", "replace")
            )
            code = 1
            break
        signal.alarm(0)
    else:
        shared.begin(len(inputs), b"")
    os._exit(code)


def fuzz(name: str, target: Target, seconds: float, seed: int, findings: Path) -> tuple[int, float, int]:
    """Fuzz one target for some seconds; return executions, seconds taken and distinct findings."""
    target = target._replace(seeds=(*target.seeds, *kept(name)))
    drawn = chain(target.seeds, Mutator(target, seed))
    inputs: Iterator[bytes] = (data for data in drawn if len(data) <= MAX_INPUT)
    known: set[str] = set()
    executions, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while (spent := time.monotonic() - begin) < seconds:
            batch = list(islice(inputs, BATCH))
            while batch:
                done, data, said = run_batch(target, batch, Path(folder))
                executions += done
                batch = batch[done:] if said else []
                kind = said.split(": ")[0]
                if said and kind not in known:
                    known.add(kind)
                    path = findings / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    sys.stdout.write(f"{name}: {said}\n  input: {path}\n")
                if time.monotonic() - begin >= 2 * seconds + HANG_S:
                    break
    return executions, spent, len(known)


def main() -> int:
    """Fuzz and report; return 1 if something was found."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of foreign files.")
    parser.add_argument("--seconds", type=float, default=600, help="in all, divided evenly among the targets")
    parser.add_argument("--target", action="append", choices=tuple(targets()), help="this one only; may be given several times")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the inputs; default: the time")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for the inputs that failed")
    options = parser.parse_args()
    chosen = options.target or list(targets())
    total = wrong = 0
    for name in chosen:
        target = targets()[name]()
        executions, spent, found = fuzz(name, target, options.seconds / len(chosen), options.seed, options.findings)
        rate = executions / spent * 60
        sys.stdout.write(f"{name}: {executions} executions in {spent:.0f} s, {rate:.0f} a minute, {found} findings\n")
        sys.stdout.flush()
        total, wrong = total + executions, wrong + found
    sys.stdout.write(f"{total} executions, seed {options.seed}, {wrong} findings\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
