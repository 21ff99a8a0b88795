"""What the worker learns from the streams that it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from strobe.engine.resolve import resolve
from strobe.serve.scheduler import ENOUGH, StreamCost
from strobe.serve.worker import Worker
from tiny_model import well_read_model


def test_a_preset_costs_what_its_full_frame_blocks_take() -> None:
    worker = Worker(well_read_model(), torch.device("cpu"), default="turbo", made=print, failed=print)
    predicted = StreamCost(block_s=0.25, longest_s=0.5, content_s=worker.content_s, stream_bytes=1)
    worker._predicted = dict.fromkeys(worker.configs, predicted)
    worker.costs = dict(worker._predicted)
    defaults = worker.model.defaults
    full = -(-resolve(worker.configs["turbo"], defaults, torch.device("cpu")).policy.window // defaults.frame_block)

    def made(index: int, ms: float, entered: object | None = None) -> Any:
        return SimpleNamespace(index=index, block_ms=ms, entered=entered)

    for index in range(full):
        worker._learn("turbo", made(index, 900.0, object()))  # its window fills
    for index in range(full, full + ENOUGH - 1):
        worker._learn("turbo", made(index, 750.0))
    assert worker.costs["turbo"] == predicted
    worker._learn("turbo", made(full + ENOUGH, 750.0))
    assert (worker.costs["turbo"].block_s, worker.costs["turbo"].longest_s) == (0.75, 1.5)
    worker._learn("turbo", made(full + ENOUGH + 1, 1250.0, object()))
    assert (worker.costs["turbo"].block_s, worker.costs["turbo"].longest_s) == (0.75, 1.25)
    assert all(cost == predicted for name, cost in worker.costs.items() if name != "turbo")
