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
from strobe.core.libraries import broken, install
from strobe.quality.clips import as_pair, as_planes

SUMS: Final = "SHA256SUMS"
"""File in the weights folder, as `sha256sum` writes it: what it says of a file holds instead of the table here."""


class File(NamedTuple):
    """One file of weights.

    Args:
        name: path inside the weights folder.
        sha256: of the published file; None: not known here, `SHA256SUMS` must say it.
        source: where the published one comes from.
    """

    name: str
    sha256: str | None
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
VGG16: Final = File(
    name="vgg16-397923af.pth",
    sha256="397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
    source="the weights of torchvision's VGG-16 (IMAGENET1K_V1)",
)
DISTS: Final = File(name="dists.pt", sha256=None, source="DISTS_pytorch/weights.pt of github.com/dingkeyan93/DISTS")
CLIP: Final = File(
    name="clip/pytorch_model.bin",
    sha256="a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
    source="the whole folder of openai/clip-vit-base-patch32 on the Hugging Face hub, as clip/",
)
FILES: Final[dict[str, tuple[File, ...]]] = {
    "lpips": (ALEXNET, LPIPS_HEADS),
    "dists": (VGG16, DISTS),
    "clip_score": (CLIP,),
}
"""Files by metric."""


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
    if expected is None:
        return f"{path} has no expected hash: write `SHA256  {file.name}` into {folder / SUMS}, as the publisher states it"
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
    """Read the tensors of a file that `lacking` found to be as expected.

    Raises:
        WeightsError: it is no file of tensors.
    """
    path = folder / file.name
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise WeightsError(f"{path} holds no tensors that can be read: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds {type(found).__name__}, not tensors by name")
    return found


def tensor(found: dict[str, Any], name: str, shape: tuple[int, ...], file: File) -> torch.Tensor:
    """Return one tensor of a file, float32.

    Raises:
        WeightsError: it is missing or has another shape.
    """
    value = found.get(name)
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
        have = list(value.shape) if isinstance(value, torch.Tensor) else "nothing"
        raise WeightsError(f"{file.name}: {name} must have the shape {list(shape)}, found {have}")
    return value.float()


def _by_parts(
    distance: Callable[[Tensor, Tensor], Tensor], clips: tuple[Tensor, Tensor], size: int, device: torch.device
) -> Tensor:
    """Compute a distance of two clips, so many frames at a time, on a device."""
    pairs = zip(*(torch.split(clip, size) for clip in clips), strict=True)
    with torch.no_grad():
        return torch.cat([distance(x.to(device), y.to(device)) for x, y in pairs]).cpu()


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
        return _by_parts(distance, (first, second), 4, device)

    return measure


def _step(picture: Tensor, at: int, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    pooled = max_pool2d(picture, 3, 2) if at in _POOLED else picture
    return relu(conv2d(pooled, weight, bias, stride=stride, padding=padding))


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + _EPS)


_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)
_STAGES: Final = (
    ((0, 3), (2, 64)),
    ((5, 64), (7, 128)),
    ((10, 128), (12, 256), (14, 256)),
    ((17, 256), (19, 512), (21, 512)),
    ((24, 512), (26, 512), (28, 512)),
)
"""Convolutions of a stage: place in `features`, channels that go in."""
_WIDTHS: Final = (3, 64, 128, 256, 512, 512)
_STABLE: Final = 1e-6
_SMOOTH: Final = (0.25, 0.5, 0.25)
"""Hanning window of the pooling."""


def dists(folder: Path, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the DISTS metric on VGG-16: the distance of each frame, float64 `[F]`, of clips as in `clips.as_pair`.

    D = 1 - sum_lc (alpha_lc t_lc + beta_lc s_lc), where `t` compares the means of a feature map and `s` its covariance with the
    reference's, over the picture and the last outputs of VGG-16's five stages, pooled by the root of a smoothed square.

    Raises:
        WeightsError: the files hold other tensors.
        ShapeError: of the metric: the clips differ in length or size.

    Source: Ding, Ma, Wang, Simoncelli, "Image quality assessment: unifying structure and texture similarity", 2020.
    """
    trunk, weighed = read(VGG16, folder), read(DISTS, folder)
    stages = []
    for stage, width in zip(_STAGES, _WIDTHS[1:], strict=True):
        convs = []
        for at, given in stage:
            weight = tensor(trunk, f"features.{at}.weight", (width, given, 3, 3), VGG16).to(device)
            convs.append((weight, tensor(trunk, f"features.{at}.bias", (width,), VGG16).to(device)))
        stages.append(convs)
    shape = (1, sum(_WIDTHS), 1, 1)
    alpha, beta = (tensor(weighed, name, shape, DISTS).to(device).double() for name in ("alpha", "beta"))
    whole = alpha.sum() + beta.sum()
    alphas, betas = ((each / whole)[0, :, 0, 0].split(_WIDTHS) for each in (alpha, beta))

    def features(picture: Tensor) -> list[Tensor]:
        found = [picture]
        here = _normed(picture, _MEAN, _STD)
        for at, stage in enumerate(stages):
            here = _pooled(here) if at else here
            for weight, bias in stage:
                here = relu(conv2d(here, weight, bias, padding=1))
            found.append(here)
        return found

    def distance(x: Tensor, y: Tensor) -> Tensor:
        alike = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for at, (a, b) in enumerate(zip(features(x), features(y), strict=True)):
            a, b = a.double().flatten(2), b.double().flatten(2)  # [F, C, Y X]
            mean_a, mean_b = a.mean(2), b.mean(2)
            var_a, var_b = a.var(2, correction=0), b.var(2, correction=0)
            covariance = (a * b).mean(2) - mean_a * mean_b
            texture = (2 * mean_a * mean_b + _STABLE) / (mean_a.square() + mean_b.square() + _STABLE)
            structure = (2 * covariance + _STABLE) / (var_a + var_b + _STABLE)
            alike += (alphas[at] * texture + betas[at] * structure).sum(1)
        return 1 - alike

    return lambda frames, reference: _by_parts(distance, as_pair(frames, reference), 2, device)


def _pooled(features: Tensor) -> Tensor:
    """Pool features to half the height and width, by the root of squares under a window of three."""
    row = torch.tensor(_SMOOTH, device=features.device)
    window = (row[:, None] * row[None, :])[None, None].expand(features.shape[1], 1, -1, -1)
    squares = conv2d(features.square(), window, stride=2, padding=1, groups=features.shape[1])
    return (squares + 1e-12).sqrt()


NEEDS: Final = "transformers.models.clip.modeling_clip"
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_CLIP_FRAMES: Final = 16


def lacks_library() -> str:
    """Say that the library which runs CLIP is not installed; empty if it is."""
    return f"{why}: {install('diffusers')}" if (why := broken(NEEDS)) else ""


def clip_score(folder: Path, device: torch.device) -> Callable[[Tensor, str], Tensor]:
    """Return the cosine similarity of the CLIP embeddings of a prompt and of each frame of a clip, float64 `[F]`, in [-1, 1].

    Frames are scaled so that the shorter side is the model's, bicubic with antialiasing, and cropped to their middle.

    Args:
        folder: with the folder `clip` of a model in the layout of the Hugging Face hub.

    Raises:
        WeightsError: it is no such folder.
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
