"""Metrics by trained networks. Their weights come from a folder of the user (`FILES`) and are checked against a SHA-256."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cosine_similarity, interpolate, max_pool2d, relu

from strobe.core.errors import ShapeError, WeightsError
from strobe.quality.clips import as_pair, as_planes

SUMS: Final = "SHA256SUMS"
"""File in the weights folder, as `sha256sum` writes it: what it says of a file holds instead of the table here."""


class File(NamedTuple):
    """One file of weights.

    Args:
        name: path inside the weights folder.
        sha256: of the published file.
        source: where the published one comes from.
    """

    name: str
    sha256: str
    source: str


ALEXNET: Final = File(
    name="alexnet-owt-7be5be79.pth",
    sha256="7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
    source="the weights of torchvision's AlexNet (IMAGENET1K_V1)",
)
LPIPS_HEADS: Final = File(
    name="lpips_alex.pth",
    sha256="df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
    source="lpips/weights/v0.1/alex.pth of github.com/richzhang/PerceptualSimilarity",
)
CLIP: Final = File(
    name="clip/pytorch_model.bin",
    sha256="a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
    source="the whole folder of openai/clip-vit-base-patch32 on the Hugging Face hub, as clip/",
)
FILES: Final[dict[str, tuple[File, ...]]] = {"lpips": (ALEXNET, LPIPS_HEADS), "clip_score": (CLIP,)}


def lacking(name: str, folder: Path | None) -> str:
    """Say why a metric's weights cannot be used, and which files to add; empty if they are there and as expected.

    Args:
        name: metric, a key of `FILES`.
        folder: of the user's weights; None: none was given.
    """
    files = FILES[name]
    if folder is None:
        listed = "; ".join(f"{file.name} ({file.source})" for file in files)
        return f"needs weights: give --weights a folder with {listed}"
    return "; ".join(filter(None, (_wrong(file, folder) for file in files)))


def _wrong(file: File, folder: Path) -> str:
    path = folder / file.name
    if not path.is_file():
        return f"{path} is missing: put {file.source} there"
    expected = said_sha256(folder).get(file.name, file.sha256)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    return "" if found == expected else f"{path} has the SHA-256 {found}, expected {expected}: put {file.source} there"


def said_sha256(folder: Path) -> dict[str, str]:
    """Read the hashes in the folder's own `SHA256SUMS`, by file; none if it has no such file.

    Raises:
        WeightsError: a line is not a hash and a name.
    """
    sums = folder / SUMS
    if not sums.is_file():
        return {}
    said = {}
    for line in sums.read_text(errors="replace").splitlines():
        digest, _, name = line.strip().partition(" ")
        if line.strip() and (len(digest) != 64 or not name.strip() or set(digest.lower()) - set("0123456789abcdef")):
            raise WeightsError(f"{sums}: {line!r} is not a line `SHA256  FILE` as sha256sum writes it")
        said[name.strip().lstrip("*").removeprefix("./")] = digest.lower()
    return said


def read(file: File, folder: Path) -> dict[str, Any]:
    """Read the tensors of a file that `lacking` found to be as expected."""
    path = folder / file.name
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise WeightsError(f"{path} holds no tensors that can be read: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds {type(found).__name__}, not tensors by name")
    return found


def tensor(found: dict[str, Any], name: str, shape: tuple[int, ...], file: File) -> torch.Tensor:
    """Return one tensor of a file, float32."""
    value = found.get(name)
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
        have = list(value.shape) if isinstance(value, torch.Tensor) else "nothing"
        raise WeightsError(f"{file.name}: {name} must have the shape {list(shape)}, found {have}")
    return value.float()


def _normed(planes: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract a mean from each colour and divide it by a deviation."""
    shift, scale = (torch.tensor(values, device=planes.device)[None, :, None, None] for values in (mean, std))
    return (planes - shift) / scale


SMALLEST: Final = 63
"""Pixels of the shorter side that the network needs."""
_SHIFT: Final = (-0.030, -0.088, -0.188)
_SCALE: Final = (0.458, 0.448, 0.450)
_LAYERS: Final = (
    ("features.0", (64, 3, 11, 11), 4, 2),
    ("features.3", (192, 64, 5, 5), 1, 2),
    ("features.6", (384, 192, 3, 3), 1, 1),
    ("features.8", (256, 384, 3, 3), 1, 1),
    ("features.10", (256, 256, 3, 3), 1, 1),
)
"""Name, shape of the weight, stride, padding; the second and third come after a pooling."""
_POOLED: Final = (1, 2)
_EPS: Final = 1e-10
_FRAMES: Final = 4
"""Frames at a time."""


def lpips(folder: Path, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the LPIPS metric, v0.1 with AlexNet: the distance of each frame, float64 `[F]`, of clips as in `clips.as_pair`.

    d = sum_l mean_yx sum_c w_lc (a_lc / |a_l| - b_lc / |b_l|)^2, over the outputs of AlexNet's five convolutions.

    Raises:
        WeightsError: the files hold other tensors.
        ShapeError: of the metric: the clips differ in length or size, or are too small for the network.

    Source: Zhang, Isola, Efros, Shechtman, Wang, "The unreasonable effectiveness of deep features as a perceptual metric", 2018.
    """
    trunk, heads = read(ALEXNET, folder), read(LPIPS_HEADS, folder)
    layers = [
        (
            tensor(trunk, f"{name}.weight", shape, ALEXNET).to(device),
            tensor(trunk, f"{name}.bias", shape[:1], ALEXNET).to(device),
            tensor(heads, f"lin{at}.model.1.weight", (1, shape[0], 1, 1), LPIPS_HEADS).to(device),
        )
        for at, (name, shape, _, _) in enumerate(_LAYERS)
    ]

    def distance(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        a, b = (_normed(2 * picture - 1, _SHIFT, _SCALE) for picture in (x, y))
        for at, ((weight, bias, head), (_, _, stride, padding)) in enumerate(zip(layers, _LAYERS, strict=True)):
            a, b = (_step(picture, at, weight, bias, stride, padding) for picture in (a, b))
            change = (_unit(a) - _unit(b)).square() * head
            total += change.sum(1).double().mean((1, 2))
        return total

    def measure(frames: Tensor, reference: Tensor) -> Tensor:
        first, second = as_pair(frames, reference)
        if min(first.shape[2:]) < SMALLEST:
            raise ShapeError(f"LPIPS needs frames of at least {SMALLEST}x{SMALLEST} pixels, given {list(first.shape[2:])}")
        parts = zip(first.split(_FRAMES), second.split(_FRAMES), strict=True)
        with torch.no_grad():
            return torch.cat([distance(x.to(device), y.to(device)) for x, y in parts]).cpu()

    return measure


def _step(picture: Tensor, at: int, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    pooled = max_pool2d(picture, 3, 2) if at in _POOLED else picture
    return relu(conv2d(pooled, weight, bias, stride=stride, padding=padding))


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + _EPS)


NEEDS: Final = "transformers.models.clip.modeling_clip"
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_CLIP_FRAMES: Final = 16


def clip_score(folder: Path, device: torch.device) -> Callable[[Tensor, str], Tensor]:
    """Return the cosine similarity of the CLIP embeddings of a prompt and of each frame of a clip, float64 `[F]`, in [-1, 1].

    Frames are scaled so that the shorter side is the model's, bicubic with antialiasing, and cropped to their middle.

    Args:
        folder: with the folder `clip` of a model in the layout of the Hugging Face hub.
    """
    from transformers import AutoTokenizer, CLIPModel

    try:
        model: Any = CLIPModel.from_pretrained(folder / "clip", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder / "clip", local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise WeightsError(f"{folder / 'clip'} is not the folder of a CLIP model: {str(error).splitlines()[0]}") from error
    model = model.to(device).train(False)
    side = int(model.config.vision_config.image_size)

    def pixels(planes: Tensor) -> Tensor:
        height, width = planes.shape[2:]
        scale = side / min(height, width)
        size = (max(side, round(height * scale)), max(side, round(width * scale)))
        if size != (height, width):
            planes = interpolate(planes, size, mode="bicubic", antialias=True).clamp(0, 1)
        top, left = (size[0] - side) // 2, (size[1] - side) // 2
        return _normed(planes[:, :, top : top + side, left : left + side], _CLIP_MEAN, _CLIP_STD)

    def measure(frames: Tensor, prompt: str) -> Tensor:
        tokens = tokenizer([prompt], return_tensors="pt", truncation=True).to(device)
        found = []
        with torch.no_grad():
            for part in torch.split(as_planes(frames), _CLIP_FRAMES):
                out = model(pixel_values=pixels(part.to(device)), **tokens)
                found.append(cosine_similarity(out.image_embeds.double(), out.text_embeds.double()))
        return torch.cat(found).cpu()

    return measure
