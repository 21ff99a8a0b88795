"""Models by name or folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError, WeightsError
from strobe.engine import load as loading
from strobe.engine.family import Weights
from strobe.engine.load import load
from strobe.models.shapes import weights
from strobe.models.text.umt5 import ORIGINAL
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan


class TouchedError(BaseException):
    """Raised where tensors would be read; no reader takes it for a damaged file."""


SMALL = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=16, text_len=8, num_heads=2, num_layers=2)


def test_checkpoints_beside_the_weights_do_not_change_the_hash(tmp_path: Path) -> None:
    path = weights.save(weights.build(), tmp_path)
    first = load(tmp_path)
    (tmp_path / "student.safetensors").write_bytes(b"a state of the training")
    assert load(str(tmp_path)).weights_hash == first.weights_hash
    assert first.weights_hash == hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()
    weights.save(weights.build(), tmp_path)
    assert load(tmp_path).weights_hash != first.weights_hash


def test_models_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'shapes'"):
        load("shape")
    with pytest.raises(WeightsError, match=r"holds no shapes\.safetensors"):
        load(tmp_path)
    file = tmp_path / "self_forcing_dmd.pt"
    file.write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"is a file; give its folder, or --weights with one of: wan-1.3b, wan-14b"):
        load(file)
    with pytest.raises(ConfigError, match="of a bundled model are a model themselves: --model with their folder"):
        load("shapes", Weights(path=weights.FOLDER))


class TestWhatIsCheckedBeforeTensorsAreRead:
    """Each gap is told while no file of tensors has been opened for more than its list of them."""

    @pytest.fixture(autouse=True)
    def nothing_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(path: Path, **options: object) -> None:
            raise TouchedError(f"{path} was read")

        monkeypatch.setattr("strobe.models.checkpoint.load_file", read)
        monkeypatch.setattr("strobe.models.checkpoint.torch.load", read)
        monkeypatch.setattr("strobe.models.text.umt5.broken", lambda module: "")
        monkeypatch.setitem(SIZES, "wan-1.3b", SMALL)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A release in which every file is there and none can be read."""
        save_file(CausalWan(SMALL).state_dict(), tmp_path / "diffusion_pytorch_model.safetensors")
        (tmp_path / "config.json").write_text('{"_class_name": "CausalWanModel"}')
        (tmp_path / "google" / "umt5-xxl").mkdir(parents=True)
        for file in ("google/umt5-xxl/tokenizer.json", ORIGINAL, "Wan2.1_VAE.pth", "lora.pt"):
            (tmp_path / file).write_bytes(b"weights")
        return tmp_path

    def test_a_whole_one_is_read(self, folder: Path) -> None:
        with pytest.raises(TouchedError, match=r"Wan2.1_VAE.pth was read"):
            load("wan-1.3b", Weights(path=folder))

    @pytest.mark.parametrize(
        ("file", "words"),
        [
            (ORIGINAL, f"holds no umT5, neither {ORIGINAL} .*; give --release the folder of Wan2.1 or Wan2.2 as released"),
            ("google/umt5-xxl/tokenizer.json", "the folder google/umt5-xxl nor tokenizer; give --release"),
            ("Wan2.1_VAE.pth", "holds no Wan VAE; .* give --vae its file, or --release the folder"),
        ],
    )
    def test_a_file_of_the_release(self, folder: Path, file: str, words: str) -> None:
        (folder / file).unlink()
        if file.startswith("google"):
            (folder / file).parent.rmdir()
        for name, given in (("wan-1.3b", Weights(path=folder)), (str(folder), None)):
            with pytest.raises(WeightsError, match=words):
                load(name, given)

    @pytest.mark.parametrize("file", [ORIGINAL, "Wan2.1_VAE.pth", "lora.pt"])
    def test_a_file_without_its_end(self, folder: Path, file: str) -> None:
        (folder / file).write_bytes(b"PK half of one")
        with pytest.raises(WeightsError, match=rf"{file} is half a file: it ends after 14 bytes"):
            load("wan-1.3b", Weights(path=folder))

    def test_an_autoencoder_may_be_named_by_its_folder(self, folder: Path) -> None:
        with pytest.raises(TouchedError, match=r"Wan2.1_VAE.pth was read"):
            load("wan-1.3b", Weights(path=folder, vae=str(folder)))
        with pytest.raises(WeightsError, match="is a folder; give the weight file"):
            load("wan-1.3b", Weights(path=folder, loras=((folder, 1.0),)))

    def test_files_that_are_named(self, folder: Path) -> None:
        for given in (Weights(path=folder, loras=((Path("style.pt"), 1.0),)), Weights(path=folder, vae="style.pt")):
            with pytest.raises(WeightsError, match=r"^style.pt does not exist"):
                load("wan-1.3b", given)
        with pytest.raises(WeightsError, match="no folder 'nowhere'; give --release the folder of Wan2.1"):
            load("wan-1.3b", Weights(path=folder, release=Path("nowhere")))

    def test_the_package_of_the_text_encoder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("strobe.models.text.umt5.find_spec", lambda _: None)
        prompts = folder / "prompts"
        for cache in (None, prompts):
            with pytest.raises(
                ImplUnavailableError, match=r"needs transformers, and transformers is not installed; run pip install .*\[wan\]"
            ):
                load("wan-1.3b", Weights(path=folder, prompt_cache=cache))
        (prompts / "0.safetensors").write_bytes(b"")  # a kept prompt needs no encoder
        with pytest.raises(TouchedError, match=r"Wan2.1_VAE.pth was read"):
            load("wan-1.3b", Weights(path=folder, prompt_cache=prompts))

    def test_the_main_memory(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        size = 4 * sum(tensor.numel() for tensor in CausalWan(SMALL).parameters())
        monkeypatch.setattr(loading, "available_bytes", lambda: 0)
        with pytest.raises(TouchedError, match="was read"):  # a file that is mapped needs none
            load("wan-1.3b", Weights(path=folder))
        tensors = CausalWan(SMALL).state_dict()
        tensors["blocks.0.ffn.0.weight"] = tensors["blocks.0.ffn.0.weight"].to(torch.float8_e4m3fn)
        save_file(tensors | {"blocks.0.ffn.0.scale_weight": torch.ones(1)}, folder / "diffusion_pytorch_model.safetensors")
        with pytest.raises(WeightsError, match=r"in eight bits, is put together in main memory in float32, .* free memory"):
            load("wan-1.3b", Weights(path=folder))
        with pytest.raises(WeightsError, match=r"wan-1.3b with random weights is put together in main memory in bfloat16"):
            monkeypatch.setattr(loading, "available_bytes", lambda: size // 2 - 1)
            load("wan-1.3b", Weights(random=True))
        for free in (size, None):
            monkeypatch.setattr(loading, "available_bytes", lambda free=free: free)
            with pytest.raises(TouchedError, match="was read"):
                load("wan-1.3b", Weights(path=folder))

    def test_the_frame_size_of_a_model_by_folder(self, folder: Path) -> None:
        with pytest.raises(ShapeError, match="the nearest is 256x384"):
            load(folder, Weights(frame_size=(248, 384)))
