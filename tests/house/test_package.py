"""What a user installs: the locks, the wheel, and what must not be in the tree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import strobe
from source import PACKAGE, ROOT, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".lock",
    ".in",
    ".override",
    ".html",
    ".css",
    ".js",
    ".json",
    ".jsonl",
    ".txt",
    ".yml",
    "",
}
FOLDERS = ("src", "tests", "docs", "requirements", "benchmarks", "examples", ".ci")

# Spelt in pieces, so that this file is not its own finding.
FORBIDDEN = {
    "a path of one machine": re.compile("/" + "work/|/" + "root/|/" + "home/\\w|/" + "tmp/\\w|/" + "opt/\\w"),
    "a package registry's host": re.compile(
        "py" + r"pi\.org|python" + r"hosted|download\.py" + r"torch|index-" + "url|conda" + r"\.io"
    ),
}


def locked(path: Path) -> dict[str, str]:
    """Name to version of every pin in a lock."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", LOCKS, ids=[path.name for path in LOCKS])
def test_a_lock_is_names_versions_and_hashes(path: Path) -> None:
    entries = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").strip())
    for entry in entries:
        if not entry.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry.splitlines()[0]
    assert "torch" not in locked(path)


def test_the_locks_satisfy_what_the_project_asks_for() -> None:
    runtime, dev = (locked(ROOT / "requirements" / f"{name}.lock") for name in ("runtime", "dev"))
    assert dev.items() >= runtime.items()
    wanted = {(spec, "runtime") for spec in PROJECT["project"]["dependencies"]} | {
        (spec, "dev") for spec in PROJECT["dependency-groups"]["dev"]
    }
    for spec, lock in wanted:
        requirement = Requirement(spec)
        if requirement.name != "torch":
            pin = (runtime if lock == "runtime" else dev)[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), f"{spec}: {lock}.lock has {pin}"


def test_torch_is_a_range() -> None:
    (torch,) = (spec for spec in PROJECT["project"]["dependencies"] if spec.startswith("torch"))
    specifier = Requirement(torch).specifier
    assert specifier.contains("2.9.0") and specifier.contains("2.13.0+cpu") and not specifier.contains("2.8.0")


def text_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    there = [*ROOT.glob("*"), *inside]
    return [path for path in there if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name != ".git"]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_tree_does_not_name(what: str) -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


def test_report_pages_load_nothing() -> None:
    fetches = re.compile(
        r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import|\bfetch\(|XMLHttpRequest"""
    )
    for path in sorted((PACKAGE / "perf" / "report").rglob("*")):
        if path.suffix in (".py", ".css", ".js", ".html"):
            assert not fetches.search(path.read_text(encoding="utf-8")), name_of(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with the tools of this environment and no network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True, capture_output=True, timeout=900)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.split("/")[0] for name in names} == {"strobe", f"strobe-{strobe.__version__}.dist-info"}
    files = [path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()]
    cached = re.compile(r"__pycache__|(^|/)\.")
    assert {name for name in names if name.startswith("strobe/")} == {
        f.as_posix() for f in files if not cached.search(f.as_posix())
    }
    assert "strobe/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata and "Requires-Python: >=3.11" in metadata


def test_the_wheel_runs_outside_the_clone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    site = Path(subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                               capture_output=True, text=True, timeout=600).stdout.strip())  # fmt: skip
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")
    outside = tmp_path / "elsewhere"
    outside.mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(arguments, cwd=outside, env={"PATH": ""}, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stdout

    strobe_script = str(tmp_path / "venv" / "bin" / "strobe")
    assert run(strobe_script, "--version").split() == ["strobe", strobe.__version__]
    assert str(site) in run(str(python), "-c", "import strobe; print(strobe.__file__)")
    run(strobe_script, "generate", "a red circle moving left", "--blocks", "1", "--device", "cpu", "-o", "clip.mp4")
    assert (outside / "clip.mp4").stat().st_size > 0
