"""Real processes under torchrun: one session, the command line, and a rank that ends or hangs amid a frame block."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import shared_model
from strobe.bench.processes import run_swept
from strobe.core.tolerances import tolerance

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")


@pytest.mark.rest
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.alone, TWO_GPUS])])
def test_torchrun(tmp_path: Path, device: str) -> None:
    script = Path(__file__).parents[2] / "support" / "torchrun_work.py"
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    argv = (sys.executable, *torchrun, str(script), str(tmp_path), device)
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    (tmp_path / "room").mkdir()
    done = run_swept(argv, tmp_path / "room", env, timeout_s=900 if device == "cpu" else 90)
    assert done.returncode == 0, done.stderr
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    alone = shared_model.bundled(device)
    for told in found:
        close = tolerance("stream", "float32") if device == "cpu" else tolerance("stream of two GPUs", "float32")
        torch.testing.assert_close(told["latents"], alone.latents.cpu(), atol=close, rtol=0)
    assert torch.equal(found[0]["latents"], found[1]["latents"])
    assert (found[0]["frames"].int() - alone.frames.int()).abs().max() <= 1 and not found[1]["frames"].numel()
    assert [told["cached"] for told in found] == [alone.cached // 2] * 2  # 3 heads on 2 ranks: half of the keys of each
    assert [(tmp_path / f"codes{rank}").read_text() for rank in range(2)] == ["[0, 2, 2]"] * 2, done.stderr
    assert json.loads(done.stdout)["frames"] == 9  # one document, by rank 0
    assert (tmp_path / "clip.gif").is_file()
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 2, done.stderr
    assert said[0].startswith("error: 2 ranks cannot share this session: sparse attention needs")
    assert said[1].startswith("error: 2 ranks cannot share this session: ulysses 3 divides not both the 3 heads and the 2 ranks")

    for what, words in (("hangs", "rank 1 did not answer within 3 s"), ("ends", "rank 1 closed the connection (")):
        told = (tmp_path / what).read_text()
        assert told.startswith("(1,) ") and words in told, told
