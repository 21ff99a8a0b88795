"""CLIP score: similarity of frames to the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate

from strobe.core.errors import WeightsError
from strobe.core.libraries import broken, install
from strobe.quality.clips import as_planes

NEEDS: Final = "transformers.models.clip.modeling_clip"
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_CHUNK: Final = 16


def lacks_library() -> str:
    """Say that the library which runs CLIP is not installed; empty if it is."""
    return f"{why}: {install('diffusers')}" if (why := broken(NEEDS)) else ""


class ClipScore:
    """Cosine similarity of the CLIP embeddings of a prompt and of each frame.

    Frames are scaled so that the shorter side is the model's, bicubic with antialiasing, and cropped to their middle.

    Args:
        folder: with the folder `clip` of a model in the layout of the Hugging Face hub.
        device: where it runs.

    Raises:
        WeightsError: it is no such folder.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoTokenizer, CLIPModel

        try:
            model: Any = CLIPModel.from_pretrained(folder / "clip", local_files_only=True)
            self._tokens = AutoTokenizer.from_pretrained(folder / "clip", local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise WeightsError(f"{folder / 'clip'} is not the folder of a CLIP model: {str(error).splitlines()[0]}") from error
        self._model = model.to(device).train(False)
        self._side = int(model.config.vision_config.image_size)
        self._device = device

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """Compute the cosine of each frame with the prompt, float64 `[F]`, in [-1, 1]. A clip as in `clips.as_planes`."""
        tokens = self._tokens([prompt], return_tensors="pt", truncation=True).to(self._device)
        found = []
        with torch.no_grad():
            for part in torch.split(as_planes(frames), _CHUNK):
                out = self._model(pixel_values=self._pixels(part.to(self._device)), **tokens)
                found.append(cosine_similarity(out.image_embeds.double(), out.text_embeds.double()))
        return torch.cat(found).cpu()

    def _pixels(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[2:]
        scale = self._side / min(height, width)
        size = (max(self._side, round(height * scale)), max(self._side, round(width * scale)))
        if size != (height, width):
            planes = interpolate(planes, size, mode="bicubic", antialias=True).clamp(0, 1)
        top, left = (size[0] - self._side) // 2, (size[1] - self._side) // 2
        planes = planes[:, :, top : top + self._side, left : left + self._side]
        mean, std = (torch.tensor(values, device=planes.device)[None, :, None, None] for values in (_MEAN, _STD))
        return (planes - mean) / std
