"""Weights that each metric needs, and the check of a folder for them."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from strobe.core.errors import WeightsError

SUMS: Final = "SHA256SUMS"
"""File in the weights folder, as `sha256sum` writes it: what it says of a file holds instead of the table here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
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
