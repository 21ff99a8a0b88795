"""What `strobe quality` is asked to measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsAsked:
    """Metrics to measure. Nothing is downloaded: a metric that cannot be measured names the file it needs and its place.

    Args:
        metrics: names, such as psnr ssim flip; all by default. One that was named and cannot be measured is an error.
        block_frames: pixel frames of a frame block, for the jump at the borders of frame blocks; two numbers if the first is
            shorter, as of a causal decoder: 9 12.
        weights: folder of weights for LPIPS, DISTS and CLIP; docs/quality.md lists files and hashes.
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
        """Return whether a metric was asked for."""
        return not self.metrics or name in self.metrics
