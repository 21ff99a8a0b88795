"""The table of metrics: those measured here, those that need more than the clips, and those not measured, with the reason.

Nothing is downloaded and nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strobe.core.errors import unknown_choice
from strobe.core.libraries import install
from strobe.quality import flip, ms_ssim, psnr, ssim, temporal


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityMetric:
    """One metric of the table.

    Args:
        name: how reports and records call it.
        unit: of its value, empty for a pure number.
        higher_is_better: the direction of improvement.
        definition: what is computed, or what the metric is where it is not measured.
        compares: whether `fidelity.compare` computes it, from a clip and its reference alone.
        not_measured: why it is not measured from the clips alone, or None where it is.
    """

    name: str
    unit: str = ""
    higher_is_better: bool
    definition: str
    compares: bool = True
    not_measured: str | None = None


METRICS: Final[tuple[QualityMetric, ...]] = (
    QualityMetric(name="psnr", unit="dB", higher_is_better=True, definition=psnr.DEFINITION),
    QualityMetric(name="ssim", higher_is_better=True, definition=ssim.DEFINITION),
    QualityMetric(name="ms_ssim", higher_is_better=True, definition=ms_ssim.DEFINITION),
    QualityMetric(name="flip", higher_is_better=False, definition=flip.DEFINITION),
    QualityMetric(name="temporal_difference", higher_is_better=False, definition=temporal.DEFINITION),
    QualityMetric(name="flicker_excess", higher_is_better=False, definition=temporal.FLICKER_DEFINITION),
    QualityMetric(
        name="psnr_drift", unit="dB", higher_is_better=True, definition=f"psnr_drift(psnr: {temporal.DRIFT_DEFINITION})"
    ),
    QualityMetric(name="ssim_drift", higher_is_better=True, definition=f"ssim_drift(ssim: {temporal.DRIFT_DEFINITION})"),
    QualityMetric(name="border_jump", higher_is_better=False, definition=temporal.BORDER_DEFINITION, compares=False),
    QualityMetric(
        name="vmaf",
        higher_is_better=True,
        definition="VMAF v0.6.1 of libvmaf, mean over frames; equal clips score below 100, see the reference's column",
        compares=False,
        not_measured="needs an FFmpeg built with libvmaf, which PyAV's is not: " + f"{install('vmaf')}, or put one on the PATH",
    ),
    QualityMetric(
        name="lpips",
        higher_is_better=False,
        definition="LPIPS v0.1, AlexNet with linear heads, frames in [-1, 1] at their own size; mean over frames",
        compares=False,
        not_measured="needs weights: `strobe quality --weights DIR`; random ones give plausible, meaningless numbers",
    ),
    QualityMetric(
        name="dists",
        higher_is_better=False,
        definition="DISTS, structure and texture of VGG-16 features, frames at their own size; mean over frames",
        compares=False,
        not_measured="needs weights: `strobe quality --weights DIR`",
    ),
    QualityMetric(
        name="clip_score",
        higher_is_better=True,
        definition="cosine of the CLIP embeddings of prompt and frame, in [-1, 1]; mean over frames",
        compares=False,
        not_measured="needs weights and a prompt: `strobe quality --weights DIR --prompt TEXT`",
    ),
    QualityMetric(
        name="fvd",
        higher_is_better=False,
        definition="Frechet distance of video features (I3D) between two sets of clips",
        compares=False,
        not_measured="needs the weights of I3D and some thousand clips; a few clips give no meaningful value",
    ),
)


def metric(name: str) -> QualityMetric:
    """Return the metric of a name.

    Raises:
        ConfigError: there is no such metric; names the nearest.
    """
    for each in METRICS:
        if each.name == name:
            return each
    raise unknown_choice("metric", name, [each.name for each in METRICS])
