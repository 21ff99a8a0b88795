"""A stream as MJPEG, for `curl` and `<img>`: viewers that report nothing of what they paint.

It is played at the model's frame rate, and the device makes the next frame block while one plays. What was sent is not counted as
painted, on time or late: nothing measured it.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from strobe.core.errors import ConfigError, SessionError, StrobeError, unknown_choice
from strobe.serve.connection import SEND_WITHIN_S, first_of
from strobe.serve.hub import Channel, Hub
from strobe.serve.metrics import log_event
from strobe.serve.protocol import LONGEST_PROMPT, Ended, FromServer
from strobe.serve.streams import Origin

KEYS: Final = ("prompt", "seed", "preset")
"""Of the query."""
MEDIA: Final = "multipart/x-mixed-replace; boundary=frame"
WARMING_UP: Final = "the server is warming up; /readyz says how far it is"
"""What a viewer is told who comes before streams can be opened."""


class Mjpeg(Response):
    """A new stream at the model's frame rate, until the connection ends. A viewer that takes nothing for 15 s is gone.

    Args:
        origin: what the stream begins with.
    """

    def __init__(self, hub: Hub, origin: Origin) -> None:
        super().__init__(media_type=MEDIA)
        del self.headers["content-length"]
        self.hub, self.origin = hub, origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer: pictures, or one line of why there are none."""
        try:
            channel = await self._open()
        except StrobeError as error:
            code = 503 if isinstance(error, SessionError) else 400
            await PlainTextResponse(f"{error}\n", status_code=code)(scope, receive, send)
            return
        ended = asyncio.Event()

        def hear(message: FromServer) -> None:
            if isinstance(message, Ended):  # nothing else that a viewer is told is of use here
                ended.set()

        async def over() -> None:
            await ended.wait()

        channel.send = hear
        self.hub.tell_worker(channel)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(StrobeError, TimeoutError, OSError):
                await first_of(self._pictures(channel, send), over(), _gone(receive))
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(1.0):
                    await send({"type": "http.response.body", "body": b"--frame--\r\n", "more_body": False})
        finally:
            channel.send = None
            with suppress(StrobeError):  # the device has gone, and the stream with it
                await self.hub.drop(channel)

    async def _open(self) -> Channel:
        """Open the stream.

        Raises:
            SessionError: none can be opened now.
            ConfigError: the prompt or preset is refused.
        """
        hub, origin, device = self.hub, self.origin, self.hub.worker

        def refused(reason: str, error: StrobeError) -> StrobeError:
            hub.metrics.refused.labels(reason).inc()
            log_event("stream refused", reason=reason)
            return error

        if hub.draining:
            raise refused("draining", SessionError("the server is shutting down; connect again in a moment"))
        if origin.preset not in device.configs:
            known = ", ".join(device.configs)
            raise refused("preset", ConfigError(f"preset {origin.preset!r} does not run here; one of {known}"))
        admission = await hub.admission(origin.preset)
        if not admission.admitted:
            fits = f"; these presets would fit: {', '.join(admission.fits)}" if admission.fits else ""
            raise refused(admission.reason_kind, SessionError(admission.reason + fits))
        name = secrets.token_hex(4)
        try:
            stream = await hub.new_stream(name, lambda: device.open(name, origin))
        except StrobeError as error:
            raise refused("prompt", error) from error
        log_event("stream opened", stream=name, preset=origin.preset, codec="mjpeg")
        return hub.add(stream, "jpeg")

    async def _pictures(self, channel: Channel, send: Send) -> None:
        """Send each picture when it is due. After a stall the clock starts again, and nothing comes in bursts."""
        number = first = channel.cursor
        begun: float | None = None

        async def put(header: bytes, data: bytes) -> None:
            nonlocal number, first, begun
            now = monotonic()
            if begun is None or now > begun + (number - first) / self.hub.fps:
                first, begun = number, now
            await asyncio.sleep(begun + (number - first) / self.hub.fps - now)
            part = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(data), data)
            async with asyncio.timeout(SEND_WITHIN_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            number += 1
            self.hub.passed(channel, number)

        await self.hub.pictures(channel, put)


async def _gone(receive: Receive) -> None:
    """Wait until the viewer has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def mjpeg(request: Request, hub: Hub | None, prompt: str) -> Response:
    """Answer a request for MJPEG; `prompt` is taken where it names none."""
    if hub is None:
        return PlainTextResponse(f"{WARMING_UP}\n", status_code=503)
    asked = request.query_params
    for key in asked:
        if key not in KEYS:
            return PlainTextResponse(f"{unknown_choice('key', key[:64], KEYS)}\n", status_code=400)
    seed = asked.get("seed", "0")
    if not (seed.isascii() and seed.isdecimal() and len(seed) < 16):
        return PlainTextResponse("seed: give a whole number from 0, of at most 15 digits\n", status_code=400)
    text = asked.get("prompt", prompt)[:LONGEST_PROMPT]
    return Mjpeg(hub, Origin(prompt=text, seed=int(seed), preset=asked.get("preset", hub.worker.default)))
