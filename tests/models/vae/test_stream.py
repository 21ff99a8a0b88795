"""What every decoder keeps between two pieces: any pieces are one call, memories are predicted, what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.models.vae.stream import StreamingDecoder, predict_state_bytes
from strobe.models.vae.taew import Taew, TaewConfig, random_taew
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae

EXACT = 1e-12
ROUNDED = 3e-7
"""Where a decoder rounds its frames to float32."""
WAN: dict[str, Any] = {"width": 2, "latent_channels": 4, "mean": (0.0,) * 4, "std": (1.0,) * 4}
TAEW = TaewConfig(latent_channels=4, widths=(12, 8, 6, 6))
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "wan2.1": (lambda: WanVAE(WanVAEConfig(**WAN)), 3160),
    "wan2.2": (lambda: WanVAE(WanVAEConfig(decoder_width=4, patch=2, residual=True, **WAN)), 7144),
    "taew": (lambda: Taew(TAEW), 3 * (12 + 4 * 8 + 16 * 6)),
    "tiny": (lambda: TinyVAE(TinyVAEConfig(latent_channels=4, widths=(12, 8, 8))), 2 * 12 + 4 * 8 + 2 * 16 * 8),
}
"""Each decoder, and how many numbers it keeps for a cell of a latent frame."""


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def vae(kind: str) -> Any:
    torch.manual_seed(5)
    model = MODELS[kind][0]().double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(1.7 if parameter.dim() > 1 else 1)  # so that memories show in the frames
    return model


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pushed(decoder: StreamingDecoder, latents: Tensor, sizes: list[int]) -> list[Tensor]:
    return [decoder.push(part) for part in latents.split(sizes, dim=1)]


@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, 6)), batch=st.integers(1, 2))
def test_any_pieces_are_one_call(vae: Any, cuts: set[int], batch: int) -> None:
    latents, sizes = draw(1, batch, 7, 4, 1, 2), [after - before for before, after in pairwise([0, *sorted(cuts), 7])]
    parts = pushed(StreamingDecoder(vae), latents, sizes)
    assert [part.shape[1] for part in parts] == [vae.stride.frames(0, sizes[0]), *(4 * size for size in sizes[1:])]
    whole = vae.decode_piece(latents, vae.empty_memories(), first=True)[0]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=ROUNDED if whole.dtype == torch.float32 else EXACT)


def test_a_copied_decoder_goes_on_alike_and_a_reset_one_begins_again(vae: Any) -> None:
    latents, decoder = draw(7, 1, 7, 4, 1, 2), StreamingDecoder(vae)
    first = pushed(decoder, latents[:, :4], [1, 3])
    state, expected = decoder.state(), decoder.push(latents[:, 4:])
    for _ in range(2):  # going on from a state does not write to it
        other = StreamingDecoder(vae)
        other.load_state(state)
        assert torch.equal(other.push(latents[:, 4:]), expected)
    decoder.reset()
    assert decoder.state_bytes == 0
    assert all(torch.equal(*pair) for pair in zip(pushed(decoder, latents[:, :4], [1, 3]), first, strict=True))
    assert (vae.decode(latents[:, 4:]) - expected[:, 3:]).abs().max() > 1e-3, "without memories it is something else"


def test_memories_are_bounded_and_predicted(vae: Any, kind: str) -> None:
    with torch.device("meta"):
        unreal = type(vae)(vae.config).double()
    for batch, sizes in ((1, [1, 1]), (2, [1, 3, 3]), (2, [2, 5])):
        decoder = StreamingDecoder(vae)
        pushed(decoder, draw(1, batch, sum(sizes), 4, 2, 3), sizes)
        assert decoder.state_bytes == predict_state_bytes(unreal, batch, (2, 3)) == 8 * batch * 2 * 3 * MODELS[kind][1]


@pytest.mark.parametrize("shape", [(1, 3, 1, 2, 2), (1, 0, 4, 2, 2), (3, 4, 2, 2)])
def test_latents_that_do_not_fit_are_refused(vae: Any, shape: tuple[int, ...]) -> None:
    for decode in (vae.decode, StreamingDecoder(vae).push):
        with pytest.raises(ShapeError, match=r"latents: got shape .*, expected \[B, F, 4, Y, X\]"):
            decode(torch.zeros(shape))


@pytest.mark.parametrize("kind", ["wan2.1", "wan2.2", "taew"], indirect=True)
@pytest.mark.parametrize("shape", [(1, 3, 4, 3, 2), (2, 3, 4, 2, 2)])
def test_another_size_in_one_stream_is_refused(vae: Any, shape: tuple[int, ...]) -> None:
    decoder = StreamingDecoder(vae)
    decoder.push(torch.zeros(1, 1, 4, 2, 2))
    before = decoder.state()
    with pytest.raises(ShapeError, match=rf"\({shape[0]}, {shape[3]}, 2\) and the stream so far \(1, 2, 2\)"):
        decoder.push(torch.zeros(shape))
    assert decoder.state()[1] is before[1]  # nothing is lost


@pytest.mark.parametrize(("make", "config"), [(random_wan_vae, WanVAEConfig(**WAN)), (random_taew, TAEW)])
def test_random_weights_come_from_the_seed(make: Callable[..., Any], config: Any) -> None:
    state = torch.random.get_rng_state()
    one, same, other = (make(config, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["decoder.enter.weight"], other["decoder.enter.weight"])
    frames = make(config, 3).decode(draw(1, 1, 4, 4, 2, 2))
    assert frames.isfinite().all() and frames.std() > 0
