"""A client in Python, with which tests, the load generator and scripts open a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from strobe.core.errors import ConfigError, SessionError
from strobe.serve import protocol
from strobe.serve.protocol import Codec, FromServer, FromViewer, Picture, Refused, Welcome

Told = Callable[[FromServer | Picture | protocol.Prompt, float], None]
LARGEST: Final = 16 * 2**20
"""Bytes of a picture that a client takes."""


class RefusedError(SessionError):
    """The server did not open the stream; `answer` has the reason and the presets that would fit."""

    def __init__(self, answer: Refused) -> None:
        super().__init__(answer.reason + (f"; these presets would fit: {', '.join(answer.fits)}" if answer.fits else ""))
        self.answer = answer


@dataclass(kw_only=True, eq=False)
class Playback:
    """A start buffer and a clock: when each picture is due, and which were late. Nothing is decoded.

    A picture is due one frame time after the one before it. The clock starts when the buffer is full, again after it ran dry, and
    at the first picture of a new prompt, which is shown at once. `first_painted` is the clock at the first picture of each prompt
    that took effect, by its number; `errors` are the server's sentences on messages that it refused, such as prompts that the
    model does not understand.
    """

    fps: int
    start_buffer_s: float
    stalls: int = 0
    stall_s: float = 0.0
    painted: int = 0
    on_time: int = 0
    late_ms: list[float] = field(default_factory=list, repr=False)
    first_painted: dict[int, float] = field(default_factory=dict, repr=False)
    errors: list[str] = field(default_factory=list)
    _waiting: list[tuple[float, Picture]] = field(default_factory=list, repr=False)
    _due: float | None = field(default=None, repr=False)
    _dry: float | None = field(default=None, repr=False)
    _epoch: int = field(default=0, repr=False)

    def arrive(self, picture: Picture, now: float) -> None:
        if picture.epoch > self._epoch:
            self._epoch = picture.epoch
            self._waiting.clear()
            self._play(now)
        self._waiting.append((now, picture))
        if self._due is None and len(self._waiting) >= max(1, round(self.start_buffer_s * self.fps)):
            self._play(now)

    def paint(self, now: float) -> Picture | None:
        if self._due is None or now < self._due:
            return None
        if not self._waiting:
            if now >= self._due + 1 / self.fps:
                self.stalls, self._dry, self._due = self.stalls + 1, self._due, None
            return None
        late, (_, picture) = now - self._due, self._waiting.pop(0)
        self.late_ms.append(1e3 * late)
        self.painted, self.on_time = self.painted + 1, self.on_time + (late <= 1 / self.fps)
        self.first_painted.setdefault(picture.epoch, now)
        self._due += 1 / self.fps
        return picture

    def _play(self, now: float) -> None:
        self._due = now
        self.end(now)

    def end(self, now: float) -> None:
        """Count a stall until now: it is over, or the viewer leaves."""
        if self._dry is not None:
            self.stall_s, self._dry = self.stall_s + now - self._dry, None

    def flush(self) -> None:
        self._waiting.clear()
        self._due = self._dry = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)


class LoadViewer:
    """An open stream. Iterate over it to receive pictures and messages; send messages with `send`.

    ```python
    async with watch("ws://127.0.0.1:7860", prompt="a red circle moving left") as viewer:
        async for message in viewer:
            if isinstance(message, Picture):
                ...
    ```
    """

    def __init__(self, socket: ClientConnection, welcome: Welcome) -> None:
        self.socket, self.welcome = socket, welcome
        self.generation, self.painted = welcome.generation, welcome.resumed_at_frame

    async def send(self, message: FromViewer) -> None:
        await self.socket.send(protocol.write(message))

    async def seen(self, picture: Picture, waiting: int = 0, late_ms: float = 0.0, playback: Playback | None = None) -> None:
        """Report to the server that a picture was painted."""
        self.painted = picture.frame + 1
        await self.send(
            protocol.PaintedFrame(
                frame=picture.frame,
                generation=picture.generation,
                epoch=picture.epoch,
                waiting=waiting,
                late_ms=late_ms,
                stalls=0 if playback is None else playback.stalls,
                stall_ms=0.0 if playback is None else 1e3 * playback.stall_s,
            )
        )

    async def __aiter__(self) -> AsyncIterator[FromServer | Picture]:
        """Yield pictures and messages in order of arrival, until the connection ends."""
        while True:
            try:
                yield await self.receive()
            except ConnectionClosed:
                return

    async def receive(self) -> FromServer | Picture:
        """Return the next picture or message.

        Raises:
            ConnectionClosed: the connection ended.
        """
        data = await self.socket.recv()
        message = protocol.read_picture(data) if isinstance(data, bytes) else protocol.read_server(data)
        if isinstance(message, protocol.Flushed):
            self.generation, self.painted = message.generation, message.frame
        return message

    async def play(self, seconds: float, prompts: Sequence[tuple[float, str]] = (), told: Told | None = None) -> Playback:
        """Play for some seconds as a browser does, with a start buffer and a clock, and report what was painted.

        Args:
            prompts: what to steer the stream with, each at so many seconds from now, in order. Of one that the model does not
                understand the reason is in `errors` of what is returned, and the stream goes on.
            told: called with each message or picture as it arrives, and when (`time.monotonic()`), and with each prompt as it
                is sent: to act on them while it plays.
        """
        playback = Playback(fps=self.welcome.fps, start_buffer_s=self.welcome.start_buffer_ms / 1e3)
        began, coming = time.monotonic(), list(prompts)
        ends = began + seconds
        while (now := time.monotonic()) < ends:
            if coming and now >= began + coming[0][0]:
                prompt = protocol.Prompt(text=coming.pop(0)[1])
                await self.send(prompt)
                if told is not None:
                    told(prompt, now)
            try:
                async with asyncio.timeout(min(0.005, ends - now)):
                    message = await self.receive()
                if told is not None:
                    told(message, time.monotonic())
                if isinstance(message, Picture) and message.generation == self.generation:
                    playback.arrive(message, time.monotonic())
                    if message.codec == "jpeg":
                        await self.send(protocol.Received(frame=message.frame, generation=message.generation))
                elif isinstance(message, protocol.Flushed):
                    playback.flush()
                elif isinstance(message, protocol.Error):
                    playback.errors.append(message.message)
                elif isinstance(message, protocol.Ended):
                    break
            except TimeoutError:
                pass
            picture = playback.paint(time.monotonic())
            if picture is not None:
                await self.seen(picture, playback.waiting, playback.late_ms[-1], playback)
        playback.end(time.monotonic())
        return playback


@asynccontextmanager
async def watch(
    url: str,
    *,
    prompt: str = "",
    seed: int = 0,
    preset: str = "",
    codec: Codec = "jpeg",
    image: str = "",
    resume: str | LoadViewer = "",
    token: str = "",
) -> AsyncIterator[LoadViewer]:
    """Open a stream, or go on with one by its secret.

    Args:
        url: of the server, as it prints it: http://127.0.0.1:7860/; or with ws:// or wss://.
        image: start image in base64.
        resume: secret of a stream that was opened before, or the viewer that lost it, who knows what it has painted.
        token: of a server that asks for one.

    Raises:
        RefusedError: the server does not open it.
        SessionError: it warms up, wants a token, or does not answer to that host name; has its status and sentence.
        ConnectionError: there is no server.
        ConfigError: `url` is no address.
    """
    async with await _connected(url, token) as socket:
        before = resume if isinstance(resume, LoadViewer) else None
        opened = protocol.Open(
            v=protocol.VERSION, prompt=prompt, seed=seed, preset=preset, codec=codec, image=image,
            resume=resume.welcome.secret if isinstance(resume, LoadViewer) else resume,
            frame=None if before is None else before.painted,
            generation=0 if before is None else before.generation,
        )  # fmt: skip
        await socket.send(protocol.write(opened))
        answer = protocol.read_server(await socket.recv())
        if isinstance(answer, Refused):
            raise RefusedError(answer)
        if not isinstance(answer, Welcome):
            raise SessionError(getattr(answer, "message", f"the server answered {type(answer).__name__.lower()}"))
        yield LoadViewer(socket, answer)


async def _connected(url: str, token: str) -> ClientConnection:
    """Connect to a server at the address that it prints; errors as `watch` has them."""
    scheme, _, place = url.rstrip("/").partition("://")
    socket_scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(scheme.lower())
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        if socket_scheme is None:
            raise ValueError(f"its scheme is {scheme!r}" if place else "it has no scheme")
        address = f"{socket_scheme}://{place}/v1/stream"
        return await connect(address, additional_headers=headers, max_size=LARGEST, compression=None)
    except InvalidStatus as error:
        answer = error.response
        plain = answer.headers.get("content-type", "").startswith("text/plain")
        told = (answer.body or b"").decode(errors="replace").strip() if plain else ""
        hint = "; watch(..., token=...) sends it" if answer.status_code == 401 and not token else ""
        raise SessionError(f"{url} answers {answer.status_code}: {told or answer.reason_phrase}{hint}") from error
    except (InvalidURI, ValueError) as error:
        raise ConfigError(
            f"{url!r} is no address of a server ({error}); give it as `strobe serve` prints it, such as http://127.0.0.1:7860/"
        ) from error
    except (InvalidHandshake, OSError) as error:
        raise ConnectionError(
            f"cannot connect to {url}: {error}; start `strobe serve`, or give the address and port that it printed"
        ) from error
