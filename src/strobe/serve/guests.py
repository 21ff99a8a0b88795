"""Viewers that report nothing of what they paint: `curl`, and clients of other servers.

Their streams are played at the model's frame rate, one picture or frame block after another, and the device makes the next while
one plays. What they were sent is not counted as painted, on time or late: nothing measured it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from strobe.core.errors import ConfigError, DataError, SessionError, StrobeError
from strobe.engine.prompts import Mode
from strobe.serve.channel import Channel, Frame
from strobe.serve.connection import BURST, MESSAGES_A_SECOND
from strobe.serve.connection import SEND_WITHIN_S as SEND_WITHIN_S
from strobe.serve.hub import Hub
from strobe.serve.metrics import log_event
from strobe.serve.prompt_log import Origin
from strobe.serve.protocol import LONGEST_IMAGE, Codec, Ended, FromServer


@dataclass(kw_only=True, eq=False)
class Guest:
    """The stream of a viewer that reports nothing.

    Args:
        ended: set when the server ends the stream.
        why: it did.
    """

    hub: Hub
    channel: Channel
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    _first: int = 0
    _begun: float | None = None

    def hear(self, message: FromServer) -> None:
        """Take a message of the server to its viewer: all but the end of the stream is of no use here."""
        if isinstance(message, Ended):
            self.why = message.reason
            self.ended.set()

    async def due(self, frame: int) -> None:
        """Wait until a frame is due. After a stall the clock starts again, and nothing comes in bursts."""
        now = monotonic()
        if self._begun is None or now > self._begun + (frame - self._first) / self.hub.fps:
            self._first, self._begun = frame, now
        await asyncio.sleep(self._begun + (frame - self._first) / self.hub.fps - now)

    def passed(self, frame: int) -> None:
        """Let go of all frames before `frame`, and have the device make those after."""
        self.hub.passed(self.channel, frame)

    async def blocks(self) -> AsyncIterator[list[Frame]]:
        """Yield the frames of one frame block after another, each when the first of them is due."""
        channel = self.channel
        while True:
            frames = [each for each in channel.frames if each.number >= channel.cursor]
            last = next((at for at, each in enumerate(frames) if each.block is not None), None)
            if last is None:
                channel.changed.clear()
                await channel.changed.wait()
                continue
            channel.cursor = frames[last].number + 1
            await self.due(frames[0].number)
            yield frames[: last + 1]
            self.passed(channel.cursor)

    async def prompt(self, text: str, mode: Mode, over: int) -> int:
        """Steer the stream; return the epoch that begins.

        Raises:
            ConfigError: the model does not understand the prompt.
        """
        worker, name = self.hub.worker, self.channel.name
        epoch, _ = await self.hub.on_device(lambda: worker.stream(name).prompt(text, mode, over))
        self.hub.tell_worker(self.channel)
        return epoch

    async def until_ended(self) -> None:
        """Wait until the server ends the stream, and raise why.

        Raises:
            SessionError: always.
        """
        await self.ended.wait()
        raise SessionError(self.why)


@asynccontextmanager
async def guest(hub: Hub, origin: Origin, *, kind: str, codec: Codec = "jpeg") -> AsyncIterator[Guest]:
    """Open a stream for a viewer that reports nothing, and close it in the end.

    Args:
        kind: of viewer, for the log.

    Raises:
        SessionError: none can be opened now.
        ConfigError, DataError: the prompt, preset or picture is refused.
    """
    channel = await _open(hub, origin, kind, codec)
    here = Guest(hub=hub, channel=channel)
    channel.send = here.hear
    hub.tell_worker(channel)
    try:
        yield here
    finally:
        channel.send = None
        with suppress(StrobeError):  # the device has gone, and the stream with it
            await hub.drop(channel)


async def _open(hub: Hub, origin: Origin, kind: str, codec: Codec) -> Channel:
    worker = hub.worker

    def refused(reason: str, error: StrobeError) -> StrobeError:
        hub.metrics.refused.labels(reason).inc()
        log_event("stream refused", reason=reason)
        return error

    if hub.draining:
        raise refused("draining", SessionError("the server is shutting down; connect again in a moment"))
    if origin.preset not in worker.configs:
        raise refused("preset", ConfigError(f"preset {origin.preset!r} does not run here; one of {', '.join(worker.configs)}"))
    admission = await hub.admission(origin.preset)
    if not admission.admitted:
        fits = f"; these presets would fit: {', '.join(admission.fits)}" if admission.fits else ""
        raise refused(admission.reason_kind, SessionError(admission.reason + fits))
    name = secrets.token_hex(4)
    try:
        stream = await hub.new_stream(name, lambda: worker.open(name, origin))
    except StrobeError as error:
        raise refused("prompt", error) from error
    log_event("stream opened", stream=name, preset=origin.preset, codec=kind)
    return hub.add(stream, codec)


@dataclass(kw_only=True, eq=False)
class Wire:
    """A socket that limits what comes in, by size and rate, and gives up on who takes nothing."""

    socket: WebSocket
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=BURST))
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def receive(self, longest: int) -> str | bytes:
        """Return the next message.

        Raises:
            WebSocketDisconnect: the viewer has gone.
            SessionError: it sends too many messages.
            DataError: this one has more than `longest` bytes.
        """
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1000)
        now = monotonic()
        if len(self._times) == BURST and now - self._times[0] < BURST / MESSAGES_A_SECOND:
            raise SessionError(f"more than {MESSAGES_A_SECOND} messages a second")
        self._times.append(now)
        data: str | bytes = message["text"] if message.get("text") is not None else message["bytes"]
        if len(data) > longest:
            raise DataError(f"a message of {len(data)} bytes; at most {longest} are read")
        return data

    async def send(self, *parts: str | bytes) -> None:
        """Send messages, none of others between them.

        Raises:
            TimeoutError: the viewer takes nothing.
        """
        async with asyncio.timeout(SEND_WITHIN_S), self._sending:
            for part in parts:
                if isinstance(part, str):
                    await self.socket.send_text(part)
                else:
                    await self.socket.send_bytes(part)


async def first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run until the first of these ends, end the others, and raise its error if it has one."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def picture_in(url: str) -> bytes:
    """Return the bytes of a picture that a client sent as a `data:` URL.

    Raises:
        ConfigError: it is another URL, or a path: this server fetches and opens nothing.
        DataError: it is too large, or not base64.
    """
    head, _, body = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ConfigError("send a picture as data:image/...;base64,...: this server fetches no address and opens no path")
    if len(body) > LONGEST_IMAGE:
        raise DataError(f"a picture of {len(body)} characters; at most {LONGEST_IMAGE} are read")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the picture is not base64: {error}") from error


async def close(socket: WebSocket, reason: str = "") -> None:
    """Close a socket that may be closed already."""
    if socket.application_state is WebSocketState.CONNECTED:
        with suppress(TimeoutError, OSError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(2.0):
                await socket.close(1000, reason)
