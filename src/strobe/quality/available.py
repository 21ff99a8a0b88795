"""What `strobe quality` is asked to measure, and the table of metrics, with the reason where one is not measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.libraries import install


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsAsked:
    """Metrics to measure. Nothing is downloaded: a metric that cannot be measured names the file it needs and its place.

    Args:
        metrics: names, such as psnr ssim flip; all by default. One that was named and cannot be measured is an error.
        block_frames: pixel frames of a frame block, for the jump at the borders of frame blocks; two numbers if the first is
            shorter, as of a causal decoder: 9 12.
        weights: folder of weights for LPIPS and CLIP; docs/quality.md lists files and hashes.
        prompt: what the clips should show, for the CLIP score.
        device: where it runs: auto, cpu, cuda or cuda:N.

    Raises:
        ConfigError: more than two numbers of frames.
    """

    metrics: tuple[str, ...] = ()
    block_frames: tuple[int, ...] = ()
    weights: Path | None = None
    prompt: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        if len(self.block_frames) > 2:
            told = " ".join(map(str, self.block_frames))
            raise ConfigError(f"--block-frames {told}: give one number, or two, of the first frame block and of the others")

    def wants(self, name: str) -> bool:
        return not self.metrics or name in self.metrics


class QualityMetric(NamedTuple):
    """One metric of the table.

    Args:
        name: how reports and records call it.
        better: the direction of improvement.
        definition: what is computed, or what the metric is where it is not measured.
        unit: of its value, empty for a pure number.
        not_measured: why it is not measured from the clips alone, or None where it is.
    """

    name: str
    better: Literal["higher", "lower"]
    definition: str
    unit: str = ""
    not_measured: str | None = None


_DRIFT: Final = "mean over the last quarter of the frames minus mean over the first quarter; below 0: late frames are worse"
_WEIGHTS: Final = "needs weights: `strobe quality --weights DIR`"
METRICS: Final = (
    QualityMetric("psnr", "higher",
                  "psnr(10 log10(1 / MSE) dB over RGB in [0, 1]; a clip's MSE is the mean over its frames)", unit="dB"),
    QualityMetric("ssim", "higher",
                  "ssim(gauss11 s1.5, no downsample, RGB mean, K1 .01, K2 .03, peak 1, no border; a clip's value is the mean over"
                  " frames)"),
    QualityMetric("ms_ssim", "higher",
                  "ms_ssim(five scales by means of 2x2 pixels, an odd last row or column dropped; windows and constants of ssim;"
                  " contrast-structure to the powers .0448 .2856 .3001 .2363 .1333, luminance at the coarsest scale, negative"
                  " terms as 0; per channel, then RGB mean; a clip's value is the mean over frames)"),
    QualityMetric("flip", "lower",
                  "flip(LDR-FLIP at 67.02 pixels per degree: a 4K monitor 0.7 m wide seen from 0.7 m; RGB as sRGB clamped to"
                  " [0, 1]; mean over pixels; a clip's value is the mean over frames)"),
    QualityMetric("temporal_difference", "lower",
                  "temporal_difference(mean |dI_t - dI_t_ref| over RGB in [0, 1], dI_t = I_t - I_(t-1); a clip's value is the"
                  " mean over t)"),
    QualityMetric("flicker_excess", "lower",
                  "flicker_excess(mean |I_(t+1) - 2 I_t + I_(t-1)| over RGB in [0, 1] of the clip, minus the same of the"
                  " reference; 0: as steady as it, below 0: steadier; a clip's value is the mean over t)"),
    QualityMetric("psnr_drift", "higher", f"psnr_drift(psnr: {_DRIFT})", unit="dB"),
    QualityMetric("ssim_drift", "higher", f"ssim_drift(ssim: {_DRIFT})"),
    QualityMetric("border_jump", "lower",
                  "border_jump(mean |dI_t| into the first frame of a frame block, divided by the mean |dI_t| of all other frames;"
                  " 1 is seamless)"),
    QualityMetric("vmaf", "higher",
                  "VMAF v0.6.1 of libvmaf, mean over frames; equal clips score below 100, see the reference's column",
                  not_measured=f"needs an FFmpeg built with libvmaf, which PyAV's is not: {install('vmaf')}, or put one on the "
                  "PATH"),
    QualityMetric("lpips", "lower",
                  "LPIPS v0.1, AlexNet with linear heads, frames in [-1, 1] at their own size; mean over frames",
                  not_measured=f"{_WEIGHTS}; random ones give plausible, meaningless numbers"),
    QualityMetric("clip_score", "higher", "cosine of the CLIP embeddings of prompt and frame, in [-1, 1]; mean over frames",
                  not_measured="needs weights and a prompt: `strobe quality --weights DIR --prompt TEXT`"),
    QualityMetric("fvd", "lower", "Frechet distance of video features (I3D) between two sets of clips",
                  not_measured="needs the weights of I3D and some thousand clips; a few clips give no meaningful value"),
)  # fmt: skip


def metric(name: str) -> QualityMetric:
    """Return the metric of a name."""
    for each in METRICS:
        if each.name == name:
            return each
    raise unknown_choice("metric", name, [each.name for each in METRICS])
