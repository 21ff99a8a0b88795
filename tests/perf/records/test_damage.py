"""Records that are damaged: what is found, and what is left out for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from strobe.perf.logs import read_log
from strobe.perf.records.record import Clip, End, Excluded, Header, Span
from strobe.perf.records.store import RECORDS, RunWriter, check, number_of, read_run, seal

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
        writer.append(End(status="complete", date="2026-01-01T00:01:00Z", wall_ns=1))
    return writer.folder


def rewritten(run: Path, change: Callable[[Lines], object]) -> Path:
    lines = (run / RECORDS).read_bytes().splitlines()
    change(lines)
    (run / RECORDS).write_bytes(b"".join(line + b"\n" for line in lines))
    return run


def unsealed(run: Path) -> Path:
    """The same records as an older version wrote them."""

    def strip(lines: Lines) -> None:
        lines[:] = [line[: line.rindex(b',"line":')] + b"}" for line in lines]

    return rewritten(run, strip)


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
    assert found.damage and all(len(spans) == NUM_SPANS for spans in _by_clip(found.spans, found.clips))


def _by_clip(spans: tuple[Span, ...], clips: tuple[Clip, ...]) -> list[list[Span]]:
    return [[span for span in spans if span.clip == clip.clip] for clip in clips]


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
    def change(lines: Lines) -> None:
        lines[8] = lines[8].replace(b'"value_ns":', b'"value_ns":9')

    log = read_log(rewritten(run, change) / RECORDS)
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
