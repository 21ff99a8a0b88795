"""What the device is told of a stream, when a stream that rests is moved away or closed, and what of it is let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import numpy as np
import pytest

from live_server import CIRCLE, SQUARE, Running
from strobe.serve import protocol
from strobe.serve.client import LoadViewer, watch
from strobe.serve.hub import Channel, Hub, WaitingFrame
from strobe.serve.keeper import Keeper
from strobe.serve.metrics import Metrics
from strobe.serve.protocol import Picture, Received
from strobe.serve.worker import StreamGoneError, Worker

NOW_S = 1000.0


async def until(viewer: LoadViewer, kind: type) -> Any:
    """The next message of a kind; nothing is said of pictures."""
    while not isinstance(message := await viewer.receive(), kind):
        pass
    return message


async def test_the_device_is_told_at_once_whenever_a_stream_is_to_run_or_to_rest(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = running.hub
    told, right = list[tuple[bool, bool]](), hub.tell_worker

    def tell(channel: Channel) -> None:
        told.append((channel.playing, channel.send is not None))
        right(channel)

    monkeypatch.setattr(hub, "tell_worker", tell)
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        channel = hub.channels[viewer.welcome.stream]
        await until(viewer, Picture)
        assert told == [(True, True)]
        began = time.monotonic()
        for message, answer in (
            (protocol.Pause(), protocol.State),
            (protocol.Play(), protocol.State),
            (protocol.Prompt(text=SQUARE), protocol.Prompted),
        ):
            await viewer.send(message)
            await until(viewer, answer)
        for _ in range(100):
            if len(told) == 4:
                break
            await asyncio.sleep(0.05)
        assert told[1:] == [(False, True), (True, True), (True, True)]
        assert channel.quiet_s > began
    for _ in range(100):
        if channel.send is None and told[-1] == (True, False):
            break
        time.sleep(0.05)
    assert told[-1] == (True, False) and channel.left_s > channel.quiet_s


def hub_of_one() -> tuple[Hub, Channel]:
    """A hub that has one stream and no device."""
    hub = Hub(asyncio.get_running_loop(), Metrics(), suspend_s=5.0, resume_s=20.0)
    channel = hub.channels["a"] = Channel(name="a", secret="s", codec="jpeg", preset="turbo")
    return hub, channel


@pytest.mark.parametrize(
    ("away", "playing", "asleep", "left_s", "quiet_s", "expected"),
    [
        (True, True, False, 20.0, 0.0, "suspend"),
        (True, True, False, 20.1, 0.0, "drop"),
        (True, False, True, 20.1, 0.0, "drop"),
        (True, True, True, 19.0, 0.0, ""),
        (True, True, False, 5.0, 99.0, ""),
        (True, True, False, 5.1, 0.0, "suspend"),
        (False, True, False, 99.0, 99.0, ""),
        (False, False, False, 99.0, 5.0, ""),
        (False, False, False, 0.0, 5.1, "suspend"),
        (False, False, True, 99.0, 99.0, ""),
    ],
)
async def test_a_stream_that_rests_is_moved_away_and_one_that_is_left_is_closed(
    away: bool, playing: bool, asleep: bool, left_s: float, quiet_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    (hub, channel), done = hub_of_one(), list[str]()
    for name in ("drop", "suspend"):
        monkeypatch.setattr(hub, name, AsyncMock(side_effect=lambda each, name=name: done.append(name)))
    channel.send = None if away else lambda message: None
    channel.playing, channel.asleep = playing, asleep
    channel.left_s, channel.quiet_s = NOW_S - left_s, NOW_S - quiet_s
    await hub._keep(channel)
    assert done == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("what", "said"), [("rests", ["suspended"]), ("is woken", []), ("is closed", []), ("is gone", ["suspended"])]
)
async def test_the_device_is_told_before_a_stream_is_moved_and_the_viewer_after(
    what: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, heard = list[bool](), list[str]()
    hub, channel = hub_of_one()

    async def on_device(move: Callable[[], float]) -> float:
        assert told == [True], "it does not run any more"
        if what == "is woken":
            channel.asleep = False
        if what == "is closed":
            del hub.channels["a"]
        if what == "is gone":
            raise StreamGoneError("gone")
        return 3.0

    monkeypatch.setattr(hub, "tell_worker", lambda each: told.append(each.asleep))
    monkeypatch.setattr(hub, "on_device", on_device)
    channel.send = lambda message: heard.append(message.state)
    await hub.suspend(channel)
    assert heard == said


async def test_of_a_stream_that_is_closed_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub, channel = hub_of_one()
    done = list[Any]()
    hub.keeper = create_autospec(Keeper, instance=True)
    monkeypatch.setattr(hub, "on_device", AsyncMock(side_effect=lambda drop: done.append("device")))
    monkeypatch.setattr(hub.recordings, "stop", done.append)
    hub._secrets["s"] = "a"
    assert hub.find("s") is channel and hub.find("t") is None
    channel.frames.append(WaitingFrame(number=0, epoch=0, pixels=np.zeros((2, 2, 3), np.uint8), block=None))
    channel.changed.clear()
    await hub.drop(channel)
    assert hub.find("s") is None and not hub.channels and not hub._secrets
    assert not channel.frames and channel.changed.is_set() and done == ["a", "device"]
    hub.keeper.end.assert_called_once_with("a")
    assert '"event": "stream closed", "stream": "a"' in capfd.readouterr().err


async def test_frames_that_were_painted_are_let_go_and_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    hub, channel = hub_of_one()
    told = list[int]()
    monkeypatch.setattr(hub, "tell_worker", lambda each: told.append(each.painted))
    pixels = np.zeros((2, 2, 3), np.uint8)
    channel.frames.extend(WaitingFrame(number=number, epoch=0, pixels=pixels, block=None) for number in range(6))
    channel.cursor = 5
    channel.changed.clear()
    hub.passed(channel, 3)
    assert [each.number for each in channel.frames] == [3, 4, 5]
    assert (channel.painted, channel.received, channel.quiet_s, told) == (3, 3, NOW_S, [3]) and channel.changed.is_set()
    hub.passed(channel, 2)  # an older report takes nothing back
    hub.passed(channel, 9)  # nobody paints what was not sent
    assert told == [3, 3, 5] and [each.number for each in channel.frames] == [5] and channel.received == 5


@pytest.mark.parametrize(("playing", "watched", "awake", "serving"), list(product([True, False], repeat=4)))
async def test_a_stream_runs_while_it_plays_is_watched_and_awake(
    playing: bool, watched: bool, awake: bool, serving: bool
) -> None:
    hub, channel = hub_of_one()
    worker = create_autospec(Worker, instance=True)
    hub.begin(worker)
    channel.send = (lambda message: None) if watched else None
    channel.playing, channel.asleep, hub.draining = playing, not awake, not serving
    channel.generation, channel.painted = 3, 7
    hub.tell_worker(channel)
    worker.painted.assert_called_once_with("a", 3, 7, playing and watched and awake and serving)


async def test_what_has_arrived_lets_the_next_pictures_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    hub, channel = hub_of_one()
    channel.cursor, channel.generation = 8, 2
    channel.changed.clear()
    hub.received(channel, Received(generation=1, frame=6))
    assert (channel.received, channel.quiet_s, channel.changed.is_set()) == (0, 0.0, False)
    for frame, received in ((4, 5), (2, 5), (40, 8)):
        channel.changed.clear()
        hub.received(channel, Received(generation=2, frame=frame))
        assert (channel.received, channel.quiet_s, channel.changed.is_set()) == (received, NOW_S, True)
