"""Files written whole or not at all, and what is opened in a folder that nobody trusts."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import strobe
from strobe.core.errors import ConfigError, DataError, StrobeError
from strobe.core.files import file_inside, found_inside, write_together, write_whole, writing_whole

FULL = """
import resource, signal, sys
from pathlib import Path
from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(Path(sys.argv[1]), b"x" * int(sys.argv[2]))
except StrobeError as error:
    print(error, end="")
"""


def write_with_little_room(path: Path, size: int) -> str:
    command = [sys.executable, "-c", FULL, str(path), str(size)]
    source = str(Path(strobe.__file__).parents[1])
    return subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONPATH": source}).stdout


def test_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    assert write_with_little_room(path, 2000) == f"cannot write {path}: File too large; free some space or name another place"
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]
    assert write_with_little_room(path, 1000) == "" and path.read_bytes() == b"x" * 1000
    with pytest.raises(ZeroDivisionError), writing_whole(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"x" * 1000 and os.listdir(tmp_path) == ["page.html"]


def test_nobody_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with writing_whole(path) as file:
        file.write(b"a")
        file.flush()
        assert not path.exists() and len(os.listdir(tmp_path)) == 1
    assert path.read_bytes() == b"a" and os.listdir(tmp_path) == ["page.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(f"sync {os.fstat(file).st_size}"), sync(file)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("replace"), replace(self, to))[1])
    write_whole(tmp_path / "page", "four")
    assert done == ["sync 4", "replace"]


def test_a_full_disk_is_named_with_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StrobeError, match=r"page: the disk is full, it takes 1,200 bytes or more, [\d,]+ bytes are free there;"):
        write_whole(tmp_path / "page", b"x" * 1200)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("full_at", [1, 2, 3])
def test_of_files_that_belong_together_all_are_new_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int) -> None:
    pages = {tmp_path / f"report.{kind}": f"new {kind}" for kind in ("html", "md", "json")}
    for path in pages:
        path.write_text("good")
    calls = iter(range(1, 10))

    def full(descriptor: int) -> None:
        if next(calls) == full_at:
            raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StrobeError, match="the disk is full"):
            write_together(pages)
    assert {path.read_text() for path in pages} == {"good"} and len(list(tmp_path.iterdir())) == 3
    assert write_together(pages) == tuple(pages)
    assert {path: path.read_text() for path in pages} == pages


def test_a_link_is_replaced_and_a_device_is_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name, target in (("page", outside), ("lost", tmp_path / "nowhere")):
        (tmp_path / name).symlink_to(target)
        write_whole(tmp_path / name, "new")
        assert not (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == "new"
    assert outside.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(StrobeError, match="link to a device"):
        write_whole(tmp_path / "null", "new")
    write_whole(Path("/dev/null"), "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode) and (tmp_path / "null").is_symlink()


def test_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="a folder is in the way"):
        write_whole(tmp_path / "folder", "")
    with pytest.raises(ConfigError, match="a file is in the way"):
        write_whole(tmp_path / "file" / "page", "")
    with pytest.raises(StrobeError, match="No such file or directory"):
        write_whole(tmp_path / "none" / "page", "")


HOSTILE: dict[str, Callable[[Path], str]] = {
    "absolute": lambda folder: str(folder.parent / "outside"),
    "device": lambda folder: "/dev/zero",
    "up": lambda folder: "../outside",
    "up inside": lambda folder: "deep/../../outside",
    "link": lambda folder: _link(folder / "link", folder.parent / "outside"),
    "link inside": lambda folder: _link(folder / "link", folder / "own"),
    "linked folder": lambda folder: f"{_link(folder / 'link', folder.parent)}/outside",
    "pipe": lambda folder: os.mkfifo(folder / "pipe") or "pipe",
    "folder": lambda folder: "deep",
    "nothing": lambda folder: "",
    "dot": lambda folder: ".",
    "null": lambda folder: "own\0",
}


def _link(path: Path, target: Path) -> str:
    path.symlink_to(target)
    return path.name


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_only_plain_files_inside_are_opened(tmp_path: Path, make: Callable[[Path], str]) -> None:
    folder = tmp_path / "run"
    (folder / "deep").mkdir(parents=True)
    for own in (folder / "own", folder / "deep" / "own", tmp_path / "outside"):
        own.touch()
    name = make(folder)
    with pytest.raises(DataError, match="not opened|not followed"):
        file_inside(folder, name)
    assert found_inside(folder, name) is None
    assert file_inside(folder, "deep/own") == folder / "deep" / "own" == found_inside(folder, "./deep/own")
    with pytest.raises(FileNotFoundError):
        file_inside(folder, "deep/none")
    assert found_inside(folder, "deep/none") is None


def test_nothing_is_written_in_place() -> None:
    """Files that are finished at once go through `write_whole` or `writing_whole`."""
    package = Path(strobe.__file__).parent
    ways = re.compile(r"\.write_(?:text|bytes)\(|open\([^)]*\"[wax]b?\+?\"|shutil\.copy(?:file)?\(|save_file\(")
    files = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {name for name, text in files.items() if ways.search(text)} <= {
        "bench/tree/run.py",  # what a cell begins with, in a folder of its own
        "bench/own/programs.py",  # a path file of an environment that is being made
        "core/files.py",
        "quality/fidelity.py",  # scratch files for a program
        "engine/snapshot.py",  # beside and renamed, by the library of the format
        "engine/video.py",  # grows under a name of its own
        "perf/measure/profile.py",  # a scratch file of the profiler, which is then compressed by `writing_whole`
        "perf/measure/machine.py",  # a switch of the kernel
    }
