"""What is written down about the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from strobe.bench.tree.machine import topology


def test_links_are_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args=[], returncode=0, stdout="\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV18\n")

    monkeypatch.setattr(subprocess, "run", told)
    assert topology("cuda").endswith("\tGPU0\tGPU1\nGPU0\t X \tNV18\n") and "GPU" not in topology("cpu")


def test_why_there_are_no_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho half a table\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told = topology("cuda")
    assert "nvidia-smi topo -m: " in told and "exit status 9" in told and "half a table" not in told
