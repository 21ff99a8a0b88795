"""Models by name or folder, the places of their weights, and families that other packages register."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fake_hub import MAIN, OLD, Hub, serving
from source import PACKAGE
from strobe.core import libraries as plugins
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError, WeightsError
from strobe.engine import load as loading
from strobe.engine.family import Family, Weights
from strobe.engine.load import load, model_parts, names
from strobe.engine.model import Model, ModelParts
from strobe.engine.session import Session
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


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install entry points for the length of a test: `register(name=object)`."""

    def install(**found: object) -> None:
        module = types.ModuleType("another_package")
        vars(module).update(found)
        monkeypatch.setitem(__import__("sys").modules, "another_package", module)
        entries = [EntryPoint(name=name, value=f"another_package:{name}", group=plugins.FAMILIES) for name in found]
        monkeypatch.setattr(plugins, "entry_points", lambda group: entries if group == plugins.FAMILIES else [])

    return install


def made(tiny: Model, asked: list[tuple[str, Weights]], *models: str) -> Family:
    def make(name: str, given: Weights) -> Model:
        asked.append((name, given))
        return replace(tiny, name=f"mine: {name}")

    return Family(
        name="mine",
        models=models,
        holds=lambda folder: (folder / "mine.json").is_file(),
        load=make,
        parts=lambda name, size: ModelParts(dit=tiny.dit, vae=tiny.vae, defaults=tiny.defaults),
    )


def test_it_is_found_by_name_and_by_its_checkpoint(tiny: Model, register: Callable[..., None], tmp_path: Path) -> None:
    asked: list[tuple[str, Weights]] = []
    register(mine=made(tiny, asked, "mine-1b", "mine-7b"))
    given = Weights(frame_size=(32, 32))
    with Session("red circle", model=load("mine-1b", given), device="cpu") as session:
        assert session.model.name == "mine: mine-1b" and len([*session.stream(2)]) == 2
    (tmp_path / "mine.json").write_text("{}")
    assert load(tmp_path).name == f"mine: {tmp_path}" and asked == [("mine-1b", given), (str(tmp_path), Weights())]
    assert names()[-2:] == ("mine-1b", "mine-7b") and model_parts("mine-7b").dit is tiny.dit
    with pytest.raises(ConfigError, match=r"did you mean 'mine-7b'\?.*mine-1b, mine-7b"):
        load("mine-7")


def test_ours_are_never_taken(tiny: Model, register: Callable[..., None]) -> None:
    asked: list[tuple[str, Weights]] = []
    register(mine=made(tiny, asked, "shapes"))
    assert load("shapes").name == "shapes" and not asked


def test_what_is_registered_wrongly_is_named(tiny: Model, register: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    register(broken=3)
    with pytest.raises(
        ConfigError, match=r"no model .*; family 'broken' \(another_package:broken of .*\) is broken: it is a int"
    ):
        load("broken-1b")
    register(mine=made(tiny, [], "mine-1b"), yours=made(tiny, [], "mine-1b"))
    with pytest.raises(ConfigError, match=r"family 'yours' .* is broken: it has a model 'mine-1b', as 'mine' .* has; unins"):
        load("yours-1b")
    assert load("mine-1b").name == "mine: mine-1b" and load("shapes").name == "shapes"
    entries = [EntryPoint(name="gone", value="no_such_package:FAMILY", group=plugins.FAMILIES)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    with pytest.raises(ConfigError, match=r"family 'gone' .* cannot be imported: ModuleNotFoundError: No module named 'no_s"):
        load("mine-1b")


ECHO_PACKAGE = '''
"""Models whose latents are what the prompt says, a number, plus a tenth for each latent frame attended."""
import torch
from torch import nn

from strobe.core.errors import ConfigError
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.family import Family
from strobe.engine.model import Model, ModelParts
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.transformer import TextKV
from strobe.models.wan.transformer import CausalTransformer, Modulation

CONFIG = WanConfig(dim=12, ffn_dim=4, freq_dim=4, text_dim=2, text_len=3, latent_channels=4, num_heads=1, num_layers=1)
DEFAULTS = ModelDefaults(
    frame_size=(32, 48), fps=8, stride=VaeStride(time=4, space=8), frame_block=3, timesteps=(1000.0, 500.0), shift=3.0,
    window=9, sink=3,
)


class Echo(CausalTransformer):
    def __init__(self, config):
        super().__init__(config)
        self.blocks = nn.ModuleList([nn.Linear(1, 1)])

    layers = property(lambda self: [*self.blocks])
    dtype = property(lambda self: self.blocks[0].weight.dtype)
    device = property(lambda self: self.blocks[0].weight.device)
    qkv_fused = False

    def fuse_qkv(self): ...

    def use_kernels(self):
        raise ConfigError("no kernels")

    def compile_pieces(self, block_tokens, mode): ...

    def rope(self, positions, grid):
        return torch.ones(1)

    def embed_text(self, text):
        return text

    def text_kv(self, text):
        said = text[:, :1, :1, None].expand(-1, -1, -1, self.config.dim)
        return TextKV(layers=((said, said),), distinct=torch.ones(len(text), dtype=torch.int32))

    def modulation(self, timesteps):
        rows = (timesteps / 1000).float()[None, :, :, None, None].expand(1, -1, -1, 6, self.config.dim)
        return Modulation(layers=rows, head=rows[0, :, :, :2])

    def _kept(self, latents, kv):
        grid = self.grid(latents)
        tokens = torch.zeros(len(latents), grid.num_tokens, 1, self.config.dim, dtype=self.dtype)
        keys, _ = kv.write(0, tokens, tokens)
        return keys.shape[1] / grid.tokens_per_frame

    def forward(self, latents, modulation, text, rope, kv=None, mask=None):
        target = text.layers[0][0][:, :, 0, 0][..., None, None, None] + 0.1 * self._kept(latents, kv)
        return (latents - target) / modulation.layers[0, :, :, 0, 0][..., None, None, None]

    def commit(self, latents, modulation, text, rope, kv):
        self._kept(latents, kv)


class Numbers:
    def check(self, prompts):
        for prompt in prompts:
            if not prompt.replace(".", "").isdigit():
                raise ConfigError(f"the prompt {prompt!r} is no number")

    def encode(self, prompts):
        return torch.tensor([float(prompt) for prompt in prompts])[:, None, None].repeat(1, 1, 2)

    def ready(self, prompts):
        return True

    def place(self, device): ...


def load(name, given):
    torch.manual_seed(0)
    vae = TinyVAE(TinyVAEConfig(latent_channels=4, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    return Model(name=f"echo: {name}", weights_hash="e" * 64, dit=Echo(CONFIG), text=Numbers(), vae=vae, defaults=DEFAULTS)


def parts(name, size):
    with torch.device("meta"):
        made = load(name, None)
    return ModelParts(dit=made.dit, vae=made.vae, defaults=DEFAULTS)


FAMILY = Family(
    name="echo", models=("echo-1b",), holds=lambda folder: (folder / "echo.json").is_file(), load=load, parts=parts
)
'''
STREAM = """
import json, sys, strobe
from strobe.engine.load import load, model_parts
from strobe.engine.prompts import Switch

found = {}
for where in ("echo-1b", sys.argv[1]):
    with strobe.Session("0.25", model=load(where), preset="balanced", device="cpu") as session:
        blocks = [*session.stream(5, switches=[Switch(frame_block=3, prompt="(0.5:3) (1.5:1)")])]
    found[where] = [[block.latents.min().item(), block.latents.max().item()] for block in blocks]
shapes = [list(block.frames.shape) for block in blocks]
assert model_parts("echo-1b").defaults == session.model.defaults
print(json.dumps({"found": found, "shapes": shapes, "bases": [each.__name__ for each in type(session.model.dit).__mro__]}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a Python that has the package installed: its module and its metadata are on the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "echo_package.py").write_text(ECHO_PACKAGE)
    info = site / "echo_package-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-package\nVersion: 0.1\n")
    (info / "RECORD").write_text("echo_package.py,,\n")
    (info / "entry_points.txt").write_text("[strobe.families]\necho = echo_package:FAMILY\n")
    path = os.pathsep.join([str(PACKAGE.parent), str(site)])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STROBE_CONFIG": os.devnull}


def run(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=600)


def test_it_streams_by_its_name_and_from_its_folder(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "echo.json").write_text("{}")
    done = run(environment, tmp_path, "-c", STREAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bases"][:2] == ["Echo", "CausalTransformer"] and "CausalWan" not in told["bases"]
    expected = [0.25 + 0.3, 0.25 + 0.6, 0.25 + 0.9, 0.75 + 0.9, 0.75 + 0.9]  # 3, 6, 9 frames attended, then the window is full
    for values in told["found"].values():
        for (low, high), value in zip(values, expected, strict=True):
            assert low == pytest.approx(value, abs=1e-5) and high == pytest.approx(value, abs=1e-5)
    assert told["shapes"] == [[9, 32, 48, 3]] + [[12, 32, 48, 3]] * 4
