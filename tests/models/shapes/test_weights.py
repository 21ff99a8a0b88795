"""The bundle loads; what is written is read back, in the rounding of the file; anything else is an error of one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from strobe.core.errors import ConfigError, WeightsError
from strobe.models.shapes import weights
from strobe.models.shapes.grammar import VOCABULARY
from strobe.models.shapes.weights import Parts
from train_shapes import clips


@pytest.fixture(scope="module")
def parts() -> Parts:
    torch.manual_seed(1)
    built = weights.build()
    built[2].mean.uniform_()  # statistics are part of the weights
    return built


@pytest.fixture(scope="module")
def written(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weights.save(parts, tmp_path_factory.mktemp("weights") / "made" / "on demand")


PLACES = ("dit", "text", "vae")


def named_tensors(parts: Parts) -> dict[str, Tensor]:
    places = zip(PLACES, parts, strict=True)
    return {f"{place}.{name}": tensor for place, part in places for name, tensor in part.state_dict().items()}


def test_what_is_written_is_read_back(parts: Parts, written: Path) -> None:
    assert [path.name for path in written.parent.iterdir()] == ["shapes.safetensors"]  # nothing half written lies about
    before, after = named_tensors(parts), named_tensors(weights.load(written.parent))
    stored = load_file(written)
    rows = {name for name in before if f"{name}.scale" in stored}
    assert before.keys() == after.keys() == {name for name in stored if not name.endswith(".scale")}
    assert rows == {
        f"{place}.{name}.weight"
        for place, part in zip(PLACES, parts, strict=True)
        for name, module in part.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d)
    }
    for name, tensor in after.items():
        assert tensor.dtype == torch.float32
        if name not in rows:
            assert torch.equal(tensor, before[name].half().float()), name
            continue
        shape = (-1, *[1] * (tensor.dim() - 1))  # one scale for each output
        scale = stored[f"{name}.scale"].double().view(shape)
        assert torch.equal(tensor.double(), stored[name].double() * scale), name
        most = before[name].double().abs().flatten(1).amax(1).view(shape)
        assert ((scale * 127 - most).abs() <= most / 256).all(), name  # what bfloat16 rounds
        assert ((tensor - before[name]).abs() <= scale * 0.50001).all(), name
    again = weights.save(weights.load(written.parent), written.parent / "again")
    assert again.read_bytes() == written.read_bytes()


def test_rows_of_zeros_and_rows_that_are_no_numbers_are_kept() -> None:
    given = torch.tensor([[0.0, 0.0], [1e-9, -2e-9], [3e4, 1e-3], [torch.nan, 1.0], [torch.inf, 1.0]])
    found = weights.unpacked(weights.packed({"a.weight": given}))["a.weight"]
    most = given[:3].abs().amax(1, keepdim=True)
    assert ((found[:3] - given[:3]).abs() <= most / 250).all()  # half a step of 127, and what bfloat16 rounds
    assert found[3:].isnan().all()


def test_loaded_parts_are_ready_for_inference(written: Path) -> None:
    for part in weights.load(written.parent):
        assert not part.training and not any(p.requires_grad for p in part.parameters())


def test_loading_draws_no_numbers_and_asks_for_no_dtype(written: Path, request: pytest.FixtureRequest) -> None:
    state = torch.random.get_rng_state()
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.bfloat16)
    assert {each.dtype for part in weights.load(written.parent) for each in part.state_dict().values()} == {torch.float32}
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(WeightsError, match=r"holds no shapes\.safetensors; give a folder with that file"):
            weights.load(folder)


def renamed(tensors: dict[str, Tensor]) -> None:
    tensors["vae.spread"] = tensors.pop("vae.std")


def longer(tensors: dict[str, Tensor]) -> None:
    tensors["dit.blocks.8.modulation"] = tensors["dit.blocks.7.modulation"].clone()


def reshaped(tensors: dict[str, Tensor]) -> None:
    for name in ("dit.blocks.0.modulation", "text.places"):
        tensors[name] = torch.zeros(1, 2)


def cut(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("text.")]:
        del tensors[name]


def halved(tensors: dict[str, Tensor]) -> None:
    """As all of them were stored once."""
    for name in [name for name in tensors if f"{name}.scale" in tensors]:
        tensors[name] = (tensors[name].float() * tensors.pop(f"{name}.scale").view(-1, *[1] * (tensors[name].dim() - 1))).half()


def widened(tensors: dict[str, Tensor]) -> None:
    tensors["vae.decoder.leave.weight"] = tensors["vae.decoder.leave.weight"].float()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (renamed, r"1 missing: vae\.std; 1 unexpected: vae\.spread; give a folder"),
        (longer, r"1 unexpected: dit\.blocks\.8\.modulation; give"),
        (reshaped, r"2 of another shape: dit\.blocks\.0\.modulation \(1, 2\) for .*, text\.places .*; give"),
        (cut, r"12 missing: text\.final\.bias, .*, and 8 more; give"),
        (halved, r"113 missing: dit\.blocks\.0\.cross_attn\.k\.weight\.scale, .*; give"),
        (widened, r"vae\.decoder\.leave\.weight is torch\.float32; give"),
    ],
)
def test_other_tensors_are_named(written: Path, tmp_path: Path, spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    tensors = load_file(written)
    spoil(tensors)
    save_file(tensors, tmp_path / weights.FILE)
    with pytest.raises(WeightsError, match=f"is not a checkpoint of the bundled model: {message}") as caught:
        weights.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_bundle_is_small_and_trained() -> None:
    bundled = sorted(weights.FOLDER.rglob("*"))
    assert sum(path.stat().st_size for path in bundled if path.is_file()) <= 7_000_000
    dit, text, vae = weights.load()
    assert all(tensor.isfinite().all() for tensor in named_tensors((dit, text, vae)).values())
    assert text.vocabulary == VOCABULARY
    assert clips.measure(vae, torch.device("cpu"), clips=4) >= 38.0  # dB


def test_bundled_latents_are_standard() -> None:
    torch.manual_seed(3)
    _, _, vae = weights.load()
    latents = vae.encode_groups(clips.draw_clips(16, 4, torch.device("cpu")))
    assert latents.mean(dim=(0, 1, 3, 4)).abs().max() < 0.3
    assert (latents.std(dim=(0, 1, 3, 4)) - 1).abs().max() < 0.3


def test_the_text_encoder_takes_whole_scenes_alone() -> None:
    _, text, _ = weights.load()
    text.check(["a red circle and a blue square moving left", "on a gray background a blue star is gliding up quickly"])
    assert text.tokenize("a red circle moving left on a tiled, navy floor") == text.tokenize("a red circle moving left on a navy")
    for prompt, words in (
        ("a circle moving left", 'gives no colour; .* for example "a red circle moving left"'),
        ("a red circle moving left, a blue square moving right", "gives two directions"),
        ("a red circel moving left", "did you mean 'circle'"),
        ("", "has 0 words"),
    ):
        with pytest.raises(ConfigError, match=words):
            text.check(["a red circle moving left", prompt])


def test_a_drawn_clip_shows_its_second_scene_from_the_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = iter((torch.zeros(64, 7, dtype=torch.long), torch.ones(64, 7, dtype=torch.long)))
    monkeypatch.setattr(clips, "draw_scenes", lambda count, device: next(scenes))
    drawn = lambda scenes, *_, fade, **__: (scenes[..., 0], fade)  # noqa: E731
    attributes, fade = clips.draw_clips(64, 4, torch.device("cpu"), drawn)
    begins = [(row.tolist().index(1), (weight > 0).tolist().index(True)) for row, weight in zip(attributes, fade, strict=True)
              if 0 < row.sum() < row.numel()]  # fmt: skip
    assert len(begins) > 10 and all(second == faded for second, faded in begins)
