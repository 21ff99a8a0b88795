"""Sessions of a history written and read back, sound and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories import session
from strobe.core.errors import DataError, RecordVersionError
from strobe.perf.records.history import MEASUREMENTS, SESSIONS, read_history
from strobe.perf.records.store import RunWriter


def written(folder: Path, name: str = "20260101T000000Z-aaaaaa") -> Path:
    drawn = session({1: [1.0, 2.0], 2: [3.0, 4.0]}, name=name, failed=[3])
    with RunWriter(folder / SESSIONS / name, MEASUREMENTS) as writer:
        writer.append(drawn.session, *drawn.revisions, *drawn.samples, *drawn.failures)
    return folder / SESSIONS / name / MEASUREMENTS


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written(tmp_path, "2")
    written(tmp_path, "1")
    first, second = read_history(tmp_path)
    expected = session({1: [1.0, 2.0], 2: [3.0, 4.0]}, name="1", failed=[3])
    assert first.session == expected.session and second.session.session == "2"
    assert (first.revisions, first.samples, first.failures) == (expected.revisions, expected.samples, expected.failures)
    assert first.damage == ()


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_bytes(file.read_bytes()[:-30])
    (found,) = read_history(tmp_path)
    assert len(found.samples) == 4 and found.failures == () and found.damage == ()


def test_a_changed_or_lost_line_is_told(tmp_path: Path) -> None:
    file = written(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b'"wall":', b'"well":')
    del lines[6]
    file.write_bytes(b"".join(lines))
    (found,) = read_history(tmp_path)
    assert len(found.samples) == 2
    assert any("lines 6" in line for line in found.damage) and any("lacks 1" in line for line in found.damage)


def test_no_history_and_no_first_line(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none") == ()
    (tmp_path / SESSIONS / "begun").mkdir(parents=True)
    (tmp_path / SESSIONS / "opened").mkdir()
    (tmp_path / SESSIONS / "opened" / MEASUREMENTS).touch()
    assert read_history(tmp_path) == ()
    file = written(tmp_path)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(DataError, match="no first line"):
        read_history(tmp_path)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    place = tmp_path / SESSIONS / "later"
    place.mkdir(parents=True)
    (place / MEASUREMENTS).write_text('{"record":"session","v":99}\n')
    with pytest.raises(RecordVersionError, match="99"):
        read_history(tmp_path)


def test_a_link_in_place_of_the_measurements_is_not_followed(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="link"):
        read_history(tmp_path)
