"""What holds of every past that is not kept keys and values, whatever the reference of each says of the first stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from past_streams import PASTS, streamed, with_past
from strobe.engine.config import EngineConfig
from strobe.engine.graphs import Recorded
from strobe.engine.model import Model
from strobe.engine.session import Session


@pytest.mark.parametrize("past", PASTS)
def test_a_restarted_session_streams_what_a_new_one_does(make: Callable[..., Session], tiny: Model, past: str) -> None:
    model, cuts = with_past(tiny, past), {2: "blue square"} if past == "shots" else {}
    session = make(model=model, preset=EngineConfig(), seed=1)
    for number in (3, 5):
        streamed(session, number, cuts)
        session.restart("blue square", seed=2)
    new = make("blue square", model=model, preset=EngineConfig(), seed=2)
    assert torch.equal(streamed(session, 6, cuts), streamed(new, 6, cuts))


@pytest.mark.parametrize(
    ("past", "kv", "after"),
    [
        ("recomputed", "native", (1, 2, 4)),
        ("rolling", "native", (1, 4, 9)),
        ("shots", "native", (4, 7)),
        ("shots", "int8", (4, 7)),
    ],
)
def test_snapshots_forks_and_files_go_on_bit_equal(
    make: Callable[..., Session], tiny: Model, tmp_path: Path, past: str, kv: Any, after: Sequence[int]
) -> None:
    model = with_past(tiny, past)
    for at in after:
        session = make(model=model, preset=EngineConfig(kv_format=kv))
        before, then = ({1: "blue square", 3: "red square"}, {at + 2: "green circle"}) if past == "shots" else ({}, {})
        streamed(session, at, before)
        fork, taken = session.fork(), session.snapshot()
        taken.save(tmp_path / "stream.snapshot")
        expected = streamed(session, 6, then)
        assert torch.equal(streamed(fork, 6, then), expected)
        session.restore(taken)
        assert torch.equal(streamed(session, 6, then), expected)
        resumed = Session.resume(tmp_path / "stream.snapshot", model=model, device="cpu")
        assert torch.equal(streamed(resumed, 6, then), expected)


@pytest.mark.parametrize("past", PASTS)
def test_recorded_passes_are_the_eager_ones(make: Callable[..., Session], tiny: Model, past: str) -> None:
    eager, recorded = (make(model=with_past(tiny, past), preset=EngineConfig()) for _ in range(2))
    cuts = {3: "blue square", 4: "red square", 9: "green circle"} if past == "shots" else {}
    stream = recorded._stream
    stream._dit = stream._dit.share(Recorded(64))
    stream.rehearse()
    known = len(stream._dit.runner)  # type: ignore[arg-type]
    assert torch.equal(streamed(recorded, 11, cuts), streamed(eager, 11, cuts))
    assert len(stream._dit.runner) == known, "all passes were rehearsed"  # type: ignore[arg-type]
