"""The images: what their files copy is there, and who runs in them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from source import ROOT

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction of a file and what stands behind it, lines that go on put together."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_image_is_pinned_locked_and_not_run_by_root(path: Path) -> None:
    found = instructions(path)
    images = [rest.split()[0] for name, rest in found if name == "FROM"]
    images += [word.partition("=")[2] for name, rest in found for word in rest.split() if word.startswith("--from=")]
    assert all(re.search(r":[\w.-]*\d", image) for image in images if image != "build"), images
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    users = [rest for name, rest in found[last:] if name == "USER"]
    assert users == ["strobe"] and any("useradd" in rest and " strobe" in rest for _, rest in found[last:])
    installs = [rest for name, rest in found if name == "RUN" and "pip install" in rest]
    locked = [rest for rest in installs if "--require-hashes" in rest]
    assert len(locked) == 1 and all("torch==" in rest or rest.endswith("--no-deps .") for rest in installs if rest not in locked)
    assert not any("--system" in rest and "useradd" in rest for _, rest in found), "an id above 999 is not a system user's"
    assert any(name == "HEALTHCHECK" and "/readyz" in rest for name, rest in found)
    assert ("ENTRYPOINT", '["strobe"]') in found
    # its user cannot write bytecode
    first = next(number for number, (name, rest) in enumerate(found) if name == "RUN" and "pip install" in rest)
    assert any(name == "ENV" and "UV_COMPILE_BYTECODE=1" in rest.split() for name, rest in found[:first])


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_what_an_image_copies_is_there_and_not_ignored(path: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = [
        word for name, rest in instructions(path) if name == "COPY" and "--from" not in rest for word in shlex.split(rest)[:-1]
    ]
    assert "*" in ignore and len(copied) > 4
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatchcase(name, each) for each in kept), f"{name} is ignored"


def test_a_container_that_writes_into_a_folder_of_the_host_runs_as_its_owner() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    shared = [line for line in page.splitlines() if line.startswith("docker run") and "$PWD" in line]
    assert shared and all('--user "$(id -u):$(id -g)"' in line for line in shared)


def test_only_the_proxy_of_the_compose_file_is_reached_from_outside() -> None:
    assert [path.stem.partition(".")[0] for path in FILES] == ["cpu", "cuda"]
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert [name for name, each in services.items() if "ports" in each] == ["caddy"]
    assert re.search(r":\d", services["caddy"]["image"]) and services["strobe"]["build"]["dockerfile"].endswith(
        "cuda.Dockerfile}"
    )
    command = services["strobe"]["command"]
    assert command[0] == "serve" and {"--keep", "--allow-host", "--insecure-http"} <= set(command)
    assert "STROBE_SERVE_TOKEN" in services["strobe"]["environment"] and "--token" not in command


SCRIPT = ROOT / ".ci" / "programs"
HERE = {"nginx": "exit 0", "openssl": "exit 0"}


def answered(programs: dict[str, str], folder: Path) -> str:
    """What the script says on a machine that has bash and these programs alone."""
    for name in ("bash", "timeout"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, body in programs.items():
        (folder / name).write_text(f"#!{folder}/bash\n{body}\n")
        (folder / name).chmod(0o755)
    told = subprocess.run([folder / "bash", SCRIPT], env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60)
    return told.stdout + told.stderr


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"chromium": "exit 0", **HERE}, ""),
        ({"chromium": "exit 0", "nginx": "exit 0"}, "no openssl, so tests that need them are skipped: this is no Debian"),
        ({}, "this is no Debian"),
        ({"apt-get": "exit 0", "id": "echo 1000"}, "not root"),
        ({"apt-get": "exit 100", "id": "echo 0"}, "failed"),
    ],
)
def test_programs_are_installed_or_one_line_says_why_not(programs: dict[str, str], said: str, tmp_path: Path) -> None:
    told = answered(programs, tmp_path)
    assert told.count("\n") == bool(said) and said in told


def test_programs_are_installed_where_it_can_be(tmp_path: Path) -> None:
    install = (
        f'printf "#!{tmp_path}/bash\\necho Chromium 1\\n" > {tmp_path}/chromium; {shutil.which("chmod")} +x {tmp_path}/chromium'
    )
    told = answered({"apt-get": f'case "$*" in *install*) {install};; esac', "id": "echo 0"} | HERE, tmp_path)
    assert told == ".ci/programs: installed chromium\n"


def test_continuous_integration_runs_it_before_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines.index("bash .ci/programs") < lines.index("make test test-all")
