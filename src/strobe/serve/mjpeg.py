"""A stream as MJPEG, for `curl` and `<img>`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from strobe.core.errors import SessionError, StrobeError, unknown_choice
from strobe.serve import guests
from strobe.serve.guests import Guest, first_of, guest
from strobe.serve.hub import Hub
from strobe.serve.prompt_log import Origin
from strobe.serve.protocol import LONGEST_PROMPT

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
            async with guest(self.hub, self.origin, kind="mjpeg") as here:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                with suppress(StrobeError, TimeoutError, OSError):
                    await first_of(self._pictures(here, send), here.until_ended(), _gone(receive))
                await _bounded(send, {"type": "http.response.body", "body": b"--frame--\r\n", "more_body": False})
        except StrobeError as error:
            code = 503 if isinstance(error, SessionError) else 400
            await PlainTextResponse(f"{error}\n", status_code=code)(scope, receive, send)

    async def _pictures(self, here: Guest, send: Send) -> None:
        number = here.channel.cursor

        async def put(header: bytes, data: bytes) -> None:
            nonlocal number
            await here.due(number)
            part = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(data), data)
            async with asyncio.timeout(guests.SEND_WITHIN_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            number += 1
            here.passed(number)

        await self.hub.pictures(here.channel, put)


async def _gone(receive: Receive) -> None:
    """Wait until the viewer has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _bounded(send: Send, message: Message) -> None:
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(1.0):
            await send(message)


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
