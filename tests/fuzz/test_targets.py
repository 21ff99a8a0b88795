"""The fuzzers themselves: each target runs, and what was found once stays mended; the long runs are `make fuzz`."""

from __future__ import annotations

import contextlib
import time
from itertools import islice
from pathlib import Path

import pytest

from run_fuzz import MEMORY_BYTES, fuzz, run_batch
from strobe.core.errors import DataError, StrobeError
from targets import Mutator, Target, kept, targets


@pytest.mark.parametrize("name", targets())
def test_every_seed_and_every_former_finding_is_read_or_refused(name: str, tmp_path: Path) -> None:
    target = targets()[name]()
    for seed in target.seeds:
        target.check(seed, tmp_path)
    for data in (*kept(name), *islice(Mutator(target, 1), 20)):
        with contextlib.suppress(StrobeError):
            target.check(data, tmp_path)


def test_the_same_seed_gives_the_same_inputs() -> None:
    target = targets()["records"]()
    assert list(islice(Mutator(target, 5), 50)) == list(islice(Mutator(target, 5), 50)) != list(islice(Mutator(target, 6), 50))


def _check(data: bytes, folder: Path) -> None:
    match data:
        case b"raise":
            raise ValueError("no")
        case b"refuse":
            raise DataError("refused")
        case b"hang":
            time.sleep(60)
        case b"grow":
            bytearray(MEMORY_BYTES + (50 << 20))
        case b"die":
            import os

            os.abort()


TARGET = Target((b"fine",), (), _check)


@pytest.mark.parametrize(
    ("bad", "said"),
    [(b"raise", "ValueError at "), (b"grow", "MemoryError at "), (b"die", "crash: signal 6"), (b"hang", "hang: over 1 s")],
)
def test_every_way_to_fail_is_seen_with_its_input(bad: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("run_fuzz.HANG_S", 1)
    done, data, how = run_batch(TARGET, [b"fine", b"refuse", bad, b"fine"], tmp_path)
    assert (done, data) == (3, bad) and how.startswith(said)


def test_executions_are_counted(tmp_path: Path) -> None:
    assert run_batch(TARGET, [b"fine"] * 7, tmp_path) == (7, b"", "")
    executions, spent, found = fuzz("none", TARGET, 0.2, 1, tmp_path)
    assert executions >= 300 and spent >= 0.2 and not found and not list(tmp_path.iterdir())
