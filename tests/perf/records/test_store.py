from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strobe
from strobe.core.errors import ConfigError, DataError, StrobeError
from strobe.perf.records.record import End, Gate, Header, Span
from strobe.perf.records.store import RECORDS, RunWriter, create_run, read_run, rotate, seal

END = End(status="complete", date="2026-01-01T00:01:00Z", wall_ns=60_000_000_000)

# A child that appends numbered spans and reports on a pipe each one that append() has returned from.
CHILD = """
import sys, msgspec
from pathlib import Path
from strobe.perf.records.record import Header, Span
from strobe.perf.records.store import RunWriter
writer = RunWriter(Path(sys.argv[1]))
writer.append(msgspec.json.decode(sys.argv[2], type=Header))
span = msgspec.json.decode(sys.argv[3], type=Span)
for number in range(1_000_000):
    writer.append(msgspec.structs.replace(span, value_ns=number))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""

# A child whose files may not grow beyond 4000 bytes, like a disk that fills up.
FULL_DISK = """
import resource, signal, sys, msgspec
from pathlib import Path
from strobe.core.errors import StrobeError
from strobe.perf.records.record import Header, Span
from strobe.perf.records.store import RunWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RunWriter(Path(sys.argv[1]))
writer.append(msgspec.json.decode(sys.argv[2], type=Header))
span = msgspec.json.decode(sys.argv[3], type=Span)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for number in range(100):
    try:
        writer.append(msgspec.structs.replace(span, value_ns=number))
    except StrobeError as error:
        print(number, error)
        break
"""


def child(code: str, folder: Path, *records: object) -> dict[str, Any]:
    command = [sys.executable, "-c", code, str(folder), *(msgspec.json.encode(record).decode() for record in records)]
    source = Path(strobe.__file__).parents[1]
    return {"args": command, "env": {"PYTHONPATH": str(source)}, "stdout": subprocess.PIPE, "text": True}


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_loses_no_finished_record(tmp_path: Path, header: Header, span: Span, seed: int) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(**child(CHILD, folder, header, span))
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.1))
    process.send_signal(signal.SIGKILL)
    finished = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.wait()
    run = read_run(folder)
    assert run.end is None
    assert [found.value_ns for found in run.spans][: len(finished) + 1] == list(range((finished or [0])[-1] + 1))
    assert run.bad_lines == ()


def test_a_full_disk_is_one_clear_error_and_what_was_written_stays(tmp_path: Path, header: Header, span: Span) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(**child(FULL_DISK, folder, header, span), check=True)
    number, message = done.stdout.strip().split(" ", 1)
    run = read_run(folder)
    assert int(number) > 1
    assert [found.value_ns for found in run.spans] == list(range(int(number)))
    assert not run.truncated
    assert f"the {int(number) + 1} records written before are kept" in message


def test_a_disk_that_takes_a_part_and_then_nothing_is_full(
    tmp_path: Path, header: Header, span: Span, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nearly full disk takes what fits, and says that it is full at the next write."""
    writer = RunWriter(tmp_path / "run")
    writer.append(header, span)
    whole, write, calls = writer.folder.joinpath(RECORDS).read_bytes(), os.write, []

    def part(file: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, bytes(data)[:10])

    monkeypatch.setattr(os, "write", part)
    with pytest.raises(StrobeError, match=r"disk is full, it takes \d+ bytes or more, .* the 2 records written before are kept"):
        writer.append(span)
    monkeypatch.undo()
    assert writer.folder.joinpath(RECORDS).read_bytes() == whole and calls[1] == calls[0] - 10
    writer.append(END)
    assert read_run(writer.folder).end == END and read_run(writer.folder).damage == ()


@pytest.mark.parametrize("most", [10, None], ids=["a part", "all"])
def test_ctrl_c_in_a_write_leaves_whole_lines_in_order(
    tmp_path: Path, header: Header, span: Span, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """It may come when a part is written, or when all is and the writer does not know it yet."""
    writer = RunWriter(tmp_path / "run")
    writer.append(header, span)
    write = os.write

    def interrupted(file: int, data: bytes) -> int:
        write(file, bytes(data)[:most])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(span)
    monkeypatch.undo()
    writer.append(END)
    run = read_run(writer.folder)
    assert (run.end, run.damage, len(run.spans)) == (END, (), 1 if most else 2)


def test_every_cut_of_a_file_reads_back_its_whole_lines(tmp_path: Path, header: Header, span: Span) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header, span, span, END)
    file = writer.folder / RECORDS
    data = file.read_bytes()
    starts = [0] + [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(starts[1], len(data) + 1):
        file.write_bytes(data[:cut])
        run = read_run(file)
        whole = sum(start <= cut for start in starts) - 1
        assert 1 + len(run.spans) + (run.end is not None) == whole
        assert run.truncated is (cut not in starts)
    file.write_bytes(data[: starts[1] - 2])
    with pytest.raises(DataError, match="no header"):
        read_run(file)


def test_lines_that_are_no_records_are_counted_and_skipped(tmp_path: Path, header: Header, span: Span) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header, span)
    file = writer.folder / RECORDS
    bad = [b"", b"\0\0\0", b"\xff\xfe", b'{"record":"span"}', b'{"record":"span","v":2,"variant":3}', b"[1]"]
    gate = Gate(variant="turbo", reference="baseline", rule="same latents", passed=True, detail="equal")
    for lines in ([*file.read_bytes().splitlines(), *bad, seal(msgspec.json.encode(gate), 9)],
                  [msgspec.json.encode(header), msgspec.json.encode(span), *bad, msgspec.json.encode(gate)]):  # fmt: skip
        file.write_bytes(b"\n".join(lines) + b"\n")
        run = read_run(tmp_path / "run")
        assert run.bad_lines == (3, 4, 5, 6, 7, 8) and run.missing_lines == 0
        assert run.gates == (gate,)
        assert run.damage[0] == "lines 3, 4, 5, 6, 7, 8 are damaged in records.jsonl and not read"


@pytest.mark.parametrize("version", [1, 3])
def test_another_schema_version_is_refused(tmp_path: Path, header: Header, span: Span, version: int) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header, msgspec.structs.replace(span, v=version))
    with pytest.raises(DataError, match=rf":2 has record schema {version}; this strobe reads 2;"):
        read_run(writer.folder)
    unknown = b'{"record":"spectrum","v":7}\n'
    (writer.folder / RECORDS).write_bytes(msgspec.json.encode(header) + b"\n" + unknown)
    with pytest.raises(DataError, match="schema 7"):
        read_run(writer.folder)


def test_a_folder_with_anything_in_it_is_never_used(tmp_path: Path, header: Header) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        RunWriter(tmp_path)
    with pytest.raises(ConfigError, match="another folder"):
        RunWriter(tmp_path / "notes.txt")
    with create_run(tmp_path / "runs", "Demo: a/b") as writer:
        writer.append(header)
    with pytest.raises(ConfigError, match="not empty"):
        RunWriter(writer.folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "runs"]


def test_run_folders_say_when_and_what_and_differ(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with create_run(tmp_path, "Demo: a/../b") as writer:
            names.add(writer.folder.name)
    assert len(names) == 3
    assert all(name.split("-", 1)[1].startswith("demo-a-b-") and name[8] == "T" for name in names)


def test_records_named_by_themselves_may_be_a_link_and_no_device(tmp_path: Path, header: Header) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header)
    (tmp_path / "link.jsonl").symlink_to(writer.folder / RECORDS)
    assert read_run(tmp_path / "link.jsonl").header == header
    with pytest.raises(DataError, match="not a plain file"):
        read_run(Path("/dev/zero"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / RECORDS).symlink_to(writer.folder / RECORDS)
    with pytest.raises(DataError, match="is a link, and is not followed"):
        read_run(tmp_path / "other")


def test_a_folder_that_cannot_be_made_is_a_clear_error() -> None:
    with pytest.raises(StrobeError, match="cannot write /proc/strobe: "):
        RunWriter(Path("/proc/strobe"))


# ------------------------------------------------------------------------------------------------------------- rotation


def test_a_folder_that_holds_something_is_kept_under_the_next_number(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert rotate(folder) is None
    for number in (1, 2, 3):
        folder.mkdir()
        assert rotate(folder) is None and folder.is_dir()  # empty: nothing to keep
        (folder / "a").write_text(f"round {number}")
        assert rotate(folder) == tmp_path / f"traces.{number}"
        assert not folder.exists()
    kept = {path.name: (path / "a").read_text() for path in tmp_path.iterdir()}
    assert kept == {"traces.1": "round 1", "traces.2": "round 2", "traces.3": "round 3"}


def test_a_number_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "traces.1").write_text("mine")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a").touch()
    assert rotate(tmp_path / "traces") == tmp_path / "traces.2"
    assert (tmp_path / "traces.1").read_text() == "mine"


def test_neither_a_file_nor_the_folder_one_works_in_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    inside = tmp_path / "work" / "deep"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    for path in (file, tmp_path / "work", inside.parent / "."):
        with pytest.raises(ConfigError, match="name a folder of its own"):
            rotate(path)
    assert file.exists() and inside.is_dir()
