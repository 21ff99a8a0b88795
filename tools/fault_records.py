"""Damage to `records.jsonl`: changed, lost, doubled, moved, cut, joined and zeroed lines, of new and of older records."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError
from strobe.perf.records.store import RECORDS, read_bytes, read_run, records_file, seal
from strobe.perf.report.build import build_report
from strobe.perf.table.model import Report

RUN: Final = Path(__file__).parents[1] / "benchmarks" / "engine-h200" / "320x576"
ONE_IN: Final = 5
"""Of so many tries, one damages records from before there were checksums: a line of a clip is lost or garbage."""


@cache
def sound(*, sealed: bool) -> tuple[tuple[bytes, ...], Report]:
    """Return the lines of an undamaged run, and the report of them."""
    lines = read_bytes(records_file(RUN))[0].splitlines()
    return tuple(seal(line, at) if sealed else line for at, line in enumerate(lines, start=1)), build_report([RUN])


def _garbage(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines[at] = rng.randbytes(rng.randrange(200)).replace(b"\n", b"x")


def _bit(lines: list[bytes], at: int, rng: random.Random) -> None:
    changed = bytearray(lines[at])
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    lines[at] = bytes(changed)


def _digit(lines: list[bytes], at: int, rng: random.Random) -> None:
    changed = bytearray(lines[at])
    place = rng.choice([place for place, byte in enumerate(changed) if chr(byte).isdigit()])
    changed[place] = ord("0") + (changed[place] - ord("0") + rng.randrange(1, 10)) % 10
    lines[at] = bytes(changed)


def _lost(lines: list[bytes], at: int, rng: random.Random) -> None:
    del lines[at]


def _doubled(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines)), lines[at])


def _swapped(lines: list[bytes], at: int, rng: random.Random) -> None:
    other = rng.choice([other for other in range(len(lines)) if other != at])
    lines[at], lines[other] = lines[other], lines[at]


def _cut(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines[at] = lines[at][: rng.randrange(len(lines[at]))]


def _joined(lines: list[bytes], at: int, rng: random.Random) -> None:
    lines[at : at + 2] = [b"".join(lines[at : at + 2]) + b" "]


def _split(lines: list[bytes], at: int, rng: random.Random) -> None:
    place = rng.randrange(1, len(lines[at]))
    lines[at : at + 1] = [lines[at][:place], lines[at][place:]]


def _zeroed(lines: list[bytes], at: int, rng: random.Random) -> None:
    data = bytearray(b"\n".join(lines))
    first = rng.randrange(len(data))
    data[first : first + 512] = bytes(len(data[first : first + 512]))
    lines[:] = bytes(data).split(b"\n")


DAMAGES: Final = (_garbage, _bit, _digit, _lost, _doubled, _swapped, _cut, _joined, _split, _zeroed)


def damaged_records(seed: int, folder: Path) -> None:
    """Damage the records of a real run, and compare the report with that of the undamaged ones."""
    rng, sealed = random.Random(seed), seed % ONE_IN > 0
    lines, expected = list(sound(sealed=sealed)[0]), sound(sealed=sealed)[1]
    parts = [at for at, line in enumerate(lines) if line.startswith((b'{"record":"span"', b'{"record":"clip"'))]
    damage = rng.choice(DAMAGES if sealed else (_garbage, _lost, _cut))
    damage(lines, rng.randrange(len(lines)) if sealed else rng.choice(parts), rng)
    (folder / RECORDS).write_bytes(b"".join(line + b"\n" for line in lines))
    check_damage(folder, expected)


def check_damage(folder: Path, expected: Report) -> None:
    """Check that the report is refused in one line, names the damage, or equals the expected one."""
    try:
        report, run = build_report([folder]), read_run(folder)
    except DataError as error:
        assert "\n" not in str(error)
        return
    if run.damage:
        banner = next(banner for banner in report.banners if banner.title.startswith("Damaged records"))
        assert banner.level == "stop" and banner.items == tuple(f"{run.header.run}: {line}" for line in run.damage)
    elif run.end is None:
        assert any("cut short" in item for banner in report.banners for item in banner.items)
    else:
        assert report == expected
