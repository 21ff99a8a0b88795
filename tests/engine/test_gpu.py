"""The engine on a GPU: the frames of the CPU, whatever the knobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.presets import PRESETS, preset
from strobe.engine.prompts import Switch
from strobe.engine.session import Session

pytestmark = pytest.mark.gpu
SWITCHES = [Switch(frame_block=5, prompt="blue square")]


def play(session: Session) -> tuple[Tensor, Tensor]:
    blocks = list(session.stream(8, switches=SWITCHES))
    latents, frames = torch.cat([b.latents for b in blocks], dim=1), torch.cat([b.samples for b in blocks], dim=1)
    assert frames.device.type == "cpu" and frames.dtype == torch.uint8
    return latents.cpu(), frames.float()


@pytest.mark.parametrize("name", PRESETS)
def test_gpu_equals_cpu(make: Callable[..., Session], name: str) -> None:
    config = replace(preset(name), dtype="float32", simulate=True)
    (cpu, cpu_frames), (gpu, gpu_frames) = (play(make(preset=config, device=device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=2e-3)
    assert (gpu_frames - cpu_frames).abs().mean() < 0.5


@pytest.mark.parametrize("knob", ["compile", "overlap_decode", "late_frames", "ring_cache"])
def test_no_knob_changes_the_result(make: Callable[..., Session], knob: str) -> None:
    knobs = replace_knobs(Knobs(), compile=False)
    (on, _), (off, _) = (
        play(make(preset=EngineConfig(dtype="float32", knobs=replace_knobs(knobs, **{knob: value})), device="cuda"))
        for value in (True, False)
    )
    torch.testing.assert_close(on, off, rtol=0, atol=2e-3)


def test_late_frames_are_those_that_come_at_once(make: Callable[..., Session]) -> None:
    """Bit by bit, snapshots amid a stream included."""
    results = []
    for late in (False, True):
        knobs = replace_knobs(Knobs(), compile=False, late_frames=late)
        session = make(preset=EngineConfig(dtype="float32", knobs=knobs), device="cuda")
        assert session.config.knobs.late_frames == late
        blocks = []
        for block in session.stream(8, switches=SWITCHES):
            blocks.append(block)
            session.restore(session.snapshot())
        results.append((torch.cat([b.latents for b in blocks], dim=1), torch.cat([b.samples for b in blocks], dim=1)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", ["balanced", "turbo"])
def test_forks_replay_bit_equal(make: Callable[..., Session], name: str) -> None:
    session = make(preset=name, device="cuda")
    list(session.stream(2))
    next(iter(session.stream()))
    fork = session.fork()
    results: list[Any] = [play(each) for each in (session, fork)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
