"""Wan2.2's kind on a GPU: streams in shots and the 4x16x16 autoencoder give what a CPU gives, and memory is as predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from strobe.core.tolerances import tolerance
from strobe.engine.family import Weights
from strobe.engine.load import load
from strobe.engine.memory import predict
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.config import WAN22
from strobe.models.vae.wan.weights import random_wan_vae

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["quality", "balanced", "low_memory"])
def test_shots(make: Callable[..., Session], tiny: Model, name: str) -> None:
    """Also recorded in graphs, where a shot changes rows and rotations alone."""
    own = replace(tiny.defaults, positions="absolute", past="shots", sampler="unipc")
    model, switches = replace(tiny, defaults=own), [Switch(frame_block=at, prompt="blue square", mode="shot") for at in (2, 5)]
    config: Any = replace(preset(name), dtype="float32", simulate=True)
    found = []
    for device in ("cpu", "cuda"):
        blocks = list(make(preset=config, device=device, model=model).stream(9, switches=switches))
        found.append(torch.cat([block.latents for block in blocks], dim=1).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=tolerance("stream of a GPU", "float32"))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_autoencoder(compiled: bool) -> None:
    vae = random_wan_vae(replace(WAN22, width=8, decoder_width=16), 0)
    latents = torch.randn(1, 9, 48, 4, 6, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = vae.decode(latents)
        vae.to("cuda").channels_last()
        if compiled:
            vae.compile_decoder()
        decoder = StreamingDecoder(vae)
        frames = torch.cat([decoder.push(part) for part in latents.cuda().split([1, 4, 4], dim=1)], dim=1)
        torch.testing.assert_close(frames.cpu(), expected, rtol=0, atol=tolerance("element", "float32"))
        again = vae.encode(expected.cuda())
        torch.testing.assert_close(again.cpu(), vae.cpu().encode(expected), rtol=0, atol=tolerance("latents", "float32"))


@pytest.fixture(scope="module")
def full() -> Model:
    """Random weights at full size, drawn once: that takes a minute."""
    return load("longlive-2", Weights(random=True))


@pytest.mark.large
@pytest.mark.parametrize("name", ["balanced", "low_memory"])
def test_memory_at_full_size(full: Model, name: str) -> None:
    """At 704x1280 what is allocated at most is predicted, and not three times over."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with Session("x", model=full, preset=name, device="cuda") as session:
        predicted = sum(predict(full, session.config).values())
        for _ in session.stream(6):
            pass
    peak = torch.cuda.max_memory_allocated() - before
    told = f"{peak / 2**30:.1f} GiB allocated at most, {predicted / 2**30:.1f} predicted"
    assert predicted / 3 < peak < 1.1 * predicted, told
