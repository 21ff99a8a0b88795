"""PSNR, SSIM, MS-SSIM and the temporal metrics against float64 numpy written here, and against values by hand."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from published_metrics import disturbed, waves
from strobe.core.errors import ConfigError, DataError, ShapeError, StrobeError
from strobe.quality.available import metric
from strobe.quality.fidelity import (
    COMPARED,
    block_starts,
    border_jump,
    compare,
    find_program,
    flicker_excess,
    ms_ssim,
    psnr,
    ssim,
    temporal_difference,
    vmaf,
)
from strobe.quality.flip import flip

_THREE = ("psnr", "ssim", "temporal_difference")
SIZES = [(11, 11), (17, 63), (100, 37)]


def clip_pair(height: int, width: int, frames: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth random clip and a noisy copy, float `[F, 3, Y, X]`."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(frames, 3, 5, 5, generator=generator)
    reference = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    noise = torch.randn(reference.shape, generator=generator) * torch.tensor([0.01, 0.05, 0.2])[:frames, None, None, None]
    return (reference * 0.9 + 0.05 + noise).clamp(0, 1), reference


@pytest.mark.parametrize(("height", "width"), [(1, 1), *SIZES])
def test_psnr_and_ssim_equal_their_definitions(height: int, width: int) -> None:
    frames, reference = clip_pair(height, width)
    x, y = frames.double().numpy(), reference.double().numpy()
    expected = [10 * np.log10(1 / np.mean((x[f] - y[f]) ** 2)) for f in range(3)]
    assert psnr(frames, reference).tolist() == pytest.approx(expected, abs=1e-4)
    if (height, width) in SIZES:
        expected = [np.mean([mean_terms(x[f, c], y[f, c])[0] for c in range(3)]) for f in range(3)]
        assert ssim(frames, reference).tolist() == pytest.approx(expected, abs=2e-5)
        assert expected[0] > expected[1] > expected[2]


def test_long_clips_are_compared_in_parts() -> None:
    frames, reference = clip_pair(13, 15)
    long = ssim(frames.repeat(12, 1, 1, 1), reference.repeat(12, 1, 1, 1))
    torch.testing.assert_close(long, ssim(frames, reference).repeat(12))


def test_both_layouts_give_one_value() -> None:
    frames, reference = ((clip * 255).round() for clip in clip_pair(24, 18))
    as_bytes = [clip.permute(0, 2, 3, 1).to(torch.uint8) for clip in (frames, reference)]
    assert compare(*as_bytes) == compare(frames / 255, reference / 255) == compare(as_bytes[0], reference / 255)


def test_temporal_difference_sees_flicker_and_not_an_offset() -> None:
    _, reference = clip_pair(12, 12)
    assert temporal_difference(reference + 0.1, reference).max() < 1e-7
    flicker = torch.tensor([0.1, -0.1, 0.1])[:, None, None, None]
    assert temporal_difference(reference + flicker, reference).tolist() == pytest.approx([0.2, 0.2], abs=1e-6)


def test_compare_gathers_every_metric() -> None:
    frames, reference = clip_pair(21, 33)
    found = compare(frames, reference)
    assert tuple(found) == COMPARED
    error = np.mean((frames.double().numpy() - reference.double().numpy()) ** 2)
    assert found["psnr"] == (pytest.approx(-10 * np.log10(error), abs=1e-4), "")
    assert found["ssim"] == (pytest.approx(ssim(frames, reference).mean().item()), "")
    assert found["temporal_difference"][0] == pytest.approx(temporal_difference(frames, reference).mean().item())
    assert found["ms_ssim"] == (None, "needs frames of 176 pixels and more, these have 21")
    assert found["psnr_drift"] == (None, "a clip of 3 frames is too short: give 4 or more")
    assert compare(frames, reference, ("ssim",)) == {"ssim": found["ssim"]}


def test_equal_frames_have_no_psnr_and_one_of_them_leaves_the_clip_a_value() -> None:
    frames, reference = clip_pair(16, 16)
    assert compare(reference, reference.clone(), _THREE) == {
        "psnr": (None, ""), "ssim": (1.0, ""), "temporal_difference": (0.0, "")
    }  # fmt: skip
    frames[0] = reference[0]
    assert compare(frames, reference)["psnr"][0] is not None
    assert compare(frames[:1], reference[:1], ("temporal_difference",)) == {
        "temporal_difference": (None, "a single frame does not move")
    }


def test_drift_is_late_against_early_where_no_end_equals_the_reference() -> None:
    frames, reference = clip_pair(16, 16)
    late = torch.cat([reference, reference, frames[:1], frames[:1], frames[2:], frames[2:]])[:8]
    steady = torch.cat([reference] * 3)[:8]
    frames8 = torch.where(torch.arange(8)[:, None, None, None] < 2, steady + 0.01, late)
    value, note = compare(frames8, steady, ("ssim_drift",))["ssim_drift"]
    curve = ssim(frames8, steady)
    assert value == pytest.approx((curve[6:].mean() - curve[:2].mean()).item(), abs=1e-9) and not note
    assert value is not None and value < 0
    frames, reference = (torch.cat([each] * 3)[:8] for each in clip_pair(16, 16))
    one_end, both = torch.cat([reference[:2], frames[2:]]), torch.cat([reference[:2], frames[2:6], reference[6:]])
    for clip in (one_end, both):
        assert compare(clip, reference, ("psnr_drift",))["psnr_drift"] == (None, "frames at one end equal the reference")
    value, note = compare(frames, reference, ("psnr_drift",))["psnr_drift"]
    assert value is not None and not note


def test_flicker_excess_by_hand() -> None:
    _, reference = clip_pair(12, 12, frames=3)
    still = reference[:1].expand(5, -1, -1, -1)
    ramp = torch.linspace(0, 0.4, 5)[:, None, None, None]
    blink = torch.tensor([0.0, 0.1, 0.0, 0.1, 0.0])[:, None, None, None]
    assert flicker_excess(still + ramp, still).abs().max() < 1e-6
    assert flicker_excess(still + blink, still).tolist() == pytest.approx([0.2] * 3, abs=1e-6)
    assert flicker_excess(still, still + blink).tolist() == pytest.approx([-0.2] * 3, abs=1e-6)


def test_border_jump_by_hand() -> None:
    steps = torch.tensor([0.0, 1, 2, 5, 6, 7, 10, 11]) / 12
    frames = steps[None, :, None, None, None].expand(1, -1, 3, 16, 16)
    assert border_jump(frames, (3, 6)).item() == pytest.approx(3.0, rel=1e-4)
    assert border_jump(torch.zeros(1, 8, 3, 16, 16), (3, 6)).isnan().all()
    for starts in ((), (0, 3), (8,), tuple(range(1, 8))):
        with pytest.raises(ShapeError, match="border_jump"):
            border_jump(frames, starts)


def test_frame_blocks_start_where_a_causal_decoder_says() -> None:
    assert block_starts(33, 12, 9) == (9, 21)
    assert block_starts(24, 12) == (12,)
    for blocks in ((24, 1, None), (12, 12, None), (24, 12, 0)):
        with pytest.raises(ShapeError, match="frame blocks of"):
            block_starts(*blocks)


def test_other_lengths_and_sizes_are_refused() -> None:
    frames, reference = clip_pair(16, 20)
    for measure in (psnr, ssim, temporal_difference, compare):
        with pytest.raises(ShapeError, match="given 2 frames of 20x16 and 3 frames of 20x16"):
            measure(frames[:2], reference)
        with pytest.raises(ShapeError, match="given 3 frames of 20x16 and 3 frames of 19x16"):
            measure(frames, reference[..., :19])
    with pytest.raises(ShapeError, match="at least 11x11 pixels, given 20x10"):
        ssim(frames[:, :, :10], reference[:, :, :10])


@pytest.mark.parametrize(
    "clip", [torch.zeros(3, 8, 8), torch.zeros(0, 3, 8, 8), torch.zeros(2, 8, 8, 3), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)]
)
def test_other_layouts_are_refused(clip: Tensor) -> None:
    with pytest.raises(ShapeError, match=r"uint8 \[F, Y, X, 3\] or float \[F, 3, Y, X\]"):
        psnr(clip, clip)


def test_broken_pixels_are_refused() -> None:
    frames, reference = clip_pair(12, 12)
    frames[1, 2, 3, 4] = math.nan
    for wrong in (frames, 255 * reference):
        with pytest.raises(DataError, match=r"not finite numbers or of \[0, 255\]"):
            compare(wrong, reference)


def mean_terms(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean SSIM and mean contrast-structure of one channel, moments of each window in float64."""
    axis = np.arange(11) - 5
    weight = np.exp(-(axis[:, None] ** 2 + axis[None, :] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    a, b = (np.lib.stride_tricks.sliding_window_view(plane, (11, 11)) for plane in (x, y))
    mean_a, mean_b = (a * weight).sum((2, 3)), (b * weight).sum((2, 3))
    var_a = ((a - mean_a[..., None, None]) ** 2 * weight).sum((2, 3))
    var_b = ((b - mean_b[..., None, None]) ** 2 * weight).sum((2, 3))
    both = ((a - mean_a[..., None, None]) * (b - mean_b[..., None, None]) * weight).sum((2, 3))
    structure = (2 * both + 9e-4) / (var_a + var_b + 9e-4)
    light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return float((light * structure).mean()), float(structure.mean())


def halved(plane: np.ndarray) -> np.ndarray:
    height, width = (side // 2 * 2 for side in plane.shape)
    return np.asarray(plane[:height, :width].reshape(height // 2, 2, width // 2, 2).mean((1, 3)))


def numpy_ms_ssim(x: np.ndarray, y: np.ndarray) -> float:
    product = 1.0
    for scale, weight in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        similar, structure = mean_terms(x, y)
        product *= (similar if scale == 4 else structure) ** weight
        x, y = halved(x), halved(y)
    return product


@pytest.mark.parametrize(("height", "width"), [(176, 176), (201, 187)])
def test_ms_ssim_equals_its_definition(height: int, width: int) -> None:
    reference = waves(height, width)
    frames = disturbed(reference, 0.15)
    expected = np.mean([numpy_ms_ssim(frames[0, c].numpy(), reference[0, c].numpy()) for c in range(3)])
    assert ms_ssim(frames, reference).tolist() == pytest.approx([expected], abs=2e-5)
    assert 0.2 < expected < 0.999


def test_equal_frames_are_equal_and_small_ones_refused() -> None:
    reference = waves(180, 176)
    assert ms_ssim(reference, reference).tolist() == pytest.approx([1.0])
    assert ms_ssim(1 - reference, reference).item() == 0.0, "negative structure counts as none"
    with pytest.raises(ShapeError, match="at least 176x176 pixels, given 176x175"):
        ms_ssim(reference[:, :, :175], reference[:, :, :175])


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'pnsr' \(did you mean 'psnr'\?\)"):
        metric("pnsr")


PUBLISHED = {0.02: 0.019475100561976433, 0.2: 0.23985761404037476}
"""Mean LDR-FLIP of `waves` against `disturbed` by flip-evaluator 1.7, float32."""


@pytest.mark.parametrize("strength", PUBLISHED)
def test_flip_equals_the_authors_implementation(strength: float) -> None:
    reference = waves()
    found = flip(disturbed(reference, strength).float(), reference.float())
    assert found.tolist() == pytest.approx([PUBLISHED[strength]], rel=2e-5)


# Straight from the paper: two-dimensional filters, one pixel's neighbourhood at a time.

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


def test_the_program_gets_the_frames_and_its_scores_or_failure_come_back(tmp_path: Path) -> None:
    frames = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 4, 6, 3)
    assert vmaf(frames, frames, program(tmp_path)).tolist() == [0.0, 1.0, 2.0]
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
