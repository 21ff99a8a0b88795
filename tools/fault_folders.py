"""Hostile run folders: paths that lead out, links, pipes, devices, names that are commands to a terminal."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final

from strobe.cli.main import main

RUN: Final = Path(__file__).parents[1] / "benchmarks" / "engine-h200" / "320x576"
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
        code = main(list(arguments))
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
