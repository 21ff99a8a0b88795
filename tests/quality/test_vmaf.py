"""VMAF by a program: what it is given and what is read back, with a stand-in; its values, where a real one is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate

from published_metrics import waves
from strobe.core.errors import ShapeError, StrobeError
from strobe.quality.vmaf import find_program, vmaf

STAND_IN = """#!{python}
import json, os, sys
sizes = [os.path.getsize(name) for name in ("clip.rgb", "reference.rgb")]
assert sys.argv.count("-s") == 2 and sys.argv[sys.argv.index("-s") + 1] == "6x4", sys.argv
frames = sizes[0] // (6 * 4 * 3)
means = [sum(open("clip.rgb", "rb").read()[n * 72 : (n + 1) * 72]) / 72 for n in range(frames)]
if {fails}:
    sys.exit("no such filter: libvmaf")
open("vmaf.json", "w").write(json.dumps({{"frames": [{{"metrics": {{"vmaf": mean}}}} for mean in means]}}))
"""


def program(folder: Path, *, fails: bool = False) -> str:
    path = folder / "ffmpeg"
    path.write_text(STAND_IN.format(python=sys.executable, fails=fails))
    path.chmod(0o755)
    return str(path)


def test_frames_reach_the_program_and_scores_come_back_in_order(tmp_path: Path) -> None:
    frames = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 4, 6, 3)
    assert vmaf(frames, frames, program(tmp_path)).tolist() == [0.0, 1.0, 2.0]


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    frames = torch.zeros(2, 4, 6, 3, dtype=torch.uint8)
    with pytest.raises(StrobeError, match=r"could not compute VMAF \(exit code 1\): no such filter: libvmaf"):
        vmaf(frames, frames, program(tmp_path, fails=True))
    with pytest.raises(ShapeError, match="VMAF compares uint8 clips of one shape"):
        vmaf(frames, frames[:1], program(tmp_path))


@pytest.mark.skipif(find_program() is None, reason="needs an FFmpeg with libvmaf")
def test_vmaf_falls_with_sharpness() -> None:
    fine = waves(96, 128, 4) * 0.5 + 0.5 * torch.rand(1, 1, 96, 128, generator=torch.Generator().manual_seed(0))
    reference = (fine * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    scores = []
    for width in (1, 2, 4):
        soft = interpolate(avg_pool2d(fine, width), fine.shape[2:], mode="bilinear")
        clip = (soft * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        scores.append(vmaf(clip, reference, find_program() or "").mean().item())
    assert 90 < scores[0] <= 100 and scores[0] > scores[1] + 10 > scores[2] + 10
