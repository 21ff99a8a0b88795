"""Continuous integration brings the programs that tests of the live page need, or says in one line why it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from source import ROOT

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
