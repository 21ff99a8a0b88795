"""`strobe generate --replay`: a stream of the page, made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from strobe.engine.load import load
from strobe.engine.presets import preset
from strobe.serve.protocol import write
from strobe.serve.streams import LiveStream, Origin, SpareSessions
from terminal import Strobe


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """Of a stream of four frame blocks with a switch before the third."""
    stream = LiveStream(
        name="s",
        sessions=SpareSessions(load("shapes"), torch.device("cpu"), most=0),
        origin=Origin(prompt="a red circle moving left", seed=5, preset="turbo"),
        config=preset("turbo"),
    )
    stream.open()
    stream.make(), stream.make()
    stream.prompt("a blue square moving up", "recache", 4)
    stream.make(), stream.make()
    found: dict[str, Any] = json.loads(write(stream.recipe()))
    stream.close()
    return found


def saved(tmp_path: Path, recipe: dict[str, Any], **changes: Any) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe | changes))
    return str(path)


def test_the_clip_is_that_of_the_same_prompts(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    again, plain = tmp_path / "again.mp4", tmp_path / "plain.mp4"
    result = strobe("generate", "--replay", saved(tmp_path, recipe), "-o", str(again), "--device", "cpu")
    assert result.code == 0 and "may differ" not in result.err, result.err
    at = recipe["prompts"][1]["frame_block"]
    switch = f"block={at}:a blue square moving up"
    flags = ("--switch", switch, "--seed", "5", "--preset", "turbo", "--blocks", "4", "--device", "cpu")
    assert strobe("generate", "a red circle moving left", *flags, "-o", str(plain)).code == 0
    assert again.read_bytes() == plain.read_bytes()


def test_what_differs_is_named(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    path = saved(tmp_path, recipe, device="NVIDIA H200", frame_blocks=1, versions=recipe["versions"] | {"torch": "2.0"})
    result = strobe("generate", "--replay", path, "-o", str(tmp_path / "a.mkv"), "--device", "cpu")
    assert result.code == 0
    assert "device: NVIDIA H200 then" in result.err and "torch: 2.0 then" in result.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "0" * 64}, "weights 000000000000"),
        ({"v": 99}, "version 99"),
        ({"prompts": []}, "no prompt for frame block 0"),
        ({"image": "AAAA", "image_sha256": "0"}, "sha256 differs"),
        ({"image": "%"}, "damaged"),
        ({"seed": "five"}, "no recipe"),
    ],
)
def test_what_is_no_recipe_of_this_model_is_one_line(
    strobe: Strobe, tmp_path: Path, recipe: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    clip = tmp_path / "a.mkv"
    result = strobe("generate", "--replay", saved(tmp_path, recipe, **changes), "-o", str(clip), "--device", "cpu")
    assert result.code == 2 and words in result.err and not clip.exists(), result.err


def test_a_recipe_stands_alone(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    path = saved(tmp_path, recipe)
    assert "leave them out" in strobe("generate", "a red circle moving left", "--replay", path).err
    assert "--replay FILE" in strobe("generate").err
    assert "cannot read" in strobe("generate", "--replay", str(tmp_path / "none.json")).err
