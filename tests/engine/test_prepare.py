"""A prompt made ready ahead of its frame block: the stream is the one it would have been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.engine.config import EngineConfig, Knobs
from strobe.engine.graphs import Recorded
from strobe.engine.session import Session

Order = tuple[str, str, bool]  # text, mode, made ready at once

CONFIGS = {
    "balanced": EngineConfig(window=8, sink=3),
    "renewed sink": EngineConfig(window=6, sink=1, keep_sink=False),
    "late": EngineConfig(timesteps=(1000, 250), window=6, sink=1, knobs=Knobs(late_frames=True)),
    "rolling": EngineConfig(window=6, sink=2, knobs=Knobs(ring_cache=False)),
    "eight bits": EngineConfig(window=6, sink=2, kv_format="int8"),
}
ORDERS: dict[str, Sequence[Order]] = {
    "one": [("blue square", "recache", True)],
    "another instead": [("blue square", "recache", True), ("green circle", "recache", True)],
    "a soft one instead": [("blue square", "recache", True), ("green circle", "soft", False)],
    "soft": [("green circle", "soft", True)],
    "a hard one after a soft one": [("green circle", "soft", True), ("blue square", "recache", False)],
    "moving over": [("blue square", "recache", True), ("green circle", "interpolate", True)],
}


def follow(session: Session, orders: Sequence[Order], ready: bool, blocks: int) -> Tensor:
    """Latents of some frame blocks, orders, and four more."""
    found = [block.latents for block in session.stream(blocks)] if blocks else []
    for text, mode, ahead in orders:
        session.prompt(text, mode=mode, over=2)  # type: ignore[arg-type]
        if ahead and ready:
            session.prepare()
            session.prepare()  # once is enough
    return torch.cat([*found, *(block.latents for block in session.stream(4))], dim=1)


CASES: list[Any] = [("balanced", orders, 5) for orders in ORDERS] + [("balanced", "one", blocks) for blocks in (0, 2)]
CASES += [pytest.param("balanced", orders, 2, marks=pytest.mark.rest) for orders in ORDERS if orders != "one"]
CASES += [(name, orders, 5) for name in CONFIGS for orders in ("another instead", "a soft one instead") if name != "balanced"]


@pytest.mark.parametrize(("name", "orders", "blocks"), CASES)
def test_the_stream_is_the_same(make: Callable[..., Session], name: str, orders: str, blocks: int) -> None:
    """Before the first frame block, while the window fills, and after."""
    ready, plain = (follow(make(preset=CONFIGS[name]), ORDERS[orders], each, blocks) for each in (True, False))
    assert torch.equal(ready, plain)


def test_the_frame_block_begins_with_its_first_step(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    session = make()
    dit, passes = session._stream._dit, []
    write = dit.write
    monkeypatch.setattr(dit, "write", lambda latents, *rest: passes.append(latents.shape[1]) or write(latents, *rest))
    list(session.stream(4))
    session.prompt("blue square")
    session.prepare()
    assert passes == [3, 3, 3, 3, 12]
    list(session.stream(1))
    assert passes == [3, 3, 3, 3, 12, 3]


def test_snapshots_and_forks_know_nothing_of_it(make: Callable[..., Session]) -> None:
    expected = follow(make(), ORDERS["one"], False, 5)[:, 15:]
    session = make()
    list(session.stream(5))
    session.prompt("blue square")
    session.prepare()
    snapshot, fork = session.snapshot(), session.fork()
    soft = make()
    soft.restore(snapshot)
    soft.prompt("green circle", mode="soft")
    assert torch.equal(play(soft), follow(make(), [("green circle", "soft", False)], False, 5)[:, 15:])
    for each in (session, fork):
        assert torch.equal(play(each), expected)
    session.restore(snapshot)
    assert torch.equal(play(session), expected)


def test_recorded_passes_make_it_ready_too(make: Callable[..., Session]) -> None:
    session = make()
    session._stream._dit = session._stream._dit.share(Recorded())
    ready, plain = follow(session, ORDERS["another instead"], True, 5), follow(make(), ORDERS["another instead"], False, 5)
    assert torch.equal(ready, plain)


def test_what_breaks_off_is_undone(make: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    session = make()
    list(session.stream(5))
    session.prompt("blue square")
    layer: Any = session._stream._dit.dit.layers[1]
    with monkeypatch.context() as broken:
        broken.setattr(layer, "write_only", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.prepare()
    session.prompt("green circle", mode="soft")
    assert torch.equal(play(session), follow(make(), [("green circle", "soft", False)], False, 5)[:, 15:])


def test_without_a_prompt_nothing_happens(make: Callable[..., Session]) -> None:
    session = make()
    list(session.stream(2))
    session.prepare()
    assert session._stream._ahead is None


def play(session: Session) -> Tensor:
    return torch.cat([block.latents for block in session.stream(4)], dim=1)
