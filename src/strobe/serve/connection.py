"""One viewer's connection, from `Open` to its end."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from strobe.core.errors import ConfigError, DataError, SessionError, StrobeError
from strobe.engine.prompts import offered_modes
from strobe.serve import protocol
from strobe.serve.hub import Channel, Hub, describe, waited
from strobe.serve.keeper import record_of
from strobe.serve.metrics import log_event
from strobe.serve.protocol import FromServer, FromViewer, PresetOffer, Refused, Welcome
from strobe.serve.scheduler import NotOpenedError
from strobe.serve.streams import Branch, LiveStream, Origin
from strobe.serve.takeover import find_stream
from strobe.serve.worker import StreamGoneError

OPEN_WITHIN_S: Final = 10.0
"""A connection that says nothing for so long is closed."""
SEND_WITHIN_S: Final = 15.0
"""A viewer that takes nothing for so long is gone."""
MESSAGES_A_SECOND: Final = 150
BURST: Final = 400
OUTBOX: Final = 512


@dataclass(kw_only=True, eq=False)
class Connection:
    """The connection of one viewer.

    Args:
        words: what the model's prompts are made of, by kind; empty if any text will do.
        examples: prompts to begin with; the first is taken where a viewer gives none.
        guide: address of a page about weights of one's own; empty without one.
    """

    socket: WebSocket
    hub: Hub
    words: dict[str, list[str]]
    examples: list[str]
    guide: str
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _outbox: asyncio.Queue[FromServer] = field(default_factory=lambda: asyncio.Queue(OUTBOX))
    _inbox: asyncio.Queue[tuple[FromViewer, float] | Exception] = field(default_factory=lambda: asyncio.Queue(BURST))
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=BURST))

    async def run(self) -> None:
        await self.socket.accept()
        channel: Channel | None = None
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                first, _ = await self._receive()
            if not isinstance(first, protocol.Open):
                raise DataError("the first message must be `open`")
            channel = await self._open(first)
            if channel is None:
                return
            pictures = self.hub.pictures(channel, self._post, self._send_picture)
            await first_of(self._receive_all(), self._obey_all(channel), self._send_all(), pictures)
        except StrobeError as error:
            self.hub.metrics.refused.labels("message").inc()
            with suppress(Exception):
                await self._send(protocol.Error(message=str(error)))
        except (WebSocketDisconnect, TimeoutError, ConnectionError, RuntimeError):
            pass
        finally:
            if channel is not None and channel.send == self._post:
                channel.send, channel.left_s = None, monotonic()
                self.hub.tell_worker(channel)
            if self.socket.application_state is WebSocketState.CONNECTED:
                with suppress(Exception):
                    async with asyncio.timeout(2.0):
                        await self.socket.close(1000)

    async def _receive_all(self) -> None:
        """Receive messages as they come. If one cannot be read or the viewer goes, what came before is obeyed first."""
        try:
            while True:
                await self._inbox.put(await self._receive())
        except (StrobeError, WebSocketDisconnect, ConnectionError, RuntimeError) as error:
            await self._inbox.put(error)
            await asyncio.Future()  # `_obey_all` raises it

    async def _receive(self) -> tuple[FromViewer, float]:
        """Return the next message and when it came: one before it may hold it up for a trip to the device and to the disk."""
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1000)
        now = monotonic()
        if len(self._times) == BURST and now - self._times[0] < BURST / MESSAGES_A_SECOND:
            raise StrobeError(f"more than {MESSAGES_A_SECOND} messages a second")
        self._times.append(now)
        text = message.get("text")
        if text is None:
            raise DataError("a binary message; this server reads JSON text")
        return protocol.read_viewer(text), now

    def _post(self, message: FromServer) -> None:
        """Put a message into the outbox; a viewer that lets it run over is dropped with the next one sent."""
        with suppress(asyncio.QueueFull):
            self._outbox.put_nowait(message)

    async def _send_all(self) -> None:
        while True:
            message = await self._outbox.get()
            if self._outbox.full():
                raise StrobeError("the viewer does not take its messages")
            await self._send(message)
            if isinstance(message, protocol.Ended):
                return

    async def _send(self, message: FromServer) -> None:
        async with asyncio.timeout(SEND_WITHIN_S), self._sending:
            await self.socket.send_text(protocol.write(message))

    async def _send_picture(self, header: bytes, data: bytes) -> None:
        async with asyncio.timeout(SEND_WITHIN_S), self._sending:
            await self.socket.send_bytes(header + data)

    async def _open(self, message: protocol.Open) -> Channel | None:
        """Open or resume the viewer's channel; return None if it was refused."""
        try:
            if message.v != protocol.VERSION:
                told = f"this server speaks version {protocol.VERSION} of the protocol, not {message.v}"
                raise NotOpenedError("version", told)
            if self.hub.draining:
                told = "the server is shutting down; connect again in a moment"
                raise NotOpenedError("draining", told, retry_s=10.0)
            return await (self._resume(message) if message.resume else self._begin(message))
        except NotOpenedError as error:
            self.hub.metrics.refused.labels(error.kind).inc()
            log_event("stream refused", reason=error.kind)
            await self._send(Refused(reason=str(error), fits=list(error.fits), retry_s=error.retry_s))
            return None

    async def _begin(self, message: protocol.Open) -> Channel:
        worker = self.hub.worker
        prompt = message.prompt.strip() or self.examples[0]
        preset = message.preset or worker.default
        if preset not in worker.configs:
            raise NotOpenedError("preset", f"preset {preset!r} does not run here", fits=tuple(worker.configs))
        origin = Origin(prompt=prompt, seed=message.seed, preset=preset, image=_image(message.image))
        if (refused := await self.hub.refusal(preset)) is not None:
            raise refused
        name = secrets.token_hex(4)
        try:
            stream = await self.hub.new_stream(name, preset, lambda: worker.open(name, origin))
        except NotOpenedError:
            raise
        except StrobeError as error:
            raise NotOpenedError("prompt", str(error)) from error
        channel = self.hub.add(stream, message.codec)
        try:
            await self.hub.keep(channel)
        except StrobeError as error:
            await self.hub.drop(channel)
            raise NotOpenedError("keep", str(error)) from error
        log_event("stream opened", stream=name, preset=preset, codec=message.codec)
        return await self._attach(channel, stream, resumed=False)

    async def _resume(self, message: protocol.Open) -> Channel:
        channel = await find_stream(self.hub, message)
        if message.frame is not None and message.generation == channel.generation:
            channel.painted = min(max(channel.painted, message.frame), channel.cursor)
        channel.codec = message.codec
        stream = await self.hub.on_device(lambda: self.hub.worker.stream(channel.name))
        self.hub.metrics.resumed.inc()
        return await self._attach(channel, stream, resumed=True)

    async def _attach(self, channel: Channel, stream: LiveStream, *, resumed: bool) -> Channel:
        """Welcome the viewer; pictures go on with the first one that was not painted."""
        channel.tell(protocol.Ended(reason="the stream was opened on another connection", resume_s=0.0))
        channel.cursor = channel.received = channel.painted
        channel.send, channel.quiet_s = self._post, monotonic()
        welcomed = False
        try:
            await self._wake(channel)
            await self._send(self._welcome(channel, stream, resumed))
            welcomed = True
        finally:
            if not welcomed and channel.send == self._post:  # the viewer has gone, and may come back with a secret it had before
                channel.send, channel.left_s = None, monotonic()
            self.hub.tell_worker(channel)
        channel.changed.set()
        return channel

    def _welcome(self, channel: Channel, stream: LiveStream, resumed: bool) -> Welcome:
        worker, defaults = self.hub.worker, self.hub.worker.model.defaults
        height, width = defaults.frame_size
        preset, note = stream.origin.preset, f"other bits than before: {channel.differs}" if channel.differs else ""
        if not note and (share := worker.costs[preset].share) > 1:
            best = min(worker.costs, key=lambda name: (worker.costs[name].share, name != preset))
            advice = "no preset here is faster" if best == preset else f"{best} is faster"
            note = f"{preset} makes {1 / share:.2f} seconds of video a second here, so it will stall; {advice}"
        return Welcome(
            v=protocol.VERSION,
            stream=channel.name,
            secret=channel.secret,
            model=worker.model.name,
            preset=preset,
            presets=[
                PresetOffer(
                    name=name, block_ms=cost.block_s * 1e3, measured=worker.measured(name), stream_bytes=cost.stream_bytes
                )
                for name, cost in worker.costs.items()
            ],
            prompt=stream.log[-1].text,
            seed=stream.origin.seed,
            width=width,
            height=height,
            fps=defaults.fps,
            block_frames=defaults.frame_block * defaults.stride.time,
            codec=channel.codec,
            words=self.words,
            examples=self.examples,
            guide=self.guide,
            modes=offered_modes(defaults.past),
            start_buffer_ms=1e3 * worker.start_buffer_s,
            resumed_at_frame=channel.painted if resumed else 0,
            bit_equal=not channel.differs,
            note=note,
            generation=channel.generation,
        )

    async def _wake(self, channel: Channel) -> None:
        if channel.asleep:
            worker = self.hub.worker
            await self.hub.on_device(lambda: worker.stream(channel.name).session)
            channel.asleep = False
            log_event("stream woken", stream=channel.name)

    async def _obey_all(self, channel: Channel) -> None:
        while True:
            arrived = await self._inbox.get()
            if isinstance(arrived, Exception):
                raise arrived
            message, at_s = arrived
            if isinstance(message, protocol.Close):
                await self.hub.drop(channel)
                return
            try:
                await self._obey(channel, message, at_s)
            except StrobeError as error:
                self._post(protocol.Error(message=describe(error)))
                if isinstance(error, StreamGoneError):
                    return

    async def _obey(self, channel: Channel, message: FromViewer, at_s: float) -> None:
        hub, worker, name = self.hub, self.hub.worker, channel.name
        match message:
            case protocol.PaintedFrame():
                hub.seen(channel, message)
            case protocol.Received():
                hub.received(channel, message)
            case protocol.Prompt():
                await self._wake(channel)
                asked = worker.prompt(name, message.text, message.mode, message.over, at_s)
                epoch, frame_block = await waited(asyncio.wrap_future(asked))
                await hub.keep(channel)
                channel.epochs[epoch] = at_s
                self._post(
                    protocol.Prompted(
                        text=message.text, mode=message.mode, epoch=epoch, frame_block=frame_block, typed_ms=message.typed_ms
                    )
                )
                hub.tell_worker(channel)
            case protocol.Play() | protocol.Pause():
                channel.playing, channel.quiet_s = isinstance(message, protocol.Play), monotonic()
                if channel.playing:
                    await self._wake(channel)
                hub.tell_worker(channel)
                self._post(protocol.State(state="playing" if channel.playing else "paused"))
            case protocol.Reset():
                await hub.rewind(channel, lambda: self._reset(name, message), "reset")
            case protocol.Mark():
                await self._wake(channel)
                branch = await hub.on_device(lambda: self._mark(name, message.name))
                self._post(
                    protocol.Marked(branch=branch.number, name=branch.name, frame_block=branch.frame_block, frame=branch.frame)
                )
            case protocol.Go():
                await self._wake(channel)
                await hub.rewind(channel, lambda: worker.go(name, message.branch), f"branch {message.branch}")
            case protocol.Fork():
                await self._fork(channel, message.branch)
            case protocol.Record(on=True):
                hub.recordings.start(name, hub.fps)
                self._post(protocol.RecordingState(on=True, download="", frames=0))
            case protocol.Record():
                self._post(await hub.recordings.end(name))
            case protocol.AskRecipe():
                self._post(await hub.on_device(lambda: worker.stream(name).recipe()))
            case protocol.Open():
                raise DataError("the stream is open; open another one on a connection of its own")

    def _reset(self, name: str, message: protocol.Reset) -> LiveStream:
        """Begin a stream again with what the message changes. On the device's thread."""
        worker = self.hub.worker
        stream = worker.stream(name)
        before = stream.origin
        preset = before.preset if message.preset is None else message.preset
        if preset not in worker.configs:
            raise ConfigError(f"preset {preset!r} does not run here; these do: {', '.join(worker.configs)}")
        prompt = stream.log[-1].text if message.prompt is None else message.prompt
        seed = before.seed if message.seed is None else message.seed
        stream.reset(Origin(prompt=prompt, seed=seed, preset=preset, image=before.image), worker.configs[preset])
        worker.rewound(name)
        return stream

    async def _fork(self, channel: Channel, branch: int) -> None:
        worker, name = self.hub.worker, secrets.token_hex(4)
        if (refused := await self.hub.refusal(channel.preset)) is not None:
            raise SessionError(f"no room for a second stream: {refused}")

        def fork() -> LiveStream:
            other = worker.stream(channel.name).forked(branch, name)
            worker.adopt(other)
            return other

        other = self.hub.add(await self.hub.new_stream(name, channel.preset, fork), channel.codec)
        await self.hub.keep(other)
        self._post(protocol.Forked(stream=other.name, secret=other.secret, branch=branch))

    def _mark(self, name: str, called: str) -> Branch:
        """Keep a stream's state as a branch, in the folder too if there is one. On the device's thread."""
        worker, keeper = self.hub.worker, self.hub.keeper
        branch = worker.stream(name).mark(called)
        if keeper is not None:
            keeper.save_branch(name, branch, record_of(worker, name))
        return branch


def _image(text: str) -> bytes:
    """Decode the bytes of a start image; raises DataError if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the start image is not base64: {error}") from error


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
