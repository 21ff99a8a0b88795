"""Records: their schema and manual, and what a killed process, a full disk, damage and packing leave of a run folder."""

from __future__ import annotations

import errno
import gzip
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import strobe
import strobe.records
from made_records import header_of, span_of
from source import ROOT
from strobe.core.errors import ConfigError, DataError, StrobeError
from strobe.perf.logs import read_log
from strobe.perf.logs.series import Log
from strobe.perf.records import record, store
from strobe.perf.records.record import LINES, Clip, End, Excluded, Gate, Git, Header, Prediction, Record, Span
from strobe.perf.records.store import (
    PACKED,
    RECORDS,
    RunRecords,
    RunWriter,
    check,
    create_run,
    number_of,
    pack,
    read_run,
    rotate,
    seal,
)
from strobe.perf.report.log_page import run_folders
from structs import parts_of

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


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_loses_no_finished_record(tmp_path: Path, header: Header, span: Span, seed: int) -> None:
    folder = tmp_path / "run"
    records = (msgspec.json.encode(record).decode() for record in (header, span))
    command, path = [sys.executable, "-c", CHILD, str(folder), *records], {"PYTHONPATH": str(Path(strobe.__file__).parents[1])}
    process = subprocess.Popen(command, env=path, stdout=subprocess.PIPE, text=True)
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
    with pytest.raises(StrobeError, match="cannot write /proc/strobe: "):
        RunWriter(Path("/proc/strobe"))
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
    (tmp_path / "traces.4").write_text("a number that is taken")
    folder.mkdir()
    (folder / "a").touch()
    assert rotate(folder) == tmp_path / "traces.5" and (tmp_path / "traces.4").is_file()


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


NUM_CLIPS, NUM_SPANS = 3, 4
Lines = list[bytes]


@pytest.fixture
def run(tmp_path: Path, header: Header, span: Span) -> Path:
    """A header, three clips of four spans, an end: lines 1, 2 to 6, 7 to 11, 12 to 16 and 17."""
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header)
        for number in range(NUM_CLIPS):
            common = {"variant": "turbo", "clip": number, "order": number, "palindrome": 0}
            spans = [msgspec.structs.replace(span, **common, index=index, value_ns=100 + index) for index in range(NUM_SPANS)]
            writer.append(*spans, Clip(**common, phase="timed", num_spans=NUM_SPANS))
        writer.append(END)
    return writer.folder


def rewritten(run: Path, change: Callable[[Lines], object]) -> Path:
    lines = (run / RECORDS).read_bytes().splitlines()
    change(lines)
    (run / RECORDS).write_bytes(b"".join(line + b"\n" for line in lines))
    return run


def unsealed(run: Path) -> Path:
    """The same records as an older version wrote them."""
    return rewritten(
        run, lambda lines: lines.__setitem__(slice(None), [line[: line.rindex(b',"line":')] + b"}" for line in lines])
    )


def test_a_sound_file_is_read_whole(run: Path) -> None:
    assert [number_of(line) for line in (run / RECORDS).read_bytes().splitlines()] == list(range(1, 18))
    for found in (read_run(run), read_run(unsealed(run))):
        assert (len(found.clips), len(found.spans)) == (NUM_CLIPS, NUM_CLIPS * NUM_SPANS)
        assert found.damage == () and found.excluded == () and found.left_out_lines == frozenset()


@pytest.mark.parametrize("number", range(2, 17))
def test_a_changed_digit_leaves_its_clip_out(run: Path, number: int) -> None:
    def change(lines: Lines) -> None:
        lines[number - 1] = lines[number - 1].replace(b'"order":', b'"order":1')

    found, clip = read_run(rewritten(run, change)), (number - 2) // (NUM_SPANS + 1)
    assert found.bad_lines == (number,)
    assert [each.clip for each in found.clips] == [each for each in range(NUM_CLIPS) if each != clip]
    assert {each.clip for each in found.spans} == {each.clip for each in found.clips}
    first = 2 + clip * (NUM_SPANS + 1)
    assert found.left_out_lines == frozenset(range(first, first + NUM_SPANS + 1))
    assert found.damage[0] == f"line {number} is damaged in records.jsonl and not read"
    assert found.damage[1].startswith(f"clip {clip} of turbo is left out: damaged records, ")
    (line,) = found.damaged_clips
    assert isinstance(line, Excluded) and line.indices == (clip,) and line in found.excluded


@pytest.mark.parametrize(
    ("change", "bad", "missing"),
    [
        (lambda lines: lines.pop(3), (), 1),
        (lambda lines: lines.insert(9, lines[3]), (10,), 0),
        (lambda lines: lines.__setitem__(slice(3, 5), [lines[4], lines[3]]), (5,), 0),
        (lambda lines: lines.__setitem__(slice(3, 5), [lines[3] + lines[4]]), (4,), 1),
        (lambda lines: lines.__setitem__(slice(3, 4), [lines[3][:9], lines[3][9:]]), (4, 5), 0),
        (lambda lines: lines.__setitem__(3, lines[3][: lines[3].rindex(b',"line":')] + b"}"), (4,), 0),
        (lambda lines: lines.__setitem__(3, seal(lines[3], 4)[:-1]), (4,), 0),
        (lambda lines: lines.append(b'{"record":"gate"}'), (18,), 0),
    ],
    ids=["lost", "doubled", "swapped", "joined", "split", "without a seal", "without its end", "more"],
)
def test_lines_are_where_they_were_written(run: Path, change: Callable[[Lines], object], bad: tuple, missing: int) -> None:
    found = read_run(rewritten(run, change))
    assert (found.bad_lines, found.missing_lines) == (bad, missing)
    assert found.damage and all(sum(span.clip == clip.clip for span in found.spans) == NUM_SPANS for clip in found.clips)


@pytest.mark.parametrize("number", range(2, 17))
def test_of_older_records_the_count_of_spans_is_checked(run: Path, number: int) -> None:
    found = read_run(rewritten(unsealed(run), lambda lines: lines.__setitem__(number - 1, b"{garbage")))
    clip = (number - 2) // (NUM_SPANS + 1)
    assert [each.clip for each in found.clips] == [each for each in range(NUM_CLIPS) if each != clip]
    assert len(found.spans) == (NUM_CLIPS - 1) * NUM_SPANS
    assert len(found.damage) == 2
    lost = read_run(rewritten(run, lambda lines: lines.pop(number - 1)))  # nothing is left to see, but for the count
    assert len(lost.clips) <= NUM_CLIPS - 1


def test_a_clip_that_was_never_finished_is_no_damage(run: Path) -> None:
    found = read_run(rewritten(run, lambda lines: lines.__delitem__(slice(14, None))))
    assert found.end is None and found.damage == () and len(found.clips) == 2


def test_a_log_of_records_has_the_sound_clips_alone(run: Path) -> None:
    log = read_log(
        rewritten(run, lambda lines: lines.__setitem__(8, lines[8].replace(b'"value_ns":', b'"value_ns":9'))) / RECORDS
    )
    (series,) = log.series
    assert len(series) == 2 * NUM_SPANS and {sample.round for sample in series} == {0, 2}
    assert log.damage == read_run(run).damage != ()
    assert log.counts.lines == log.counts.matched + log.counts.ignored + log.counts.similar == 17


def test_a_line_with_a_wrong_seal_is_no_value_of_a_log_without_header(run: Path, tmp_path: Path) -> None:
    lines = (run / RECORDS).read_bytes().splitlines()[1:5]
    lines[1] = lines[1].replace(b'"value_ns":', b'"value_ns":9')
    (tmp_path / "some.log").write_bytes(b"".join(line + b"\n" for line in lines))
    log = read_log(tmp_path / "some.log")
    assert sum(map(len, log.series)) == 3 and log.counts.similar == 1


def test_numbers_and_checksums() -> None:
    line = seal(b'{"a":1}', 7)
    assert line == b'{"a":1,"line":7,"crc":"%08x"}' % int(line[-10:-2], 16)
    assert number_of(line) == 7 and number_of(b'{"a":1}') is None and number_of(b"") is None
    for at in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[at] ^= 1 << bit
            assert number_of(bytes(changed)) in (0, None)
    assert check([line, line])[0] == {1} and check([b"{}", b"{}"]) == (frozenset(), 0)


def figures(log: Log) -> list[object]:
    return [log.counts, *((each.pattern, each.kind, each.name, each.rank, each.samples) for each in log.series)]


def test_packed_records_are_read_like_plain_ones(run: Path) -> None:
    plain, lines = read_run(run), (run / RECORDS).read_bytes()
    log = read_log(run / RECORDS)
    assert pack(run) == run / PACKED and [file.name for file in run.iterdir()] == [PACKED]
    assert gzip.decompress((run / PACKED).read_bytes()) == lines
    assert read_run(run) == plain == read_run(run / PACKED)
    assert figures(read_log(run / PACKED)) == figures(log)
    assert run_folders([run.parent]) == (run,)


def test_equal_records_make_equal_bytes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (run / RECORDS).read_bytes()
    first = pack(run).read_bytes()
    (run / PACKED).unlink()
    (run / RECORDS).write_bytes(lines)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert pack(run).read_bytes() == first


def test_plain_and_packed_side_by_side_are_refused(run: Path) -> None:
    (run / PACKED).write_bytes(gzip.compress((run / RECORDS).read_bytes()))
    for refuse in (read_run, pack):
        with pytest.raises(DataError, match="holds both records.jsonl and records.jsonl.gz; remove one of them") as error:
            refuse(run)
        assert "\n" not in str(error.value)


def test_nothing_to_pack_and_a_link_are_refused(run: Path, tmp_path: Path) -> None:
    pack(run).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"no records.jsonl to pack"):
        pack(run)
    (run / PACKED).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link"):
        read_run(run)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "is cut short as gzip"),
        (lambda data: data[:-8] + bytes(8), "is damaged as gzip"),
        (lambda data: data + b"more", "has 4 bytes after its gzip"),
    ],
)
def test_a_damaged_gzip_is_refused(run: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    file = pack(run)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=f"{PACKED} {said}.*get it again"):
        read_run(run)


def test_records_that_unpack_to_too_much_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(run)
    monkeypatch.setattr(store, "MAX_BYTES", 500)
    with pytest.raises(DataError, match="unpacks to more than 500 bytes"):
        read_run(run)


def test_the_script_packs_every_run_under_a_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from publish import main  # type: ignore[import-not-found]

    sound = read_run(run)
    assert main([str(run.parent)]) == 0
    assert capsys.readouterr().out == f"{run / PACKED}\n" and read_run(run) == sound
    assert main([str(run.parent)]) == 2
    assert "no records.jsonl at or under" in capsys.readouterr().err
    sys.modules.pop("publish")


def test_every_line_tells_its_kind_and_version_and_integers_beyond_a_float(header: Header, span: Span) -> None:
    for one in (header, span):
        line = msgspec.json.encode(one)
        told = msgspec.json.decode(line)
        assert (told["record"], told["v"]) == (type(one).__name__.lower(), 2) and msgspec.json.decode(line, type=Record) == one
    assert b"9007199254740993" in line


def test_a_line_without_an_optional_field_is_read_as_it_was_meant() -> None:
    """Fields came one by one: a run that did not know them had one GPU, whole clips and frame blocks, and nothing else to say."""
    meant = {
        ("Header", "kind"): "stream", ("Header", "world_size"): 1, ("Header", "sp_degree"): 1, ("Header", "tp_degree"): 1,
        ("Workload", "batch"): 1, ("Workload", "unit"): "frame block", ("Clip", "calls"): 1, ("Excluded", "kind"): "other",
    }  # fmt: skip
    found, kinds = {}, {part for line in LINES for part in (line, *parts_of(line))}
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if default is not msgspec.NODEFAULT and field.name != "v" and default not in (None, False, 0, "", (), {}):
                found[kind.__name__, field.name] = default
    assert found == meant and len(kinds) > 30


@pytest.mark.parametrize("kind", [kind for kind in LINES if kind is not Prediction])
def test_times_that_a_clock_measured_are_whole_nanoseconds(kind: type[msgspec.Struct]) -> None:
    for field in msgspec.inspect.type_info(kind).fields:
        if field.name.endswith(("_ns", "_bytes")):
            found = field.type.type
            while isinstance(found, msgspec.inspect.VarTupleType | msgspec.inspect.DictType):
                found = found.value_type if isinstance(found, msgspec.inspect.DictType) else found.item_type
            assert isinstance(found, msgspec.inspect.IntType | msgspec.inspect.UnionType), field.name


def test_every_table_of_the_manual_is_a_public_class() -> None:
    heads = set(re.findall(r"^## `?(\w+)`?$", (ROOT / "docs" / "records.md").read_text(encoding="utf-8"), re.MULTILINE))
    public = {getattr(strobe.records, name) for name in strobe.records.__all__} - {RunRecords}
    assert heads == {kind.__struct_config__.tag if kind in LINES else kind.__name__ for kind in public}
    assert set(LINES) < public


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_git_state_is_that_of_the_checkout_that_tracks_the_file(tmp_path: Path) -> None:
    tracked, stray = tmp_path / "a.py", tmp_path / "b.py"
    assert record.git_state(tracked).commit is None
    git(tmp_path, "init", "-q")
    tracked.write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    stray.write_text("2")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=False)
    assert record.git_state(stray).commit is None
    tracked.write_text("3")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=True)


def test_a_machine_that_tells_nothing_gives_nulls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(record, "_text", lambda path: "")
    assert record.git_state(Path(__file__)) == record.Git(commit=None, dirty=None)
    assert record.cpu_governor() is None
    assert record.cpu_mhz() is None
    assert record.cpu_cores() >= 1


def test_the_clock_of_the_cores_is_their_mean_in_mhz(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"a": "2000000", "b": "3001000", "c": "", "/proc/cpuinfo": "cpu MHz\t: 1000.5\nflags: x\ncpu MHz\t: 2000\n"}
    monkeypatch.setattr(record, "_text", lambda path: told[str(path)])
    for cores, expected in (("abc", 2500), ("", 1500)):
        monkeypatch.setattr(Path, "glob", lambda folder, pattern, cores=cores: map(Path, cores))
        assert record.cpu_mhz() == expected


@pytest.fixture(scope="session")
def header() -> Header:
    return header_of(
        ("baseline", "turbo", "turbo", "baseline"),
        git=Git(commit="0" * 40, dirty=True),
        argv=("strobe", "compare"),
        palindromes=4,
    )


@pytest.fixture(scope="session")
def span() -> Span:
    return span_of("turbo", "frame_block", 2**53 + 1, clip=1, order=3, palindrome=0, index=2, start_ns=10)
