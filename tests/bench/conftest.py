"""A case without a model, and a model small enough to stream many frame blocks in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from made_records import workload_of
from strobe.core.spans import span
from strobe.engine.model import Model
from strobe.perf.records.record import Gate, Quality, Variant, Video
from tiny_model import tiny_model

BLOCKS = 6


class FakeCase:
    """Every frame block is two denoise steps of nothing. `at_block(name, clip, block)` is called in each block."""

    slug = "fake"
    model = None
    absent = ()
    device = torch.device("cpu")
    workload = workload_of(BLOCKS)

    def __init__(self, *names: str, red: tuple[str, ...] = (), at_block: Callable[[str, int, int], None] | None = None) -> None:
        self.baseline, *candidates = names
        self.candidates = tuple(candidates)
        self.red = red
        self.at_block = at_block or (lambda name, clip, block: None)
        self.log: list[str] = []
        self.clips = dict.fromkeys(names, -1)

    def gate(self, name: str) -> Gate:
        return Gate(variant=name, reference=self.baseline, rule="is not red", passed=name not in self.red, detail="")

    def prepare(self, name: str) -> None:
        self.clips[name] += 1

    def blocks(self, name: str) -> Iterator[object]:
        self.log.append(name)
        for block in range(BLOCKS):
            with span("frame_block", block):
                for step in range(2):
                    with span("denoise_step", step), span("attention"):
                        torch.ones(4, 4) @ torch.ones(4, 4)
                self.at_block(name, self.clips[name], block)
            yield block

    def launched(self, name: str) -> None:
        return None

    def settings(self, name: str) -> Variant:
        return Variant(name=name, preset="custom", window=12)

    def review(self, name: str, folder: Path) -> Iterator[Quality | Video]:
        yield Quality(variant=name, metric="psnr", value=30.0, unit="dB", reference="r", definition="d", n=1, better="higher")


@pytest.fixture
def fake() -> type[FakeCase]:
    return FakeCase


@pytest.fixture(scope="session")
def tiny() -> Model:
    return tiny_model()
