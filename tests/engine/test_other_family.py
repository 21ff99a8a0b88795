"""A family of another package, installed beside ours, whose transformer is none of ours: it streams, steered and remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from source import PACKAGE

CODE = '''
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
    (site / "echo_package.py").write_text(CODE)
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


def test_the_command_line_takes_it(environment: dict[str, str], tmp_path: Path) -> None:
    command = ["-m", "strobe", "generate", "--model", "echo-1b", "--blocks", "2", "--device", "cpu", "-o", "clip.mp4", "--json"]
    done = run(environment, tmp_path, *command, "0.5")
    made = json.loads(done.stdout)
    assert (made["model"], made["frames"], made["fps"]) == ("echo: echo-1b", 21, 8) and (tmp_path / "clip.mp4").is_file()
