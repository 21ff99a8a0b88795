"""The fuzzers themselves: each target runs, and what was found once stays mended; the long runs are `make fuzz`."""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import json
import math
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from fuzz_trace_reader import check, read, seeds
from run_fuzz import MEMORY_BYTES, fuzz, fuzz_all, page, run_batch
from strobe.cli.generate import read_recipe
from strobe.core.errors import DataError, StrobeError
from strobe.engine.snapshot import read_snapshot
from strobe.models.wan.weights.checkpoint import read_json
from strobe.perf.analysis.runs.timeline import read_passes
from strobe.perf.logs.patterns import load_patterns
from strobe.perf.logs.reader import read_log
from strobe.perf.records.record import PLAN, read_plan
from strobe.perf.trace import chunks
from targets import Mutator, Target, kept, targets


@pytest.mark.rest
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
        case b"spin":
            while True:
                pass
        case b"hang":
            time.sleep(60)
        case b"grow":
            bytearray(MEMORY_BYTES + (4 << 30))  # more than the process may free meanwhile
        case b"die":
            faulthandler.disable()  # it ends on purpose: no stack
            os.abort()


TARGET = Target((b"fine",), (), _check)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"raise", "ValueError at "),
        (b"spin", "hang: over 1 s"),
        (b"grow", "MemoryError at "),
        (b"die", "crash: signal 6"),
        (b"hang", "hang: over 1 s"),
    ],
)
def test_every_way_to_fail_is_seen_with_its_input(bad: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("run_fuzz.HANG_S", 1)
    monkeypatch.setattr("run_fuzz.STALL", 5)
    done, data, how = run_batch(TARGET, [b"fine", b"refuse", bad, b"fine"], tmp_path)
    assert (done, data) == (3, bad) and how.startswith(said)


def test_executions_are_counted(tmp_path: Path) -> None:
    assert run_batch(TARGET, [b"fine"] * 7, tmp_path) == (7, b"", "")
    executions, spent, found = fuzz("none", TARGET, 0.2, 1, tmp_path)
    assert executions > 0 and spent >= 0.2 and not found and not list(tmp_path.iterdir())


def test_a_batch_ends_with_the_time(tmp_path: Path) -> None:
    assert run_batch(TARGET, [b"fine"] * 7, tmp_path, -math.inf) == (1, b"", "")


@pytest.mark.rest
def test_processes_draw_different_inputs_and_their_counts_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(data: bytes, folder: Path) -> None:
        with (tmp_path / "seen").open("ab") as file:
            file.write(data.hex().encode() + b"\n")
        if data == b"bad":
            raise ValueError("no")

    monkeypatch.setattr("run_fuzz.targets", lambda: {"toy": lambda: Target((b"bad", b"x" * 40), (), check)})
    (count,) = fuzz_all(["toy"], 0.5, 7, 2, tmp_path / "findings")
    seen = (tmp_path / "seen").read_bytes().splitlines()
    assert count["executions"] == len(seen) and count["s"] >= 1.0 and count["findings"] == 2  # each process found it
    assert len(set(seen)) > len(seen) / 4  # the same seeds, then inputs of their own
    assert [path.read_bytes() for path in (tmp_path / "findings").iterdir()] == [b"bad"]
    assert "toy: ValueError at " in capfd.readouterr().out


def test_the_page_adds_up_all_runs() -> None:
    counts = [{"target": name, "executions": 600, "s": 36.0, "findings": wrong} for name in targets() for wrong in (0, 1)]
    lines = page(counts).splitlines()
    assert "| traces | 1,200 | 0.02 | 1,000 | 1 |" in lines and lines[-1] == "| all | 8,400 | 0.14 | 1,000 | 7 |"


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("kernel", ".kd" * 100_000 + "!"),
        ("kernel", " [clone ]" * 30_000 + "!"),
        ("kernel", "triton_poi_fused_0" + "d" * 300_000 + "!"),
        ("kernel", "void " + "_GLOBAL__N__" * 25_000),
        ("cuda_runtime", "cuda" + "Get" * 100_000 + "!"),
        ("cuda_runtime", "cuda" + "Synchronize" * 30_000 + "!"),
        ("cuda_runtime", "cudaDevice" + "DeviceSynchronize" * 18_000 + "!"),
    ],
    ids=lambda text: text[:14].strip(),
)
def test_a_name_of_300_kb_takes_no_longer_than_its_length(category: str, name: str, tmp_path: Path) -> None:
    """Each was once tried at every place it could end."""
    target = targets()["pages"]()
    document = json.loads(target.seeds[0])
    event = next(event for event in document["traceEvents"] if event["cat"] == category)
    event["name"] = name
    assert run_batch(target, [json.dumps(document).encode()], tmp_path) == (1, b"", "")


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
    [plan, passes, torn, snapshot, read_recipe, read_json, load_patterns],
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


SEEDS = seeds()
TOKENS = [
    b'"', b"{", b"}", b"[", b"]", b'},{"', b'}, {"ph":', b",", b":", b"\\", b'\\"', b"\\u", b"\x00", b"\n", b"\xff",
    b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 1500, b"null", b"NaN", b"-1", b"1e999", b"9" * 30, b'"traceEvents": [',
    b'"ph":"X"', b'"cat":"kernel"', b'"cat":7', b'"args":null', b'"correlation":"x"', b"\x1f\x8b",
]  # fmt: skip
JUNK = st.one_of(st.binary(max_size=8), st.sampled_from(TOKENS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(data=st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(TOKENS), max_size=12).map(b"".join)), pack=st.booleans())
def test_any_bytes(data: bytes, pack: bool, folder: Path) -> None:
    check(gzip.compress(data) if pack else data, folder)


@given(data=st.data(), seed=st.sampled_from(SEEDS), small=st.booleans())
def test_damaged_traces(data: st.DataObject, seed: bytes, small: bool, folder: Path) -> None:
    text = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 60))] = data.draw(JUNK)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(chunks, "CHUNK_BYTES", 701)
            patch.setattr(chunks, "BLOCK_BYTES", 701)
        check(bytes(text), folder)


@given(data=st.data(), layout=st.sampled_from(SEEDS[:5]))
def test_where_the_cuts_fall_does_not_matter(data: st.DataObject, layout: bytes, folder: Path) -> None:
    text = bytearray(layout)
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 20))] = data.draw(JUNK)
    (folder / "t.json").write_bytes(text)
    whole = read(folder / "t.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", 701)
        patch.setattr(chunks, "BLOCK_BYTES", 701)
        assert read(folder / "t.json") == whole
