"""The Wan autoencoder computes what diffusers computes, in pieces of any length, and keeps two frames of each layer."""

from __future__ import annotations

import copy
import hashlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file
from torch import Tensor, nn

from strobe.core.errors import ShapeError, WeightsError
from strobe.models.vae.stream import StreamingDecoder, predict_state_bytes
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN21_MEAN, WAN21_STD, WAN22, WAN22_MEAN, WAN22_STD, WanVAEConfig
from strobe.models.vae.wan.weights import FILES, key_names, load_wan_vae, random_wan_vae

TOLERANCE = 3e-6
"""In float64, of which diffusers rounds some to float32 where it grows pictures, and we the frames."""


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(given: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def exact(vae: WanVAE) -> WanVAE:
    """In float64, where what is not the same calculation shows."""
    return copy.deepcopy(vae).double()


class TestAgainstDiffusers:
    @pytest.mark.parametrize("piece", [1, 3])
    def test_decode(self, exact: WanVAE, golden: dict[str, Tensor], piece: int) -> None:
        assert golden["decoded"].std() > 0.1 and golden["decoded"].shape == golden["frames"].shape
        close(exact.decode(golden["latents"], piece=piece), golden["decoded"])

    @pytest.mark.parametrize("piece", [1, 2, 3])
    def test_encode(self, exact: WanVAE, golden: dict[str, Tensor], piece: int) -> None:
        assert golden["encoded"].std() > 0.1 and golden["encoded"].shape == (1, 4, 4, 2, 3)
        close(exact.encode(golden["frames"], piece=piece), golden["encoded"])

    def test_encode_at_once(self, exact: WanVAE, golden: dict[str, Tensor]) -> None:
        close(exact.encode_piece(golden["frames"], exact.empty_encoder_memories(), first=True)[0], golden["encoded"])

    def test_contiguous_channels_change_no_value(self, fresh: WanVAE, golden: dict[str, Tensor]) -> None:
        fresh.double().channels_last()
        latents = golden["latents"].expand(2, -1, -1, -1, -1)
        close(fresh.decode(latents), golden["decoded"].expand(2, -1, -1, -1, -1))
        close(fresh.encode(golden["frames"]), golden["encoded"])

    @pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)], ids=str)
    def test_fewer_bits_are_near(self, vae: WanVAE, golden: dict[str, Tensor], dtype: torch.dtype, limit: float) -> None:
        frames = copy.deepcopy(vae).to(dtype).decode(golden["latents"].float())
        assert frames.dtype == torch.float32
        assert (frames - golden["decoded"]).abs().mean() < limit

    def test_gradients_reach_the_latents(self, vae: WanVAE, golden: dict[str, Tensor]) -> None:
        latents = golden["latents"].clone().requires_grad_()
        vae.decode(latents)[:, 0].sum().backward()
        assert latents.grad is not None and latents.grad[:, 0].abs().max() > 0
        assert (latents.grad[:, 1:] == 0).all()  # the first frame knows nothing of what follows


@pytest.mark.parametrize("config", [WanVAEConfig(width=8), replace(WAN22, width=8, decoder_width=16)], ids=["2.1", "2.2"])
def test_contiguous_channels_stay_so_from_end_to_end(config: WanVAEConfig) -> None:
    """No convolution is handed another layout, which it would copy. Small convolutions on a CPU may return another one."""
    vae = random_wan_vae(config, 0).channels_last()
    strides: dict[str, set[int]] = {}
    for name, module in vae.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            note = strides.setdefault(name, set())
            module.register_forward_pre_hook(lambda _, x, note=note: note.add(x[0].stride(1)))
            assert module.weight.stride(1) == 1
    decoder = StreamingDecoder(vae)
    for part in draw(1, 2, 4, config.latent_channels, 2, 3).split([1, 3], dim=1):
        decoder.push(part)
    vae.encode(draw(2, 2, 5, 3, 32, 48).sigmoid())
    assert strides and set().union(*strides.values()) == {1}
    assert {memory.stride(1) for memory in decoder.memories if memory is not None} == {1}


class TestMemory:
    def test_the_released_size_of_wan2_2(self) -> None:
        """Numbers of the released model: 2.82 GB in float32 (the size of its file), 48 channels of 4x16x16."""
        with torch.device("meta"):
            released = WanVAE(WAN22)
        assert round(sum(p.numel() for p in released.parameters()) * 4 / 1e9, 2) == 2.82
        assert (released.stride.time, released.stride.space, len(WAN22.mean)) == (4, 16, 48)

    def test_the_released_size(self) -> None:
        """Numbers of the released model: its tensors and parameters, and 1.89 GB of memories at 480x832 in bfloat16."""
        with torch.device("meta"):
            released = WanVAE(WanVAEConfig()).bfloat16()
        assert len(released.state_dict()) == 194 and len(released.empty_memories()) == 32
        parts = (released.decoder, released.unpack)
        assert round(sum(p.numel() for part in parts for p in part.parameters()) / 1e6, 1) == 73.3
        assert round(predict_state_bytes(released, 1, (60, 104)) / 1e9, 2) == 1.89
        assert (released.stride.time, released.stride.space) == (4, 8)


class TestStatistics:
    MEAN, STD = (0.3, -0.2, 0.1, 5.0), (0.5, 2.0, 1.0, 1.5)

    def normalised(self, vae: WanVAE) -> WanVAE:
        config = replace(vae.config, mean=self.MEAN, std=self.STD)
        with torch.device("meta"):
            other = WanVAE(config)
        other.load_state_dict(vae.state_dict(), assign=True)
        return other

    def test_they_make_latents_standard_and_are_undone(self, exact: WanVAE, golden: dict[str, Tensor]) -> None:
        mean, std = (torch.tensor(values).view(1, 1, 4, 1, 1) for values in (self.MEAN, self.STD))
        other = self.normalised(exact)
        close(other.encode(golden["frames"]), (golden["encoded"] - mean) / std)
        close(other.decode((golden["latents"] - mean) / std), golden["decoded"])

    def test_a_cast_of_the_weights_does_not_round_them(self, vae: WanVAE) -> None:
        other = copy.deepcopy(self.normalised(vae)).bfloat16()
        seen: list[Tensor] = []
        other.unpack.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
        other.decode(torch.full((1, 1, 4, 1, 1), 0.5009765625))  # exact in float32, not in bfloat16
        expected = torch.tensor([0.5009765625 * s + m for m, s in zip(self.MEAN, self.STD, strict=True)]).bfloat16()
        assert torch.equal(seen[0].flatten(), expected)


class TestRefusals:
    @pytest.mark.parametrize("shape", [(1, 4, 3, 16, 16), (1, 0, 3, 16, 16), (1, 5, 4, 16, 16), (5, 3, 16, 16)])
    def test_frames(self, vae: WanVAE, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"frames: got shape .*, expected \[B, 1 \+ 4 n, 3, Y, X\]"):
            vae.encode(torch.zeros(shape))
        with pytest.raises(ShapeError, match="frame size 16x20 is not a positive multiple of (8|16) pixels"):
            vae.encode(torch.zeros(1, 5, 3, 16, 20))

    def test_later_frames(self, vae: WanVAE) -> None:
        _, memories = vae.encode_piece(torch.zeros(1, 1, 3, 16, 16), vae.empty_encoder_memories(), first=True)
        with pytest.raises(ShapeError, match=r"expected \[B, 4 n, 3, Y, X\]"):
            vae.encode_piece(torch.zeros(1, 5, 3, 16, 16), memories, first=False)


Weights = dict[str, Tensor]


def test_the_statistics_of_wan21_are_those_of_diffusers() -> None:
    theirs = inspect.signature(AutoencoderKLWan).parameters
    assert list(WAN21_MEAN) == theirs["latents_mean"].default and list(WAN21_STD) == theirs["latents_std"].default


def test_the_statistics_of_wan22_are_those_of_the_official_file() -> None:
    """Copied from `wan/modules/vae2_2.py`, compared number by number, and pinned then."""
    assert hashlib.sha256(repr((WAN22_MEAN, WAN22_STD)).encode()).hexdigest().startswith("d8fd23c5876ad333")


@pytest.mark.parametrize("name", ["Wan2.1_VAE.pth", "wan_2.1_vae.safetensors"])
def test_the_original_spelling(original: Weights, vae: WanVAE, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pth":
        torch.save(original, path)
    else:
        save_file(original, path)
    found = load_wan_vae(path, vae.config)
    expected = vae.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[own]) for own, tensor in found.state_dict().items())
    assert {tensor.dtype for tensor in found.state_dict().values()} == {torch.float32}
    assert not found.training and not any(parameter.requires_grad for parameter in found.parameters())


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize("config", [WanVAEConfig(width=2), WanVAEConfig(width=3), replace(WAN22, width=3, decoder_width=2)])
def test_a_folder_is_read_and_the_sizes_are_those_of_its_file(tmp_path: Path, config: WanVAEConfig, place: str) -> None:
    path, weights = tmp_path / place, random_wan_vae(config, 0).state_dict()
    path.parent.mkdir(exist_ok=True)
    original, diffusers = key_names(config)
    if path.suffix == ".pth":
        torch.save({original[own]: tensor for own, tensor in weights.items()}, path)
    else:
        save_file({diffusers[own]: tensor for own, tensor in weights.items()}, path)
    found = load_wan_vae(tmp_path)
    assert found.config == config and torch.equal(found.decoder.enter.weight, weights["decoder.enter.weight"])


def test_an_empty_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no Wan VAE; expected one of: Wan2.1_VAE.pth, Wan2.2_VAE.pth, vae/diffusion"):
        load_wan_vae(tmp_path)
    with pytest.raises(WeightsError, match=r"nothing.pth does not exist; give the weight file"):
        load_wan_vae(tmp_path / "nothing.pth")


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"blocks.0.self_attn.q.weight": torch.zeros(2, 2)}, tmp_path / "dit.safetensors")
    with pytest.raises(WeightsError, match="is no Wan VAE: it has neither encoder.conv1"):
        load_wan_vae(tmp_path / "dit.safetensors")
