"""LPIPS and CLIP score with weights drawn here, against numpy; and what a folder of weights must hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from published_metrics import disturbed, waves
from strobe.core.errors import ShapeError, WeightsError
from strobe.quality.learned import ALEXNET, CLIP, LPIPS_HEADS, SUMS, clip_score, lacking, lpips

CPU = torch.device("cpu")
ALEX = {"0": (64, 3, 11), "3": (192, 64, 5), "6": (384, 192, 3), "8": (256, 384, 3), "10": (256, 256, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the right shapes, drawn, with their hashes beside them."""
    place, generator = tmp_path_factory.mktemp("weights"), torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / max(1, np.prod(shape[1:])) ** 0.5

    alex = {f"features.{at}.weight": draw(out, given, size, size) for at, (out, given, size) in ALEX.items()}
    torch.save(alex | {f"features.{at}.bias": draw(out) * 0.1 for at, (out, _, _) in ALEX.items()}, place / ALEXNET.name)
    heads = {f"lin{at}.model.1.weight": draw(1, out, 1, 1).abs() for at, (out, _, _) in enumerate(ALEX.values())}
    torch.save(heads, place / LPIPS_HEADS.name)
    names = (ALEXNET.name, LPIPS_HEADS.name)
    lines = [f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}" for name in names]
    (place / SUMS).write_text("\n".join(lines) + "\n")
    return place


def load(path: Path) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in torch.load(path).items()}


def test_lpips_equals_its_definition(folder: Path) -> None:
    reference = waves(64, 71, 2)
    frames = disturbed(reference, 0.2)
    trunk, heads = load(folder / ALEXNET.name), load(folder / LPIPS_HEADS.name)
    shift, scale = np.array([-0.030, -0.088, -0.188]), np.array([0.458, 0.448, 0.450])

    def features(picture: np.ndarray) -> list[np.ndarray]:
        here, found = (2 * picture - 1 - shift[:, None, None]) / scale[:, None, None], []
        for at, (stride, padding) in zip(ALEX, ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1)), strict=True):
            if at in ("3", "6"):
                here = np.lib.stride_tricks.sliding_window_view(here, (3, 3), axis=(1, 2))[:, ::2, ::2].max((3, 4))
            weight, bias = (trunk[f"features.{at}.{name}"] for name in ("weight", "bias"))
            padded = np.pad(here, ((0, 0), (padding, padding), (padding, padding)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(1, 2))[:, ::stride, ::stride]
            here = np.maximum(np.einsum("cyxij,ocij->oyx", windows, weight, optimize=True) + bias[:, None, None], 0)
            found.append(here / (np.sqrt((here**2).sum(0)) + 1e-10))
        return found

    expected = []
    for test, wanted in zip(frames.numpy(), reference.numpy(), strict=True):
        layers = zip(features(test), features(wanted), strict=True)
        expected.append(
            sum(((a - b) ** 2 * heads[f"lin{at}.model.1.weight"][0]).sum(0).mean() for at, (a, b) in enumerate(layers))
        )
    measure = lpips(folder, CPU)
    assert measure(frames, reference).tolist() == pytest.approx(expected, rel=1e-4)
    assert measure(frames, frames).tolist() == [0.0, 0.0]
    with pytest.raises(ShapeError, match="at least 63x63"):
        measure(frames[:, :, :62], reference[:, :, :62])


def test_clip_score_is_the_cosine_of_the_embeddings(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    place = tmp_path / "clip"
    place.mkdir()
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "d</w>", "o</w>", "g</w>", "a", "d", "o", "g"]
    (place / "vocab.json").write_text(json.dumps({word: at for at, word in enumerate(words)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=small | {"vocab_size": len(words), "max_position_embeddings": 8, "eos_token_id": 1, "bos_token_id": 0},
        vision_config=small | {"image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(place)
    transformers.CLIPTokenizer(str(place / "vocab.json"), str(place / "merges.txt"), model_max_length=8).save_pretrained(place)
    frames = waves(32, 40, 3)
    found = clip_score(tmp_path, CPU)(frames, "a dog")
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = (frames[:, :, :, 4:36].numpy() - mean[:, None, None]) / std[:, None, None]
    tokens = transformers.AutoTokenizer.from_pretrained(place)(["a dog"], return_tensors="pt")
    with torch.no_grad():
        out = model(pixel_values=torch.from_numpy(pixels).float(), **tokens)
    images, text = out.image_embeds.double().numpy(), out.text_embeds.double().numpy()[0]
    expected = images @ text / np.linalg.norm(images, axis=1) / np.linalg.norm(text)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    with pytest.raises(WeightsError, match="is not the folder of a CLIP model"):
        clip_score(tmp_path / "none", CPU)


def test_weights_are_used_only_with_the_expected_hash(folder: Path, tmp_path: Path) -> None:
    assert lacking("lpips", folder) == ""
    assert "needs weights: give --weights a folder with alexnet-owt-7be5be79.pth (the weights of torchvision's" in lacking(
        "lpips", None
    )
    assert f"{CLIP.name} is missing: put the whole folder of openai/clip" in lacking("clip_score", folder)
    for name in (ALEXNET.name, LPIPS_HEADS.name):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    told = lacking("lpips", tmp_path)
    assert told.count(f"expected {ALEXNET.sha256}") == told.count(f"expected {LPIPS_HEADS.sha256}") == 1
    (tmp_path / SUMS).write_text("not a hash  file\n")
    with pytest.raises(WeightsError, match="is not a line `SHA256  FILE`"):
        lacking("lpips", tmp_path)


def test_other_tensors_are_refused(folder: Path, tmp_path: Path) -> None:
    trunk = torch.load(folder / ALEXNET.name)
    torch.save(trunk | {"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / ALEXNET.name)
    (tmp_path / LPIPS_HEADS.name).write_bytes(b"no tensors")
    with pytest.raises(WeightsError, match=r"lpips_alex\.pth holds no tensors"):
        lpips(tmp_path, CPU)
    (tmp_path / LPIPS_HEADS.name).write_bytes((folder / LPIPS_HEADS.name).read_bytes())
    with pytest.raises(WeightsError, match=r"features\.0\.weight must have the shape \[64, 3, 11, 11\], found \[64, 3, 3, 3\]"):
        lpips(tmp_path, CPU)
