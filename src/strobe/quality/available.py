"""The table of metrics: what is measured here, and what is not and why. Nothing is downloaded and nothing is approximated."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.core.errors import ImplUnavailableError, unknown_choice
from strobe.quality import psnr, ssim, temporal


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One row of the table.

    Args:
        name: how reports and records call it.
        unit: of its value, empty for a pure number.
        higher_is_better: the direction of improvement.
        definition: what is computed, or what the metric is where it is not measured.
        not_measured: why it is not measured here, or None where it is.
    """

    name: str
    unit: str
    higher_is_better: bool
    definition: str
    not_measured: str | None = None


METRICS: tuple[Metric, ...] = (
    Metric(name="psnr", unit="dB", higher_is_better=True, definition=psnr.DEFINITION),
    Metric(name="ssim", unit="", higher_is_better=True, definition=ssim.DEFINITION),
    Metric(name="temporal_difference", unit="", higher_is_better=False, definition=temporal.DEFINITION),
    Metric(
        name="lpips",
        unit="",
        higher_is_better=False,
        definition="distance of deep features (AlexNet, VGG or SqueezeNet)",
        not_measured="needs the weights of an ImageNet network; with random weights the numbers look plausible and mean nothing",
    ),
    Metric(
        name="dists",
        unit="",
        higher_is_better=False,
        definition="structure and texture distance of VGG-16 features",
        not_measured="needs the weights of VGG-16",
    ),
    Metric(
        name="clip_score",
        unit="",
        higher_is_better=True,
        definition="cosine of CLIP embeddings of prompt and frame",
        not_measured="needs the weights of a CLIP model; prompts of the bundled model are checked by its pixel oracle instead",
    ),
    Metric(
        name="fvd",
        unit="",
        higher_is_better=False,
        definition="Frechet distance of video features (I3D) between two sets of clips",
        not_measured="needs the weights of I3D and some thousand clips; a few clips give no meaningful value",
    ),
    Metric(
        name="vmaf",
        unit="",
        higher_is_better=True,
        definition="VMAF v0.6.1",
        not_measured="needs an FFmpeg built with libvmaf, which the bundled libraries are not",
    ),
)


def require(name: str) -> Metric:
    """Return a metric that is measured here.

    Raises:
        ImplUnavailableError: it is known but not measured, with the reason.
        ConfigError: there is no such metric.
    """
    for metric in METRICS:
        if metric.name == name:
            if metric.not_measured is not None:
                measured = [other.name for other in METRICS if other.not_measured is None]
                raise ImplUnavailableError(name, f"not measured: {metric.not_measured}", measured)
            return metric
    raise unknown_choice("metric", name, [metric.name for metric in METRICS])
