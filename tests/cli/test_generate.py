"""`strobe generate`: the clip, what it begins with, streams made again, flags of a Wan model, predicted memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file

from strobe.bench.cases.stream import StreamCase
from strobe.cli.console import Output
from strobe.cli.model import ModelFlags, parse_lora, settings_notes
from strobe.cli.run_folder import tell_case
from strobe.core.errors import DataError
from strobe.engine import load as loading
from strobe.engine.load import load, shapes_defaults
from strobe.engine.presets import preset
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.engine.video import VideoFile, read_image
from strobe.models.shapes.grammar import parse
from strobe.models.vae.wan.config import WAN22
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.quality.clips import read_clip
from strobe.serve.protocol import write
from strobe.serve.streams import LiveStream, Origin, SpareSessions
from terminal import Strobe
from train_shapes.render import advance, render

PROMPT = "a red circle moving left"


def num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_clip_with_two_switches(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    switches = ["--switch", "0.7s:a blue square moving up", "--switch", "block=3:a green star moving right"]
    result = strobe("generate", PROMPT, *switches, "--blocks", 4, "--preset", "turbo", "--device", "cpu", "--json", "-o", out)
    assert result.code == 0, result.err
    document = result.document
    assert document["frame_blocks"] == 4 and document["frames"] == num_frames(out) == 45
    assert document["prompts"] == [
        {"frame_block": 0, "text": PROMPT},
        {"frame_block": 2, "text": "a blue square moving up"},
        {"frame_block": 3, "text": "a green star moving right"},
    ]
    assert (document["preset"], document["device"], document["fps"]) == ("turbo", "cpu", 16)


def test_a_clip_that_begins_with_a_picture(strobe: Strobe, tmp_path: Path) -> None:
    """Wider and larger than the frame: scaled to its height, left and right cut off."""
    picture = np.zeros((300, 900, 3), dtype=np.uint8)
    picture[:, 300:600] = (250, 20, 20)  # the middle third is what is kept
    with av.open(str(tmp_path / "start.png"), "w") as file:
        stream = file.add_stream("png")
        stream.width, stream.height, stream.pix_fmt = 900, 300, "rgb24"
        file.mux([*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode(None)])
    size = shapes_defaults().frame_size
    frame = read_image(tmp_path / "start.png", size)
    assert frame.shape == (1, *size, 3) and frame.dtype == torch.uint8
    expected = torch.tensor([250, 20, 20]).expand(*size, 3)
    inside = slice(2, -2)  # edges are between two colours
    assert size[0] == size[1] and (frame[0, :, inside].int() - expected[:, inside]).abs().max() <= 2
    lying, told = Image.new("RGB", (90, 30)), Image.Exif()
    lying.paste((250, 20, 20), (0, 0, 45, 30))
    for orientation in (1, 3, 6, 8):  # how a camera was held
        told[0x112] = orientation
        lying.save(tmp_path / "phone.jpg", exif=told, quality=95)
        upright = torch.from_numpy(np.array(ImageOps.exif_transpose(Image.open(tmp_path / "phone.jpg"))))
        for found in (read_image(tmp_path / "phone.jpg", upright.shape[:2]), read_clip(tmp_path / "phone.jpg")):
            assert (found[0].int() - upright.int()).abs().float().mean() < 2
    Image.new("RGB", (20_000, 1)).save(tmp_path / "line.png")  # to fill a frame of 64 rows it would have 82 million pixels
    with pytest.raises(DataError, match="20000x1 pixels, too long and narrow"):
        read_image(tmp_path / "line.png", size)
    out = tmp_path / "clip.mp4"
    result = strobe("generate", PROMPT, "--image", tmp_path / "start.png", "--seconds", 1, "--device", "cpu", "--json", "-o", out)
    assert result.code == 0, result.err
    assert result.document["frames"] == num_frames(out) == 25  # 1, then 12 at a time, for at least 16
    with av.open(str(out)) as container:
        first = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert first[8:-8, 8:-8].astype(int).mean((0, 1)) == pytest.approx([250, 20, 20], abs=40)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--preset", "ultra"], 3, "preset 'ultra' cannot run"),
        (["--switch", "4x:foo"], 2, "cannot read the prompt switch"),
        (["--switch", "4s:a (red:1.4) circle moving left"], 2, "weighs words or one prompt alone"),
        (["--image", "none.png"], 2, "cannot read the picture"),
        (["-o", "clip.avi"], 2, "unknown suffix"),
    ],
)
def test_what_needs_no_model_is_told_before_one_is_loaded(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setattr("strobe.engine.load.load", lambda *_: pytest.fail("a model was loaded"))
    result = strobe("generate", PROMPT, *arguments, "--device", "cpu")
    assert result.code == code and words in result.err and result.err.count("\n") == 1


def test_an_interrupted_clip_is_closed_and_told(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Session.stream

    def interrupted(self: Session, *arguments: object, **options: object) -> Iterator[FrameBlock]:
        blocks = whole(self, *arguments, **options)
        yield next(blocks)
        yield next(blocks)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "stream", interrupted)
    out = tmp_path / "clip.mp4"
    result = strobe("generate", PROMPT, "--blocks", 5, "--preset", "turbo", "--device", "cpu", "-o", out)
    assert result.code == 130
    assert num_frames(out) == 21 and "21 frames" in result.out
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.mp4"]
    out.write_bytes(b"an earlier one")
    result = strobe("generate", PROMPT, "--blocks", 5, "--preset", "turbo", "--device", "cpu", "-o", out, "--force")
    own = tmp_path / "clip.partial.mp4"
    assert result.code == 130 and f"{own}: 21 frames" in result.out
    assert num_frames(own) == 21 and out.read_bytes() == b"an earlier one"


def test_a_clip_that_is_there_is_replaced_only_by_force(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    out.write_bytes(b"an earlier one")
    small = ("--blocks", 2, "--preset", "turbo", "--device", "cpu", "-o", out)
    refused = strobe("generate", PROMPT, *small)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert f"{out} exists; --force replaces it, -o names another" in refused.err
    assert out.read_bytes() == b"an earlier one"
    for given in (["a red circel moving left"], [PROMPT, "--switch", "block=1:a blue square moving"]):
        wrong = strobe("generate", *given, *small)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1) and "for example" in wrong.err and "exists" not in wrong.err
    assert strobe("generate", PROMPT, *small, "--force").code == 0 and num_frames(out) == 21


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_full_disk_is_no_success(strobe: Strobe, tmp_path: Path, flags: list[str]) -> None:
    out = tmp_path / "clip.mp4"
    out.symlink_to("/dev/full")
    result = strobe("generate", PROMPT, "--blocks", 2, "--preset", "turbo", "--device", "cpu", "-o", out, *flags)
    assert (result.code, result.out) == (3, "") and result.err.count("\n") == 1
    assert "cannot write" in result.err and "the disk is full" in result.err


STAR = "a green star moving up fast on a forest background"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """22 frames of a red circle, as a video of twice the model's size."""
    scene = torch.tensor([parse("a red circle moving left slowly on a navy background").attributes])[:, None].expand(-1, 22, -1)
    frames = render(scene, advance(torch.zeros(1, 2), scene), torch.zeros(1, 2), torch.tensor([24.0]))[0]
    large = frames.repeat_interleave(2, -1).repeat_interleave(2, -2).permute(0, 2, 3, 1)
    path = tmp_path / "clip.mkv"
    with VideoFile(path, fps=16) as video:
        video.write((large * 255).round().to(torch.uint8))
    return path


def made(strobe: Strobe, out: Path, *flags: object, prompt: str = STAR) -> tuple[dict[str, object], torch.Tensor]:
    result = strobe("generate", prompt, "--preset", "turbo", "--device", "cpu", "--json", "-o", out, *flags)
    assert result.code == 0, result.err
    return result.document, read_clip(out).float()


def test_a_clip_is_begun_with_and_followed(strobe: Strobe, clip: Path, tmp_path: Path) -> None:
    given = read_clip(clip)[:21, ::2, ::2].float()
    document, begun = made(strobe, tmp_path / "a.mkv", "--start", clip, "--blocks", 3)
    assert document["frame_blocks"] == 3 and (begun[:21] - given).abs().mean() < 4
    square = "a red square moving left slowly on a navy background"
    document, followed = made(strobe, tmp_path / "b.mkv", "--follow", clip, "--strength", 0.5, prompt=square)
    assert document["frame_blocks"] == 2 and len(followed) == 21  # as long as the clip; its last frame fills no group of four
    _, remade = made(strobe, tmp_path / "c.mkv", "--follow", clip, "--strength", 1, prompt=square)
    near, far = ((each[:21] - given).abs().mean().item() for each in (followed, remade))
    assert 1 < near < far / 2  # the square stands where the clip's circle stood
    wrong = strobe("generate", STAR, "--device", "cpu", "-o", tmp_path / "d.mp4", "--follow", clip, "--strength", 0.1)
    assert wrong.code == 2 and "strength 0.1 leaves no denoise step" in wrong.err and not (tmp_path / "d.mp4").exists()


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


def test_what_differs_is_named_and_a_recipe_stands_alone(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    path = saved(tmp_path, recipe, device="NVIDIA H200", frame_blocks=1, versions=recipe["versions"] | {"torch": "2.0"})
    result = strobe("generate", "--replay", path, "-o", str(tmp_path / "a.mkv"), "--device", "cpu")
    assert result.code == 0
    assert "device: NVIDIA H200 then" in result.err and "torch: 2.0 then" in result.err
    assert "leave them out" in strobe("generate", "a red circle moving left", "--replay", path).err


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


def test_a_checkpoint_that_does_not_fit_is_told_in_one_line(strobe: Strobe, tmp_path: Path) -> None:
    small = CausalWan(WanConfig(dim=24, ffn_dim=24, freq_dim=8, text_dim=8, text_len=4, num_heads=1, num_layers=2)).state_dict()
    save_file(small, tmp_path / "model.safetensors")
    result = strobe("generate", "a fox", "--model", "wan-1.3b", "--weights", tmp_path, "-o", tmp_path / "fox.mp4")
    assert result.code == 3 and len(result.err.strip().splitlines()) == 1
    assert "looks like a transformer of 2 layers, 24 wide, not wan-1.3b (30 layers, 1536 wide); give a" in result.err


def test_what_replaces_the_recipe_is_told() -> None:
    """The recipe is printed in full, so what a preset or a flag says instead is too; a model without one has nothing to add."""
    model = load("shapes")
    recipe = replace(model, notes=("recipe longlive (window 12, sink 3): it holds generator",))
    asked = ModelFlags(window=9, timesteps="1000,500", shift=3.0).config("balanced")
    told = "balanced runs it with timesteps 1000, 500, shift 3.0, window 9 instead"
    assert settings_notes(recipe, asked) == (*recipe.notes, told)
    assert settings_notes(recipe, ModelFlags().config("turbo"))[1:] == (
        "turbo runs it with timesteps 1000, 500, 250, window 8 instead",
    )
    assert settings_notes(recipe, ModelFlags(window=12).config("balanced")) == recipe.notes
    assert settings_notes(model, asked) == ()


def test_window_and_schedule_by_flags() -> None:
    flags = ModelFlags(window=9, sink=0, positions="absolute", timesteps="1000,500", shift=8.0)
    config = flags.config("turbo")
    assert (config.window, config.sink, config.positions, config.timesteps, config.shift) == (9, 0, "absolute", (1000, 500), 8)
    assert ModelFlags().config("balanced").window is None and ModelFlags(sink=0).config("turbo").window == 8


def test_loras_and_their_strengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.pt").write_bytes(b"")
    found = [parse_lora(text) for text in ("style.pt", "style.pt=0.8", "a=b.pt", "a=b.pt=-1")]
    assert found == [(Path("style.pt"), 1.0), (Path("style.pt"), 0.8), (Path("a=b.pt"), 1.0), (Path("a=b.pt"), -1.0)]


def test_how_settings_were_chosen_is_told_by_every_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    absent = SimpleNamespace(variant="turbo", reason="no GPU")
    tell_case(cast(StreamCase, SimpleNamespace(notes=("LoRA a.pt: scale 4",), absent=(absent,))), Output())
    assert capsys.readouterr().err.splitlines() == ["LoRA a.pt: scale 4", "turbo: not on this machine: no GPU"]


class TestMemory:
    def test_it_is_predicted_part_by_part(self, strobe: Strobe) -> None:
        flags = ("doctor", "--preset", "balanced", "--model", "wan-1.3b", "--device", "cpu", "--json")
        memory = strobe(*flags).document["memory"]
        parts = {part["name"]: part["num_bytes"] for part in memory["parts"]}
        assert parts["transformer weights"] == 1_418_996_800 * torch.float32.itemsize and memory["frame_size"] == [480, 832]
        assert memory["total_bytes"] == sum(parts.values()) and memory["free_bytes"] > 2**20
        small = strobe(*flags, "--size", "240x416", "--samples", 2).document["memory"]
        halves = {part["name"]: part["num_bytes"] for part in small["parts"]}
        assert 2 * halves["keys and values"] == parts["keys and values"]  # a quarter of the tokens, twice the streams
        assert halves["text keys and values"] == 2 * parts["text keys and values"]

    def test_the_page_for_people_has_the_same(self, strobe: Strobe) -> None:
        out = strobe("doctor", "--preset", "ultra", "--device", "cpu").out
        assert "memory of ultra, shapes, 128x128, 1 sample(s), float32, in MiB" in out and "text encoder is not counted" in out
        assert re.search(r"transformer weights +[1-9]\d*\.\d\d", out), "a unit in which a small model is not 0.00"
        assert "in MiB" not in strobe("doctor", "--device", "cpu").out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(SIZES["wan-5b"], dim=48, ffn_dim=64, freq_dim=16, text_dim=16, text_len=8, num_heads=2, num_layers=2)
    monkeypatch.setitem(SIZES, "wan-5b", sizes)
    monkeypatch.setattr(loading, "WAN22", replace(WAN22, width=2, decoder_width=2))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("flags", [(), ("--vae", "tiny"), ("--recipe", "causal-wan")], ids=["longlive-2", "tiny", "causal-wan"])
def test_random_weights_stream(strobe: Strobe, tmp_path: Path, flags: tuple[str, ...]) -> None:
    clip = tmp_path / "clip.mkv"
    asked = ("--model", "wan-5b", "--random-weights", "--size", "32x64", "--blocks", 2, "-o", clip, *flags)
    done = strobe("generate", "x", *asked, *(() if "--recipe" in flags else ("--switch", "block=1: y", "--mode", "shot")))
    assert done.code == 0, done.err
    assert "random weights" in done.out + done.err
    assert read_clip(clip).shape == (1 + 15 * 4, 32, 64, 3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preset", "turbo"), "turbo has window 8; the shots of this model pin frames beside the sink, so give a window of 14"),
        (("--recipe", "krea", "--sink", 2), "so its sink is 1; balanced has 2"),
        (("--shift", 0), "shift 0.0 is not a positive number"),
    ],
)
def test_settings_are_refused_before_any_weight_is_drawn(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[object, ...], said: str
) -> None:
    monkeypatch.setattr("strobe.engine.load.random_transformer", lambda config: pytest.fail("ten gigabytes were drawn"))
    done = strobe("generate", "x", "--model", "wan-5b", "--random-weights", "-o", tmp_path / "x.mkv", *flags)
    assert done.code == 2 and said in done.err, done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["longlive-2", "wan-5b"])
def test_doctor_says_what_it_takes(strobe: Strobe, name: str) -> None:
    done = strobe("doctor", "--model", name, "--preset", "low_memory")
    assert "704x1280" in done.out and "autoencoder weights" in done.out
    assert ("model_bf16.pt (10.0 GB)" in done.out) == (name == "longlive-2")
