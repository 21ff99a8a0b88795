"""The decoder's kernels: the reference in float64 against the layers, Triton against the reference, and where they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forked import in_triton, needs_triton
from strobe.core.device import Card
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.tolerances import tolerance
from strobe.models.vae.kernels import api
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae

SMALL = WanVAEConfig(width=8, latent_channels=4, num_blocks=1, mean=(0.0,) * 4, std=(1.0,) * 4)


@pytest.mark.parametrize("impls", [(None, "reference", "reference"), ("reference", None, "reference")])
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, width=4), replace(WAN22, width=8, decoder_width=16)])
def test_a_decoder_of_the_reference_is_the_decoder(config: WanVAEConfig, impls: tuple[api.Impl | None, ...]) -> None:
    """Also where channels do not fit (width 4) and where each stage has a skip; a stream may change from one to the other."""
    vae = random_wan_vae(config, 0).double()
    latents = torch.randn(2, 7, config.latent_channels, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, decoder = vae.decode(latents), StreamingDecoder(vae)
        frames = []
        for impl, piece in zip(impls, latents.split([1, 3, 3], dim=1), strict=True):
            vae.fused = impl
            frames.append(decoder.push(piece))
        limit = tolerance("rounding", "float32")  # frames are float32
        torch.testing.assert_close(torch.cat(frames, dim=1), expected, rtol=0, atol=limit)
        assert expected.std() > 0.1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@needs_triton
def test_triton_equals_the_reference(device: str) -> None:
    in_triton(Path(__file__).with_name("kernels_on_cpu.py"), device)


def test_a_decoder_is_not_fused_where_the_kernels_do_not_run() -> None:
    with pytest.raises(ImplUnavailableError, match="compute capability 9.0 or later .* cpu has no GPU"):
        random_wan_vae(SMALL, 0).bfloat16().fuse_decoder()


def test_a_card_of_little_shared_memory_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(kib: int, dtype: torch.dtype) -> str:
        card = Card(vendor="nvidia", architecture="sm_120", capability=(12, 0), name="x", shared_bytes=kib << 10)
        monkeypatch.setattr(api, "card_of", lambda _: card)
        return api.unavailable("triton", torch.device("cuda", 0), dtype)

    monkeypatch.setattr(api, "broken", lambda _: "")
    assert said(227, torch.bfloat16) == ""
    assert said(227, torch.float32) == "they compute in bfloat16 and float16, not float32"
    assert said(99, torch.bfloat16).endswith("cuda:0 has compute capability 12.0, 99 KiB of shared memory")


def test_there_is_no_gradient() -> None:
    seen, weight, bias = torch.zeros(1, 3, 4, 5, 8), torch.zeros(16, 8, 3, 3, 3), torch.zeros(16)
    assert api.convolve(seen, weight, bias, impl="reference").shape == (1, 1, 4, 5, 16)
    with pytest.raises(ConfigError, match="no gradient"):
        api.convolve(seen, weight.requires_grad_(), bias, impl="reference")
