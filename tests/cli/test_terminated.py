"""SIGTERM, as `kill`, a scheduler or a container sends it, says what is kept, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox import hears_ctrl_c
from strobe.perf.records.store import read_run

ROOT = Path(__file__).parents[2]
COMPARE = ("compare", "quality", "turbo", "--device", "cpu", "--blocks", "5", "--no-switch", "--rounds", "50")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sent", "code", "message", "said"),
    [(signal.SIGTERM, 143, "SIGTERM", "terminated"), (signal.SIGINT, 130, "Ctrl-C", "interrupted")],
)
def test_what_is_kept_is_said(tmp_path: Path, sent: signal.Signals, code: int, message: str, said: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "strobe", *COMPARE, "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=hears_ctrl_c, **pipes) as process:
        until = time.monotonic() + 300
        while not any(b'"record":"clip"' in path.read_bytes() for path in tmp_path.glob("*/records.jsonl")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert process.returncode == code, err
    assert err.splitlines()[-2:] == [f"the {len(run.clips)} finished clips are kept: strobe report {folder}", f"error: {said}"]
    assert run.end is not None
    assert (run.end.status, run.end.message) == ("interrupted", message)
