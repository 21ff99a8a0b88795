"""What is written down about the machine."""

from __future__ import annotations

import subprocess

import pytest

from strobe.bench.tree.machine import topology


def test_links_are_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args=[], returncode=0, stdout="\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV18\n")

    monkeypatch.setattr(subprocess, "run", told)
    assert topology("cuda").endswith("\tGPU0\tGPU1\nGPU0\t X \tNV18\n") and "GPU" not in topology("cpu")
