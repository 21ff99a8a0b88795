"""A stream compiles to two graphs, one for its first piece and one for all others, without a break in them."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from strobe.core.tolerances import tolerance
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae

ELEMENT = tolerance("element", "float32")

SMALL = WanVAEConfig(
    width=4, latent_channels=4, multipliers=(1, 2), num_blocks=1, halve_time=(True,), mean=(0.0,) * 4, std=(1.0,) * 4
)


def autoencoder(kind: str) -> WanVAE:
    return random_wan_vae(SMALL, 0).channels_last() if kind == "channels last" else random_wan_vae(SMALL, 0)


@pytest.mark.parametrize("kind", ["wan", "channels last"])
def test_two_graphs(kind: str) -> None:
    torch.compiler.reset()
    vae, counter = autoencoder(kind), CompileCounter()
    latents = torch.randn(1, 10, 4, 2, 3, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = vae.decode(latents)
        vae.decoder.compile(backend=counter, fullgraph=True, dynamic=False)
        for _ in range(2):  # the second stream compiles nothing
            decoder = StreamingDecoder(vae)
            frames = torch.cat([decoder.push(part) for part in latents.split([1, 3, 3, 3], dim=1)], dim=1)
            torch.testing.assert_close(frames, expected, rtol=0, atol=ELEMENT)
    assert counter.frame_count == 2
