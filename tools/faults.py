"""Faults: `kill -9`, full disks, damaged and hostile files; one function tries one fault and raises if it was not survived.

`make faults` tries every kind as often as the table `KINDS` says, and writes the section of docs/testing.md.

Usage: python tools/faults.py [KIND ...]
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import strobe
from fault_snapshots import damaged_snapshot
from strobe.cli.main import main as command
from strobe.core.errors import DataError
from strobe.perf.records.store import RECORDS, read_bytes, read_run, records_file, seal
from strobe.perf.report.build import build_report
from strobe.perf.table.model import Report
from testing_page import put, section

RUN: Final = Path(__file__).parents[1] / "benchmarks" / "engine-h200" / "320x576"
ENVIRONMENT: Final = {"PYTHONPATH": str(Path(strobe.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
"""Of a process that writes."""
START: Final = """
import sys
from pathlib import Path
from strobe.perf.records.record import *
from strobe.perf.records.store import RunWriter, read_run

def begun():
    machine = Machine(device="cpu", device_name="", gpu_count=0, gpu_memory_bytes=None, driver=None, cuda=None, torch=None,
                      python="", os="", cpu_name="", cores=1, threads=1, memory_bytes=None, clocks=Clocks(source="none"))
    writer = RunWriter(Path(sys.argv[1]) / "run")
    writer.append(Header(run="r", date="", strobe="", git=Git(commit=None, dirty=None), argv=(), machine=machine, baseline="b",
                         order=("b",), palindromes=1))
    return writer

def clip_of(number, times):
    common = dict(variant="b", clip=number, order=number, palindrome=number)
    spans = [Span(**common, name="e2e", index=None, start_ns=0, value_ns=number, clock="perf_counter", warmup=False)] * times
    return *spans, Clip(**common, phase="timed", num_spans=times)
"""
"""What a process that writes records begins with."""

WRITES_RECORDS: Final = f"""{START}
writer = begun()
for number in range(1_000_000):
    writer.append(*clip_of(number, 3))
    print(number, flush=True)
"""
WRITES_PAGES: Final = """
import sys
from pathlib import Path
from strobe.core.files import write_whole
for number in range(1_000_000):
    write_whole(Path(sys.argv[1]) / "report.html", f"{number} " * 20_000)
    print(number, flush=True)
"""
WRITES_A_CLIP: Final = """
import sys, torch
from strobe.engine.video import VideoFile
video = VideoFile(sys.argv[1] + "/clip.mp4", fps=16)
for number in range(1_000_000):
    video.write(torch.randint(0, 255, (8, 64, 64, 3), dtype=torch.uint8))
    print(number, flush=True)
"""


def killed(seed: int, folder: Path) -> None:
    """Kill a process that writes: 6 times of 10 records, 3 times pages, once a clip."""
    if seed % 10 == 9:
        _clip(seed, folder)
    elif seed % 10 > 5:
        _page(seed, folder)
    else:
        _records(seed, folder)


def _kill(code: str, seed: int, folder: Path, after_line: int = 0) -> int:
    """Start a process, let it write, kill it; return the number of the last item that it reported as finished."""
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(after_line + 1)]
    time.sleep(random.Random(seed).uniform(0, 0.1))
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    return int([line for line in said if line.endswith("\n")][-1])


def _records(seed: int, folder: Path) -> None:
    last = _kill(WRITES_RECORDS, seed, folder)
    run = read_run(folder / "run")
    clips = [clip.clip for clip in run.clips]
    assert clips == list(range(len(clips))) and len(clips) > last
    assert all(sum(span.clip == clip for span in run.spans) == 3 for clip in clips[-20:])  # the newest may be there in part
    assert run.damage == () and run.end is None


def _page(seed: int, folder: Path) -> None:
    last = _kill(WRITES_PAGES, seed, folder)
    numbers = (folder / "report.html").read_text().split()
    assert len(numbers) == 20_000 and set(numbers) <= {str(last), str(last + 1)}


def _clip(seed: int, folder: Path) -> None:
    import av

    (folder / "clip.mp4").write_bytes(b"an earlier clip")
    made = 8 * (1 + _kill(WRITES_A_CLIP, seed, folder, after_line=4))
    assert (folder / "clip.mp4").read_bytes() == b"an earlier clip"
    played = 0
    with av.open(str(folder / "clip.partial.mp4")) as file, suppress(av.InvalidDataError):
        for _ in file.decode(video=0):
            played += 1
    assert made - 8 <= played, (made, played)  # the newest frames are still in the encoder


STEP_BYTES: Final = 16 << 10
WRITES_ON_A_SMALL_DISK: Final = (
    START
    + """
import resource, signal, torch
from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
from strobe.engine.video import VideoFile
from strobe.perf.measure.profile import trace_blocks

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
ENDS = ("the disk is full", "File too large", "did not come to the end of it")
torch.manual_seed(0)

def said(write):
    try:
        write()
    except StrobeError as error:
        assert any(end in str(error) for end in ENDS) and "\\n" not in str(error), error
        assert str(folder) in str(error), error
        return str(error)
    return ""

def blocks():
    for _ in range(3):
        x = torch.randn(8, 8)
        for _ in range(300):
            x = x @ x
        yield x

def clip():
    with VideoFile(folder / "clip.mp4", fps=16) as video:
        for _ in range(6):
            video.write(torch.randint(0, 255, (8, 64, 64, 3), dtype=torch.uint8))

def records():
    writer = begun()
    for number in range(2000):
        writer.append(*clip_of(number, 1))

page = folder / "report.html"
assert not said(lambda: write_whole(page, "old"))
trace = folder / "traces" / "t.json.gz"
told = [said(lambda: trace_blocks(blocks(), device=torch.device("cpu"), first_block=1, num_blocks=1, path=trace))]
left = [path for path in folder.rglob("*") if path.is_file()]
assert left == [page] + ([] if told[0] else [trace]), left
told += [said(lambda: write_whole(page, "x" * 100_000))]
assert page.read_text() == ("old" if told[1] else "x" * 100_000)
told += [said(clip)]
assert [path.name for path in folder.glob("*clip*")] == ([] if "nothing of it plays" in told[2] else ["clip.mp4"]), told
told += [said(records)]
assert told[3], "2,000 clips fit into no disk of these sizes"
if "the 0 records" not in told[3]:
    run = read_run(folder / "run")
    assert [each.clip for each in run.clips] == list(range(len(run.clips))) and not run.damage and not run.truncated
    assert f"the {1 + 2 * len(run.clips)} records" in told[3], told[3]
"""
)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[int]:
    """Give a folder little room; yields the limit on a file where no file system could be mounted, else 0."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield size_bytes
        return
    try:
        yield 0
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(seed: int, folder: Path) -> None:
    """Write a trace, a page, a clip and records where there is room for some of them."""
    with small_disk(folder, (seed % 20 + 1) * STEP_BYTES) as limit:
        done = subprocess.run(
            [sys.executable, "-c", WRITES_ON_A_SMALL_DISK, str(folder), str(limit)],
            env=ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr


ONE_IN: Final = 5
"""Of so many tries, one damages records from before there were checksums: a line of a clip is lost or garbage."""


@cache
def sound(*, sealed: bool) -> tuple[tuple[bytes, ...], Report]:
    """Return the lines of an undamaged run, and the report of them."""
    lines = read_bytes(records_file(RUN)).splitlines()
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


SECRET: Final = "what lies outside"
LONGEST_S: Final = 10
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def _named(kind: str, name: str, run: Path) -> None:
    """Add a record that names a file: the trace of a variant, or a clip to look at."""
    fields = {"variant": "baseline", "path": name, "sha256": "0" * 64, "v": 1}
    more = {"trace": {"clip": 0, "size_bytes": 1, "first_block": 1, "num_blocks": 1}, "video": {"frames": 1, "fps": 1}}[kind]
    with (run / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"record": kind, **fields, **more}) + "\n")


def _link(name: str, target: str, run: Path) -> None:
    """Replace a file of the run folder by a link."""
    place = run / name
    if place.exists():
        place.unlink()
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target.format(run=run))


def _both(*makes: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda run: [make(run) for make in makes] and None


def _pipe(name: str, run: Path) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)


def _renamed(word: str, run: Path) -> None:
    """Rename a variant and the run in the records."""
    file, quoted = run / "records.jsonl", json.dumps(word)
    file.write_text(file.read_text(encoding="utf-8").replace('"balanced"', quoted).replace("320x576", quoted[1:-1]))


_PATHS: Final = (
    "/dev/zero", "/dev/tty", "/proc/self/mem", "../outside", "../../../../../../etc/passwd", "a/../../outside", "", ".", "own\0",
    "/proc/self/fd/0",
)  # fmt: skip
_ESCAPES: Final = ("\x1b]0;owned\x07", "\x1b[2J\x9b31m", "[/b][red]\u202e", "x\r\x08\ny")

HOSTILE: Final[tuple[Callable[[Path], None], ...]] = (
    *(partial(_named, "trace", name) for name in _PATHS),
    *(partial(_named, "video", name) for name in _PATHS[:4]),
    _both(partial(_link, "link", "{run}/../outside"), partial(_named, "trace", "link")),
    _both(partial(_link, "link", "{run}/../outside"), partial(_named, "video", "link")),
    _both(partial(_link, "deep", "{run}/.."), partial(_named, "trace", "deep/outside")),
    _both(partial(_pipe, "pipe"), partial(_named, "trace", "pipe")),
    partial(_pipe, "records.jsonl"),
    partial(_link, "records.jsonl", "/dev/zero"),
    partial(_link, "records.jsonl", "{run}/../outside"),
    *(partial(_link, name, "{run}/../outside") for name in ("report.html", "report.md", "report.json")),
    partial(_link, "report.html", "/dev/full"),
    partial(_link, "report.md", "{run}/../nowhere"),
    *(partial(_renamed, word) for word in _ESCAPES),
)


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise AssertionError if the block takes longer than `seconds`."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said(*arguments: str) -> tuple[int, str, str]:
    """Run one command line in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), no_longer_than(LONGEST_S):
        code = command(list(arguments))
    return code, out.getvalue(), err.getvalue()


def hostile_file(seed: int, folder: Path) -> None:
    """Report and lint a run folder with one thing in it that a run does not leave."""
    run, outside = folder / "run", folder / "outside"
    run.mkdir()
    (run / "records.jsonl").write_bytes(gzip.decompress((RUN / "records.jsonl.gz").read_bytes()))
    outside.write_text(SECRET)
    HOSTILE[seed % len(HOSTILE)](run)
    for arguments in (("report", str(run)), ("report", str(run), "--json"), ("lint", str(run))):
        code, out, err = said(*arguments)
        assert code in (0, 1, 2, 3), (arguments, code, err)
        assert not _OBEYED.search(out + err) and SECRET not in out + err
        errors = [line for line in err.splitlines() if line.startswith("error")]
        assert len(errors) == (code > 1), err
    assert outside.read_text() == SECRET and sorted(path.name for path in folder.iterdir()) == ["outside", "run"]
    pages = [path for path in run.glob("report.*") if path.is_file() and not path.is_symlink()]
    assert all(SECRET not in path.read_text(encoding="utf-8") for path in pages)
    assert not list(run.glob("*.tmp")) and not list(run.glob(".*"))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Args:
        tries: how often `make faults` tries it, with the seeds 0, 1, 2 and so on.
        survived: what must hold afterwards.
        attempt: tries one, with a seed, in an empty folder.
    """

    name: str
    tries: int
    survived: str
    attempt: Callable[[int, Path], None]


KINDS: Final = (
    Kind(
        name="kill -9",
        tries=100,
        survived="Finished records can be read. A page is the old or the new page. The earlier clip is unchanged, and the new "
        "frames are kept.",
        attempt=killed,
    ),
    Kind(
        name="full disk, 20 sizes",
        tries=20,
        survived="One line says that the disk is full. There is no half page and no temporary file. Earlier files can be read.",
        attempt=full_disk,
    ),
    Kind(
        name="damaged records",
        tries=500,
        survived="The report is unchanged, or a banner names the damage, or one line says why there is no report.",
        attempt=damaged_records,
    ),
    Kind(
        name="damaged snapshots",
        tries=200,
        survived="The snapshot is refused with one error, or it is read without a changed bit.",
        attempt=damaged_snapshot,
    ),
    Kind(
        name="hostile files in a run folder",
        tries=len(HOSTILE),
        survived="No file outside is read or changed. Nothing hangs. "
        "Control characters in a file do not act on the terminal. An error is one line.",
        attempt=hostile_file,
    ),
)


HEAD: Final = """## Faults

`make faults` breaks something on purpose in an empty folder, as often as the table says. `tests/faults` does it a few times.

| fault | tried | survived | what must hold |
|---|---|---|---|
"""


def attempts(kind: Kind, tries: int) -> dict[int, str]:
    """Try a kind of fault with seeds from 0; return the seeds that failed, with the error."""
    failed: dict[int, str] = {}
    for seed in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            try:
                kind.attempt(seed, Path(folder))
            except Exception as error:  # noqa: BLE001  # whatever it is, the fault was not survived
                failed[seed] = f"{type(error).__name__}: {error}"
    return failed


def row(kind: Kind, failed: int) -> str:
    """Format the kind's row in the page."""
    return f"| {kind.name} | {kind.tries} | {kind.tries - failed} | {kind.survived} |\n"


def written(rows: dict[str, str]) -> str:
    """Return the section with these rows; kinds that were not tried keep their present row."""
    lines = section("Faults").splitlines(keepends=True)
    kept = {line.split("|")[1].strip(): line for line in lines if line.startswith("|")}
    known = kept | rows
    return HEAD + "".join(known[kind.name] for kind in KINDS if kind.name in known)


def main() -> int:
    """Try the kinds named, or all, and write their rows."""
    unknown = set(sys.argv[1:]) - {kind.name for kind in KINDS}
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(kind.name for kind in KINDS)}\n")
        return 2
    all_survived = True
    for kind in KINDS:
        if sys.argv[1:] and kind.name not in sys.argv[1:]:
            continue
        began = time.monotonic()
        failed = attempts(kind, kind.tries)
        sys.stderr.write(f"{kind.name}: {kind.tries - len(failed)} of {kind.tries} in {time.monotonic() - began:.0f} s\n")
        sys.stderr.writelines(f"  seed {seed}: {why[:300]}\n" for seed, why in failed.items())
        put(written({kind.name: row(kind, len(failed))}))
        all_survived = all_survived and not failed
    return 0 if all_survived else 1


if __name__ == "__main__":
    sys.exit(main())
