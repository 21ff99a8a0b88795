"""Export of clips to VBench, and import of its results; VBench itself runs in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strobe.core.errors import DataError

PROMPTS: Final = "prompts.json"
VIDEOS: Final = "videos"
DIMENSIONS: Final = (
    "subject_consistency", "background_consistency", "temporal_flickering", "motion_smoothness", "dynamic_degree",
    "aesthetic_quality", "imaging_quality",
)  # fmt: skip
"""What VBench computes for clips of one's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VBenchScore:
    """The result of one dimension for one clip.

    Args:
        clip: name of the file without its suffix.
        dimension: as VBench calls it.
        value: as VBench wrote it; mostly in [0, 1], imaging quality up to 100.
        n: clips behind it.
    """

    clip: str
    dimension: str
    value: float
    n: int = 1


def prompts_file(prompts: Mapping[str, str]) -> str:
    """Return VBench's prompt file: JSON from the path of each video to its prompt."""
    return json.dumps(dict(prompts), indent=2, ensure_ascii=False) + "\n"


def command(folder: Path, *, prompts: bool) -> str:
    """Return the command that makes VBench judge an exported folder, to be run in a checkout of VBench.

    Args:
        prompts: whether the folder has a prompt file.
    """
    where = f"--videos_path {folder / VIDEOS} --output_path {folder / 'results'}"
    said = f" --prompt_file {folder / PROMPTS}" if prompts else ""
    return f"python evaluate.py --mode=custom_input {where}{said} --dimension {' '.join(DIMENSIONS)}"


def read_results(path: Path) -> tuple[VBenchScore, ...]:
    """Read a `*_eval_results.json` of VBench: for each dimension the mean and the value of each video.

    Raises:
        DataError: it is no such file.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read VBench's results {path}: {error}") from error
    if not isinstance(document, dict) or not document:
        raise DataError(f"{path} holds no dimensions: give the *_eval_results.json that VBench wrote")
    return tuple(result for dimension, found in document.items() for result in _of_dimension(path, dimension, found))


def _of_dimension(path: Path, dimension: str, found: Any) -> list[VBenchScore]:
    """Read the videos of one dimension; several values of one video are averaged."""
    try:
        _, videos = found
        values: dict[str, list[float]] = {}
        for video in videos:
            values.setdefault(Path(str(video["video_path"])).stem, []).append(float(video["video_results"]))
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: {dimension} is not [mean, [{{video_path, video_results}}, ...]] as VBench writes it ({error!r})"
        ) from error
    return [
        VBenchScore(clip=clip, dimension=dimension, value=sum(each) / len(each), n=len(each)) for clip, each in values.items()
    ]
