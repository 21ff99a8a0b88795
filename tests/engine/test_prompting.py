"""Prompts whose text takes time: the stream goes on meanwhile, and the answer says from where they are followed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stand_ins import stands_in_for
from strobe.core.errors import SessionError, WeightsError
from strobe.engine.config import EngineConfig, Knobs
from strobe.engine.model import Model
from strobe.engine.prompts import Switch, TextEncoder
from strobe.engine.session import Session

LONG_S = 60.0
"""More than anything here takes; a test that waits so long has failed."""


@stands_in_for(TextEncoder)
class SlowEncoder:
    """An encoder that takes until it is let go, once for each prompt."""

    def __init__(self, inner: TextEncoder) -> None:
        self.inner = inner
        self.known: dict[str, Tensor] = {}
        self.begun: dict[str, threading.Event] = {}
        self.go: dict[str, threading.Event] = {}
        self.threads: list[str] = []
        self.fails: set[str] = set()

    def check(self, prompts: Sequence[str]) -> None:
        self.inner.check(prompts)

    def ready(self, prompts: Sequence[str]) -> bool:
        return all(prompt in self.known for prompt in prompts)

    def place(self, device: torch.device) -> None:
        pass

    def event(self, events: dict[str, threading.Event], prompt: str) -> threading.Event:
        return events.setdefault(prompt, threading.Event())

    def encode(self, prompts: Sequence[str]) -> Tensor:
        for prompt in prompts:
            if prompt not in self.known:
                self.threads.append(threading.current_thread().name)
                self.event(self.begun, prompt).set()
                assert self.event(self.go, prompt).wait(LONG_S)
                if prompt in self.fails:
                    raise WeightsError(f"no text for {prompt}")
                self.known[prompt] = self.inner.encode([prompt])
        return torch.cat([self.known[prompt] for prompt in prompts])

    def let(self, *prompts: str) -> None:
        for prompt in prompts:
            self.event(self.go, prompt).set()


@pytest.fixture
def slow(tiny: Model) -> SlowEncoder:
    encoder = SlowEncoder(tiny.text)
    encoder.let("red circle")
    return encoder


@pytest.fixture
def session(make: Callable[..., Session], tiny: Model, slow: SlowEncoder) -> Iterator[Session]:
    opened = make(model=replace(tiny, text=slow))
    yield opened
    opened.close()
    for go in (*slow.go.values(),):
        go.set()


def told(make: Callable[..., Session], frame_block: int, prompt: str, blocks: int, **options: object) -> Tensor:
    """Latents of a stream that follows a prompt from a frame block on, by an encoder that takes no time."""
    switches = [Switch(frame_block=frame_block, prompt=prompt)]
    return torch.cat([block.latents for block in make(**options).stream(blocks, switches=switches)], dim=1)


def test_the_stream_goes_on_and_the_answer_says_from_where(
    make: Callable[..., Session], session: Session, slow: SlowEncoder
) -> None:
    stream = session.stream(8)
    blocks = [next(stream), next(stream)]
    ack = session.prompt("blue square")
    assert slow.event(slow.begun, "blue square").wait(LONG_S) and ack.frame_block is None
    blocks += [next(stream), next(stream), next(stream)]  # under the old prompt
    assert {block.prompt for block in blocks} == {"red circle"} and ack.frame_block is None
    slow.let("blue square")
    assert ack.wait(LONG_S) == ack.frame_block == 5
    blocks += [*stream]
    assert [block.prompt for block in blocks] == ["red circle"] * 5 + ["blue square"] * 3
    assert torch.equal(torch.cat([block.latents for block in blocks], dim=1), told(make, 5, "blue square", 8))
    assert slow.threads[-1].startswith("prompts")


def test_a_text_that_is_known_is_followed_at_once(session: Session, slow: SlowEncoder) -> None:
    stream = session.stream(3)
    next(stream)
    slow.let("blue square")
    session.prompt("blue square", wait=True)
    next(stream)
    ack = session.prompt("red circle")
    assert ack.frame_block == ack.wait() == 2 and next(stream).prompt == "red circle"


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(late_frames=True)], ids=["at once", "late"])
def test_scheduled_switches_are_exact(make: Callable[..., Session], tiny: Model, slow: SlowEncoder, knobs: Knobs) -> None:
    """Their texts are encoded beside the stream from the start, and their frame block waits for them."""
    config = EngineConfig(knobs=knobs)
    with make(model=replace(tiny, text=slow), preset=config) as session:
        stream = session.stream(6, switches=[Switch(frame_block=3, prompt="blue square")])
        assert slow.event(slow.begun, "blue square").wait(LONG_S)  # before the first frame block is asked for
        first = next(stream)
        slow.let("blue square")
        found = torch.cat([first.latents, *(block.latents for block in stream)], dim=1)
    assert torch.equal(found, told(make, 3, "blue square", 6, preset=config))
    assert all(name.startswith("prompts") for name in slow.threads[1:])


def test_waiting_is_exact(make: Callable[..., Session], session: Session, slow: SlowEncoder) -> None:
    slow.let("blue square")
    stream = session.stream(5)
    blocks = [next(stream), next(stream)]
    assert session.prompt("blue square", wait=True).frame_block == 2
    blocks += [*stream]
    assert torch.equal(torch.cat([block.latents for block in blocks], dim=1), told(make, 2, "blue square", 5))


def test_the_first_prompt_is_waited_for(make: Callable[..., Session], tiny: Model, slow: SlowEncoder) -> None:
    slow.go.clear()
    with make(model=replace(tiny, text=slow)) as session:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(next(session.stream(1)).prompt))
        thread.start()
        assert slow.event(slow.begun, "red circle").wait(LONG_S) and not found
        slow.let("red circle")
        thread.join(LONG_S)
        assert found == ["red circle"]


def test_the_last_prompt_counts(session: Session, slow: SlowEncoder) -> None:
    stream = session.stream(4)
    next(stream)
    first = session.prompt("blue square")
    assert slow.event(slow.begun, "blue square").wait(LONG_S)
    second = session.prompt("green circle")
    slow.let("green circle", "blue square")
    assert second.wait(LONG_S) == 1
    with pytest.raises(SessionError, match="'blue square' takes no effect: another one came"):
        first.wait(LONG_S)
    with pytest.raises(SessionError, match="takes no effect"):
        _ = first.frame_block
    assert [block.prompt for block in stream] == ["green circle"] * 3


def test_an_encoder_that_fails_leaves_the_old_prompt(session: Session, slow: SlowEncoder) -> None:
    slow.fails = {"blue square"}
    stream = session.stream(3)
    next(stream)
    ack = session.prompt("blue square")
    slow.let("blue square")
    with pytest.raises(WeightsError, match="no text for blue square"):
        ack.wait(LONG_S)
    assert [block.prompt for block in stream] == ["red circle"] * 2


def test_prepare_snapshot_and_fork_wait_for_the_text(make: Callable[..., Session], session: Session, slow: SlowEncoder) -> None:
    blocks = [*session.stream(2)]
    session.prompt("blue square")
    slow.let("blue square")
    session.prepare()
    snapshot, fork = session.snapshot(), session.fork()
    assert snapshot.pending is not None and snapshot.pending.prompts == ("blue square",)
    after = [*session.stream(3)]
    forked = torch.cat([block.latents for block in fork.stream(3)], dim=1)
    fork.close()
    found = torch.cat([block.latents for block in (*blocks, *after)], dim=1)
    assert torch.equal(found, told(make, 2, "blue square", 5)) and torch.equal(forked, found[:, 6:])
    session.restore(snapshot)
    assert torch.equal(torch.cat([block.latents for block in session.stream(3)], dim=1), forked)


def test_closing_lets_a_text_that_is_encoded_go(session: Session, slow: SlowEncoder) -> None:
    next(session.stream(1))
    ack = session.prompt("blue square")
    assert slow.event(slow.begun, "blue square").wait(LONG_S)
    session.close()
    slow.let("blue square")
    with pytest.raises(SessionError, match="takes no effect"):
        ack.wait(LONG_S)


def test_prompts_of_two_threads_while_a_third_streams(session: Session, slow: SlowEncoder) -> None:
    prompts = ["blue square", "green circle", "blue circle", "green square"]
    slow.let(*prompts)
    acks = []

    def ask(own: list[str]) -> None:
        for prompt in own:
            acks.append(session.prompt(prompt))

    stream = session.stream(12)
    next(stream)
    threads = [threading.Thread(target=ask, args=(own,)) for own in (prompts[:2], prompts[2:])]
    for thread in threads:
        thread.start()
    blocks = [next(stream) for _ in range(4)]
    for thread in threads:
        thread.join(LONG_S)
    session.prepare()  # nothing is being encoded any more
    blocks += [*stream]
    followed = {}
    for ack in acks:
        error = ack.found.exception(LONG_S)
        assert error is None or isinstance(error, SessionError)
        if error is None:
            followed[ack.wait()] = ack.prompts[0]
    assert blocks[-1].prompt == followed[max(followed)] and len({block.prompt for block in blocks[-4:]}) == 1
