"""What a user installs: the locks, the wheel, and what must not be in the tree."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import strobe
from source import PACKAGE, ROOT, name_of
from strobe.core import libraries
from strobe.core.libraries import DISTRIBUTION, install

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
TEXT_SUFFIXES = {
    "", ".py", ".c", ".md", ".toml", ".lock", ".in", ".override", ".html", ".css", ".js", ".json", ".jsonl", ".txt", ".yml",
    ".Dockerfile",
}  # fmt: skip
FOLDERS = ("src", "tests", "tools", "docs", "requirements", "benchmarks", "docker", "examples", ".ci")

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
    names = ("runtime", "serve", "dev")
    runtime, serve, dev = (locked(ROOT / "requirements" / f"{name}.lock") for name in names)
    assert dev.items() >= serve.items() >= runtime.items()
    docs = locked(ROOT / "requirements" / "docs.lock")
    assert not docs.keys() & dev.keys(), "they are installed beside dev.lock"
    (torch,) = (Requirement(spec) for spec in PROJECT["project"]["dependencies"] if spec.startswith("torch"))
    assert [torch.specifier.contains(version) for version in ("2.8.0", "2.9.0", "2.13.0+cpu")] == [False, True, True]
    extras, asked = PROJECT["project"]["optional-dependencies"], PROJECT["project"]["dependencies"]
    wanted = ((runtime, asked), (dev, PROJECT["dependency-groups"]["dev"]), (serve, extras["serve"] + extras["hub"]))
    for lock, requirement in ((lock, Requirement(spec)) for lock, specs in wanted for spec in specs):
        if requirement.name != "torch":
            pin = lock[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), f"{requirement}: its lock has {pin}"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_tree_does_not_name(what: str) -> None:
    there = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in there
        if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name != ".git"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


OTHERS = re.compile(r"\bstrobe\[|\binstall[- a-z]* '?strobe(?![-_\w])|/strobe-\*|\bstrobe-[0-9.]+-py3")
"""What would fetch another project from an index: it is called strobe there."""


def test_nothing_asks_for_another_project() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION != "strobe"
    for wrong in ("install strobe[vmaf]", "pip install strobe", "uv pip install 'strobe[wan]'", "dist/strobe-*.whl"):
        assert OTHERS.search(wrong)
    for right in ("pip install 'strobe-video[vmaf]'", "install.strobe", "strobe_video-*.whl"):
        assert not OTHERS.search(right)
    places = [ROOT / name for name in ("README.md", "action.yml", "hatch_build.py", "pyproject.toml", "mkdocs.yml")]
    for folder in ("src", "docs", "docker", "examples", "benchmarks"):
        places += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file()]
    found = [f"{name_of(path)}: {hit[0]}" for path in places for hit in OTHERS.finditer(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_an_extra_is_asked_for_as_the_package_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install("vmaf") == "pip install -e '.[vmaf]' in the checkout"
    monkeypatch.setattr(libraries, "_CHECKOUT", tmp_path)
    assert install("vmaf") == "pip install '.[vmaf]' in a checkout of strobe-video"
    asked = {
        node.args[0].value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install"
        if isinstance(node.args[0], ast.Constant)
    }
    assert asked and asked <= PROJECT["project"]["optional-dependencies"].keys()


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
    assert {name.split("/")[0] for name in names} == {"strobe", f"strobe_video-{strobe.__version__}.dist-info"}
    files = [path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()]
    cached = re.compile(r"__pycache__|(^|/)\.")
    assert {name for name in names if name.startswith("strobe/")} == {
        f.as_posix() for f in files if not cached.search(f.as_posix())
    }
    assert "strobe/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata and "Requires-Python: >=3.11" in metadata


def test_an_index_page_has_the_addresses_and_no_relative_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"strobe_video-{strobe.__version__}.dist-info/METADATA").decode()
    found = email.message_from_string(text)
    repository = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    addresses = dict(value.split(", ") for value in found.get_all("Project-URL", []))
    assert set(addresses) == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    assert addresses["Repository"] == repository and all(each.startswith(repository) for each in addresses.values())
    assert found["Description-Content-Type"] == "text/markdown"
    tokens = [inner for token in MarkdownIt().parse(found.get_payload()) for inner in token.children or ()]
    targets = [str(token.attrs[key]) for token in tokens for key in ("href", "src") if key in token.attrs]
    ours = [target for target in targets if target.startswith(repository)]
    assert len(ours) > 5 and all(re.match(r"https://|#", target) for target in targets), targets
    for target in ours:
        place = target.removeprefix(repository).partition("/HEAD/")[2].partition("#")[0]
        assert (ROOT / place).exists(), target


def test_links_are_made_absolute_and_code_is_not() -> None:
    text = (
        "[a](docs/a.md#b) ![p](docs/p.png) [![p](./p.svg)](LICENSE) [c](#here) [w](https://x.example/) `[a](b)`\n"
        '<img src="docs/q.webp">\n\n[r]: docs/r.md\n\n```python\nx[0](1)\n```\n'
    )
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(built := importlib.util.module_from_spec(spec))
    assert built.absolute_links(text, "https://r.example") == (
        "[a](https://r.example/blob/HEAD/docs/a.md#b) ![p](https://r.example/raw/HEAD/docs/p.png) "
        "[![p](https://r.example/raw/HEAD/p.svg)](https://r.example/blob/HEAD/LICENSE) [c](#here) [w](https://x.example/) "
        "`[a](b)`\n"
        '<img src="https://r.example/raw/HEAD/docs/q.webp">\n\n[r]: https://r.example/blob/HEAD/docs/r.md\n\n'
        "```python\nx[0](1)\n```\n"
    )


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.compile(rf"\bmake (?:{'|'.join(re.findall(r'^([a-z-]+):', MAKEFILE, re.MULTILINE))})\b")


def test_no_message_asks_for_the_makefile() -> None:
    """Who has only the wheel has none. Pages that say which target makes them are for developers."""
    found = [
        f"{name_of(path)}:{node.lineno}: {node.value[:80]!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if TARGETS.search(node.value) and "do not edit" not in node.value
    ]
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, what the locks of a user name, torch, and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    site = Path(subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                               capture_output=True, text=True, timeout=600).stdout.strip())  # fmt: skip
    for name in (*locked(ROOT / "requirements" / "runtime.lock"), *locked(ROOT / "requirements" / "torch.lock"), "torch"):
        here = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in here.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(here.locate_file(top)))
    return folder


@pytest.mark.rest
def test_the_wheel_runs_outside_the_clone(installed: Path, tmp_path: Path) -> None:
    environment = {"PATH": "", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        assert not TARGETS.search(done.stdout + done.stderr)
        return done.stdout

    script, python = str(installed / "bin" / "strobe"), str(installed / "bin" / "python")
    assert run(script, "--version").split() == ["strobe", strobe.__version__]
    assert str(installed) in run(python, "-c", "import strobe; print(strobe.__file__)")
    run(script, "demo", "--rounds", "1", "--blocks", "4", "--device", "cpu")
    (page,) = tmp_path.glob("demo-out/*/report.html")
    assert (tmp_path / "demo-out" / "clip.mp4").stat().st_size > 0 and "baseline" in page.read_text("utf-8")
    (trace,) = page.parent.glob("traces/turbo.json.gz")
    assert "kernels" in json.loads(run(script, "trace", str(trace), "--json"))
    assert {check["ok"] for check in json.loads(run(script, "doctor", "--device", "cpu", "--json"))["checks"]} == {True}
    assert "turbo" in run(script, "presets")


@pytest.mark.rest
def test_an_extra_that_is_not_installed_is_named(installed: Path, tmp_path: Path) -> None:
    for arguments, extra in ((["serve"], "serve"), (["profile", "dit", "--model", "wan-1.3b"], "diffusers")):
        done = subprocess.run([str(installed / "bin" / "strobe"), *arguments], cwd=tmp_path, env={"PATH": ""},
                              capture_output=True, text=True, timeout=600)  # fmt: skip
        assert done.returncode == 3 and done.stderr.count("\n") == 1
        assert f"pip install '.[{extra}]' in a checkout of {DISTRIBUTION}" in done.stderr
