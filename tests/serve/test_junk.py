"""A crowd of sockets that send junk, hang and vanish: nothing crashes, nothing is left over, and the stream beside them plays on.

`make junk` does the same to a real server with 10,000 messages, and measures deadlines, memory and file handles.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from junk_viewers import CIRCLE, Crowd
from live_server import Running, serving, until
from strobe.engine.session import Session
from strobe.serve import protocol
from strobe.serve.client import watch
from strobe.serve.connection import OUTBOX, Connection
from strobe.serve.hub import PICTURES_UNDER_WAY, Channel
from strobe.serve.protocol import Picture
from strobe.serve.streams import LiveStream


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with serving(suspend_s=0.5, resume_s=1.0) as running:
        yield running


def sockets() -> int:
    """The sockets that this process holds open, without those in garbage."""
    gc.collect()
    held = 0
    for handle in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            held += os.readlink(f"/proc/self/fd/{handle}").startswith("socket:")
    return held


def left() -> Counter[str]:
    gc.collect()
    return Counter(
        type(each).__name__ for each in gc.get_objects() if isinstance(each, Channel | Connection | LiveStream | Session)
    )


async def one_session(running: Running, number: int) -> None:
    """Open a stream and see a picture of it; close it, or vanish."""
    async with watch(running.ws, prompt=CIRCLE, codec="h264" if number % 2 else "jpeg") as viewer:
        while not isinstance(await viewer.receive(), Picture):
            pass
        if number % 3:
            await viewer.send(protocol.Close())
            await viewer.socket.wait_closed()
        else:
            viewer.socket.transport.abort()


async def test_a_crowd_of_junk_leaves_nothing_behind(here: Running) -> None:
    hub = here.hub
    await one_session(here, 1)
    until("the first stream is left over", lambda: not hub.channels and not hub.worker._playing)
    held, most = sockets(), 0

    async def beside() -> int:
        nonlocal most
        async with watch(here.ws, prompt=CIRCLE) as viewer:
            crowd, seen = Crowd(here.ws, sockets=40, messages=1200), 0
            raging = asyncio.create_task(crowd.rage())
            while not raging.done() or seen < 24:
                message = await viewer.receive()
                most = max(most, *(len(channel.frames) for channel in hub.channels.values()))
                if isinstance(message, Picture):
                    assert message.frame == seen  # none is lost, none comes twice
                    seen += 1
                    await viewer.seen(message)
            await viewer.send(protocol.Close())
        did = raging.result()
        assert did["messages"] >= 1200 and did["told error"] and did["told welcome"]
        return seen

    assert await beside() >= 24
    assert most <= PICTURES_UNDER_WAY + OUTBOX
    until("streams of the crowd are left over", lambda: not hub.channels and not hub.worker._playing)
    until("sockets of the crowd are left open", lambda: sockets() <= held)
    assert httpx.get(f"{here.http}/healthz").status_code == 200
    assert "strobe_failed_streams_total 0.0" in httpx.get(f"{here.http}/metrics").text
    for number in range(6):
        await one_session(here, number)
    until("sessions that came and went are left over", lambda: not hub.channels and not hub.worker._playing)
    until("sockets are left open", lambda: sockets() <= held)
    until("objects of the sessions are left over", lambda: not any(left().values()))
