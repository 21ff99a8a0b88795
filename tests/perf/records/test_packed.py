"""Records as they are published: `records.jsonl.gz` is read like `records.jsonl`, whole or damaged."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.core.errors import DataError
from strobe.perf.logs import read_log
from strobe.perf.logs.series import Log
from strobe.perf.records import store
from strobe.perf.records.record import Clip, End, Header, Span
from strobe.perf.records.store import PACKED, RECORDS, RunWriter, pack, read_run
from strobe.perf.report.log_page import run_folders

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path, header: Header, span: Span) -> Path:
    """A run folder with plain records."""
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header, span, Clip(variant=span.variant, clip=span.clip, order=0, palindrome=0, phase="timed", num_spans=1))
        writer.append(End(status="complete", date="2026-01-01T00:01:00Z", wall_ns=1))
    return writer.folder


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


def test_nothing_to_pack(run: Path) -> None:
    pack(run)
    with pytest.raises(DataError, match=r"no records.jsonl to pack"):
        pack(run)


def test_a_link_is_not_followed(run: Path, tmp_path: Path) -> None:
    pack(run).rename(tmp_path / "elsewhere")
    (run / PACKED).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link"):
        read_run(run)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-4], "records.jsonl.gz is cut short as gzip: its end is not there"),
        (lambda data: data[:-8] + bytes(8), "records.jsonl.gz is damaged as gzip"),
        (lambda data: data + b"more", "records.jsonl.gz has 4 bytes after its gzip, which are not read"),
    ],
)
def test_damage_after_the_last_line_is_said_and_costs_no_line(run: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    sound = read_run(run)
    file = pack(run)
    file.write_bytes(damage(file.read_bytes()))
    found = read_run(run)
    assert said in found.damage[0]
    assert (found.header, found.clips, found.spans) == (sound.header, sound.clips, sound.spans)
    assert any(said in line for line in read_log(file).damage)


def test_whole_lines_before_a_cut_count(tmp_path: Path, header: Header, span: Span) -> None:
    """At every place where the file can be cut, the lines that come out whole are the first ones, and the cut is said."""
    with RunWriter(tmp_path / "run") as writer:
        writer.append(header, *[span] * 40)
    file = pack(writer.folder)
    data = file.read_bytes()
    seen = set()
    for end in range(len(data)):
        file.write_bytes(data[:end])
        try:
            found = read_run(writer.folder)
        except DataError as error:
            assert "has no header" in str(error) and "\n" not in str(error)
            continue
        assert found.spans == (span,) * len(found.spans) and found.damage
        seen.add(len(found.spans))
    assert {0, 40} < seen


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
