"""Models by name or folder: the bundled one, and Wan with the places of its weights. Small sizes stand in for released ones."""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fake_hub import MAIN, OLD, Hub, serving
from strobe.bench.cases.stream import Script, StreamCase
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError, WeightsError
from strobe.engine import load as loading
from strobe.engine.config import EngineConfig
from strobe.engine.family import Weights
from strobe.engine.load import load, wan_defaults
from strobe.engine.model import latent_shape
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.models import checkpoint as hashes
from strobe.models.shapes import weights
from strobe.models.text.umt5 import ORIGINAL
from strobe.models.vae.taew import Taew
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.random_init import PromptNoise, random_transformer
from strobe.models.wan.recipes import RECIPES


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


DIT, VAE, TEXT = "diffusion_pytorch_model.safetensors", "Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth"
FILES = {DIT: b"1", VAE: b"2", TEXT: b"3", "tokenizer/words.json": b"4", "vae/diffusion_pytorch_model.safetensors": b"5"}
CODE = """
import json
from strobe.engine.family import Weights, fetched
found = []
for given in (
    Weights(path="hf:owner/wan", loras=(("hf:owner/style@v1/style.safetensors", 0.5),)),
    Weights(path="hf:owner/tuned", release="hf:owner/wan@v1", vae="hf:owner/wan/vae/diffusion_pytorch_model.safetensors"),
):
    local, sources = fetched(given)
    found.append([sources, local.path.name, local.loras[0][0].read_text() if local.loras else local.release.name, local.vae])
print(json.dumps(found))
"""


def test_each_part_may_be_on_the_hub_and_only_what_it_needs_is_fetched(tmp_path: Path) -> None:
    hub = Hub(
        repositories={"owner/wan": FILES, "owner/tuned": {DIT: b"6", VAE: b"7"}, "owner/style": {"style.safetensors": b"8"}}
    )
    with serving(hub):
        first, second = json.loads(hub.run(CODE, tmp_path))
    assert first == [[f"hf:owner/wan@{MAIN}", f"hf:owner/style@{OLD}/style.safetensors"], MAIN, "8", None]
    vae = f"hf:owner/wan@{MAIN}/vae/{DIT}"
    assert second[:3] == [[f"hf:owner/wan@{OLD}", f"hf:owner/tuned@{MAIN}", vae], MAIN, OLD]
    assert Path(second[3]).read_bytes() == b"5"
    assert f"{MAIN}/{DIT}" in hub.fetched and VAE in str(hub.fetched)
    assert sum(name.endswith(VAE) for name in hub.fetched) == 1, "the tuned model's own is not needed beside a release"


SIZE = (32, 48)


def tiny_vae(channels: int) -> TinyVAE:
    return TinyVAE(TinyVAEConfig(latent_channels=channels, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wan-1.3b` is a small model with a small autoencoder and a text encoder that knows no language."""
    vae = tiny_vae(16)
    monkeypatch.setitem(SIZES, "wan-1.3b", SMALL)
    monkeypatch.setattr(loading, "random_wan_vae", lambda config, seed: vae)
    monkeypatch.setattr(loading, "load_wan_vae", lambda path: vae)
    monkeypatch.setattr(loading, "text_encoder", lambda folder, given: PromptNoise(SMALL))
    monkeypatch.setattr(loading, "check_there", lambda folder, given, loras: None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of the small model as the original is published."""
    torch.manual_seed(5)
    save_file(CausalWan(SMALL).state_dict(), tmp_path / "diffusion_pytorch_model.safetensors")
    named = ("dim", "ffn_dim", "freq_dim", "text_dim", "text_len", "num_heads", "num_layers")
    sizes = {"_class_name": "CausalWanModel", "in_dim": 16} | {name: getattr(SMALL, name) for name in named}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return tmp_path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("vae", "told"), [(None, ""), ("tiny", "tiny VAE, ")])
def test_random_weights_stream_and_say_so(vae: str | None, told: str) -> None:
    model = load("wan-1.3b", Weights(random=True, vae=vae, frame_size=SIZE))
    assert model.name == f"wan-1.3b, {told}random weights" and model.random_weights
    assert isinstance(model.vae, Taew) == (vae == "tiny")
    with Session("a fox", model=model, device="cpu") as session:
        blocks = [*session.stream(5)]
    assert [tuple(block.frames.shape) for block in blocks[:2]] == [(9, *SIZE, 3), (12, *SIZE, 3)]
    assert all(block.latents.isfinite().all() and block.latents.std() < 10 for block in blocks)
    with pytest.raises(ConfigError, match="'tiny'; got 'huge'"):
        Weights(random=True, vae="huge")


@pytest.mark.usefixtures("small")
class TestCheckpoints:
    @pytest.mark.parametrize("by_name", [True, False])
    def test_the_weights_are_those_of_the_folder(self, checkpoint: Path, by_name: bool) -> None:
        given = Weights(path=checkpoint if by_name else None, frame_size=SIZE)
        model = load("wan-1.3b", given) if by_name else load(checkpoint, given)
        torch.manual_seed(5)
        expected = CausalWan(SMALL).state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.dit.state_dict().items())
        assert model.name == ("wan-1.3b" if by_name else str(checkpoint)) and not model.random_weights and not model.loras

    def test_text_encoder_and_autoencoder_may_lie_elsewhere(
        self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        vae = tiny_vae(16)
        monkeypatch.setattr(loading, "text_encoder", lambda where, given: asked.append((where, given.prompt_cache)))
        monkeypatch.setattr(loading, "load_wan_vae", lambda where: asked.append(where) or vae)
        monkeypatch.setattr(loading, "load_taew", lambda where: asked.append(where) or vae)
        release, cache, file = tmp_path / "release", tmp_path / "cache", checkpoint / "diffusion_pytorch_model.safetensors"
        load("wan-1.3b", Weights(path=file))
        load("wan-1.3b", Weights(path=file, release=release, prompt_cache=cache))
        load("wan-1.3b", Weights(path=checkpoint, release=release, vae="elsewhere/taew2_1.pth"))
        beside, apart, tiny = (checkpoint, None), (release, cache), (release, None)
        assert asked == [checkpoint, beside, release, apart, Path("elsewhere/taew2_1.pth"), tiny]

    def test_hashing_delays_whoever_asks_and_nobody_else(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stream runs before the files are hashed: those that were loaded, whatever lies there by then."""
        monkeypatch.chdir(checkpoint.parent)
        given, loaded, hash_of = Weights(path=Path(checkpoint.name)), Event(), hashes._sha256
        expected = load("wan-1.3b", given).weights_hash
        monkeypatch.setattr(hashes, "_sha256", lambda *opened: loaded.wait(60) and hash_of(*opened))
        replaced, written = load("wan-1.3b", given), load("wan-1.3b", given)
        file = checkpoint / "diffusion_pytorch_model.safetensors"
        (checkpoint / "other").write_bytes(file.read_bytes()[:-1] + b"!")
        monkeypatch.chdir("/")
        with Session("a fox", preset="quality", model=replaced, device="cpu") as session:
            assert len(next(iter(session.stream(1))).frames)
            os.replace(checkpoint / "other", file)
            loaded.set()
            assert session.snapshot().identity.weights_hash == replaced.weights_hash == written.weights_hash == expected

    def test_a_file_that_is_written_to_while_it_is_hashed(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = hashes._read
        monkeypatch.setattr(hashes, "SMALL_BYTES", 4)
        monkeypatch.setattr(hashes, "_read", lambda file: os.utime(file.name, (1, 1)) or read(file))
        with pytest.raises(WeightsError, match="cannot be hashed, so nothing .* was written to while it was read"):
            load("wan-1.3b", Weights(path=checkpoint)).hashed()

    def test_a_lora_beside_the_base_is_used(self, checkpoint: Path, tmp_path: Path) -> None:
        plain = load("wan-1.3b", Weights(path=checkpoint))
        down, up = torch.randn(2, 48), torch.randn(64, 2)
        pair = {"base_model.model.blocks.1.ffn.0.lora_A.weight": down, "base_model.model.blocks.1.ffn.0.lora_B.weight": up}
        torch.save({"generator_lora": pair}, checkpoint / "lora.pt")
        model = load("wan-1.3b", Weights(path=checkpoint))
        assert model.notes[1:] == ("LoRA lora.pt: scale 1: no alpha in the file, its header or beside it",)
        assert len(model.loras) == 1 and model.name == "wan-1.3b with lora.pt" and model.weights_hash != plain.weights_hash
        assert torch.equal(model.dit.state_dict()["blocks.1.ffn.0.weight"], plain.dit.state_dict()["blocks.1.ffn.0.weight"])
        script = Script(prompt="a fox", num_blocks=2)
        with closing(StreamCase(["quality"], script=script, model=model, device="cpu")) as case:
            assert case.notes == model.notes
            assert case.settings("quality").lora == "lora.pt: scale 1: no alpha in the file, its header or beside it"
        torch.save(
            {"generator_lora": {name.replace("1.ffn", "7.ffn"): half for name, half in pair.items()}}, checkpoint / "lora.pt"
        )
        with pytest.raises(WeightsError, match=r"lora.pt does not fit this model"):
            load("wan-1.3b", Weights(path=checkpoint))

    def test_a_recognised_checkpoint_brings_its_window_and_schedule(self, checkpoint: Path, tmp_path: Path) -> None:
        named = {f"model.{name}": tensor for name, tensor in CausalWan(SMALL).state_dict().items()}
        torch.save({"generator": named, "generator_ema": named}, tmp_path / "any.pt")
        given = Weights(path=tmp_path / "any.pt", frame_size=SIZE)
        model = load("wan-1.3b", given)
        assert model.notes == (f"recipe {RECIPES['self-forcing']}: it holds generator_ema",)
        with Session("a fox", model=model, device="cpu") as session:
            assert (session.config.policy, session.config.positions) == (RingPolicy(window=21, sink=0), "absolute")
            assert len([*session.stream(9)]) == 9  # past the window
        with Session("a fox", model=model, preset="turbo", device="cpu") as session:
            assert session.config.policy == RingPolicy(window=8, sink=3)
        with Session("a fox", model=model, preset=EngineConfig(window=9), device="cpu") as session:
            assert session.config.policy == RingPolicy(window=9, sink=0)
        model = load("wan-1.3b", replace(given, recipe="causal-rcm"))
        with Session("a fox", model=model, device="cpu") as session:
            assert session.config.schedule.sigmas == tuple(timestep / 1000 for timestep in RECIPES["causal-rcm"].timesteps)
        with pytest.raises(ConfigError, match="did you mean 'longlive'"):
            load("wan-1.3b", Weights(random=True, recipe="longlife"))


@pytest.mark.usefixtures("small")
def test_what_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comes without weights: give --weights with their folder, or --random-weights"):
        load("wan-1.3b")
    with pytest.raises(ConfigError, match="not both"):
        Weights(path=checkpoint, random=True)
    with pytest.raises(ConfigError, match="one of: wan-1.3b, wan-14b"):
        load(checkpoint, Weights(path=checkpoint))
    for name, given in ((str(checkpoint), Weights()), ("wan-1.3b", Weights(path=tmp_path / "nowhere"))):
        with pytest.raises(ShapeError, match="height must be a multiple of 16 and width of 16; the nearest is 256x384"):
            load(name, replace(given, frame_size=(248, 384)))  # before anything is read
    with pytest.raises(WeightsError, match=r"is wan-1.3b \(2 layers, 48 wide\) by its config.json, not wan-14b .*; give --model"):
        load("wan-14b", Weights(path=checkpoint))
    with pytest.raises(ConfigError, match="the prompt is empty"):
        PromptNoise(SMALL).check([" "])


@pytest.mark.parametrize(("size", "tokens"), [((480, 832), 30 * 52), ((320, 576), 20 * 36), ((704, 1280), 44 * 80)])
def test_every_size_is_derived(size: tuple[int, int], tokens: int) -> None:
    for config in (SIZES["wan-1.3b"], SIZES["wan-14b"]):
        defaults = wan_defaults(config, size)
        latents = latent_shape(defaults, config)
        assert (latents.frames, latents.channels, latents.height, latents.width) == (3, 16, size[0] // 8, size[1] // 8)
        assert latents.token_grid(config.patch).tokens_per_frame == tokens
        resolved = resolve(EngineConfig(), defaults, torch.device("cpu"))
        assert resolved.schedule.warped == (1000, 937.5, 833.3333129882812, 625)
    latents = latent_shape(wan_defaults(SIZES["wan-5b"], size), SIZES["wan-5b"])
    assert (latents.frames, latents.channels, latents.height, latents.width) == (8, 48, size[0] // 16, size[1] // 16)


def test_random_matrices_have_the_variance_of_one_over_their_inputs() -> None:
    dit = random_transformer(WanConfig(dim=256, ffn_dim=512, num_heads=2, num_layers=2, text_dim=128))
    for name, tensor in dit.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        if tensor.dim() > 1 and not name.endswith("modulation"):
            assert tensor.float().std().item() * math.sqrt(tensor[0].numel()) == pytest.approx(1, abs=0.05)
    first, second = (dit.layers[index].self_attn.q.weight for index in range(2))
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("small")
def test_an_autoencoder_of_other_latents_is_told_before_the_transformer_is_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_wan_vae", lambda path: tiny_vae(8))
    monkeypatch.setattr("strobe.models.checkpoint.load_file", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(WeightsError, match="takes latents of 16 channels, and the autoencoder gives 8; give --vae"):
        load("wan-1.3b", Weights(path=checkpoint, frame_size=SIZE))
