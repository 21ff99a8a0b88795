"""The tiny decoders: the released layout written down as one sequence, and weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from strobe.core.errors import ConfigError, ShapeError, WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.taew import load_taew
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.config import WAN21_MEAN, WAN21_STD

ELEMENT = tolerance("element", "float32")


class Block(nn.Module):
    """A block as released: the frame and the one before, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        convs = [nn.Conv2d(count * width, width, 3, padding=1) for count in (2, 1, 1)]
        self.conv = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), convs[2])


class Grow(nn.Module):
    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, frames * width, 1, bias=False)


class Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 3) * 3


class Released(nn.Module):
    """The released decoder: its names, its order, frame by frame over a whole clip."""

    def __init__(self, widths: tuple[int, ...] = (256, 128, 64, 64), channels: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [Clamp(), nn.Conv2d(channels, widths[0], 3, padding=1), nn.ReLU()]
        for (width, after), frames in zip(pairwise(widths), (1, 2, 2), strict=True):
            layers += [Block(width), Block(width), Block(width), nn.Upsample(scale_factor=2), Grow(width, frames)]
            layers.append(nn.Conv2d(width, after, 3, padding=1, bias=False))
        self.decoder = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))

    def decode(self, latents: Tensor) -> Tensor:
        frames = list(latents.unbind(1))
        for layer in self.decoder:
            if isinstance(layer, Block):
                before = [torch.zeros_like(frames[0]), *frames]
                frames = [torch.relu(layer.conv(torch.cat(pair[::-1], dim=1)) + pair[1]) for pair in pairwise(before)]
            elif isinstance(layer, Grow):
                grown = [layer.conv(frame) for frame in frames]
                frames = [half for frame in grown for half in frame.split(frames[0].shape[1], dim=1)]
            else:
                frames = [layer(frame) for frame in frames]
        return torch.stack(frames[3:], dim=1).clamp(0, 1)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """A released checkpoint's names, shapes and float16, with a bit of its encoder."""
    torch.manual_seed(6)
    tensors = {name: (1.7 * tensor if tensor.dim() > 1 else tensor).half() for name, tensor in Released().state_dict().items()}
    tensors["decoder.22.bias"].fill_(0.5)  # frames in the middle of [0, 1], where clamping hides nothing
    return tensors | {"encoder.0.weight": torch.zeros(64, 3, 3, 3)}


class TestWeights:
    @pytest.mark.parametrize("name", ["taew2_1.pth", "lighttaew2_1.safetensors"])
    def test_a_released_checkpoint(self, weights: dict[str, Tensor], tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        if path.suffix == ".pth":
            torch.save(weights, path)
        else:
            save_file(weights, path)
        found = load_taew(path)
        raw = name.startswith("light")
        assert (found.config.mean, found.config.std) == ((WAN21_MEAN, WAN21_STD) if raw else (None, None))
        reference = Released().requires_grad_(False)
        reference.load_state_dict({name: tensor for name, tensor in weights.items() if name.startswith("decoder.")})
        latents = drawn(1, 1, 2, 16, 2, 3)
        mean, std = (torch.tensor(values).view(1, 1, 16, 1, 1) for values in (WAN21_MEAN, WAN21_STD))
        expected = reference.decode(latents * std + mean if raw else latents)
        assert expected.std() > 0.1
        torch.testing.assert_close(found.decode(latents), expected, rtol=0, atol=ELEMENT)

    def test_an_unknown_name_does_not_say_which_latents(self, weights: dict[str, Tensor], tmp_path: Path) -> None:
        torch.save(weights, tmp_path / "mine.pth")
        with pytest.raises(ConfigError, match=r"mine.pth is none of taew2_1, lighttaew2_1; rename it"):
            load_taew(tmp_path / "mine.pth")

    def test_another_checkpoint_is_refused(self, weights: dict[str, Tensor], tmp_path: Path) -> None:
        changed = {name: tensor for name, tensor in weights.items() if name != "decoder.7.conv.weight"}
        torch.save(changed | {"decoder.23.bias": torch.zeros(1)}, tmp_path / "taew2_1.pth")
        with pytest.raises(WeightsError, match=r"1 missing: decoder.7.conv.weight; 1 unexpected: decoder.23.bias"):
            load_taew(tmp_path / "taew2_1.pth")


@pytest.fixture(scope="module")
def tiny() -> TinyVAE:
    torch.manual_seed(1)
    model = TinyVAE(TinyVAEConfig(latent_channels=4, widths=(12, 8, 8), encoder_widths=(12, 8, 8))).requires_grad_(False)
    model.mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    model.std.copy_(torch.tensor([0.5, 2.0, 1.0, 1.5]))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.5)  # so that memories show in the frames
        if name == "decoder.leave.bias":
            parameter.fill_(0.5)  # frames in the middle of [0, 1], where clamping hides nothing
    return model


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_latent_is_a_function_of_its_own_four_frames(tiny: TinyVAE) -> None:
    frames = drawn(4, 2, 17, 3, 24, 40).sigmoid()
    latents = tiny.encode(frames)
    assert latents.shape == (2, 5, 4, 3, 5)
    for group in range(1, 5):
        alone = tiny.encode_groups(frames[:, 4 * group - 3 : 4 * group + 1])
        torch.testing.assert_close(latents[:, group : group + 1], alone, rtol=0, atol=ELEMENT)
    first = tiny.encode_groups(frames[:, :1].expand(-1, 4, -1, -1, -1))
    torch.testing.assert_close(latents[:, :1], first, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(tiny.encode(frames[:1])[0], latents[0], rtol=0, atol=ELEMENT)
    changed = frames.clone()
    changed[:, 7] = 1 - changed[:, 7]  # frame 7 belongs to group 2 = frames 5 .. 8
    differs = (tiny.encode(changed) - latents).abs().amax(dim=(0, 2, 3, 4))
    assert differs[2] > 1e-2 and (differs[[0, 1, 3, 4]] < ELEMENT).all()


def test_statistics_make_latents_standard_and_are_undone(tiny: TinyVAE) -> None:
    frames, latents = drawn(5, 1, 8, 3, 24, 40).sigmoid(), drawn(6, 1, 2, 4, 3, 5)
    mean, std = tiny.mean.view(1, 1, 4, 1, 1), tiny.std.view(1, 1, 4, 1, 1)
    plain = TinyVAE(tiny.config).requires_grad_(False)
    plain.load_state_dict(tiny.state_dict() | {"mean": torch.zeros(4), "std": torch.ones(4)})
    torch.testing.assert_close(tiny.encode_groups(frames), (plain.encode_groups(frames) - mean) / std)
    torch.testing.assert_close(tiny.decode_groups(latents)[0], plain.decode_groups(latents * std + mean)[0])


def test_frames_stay_in_their_range(tiny: TinyVAE) -> None:
    loud = 50 * drawn(7, 1, 3, 4, 3, 5)
    assert tiny.decode_groups(loud)[0].max() > 1
    for frames in (tiny.decode(loud), StreamingDecoder(tiny).push(loud)):
        assert frames.min() == 0 and frames.max() == 1


def test_sizes_that_do_not_fit_are_refused(tiny: TinyVAE) -> None:
    with pytest.raises(ShapeError, match="frame size 24x36 is not a positive multiple of 8 pixels"):
        tiny.encode(torch.zeros(1, 5, 3, 24, 36))
