"""Streaming is one call, a latent is its own four frames, and sizes are checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.vae.stream import StreamingDecoder, predict_state_bytes
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig

ELEMENT = tolerance("element", "float32")


@pytest.fixture(scope="module")
def vae() -> TinyVAE:
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


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pushed(decoder: StreamingDecoder, latents: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    return [decoder.push(part) for part in latents.split(sizes, dim=1)]


@pytest.mark.parametrize("sizes", [(1,) * 9, (1, 3, 3, 2), (3, 3, 3), (2, 5, 1, 1), (9,)], ids=str)
def test_a_stream_is_one_call(vae: TinyVAE, sizes: tuple[int, ...]) -> None:
    latents = draw(2, 2, 9, 4, 3, 5)
    whole = vae.decode(latents)
    parts = pushed(StreamingDecoder(vae), latents, sizes)
    assert [part.shape[1] for part in parts] == [vae.config.stride.frames(0, sizes[0]), *(4 * size for size in sizes[1:])]
    assert whole.shape == (2, 33, 3, 24, 40) and 0.05 < whole.mean() < 0.95 and whole.std() > 0.05
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=ELEMENT)


def test_every_frame_knows_its_past_and_not_its_future(vae: TinyVAE) -> None:
    latents = draw(2, 1, 6, 4, 3, 5)
    whole, changed = vae.decode_groups(latents)[0], latents.clone()
    changed[:, 2] += 1
    differs = (vae.decode_groups(changed)[0] - whole).abs().amax(dim=(0, 2, 3, 4)).unflatten(0, (6, 4))
    assert (differs[:2] == 0).all() and (differs[2] > 1e-3).all()
    assert (differs[3] > 1e-4).all()  # the memory


def test_memories_hold_one_latent_frame_each(vae: TinyVAE) -> None:
    with torch.device("meta"):
        unreal = TinyVAE(vae.config)
    for batch, sizes in ((1, (1,)), (2, (1, 3, 3)), (2, (5,))):
        decoder = StreamingDecoder(vae)
        pushed(decoder, draw(8, batch, sum(sizes), 4, 3, 5), sizes)
        pixels = [1, 1, 4, 16, 16]  # per latent pixel, where each memory lies
        widths = [12, 12, 8, 8, 8]
        assert decoder.state_bytes == 4 * batch * 3 * 5 * sum(map(int.__mul__, pixels, widths))
        assert predict_state_bytes(unreal, batch, (3, 5)) == decoder.state_bytes


def test_a_latent_is_a_function_of_its_own_four_frames(vae: TinyVAE) -> None:
    frames = draw(4, 2, 17, 3, 24, 40).sigmoid()
    latents = vae.encode(frames)
    assert latents.shape == (2, 5, 4, 3, 5)
    for group in range(1, 5):
        alone = vae.encode_groups(frames[:, 4 * group - 3 : 4 * group + 1])
        torch.testing.assert_close(latents[:, group : group + 1], alone, rtol=0, atol=ELEMENT)
    first = vae.encode_groups(frames[:, :1].expand(-1, 4, -1, -1, -1))
    torch.testing.assert_close(latents[:, :1], first, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(vae.encode(frames[:1])[0], latents[0], rtol=0, atol=ELEMENT)
    changed = frames.clone()
    changed[:, 7] = 1 - changed[:, 7]  # frame 7 belongs to group 2 = frames 5 .. 8
    differs = (vae.encode(changed) - latents).abs().amax(dim=(0, 2, 3, 4))
    assert differs[2] > 1e-2 and (differs[[0, 1, 3, 4]] < ELEMENT).all()


def test_statistics_make_latents_standard_and_are_undone(vae: TinyVAE) -> None:
    frames, latents = draw(5, 1, 8, 3, 24, 40).sigmoid(), draw(6, 1, 2, 4, 3, 5)
    mean, std = vae.mean.view(1, 1, 4, 1, 1), vae.std.view(1, 1, 4, 1, 1)
    plain = TinyVAE(vae.config).requires_grad_(False)
    plain.load_state_dict(vae.state_dict() | {"mean": torch.zeros(4), "std": torch.ones(4)})
    torch.testing.assert_close(vae.encode_groups(frames), (plain.encode_groups(frames) - mean) / std)
    torch.testing.assert_close(vae.decode_groups(latents)[0], plain.decode_groups(latents * std + mean)[0])


def test_frames_stay_in_their_range(vae: TinyVAE) -> None:
    loud = 50 * draw(7, 1, 3, 4, 3, 5)
    assert vae.decode_groups(loud)[0].max() > 1
    for frames in (vae.decode(loud), StreamingDecoder(vae).push(loud)):
        assert frames.min() == 0 and frames.max() == 1


@pytest.mark.parametrize("shape", [(1, 4, 3, 24, 40), (1, 0, 3, 24, 40), (1, 5, 4, 24, 40), (5, 3, 24, 40)])
def test_frames_that_do_not_fit_are_refused(vae: TinyVAE, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"frames: got shape .*, expected \[B, 1 \+ 4 n, 3, Y, X\]"):
        vae.encode(torch.zeros(shape))


def test_sizes_and_latents_that_do_not_fit_are_refused(vae: TinyVAE) -> None:
    with pytest.raises(ShapeError, match="frame size 24x36 is not a positive multiple of 8 pixels"):
        vae.encode(torch.zeros(1, 5, 3, 24, 36))
    for shape in ((1, 3, 1, 3, 5), (3, 4, 3, 5)):  # both would broadcast
        with pytest.raises(ShapeError, match=r"latents: got shape .*, expected \[B, F, 4, Y, X\]"):
            StreamingDecoder(vae).push(torch.zeros(shape))
