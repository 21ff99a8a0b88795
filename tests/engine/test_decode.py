"""A frame decoder gives every autoencoder's frames as its one call does, whatever runs beside it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from strobe.attention.sparse.history import side_stream
from strobe.engine import decode
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.decode import DecoderState, FrameDecoder, VideoVAE, decode_stream, levels
from strobe.engine.graphs import capture_stream
from strobe.engine.load import shapes_defaults
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.models.vae.taew import TaewConfig, random_taew
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae

CHANNELS = 4


def autoencoder(kind: str) -> VideoVAE:
    """Small, random, its frames in the middle of [0, 1]."""
    if kind == "wan":
        zeros, ones = (0.0,) * CHANNELS, (1.0,) * CHANNELS
        sizes = WanVAEConfig(width=4, latent_channels=CHANNELS, num_blocks=1, mean=zeros, std=ones)
        return random_wan_vae(sizes, 0).channels_last()
    if kind == "taew":
        taew = random_taew(TaewConfig(latent_channels=CHANNELS, widths=(12, 8, 6, 6)), 0)
        taew.decoder.leave.bias.fill_(0.5)
        return taew
    torch.manual_seed(0)
    tiny = TinyVAE(TinyVAEConfig(latent_channels=CHANNELS, widths=(12, 8, 8), encoder_widths=(8, 8, 8))).requires_grad_(False)
    tiny.decoder.leave.bias.fill_(0.5)
    return tiny


def config(device: str = "cpu", **knobs: bool) -> ResolvedConfig:
    asked = EngineConfig(dtype="float32", knobs=replace_knobs(Knobs(), **knobs))
    return resolve(asked, shapes_defaults(), torch.device(device))


def latents(device: str = "cpu") -> Tensor:
    return torch.randn(2, 7, CHANNELS, 2, 3, generator=torch.Generator().manual_seed(1)).to(device)


def streamed(decoder: FrameDecoder, of: Tensor, first: int = 1) -> Tensor:
    state, frames = decoder.state(), []
    for part in of.split([first, 3, 3], dim=1):
        out, state = decoded(decoder, part, state)
        frames.append(out)
    return torch.cat(frames, dim=1)


def decoded(decoder: FrameDecoder, part: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
    pieces = list(decoder.start(part, state))
    assert sum(piece.num_latents for piece in pieces) == part.shape[1]
    return torch.cat([piece.frames for piece in pieces], dim=1), pieces[-1].state


def near(given: Tensor, expected: Tensor) -> bool:
    """Equal but for a value that lies between two levels."""
    return given.shape == expected.shape and (given.int() - expected.int()).abs().max() <= 1 and expected.float().std() > 1


@pytest.mark.parametrize("kind", ["tiny", "wan", "taew"])
@pytest.mark.parametrize("block_decode", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_frames_are_those_of_one_call(kind: str, block_decode: bool, beside: bool) -> None:
    vae, settings = autoencoder(kind), config(block_decode=block_decode)
    knobs = replace(settings.knobs, overlap_decode=beside)  # which a machine of few cores would switch off
    decoder = FrameDecoder(vae, replace(settings, knobs=knobs))
    assert near(streamed(decoder, latents()), levels(vae.decode(latents())))
    decoder.close()


def compile_by(backend: Any) -> Callable[..., Any]:
    """`torch.compile` with another backend."""
    compile_ = torch.compile

    def other(function: Any, **how: Any) -> Any:
        return compile_(function, backend=backend, **{name: value for name, value in how.items() if name != "options"})

    return other


@pytest.mark.rest
def test_a_process_may_decode_more_sizes_than_dynamo_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", compile_by("eager"))
    vae, settings = autoencoder("wan"), config()
    for width in range(2, 7):  # two graphs each, of 8 that a function may have
        decoder = FrameDecoder(vae, replace(settings, knobs=replace(settings.knobs, compile=True)))
        decoder.warm_up([(1, count, CHANNELS, 2, width) for count in (1, 3)])
        frames, _ = decoded(decoder, torch.zeros(1, 1, CHANNELS, 2, width), decoder.state())
        assert frames.shape[3] == 8 * width


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "first"), [("tiny", 1), ("wan", 1), ("taew", 3)])
def test_a_warm_decoder_compiles_nothing_amid_a_stream(kind: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a second stream and not for one that goes on from a file either."""
    torch.compiler.reset()
    counter, settings = CompileCounter(), config()
    monkeypatch.setattr(torch, "compile", compile_by(counter))
    vae, of = autoencoder(kind), torch.cat([latents(), 1 - latents()], dim=1)[:, : first + 6]
    decoder = FrameDecoder(vae, replace(settings, knobs=replace(settings.knobs, compile=True)))
    decoder.warm_up([(2, count, CHANNELS, 2, 3) for count in (first, 3)])
    graphs = 4 if kind == "wan" else 0  # of the decoder, and of what makes bytes of frames
    assert counter.frame_count == graphs
    expected = levels(vae.decode(of))
    with torch.inference_mode():
        for _ in range(2):
            assert near(streamed(decoder, of.clone(), first), expected)
        _, (started, memories) = decoded(decoder, of[:, :first].clone(), decoder.state())
    from_file = tuple(None if each is None else each.clone().contiguous() for each in memories)
    with torch.inference_mode():
        frames, _ = decoded(decoder, of[:, first : first + 3].clone(), decoder.adopt((started, from_file)))
    assert near(frames, expected[:, 4 * first - 3 :][:, :12])
    assert counter.frame_count == graphs


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["wan", "taew"])
def test_a_compiled_decoder(kind: str) -> None:
    vae, settings = autoencoder(kind), config("cuda", compile=True, overlap_decode=True)
    assert settings.knobs.compile
    decoder = FrameDecoder(vae, settings)
    decoder.warm_up([(2, count, CHANNELS, 2, 3) for count in (1, 3)])
    assert near(streamed(decoder, latents("cuda")), levels(copy.deepcopy(vae).decode(latents())))


@pytest.mark.gpu
def test_a_fused_decoder() -> None:
    """In 16 bits on Hopper and later nothing is compiled."""
    sizes = WanVAEConfig(width=8, latent_channels=CHANNELS, num_blocks=1, mean=(0.0,) * CHANNELS, std=(1.0,) * CHANNELS)
    vae, settings = random_wan_vae(sizes, 0).channels_last(), replace(config("cuda", compile=True), dtype=torch.bfloat16)
    decoder = FrameDecoder(vae, settings)
    decoder.warm_up([(2, count, CHANNELS, 2, 3) for count in (1, 3)])
    assert isinstance(decoder._vae, WanVAE) and decoder._vae.fused == "triton" and not decoder._compiled
    frames = streamed(decoder, latents("cuda"))
    assert (frames.int() - levels(copy.deepcopy(vae).decode(latents())).int()).abs().float().mean() < 2


@pytest.mark.parametrize("compiled", [True, False])
def test_what_decodes_is_compiled_only_where_the_kernels_do_not_run(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr(decode, "unavailable", lambda *_: "no GPU" if compiled else "")
    monkeypatch.setattr(WanVAE, "fuse_decoder", lambda _: said.append("fused"))
    monkeypatch.setattr(WanVAE, "compile_decoder", lambda _: said.append("compiled"))
    settings = config()
    FrameDecoder(autoencoder("wan"), replace(settings, knobs=replace_knobs(settings.knobs, compile=True)))
    assert said == ["compiled" if compiled else "fused"]


def test_nothing_is_decoded_where_passes_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch hands the 32 streams of a priority out in turn. A capture takes what a decoder frees, and replays write into it."""
    numbers, device = (itertools.count(), itertools.count()), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "Stream", lambda _, priority=0: (priority, next(numbers[priority]) % 5))
    captured = capture_stream, side_stream
    for each in captured:
        each.cache_clear()
    assert {decode_stream(device) for _ in range(7)} == {(-1, number) for number in range(5)}
    assert [each(device) for each in captured] == [(0, 0), (0, 1)]
    for each in captured:
        each.cache_clear()
