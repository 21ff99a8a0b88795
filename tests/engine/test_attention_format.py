"""Self-attention in eight bits in the engine: near the native stream, the same in every run, refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.attention.dense.eight.api import IMPLS
from strobe.attention.impls import MISSING, GateRun
from strobe.core.device import card_of
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.parallel.rank import check_several
from strobe.engine.presets import preset
from strobe.engine.prompts import Switch
from strobe.engine.resolve import check_device, lacking, resolve, without_kernel
from strobe.engine.session import Session
from strobe.models.wan.dit import CausalWan
from tiny_model import latents

CPU = torch.device("cpu")
SWITCHES = (Switch(frame_block=2, prompt="green square"), Switch(frame_block=5, prompt="blue square"))
ERROR = 0.03
"""Root mean square of the difference of latents / of the latents: 0.003 to 0.007 on a CPU."""


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the gate of `gluon` had been run here: these tests stand for the engine, the gate for the kernel."""
    card = card_of(torch.device("cuda")) if torch.cuda.is_available() else None
    if card is not None:
        green = GateRun(
            operator="eightbit", impl="gluon", vendor=card.vendor, architecture=card.architecture, device=card.name, versions={},
            date="2026-01-31", tests=1, kernel=IMPLS[0].kernel,
        )  # fmt: skip
        monkeypatch.setattr("strobe.attention.impls.GATES", (green,))


def wide(tiny: Model) -> Model:
    """With heads as wide as the kernels take them."""
    torch.manual_seed(8)
    dit = CausalWan(replace(tiny.dit.config, dim=256))
    with torch.no_grad():
        for parameter in dit.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    return replace(tiny, dit=dit)


def play(session: Session, num_blocks: int = 7) -> Tensor:
    return latents(session.stream(num_blocks, switches=SWITCHES)).cpu()


def off(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().mean() / expected.square().mean()).sqrt().item()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "options", [{}, {"window": 6, "sink": 1}, {"window": 5, "sink": 0}, {"window": 7, "sink": 2, "first_block": 1}]
)
def test_a_stream_is_near_the_native_one(
    make: Callable[..., Session], tiny: Model, gated: None, options: dict[str, Any], device: str
) -> None:
    """While the window fills and after, over hard switches, with the sink turned."""
    model, dtype = wide(tiny), "float32" if device == "cpu" else "bfloat16"
    played = [
        play(make(preset=replace(preset(name), dtype=dtype, **options), model=model, device=device))
        for name in ("balanced", "balanced_int8", "balanced_int8")
    ]
    assert torch.equal(played[1], played[2])
    assert 1e-4 < off(played[1], played[0]) < ERROR


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("options", [{"window": 6, "sink": 1, "keep_sink": False}, {"window": 8, "sink": 2}])
def test_graphs_are_the_passes(
    make: Callable[..., Session], tiny: Model, gated: None, options: dict[str, Any], kernels: bool
) -> None:
    """Bit by bit; the CPU twin is in test_graphs.py."""
    model = wide(tiny)
    played = []
    for on in (True, False):
        knobs = replace_knobs(Knobs(), compile=False, fused_kernels=kernels, cuda_graphs=on)
        config = EngineConfig(dtype="bfloat16", attention_format="int8", knobs=knobs, **options)
        played.append(play(make(preset=config, model=model, device="cuda")))
    assert torch.equal(*played)


def test_what_it_does_not_go_with_is_said_in_one_line(tiny: Model) -> None:
    config = preset("balanced_int8")
    for past, told in (("recomputed", "is recomputed"), ("rolling", "is rolling"), ("shots", "comes in shots")):
        defaults: Any = replace(tiny.defaults, past=past, sink=1 if past == "recomputed" else 3, window=21, positions="absolute")
        with pytest.raises(
            ConfigError, match=f"is for models whose past is kept, and the past of this one {told}: use"
        ) as caught:
            resolve(config, defaults, CPU)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"attention in eight bits runs on one device; leave torchrun out"):
        check_several(resolve(config, tiny.defaults, CPU))
    assert lacking(config, CPU) == "" == without_kernel(CPU, torch.float32, 24)


def test_a_gpu_without_kernels_or_gate_is_told_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine there is no such GPU: its card has no name."""
    config, device = preset("balanced_int8"), torch.device("cuda")
    monkeypatch.setattr("strobe.engine.resolve.card_of", lambda _: replace(card_of(CPU), vendor="nvidia", capability=(8, 9)))
    with pytest.raises(
        ImplUnavailableError, match=r"preset 'balanced_int8' cannot run: it attends in eight bits, which does not"
    ) as caught:
        check_device(config, device)
    assert "compute capability 9.x, cuda has 8.9" in str(caught.value) and "\n" not in str(caught.value)
    hopper = replace(card_of(CPU), vendor="nvidia", architecture="sm_90", capability=(9, 0), name="some card")
    monkeypatch.setattr("strobe.engine.resolve.card_of", lambda _: hopper)
    monkeypatch.setattr("strobe.attention.impls.GATES", ())
    for name in ("gluon", "triton"):
        monkeypatch.setitem(MISSING.found, name, None)
    assert "strobe doctor --gate runs it" in lacking(config, device)
    assert "it takes bfloat16 and float16, not float32" in lacking(replace(config, dtype="float32"), device)
    assert "it has head_dim 128, not 64" in without_kernel(device, torch.bfloat16, 64)
