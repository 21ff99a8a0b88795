"""Viewers that nobody wants: sockets that connect, send junk, hang and vanish."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

CIRCLE: Final = "a red circle moving left"
WORDS: Final = (CIRCLE, "a blue square moving up", "an elephant", "", " ", "x" * 2001, "<img src=x>", "\u202e\x00")
GOOD: Final = (
    {"type": "prompt", "text": WORDS[1], "mode": "soft", "over": 3},
    {"type": "prompt", "text": WORDS[0], "mode": "interpolate", "over": 64},
    {"type": "play"},
    {"type": "pause"},
    {"type": "reset", "prompt": WORDS[0], "seed": 5, "preset": "turbo"},
    {"type": "mark", "name": "here"}, {"type": "go", "branch": 1}, {"type": "fork", "branch": 1},
    {"type": "record", "on": True}, {"type": "record", "on": False}, {"type": "recipe"},
    {"type": "received", "frame": 3, "generation": 0}, {"type": "seen", "frame": 3, "generation": 0, "epoch": 0, "waiting": 2},
    {"type": "open", "v": 1, "prompt": WORDS[0]},
)  # fmt: skip
"""Messages of the protocol, from which junk is made."""
VALUES: Final[tuple[object, ...]] = (None, True, -1, 0, 2**48, 10**400, 1e308, "", "x" * 70, [], {}, [[]], "\ud800", WORDS[5])
MANNERS: Final = ("open", "open", "open", "junk", "deaf", "hang", "http", "half")
WITHIN_S: Final = 20.0
"""What a socket does for longer is given up."""


def junk(draw: random.Random) -> str | bytes:
    """Draw a message: one of the protocol, or one that was damaged, or noise."""
    message = dict(draw.choice(GOOD))
    text = json.dumps(message)
    match draw.randrange(10):
        case 0:
            return draw.randbytes(draw.randrange(80))
        case 1:
            return text[: draw.randrange(len(text))]
        case 2:
            return "".join(chr(draw.randrange(1, 0xD7FF)) for _ in range(draw.randrange(120)))
        case 3:
            return draw.choice(("[", '{"a":', "9", '"\\u0000')) * draw.randrange(1, 20_000)
        case 4:
            message[draw.choice([*message, "extra"])] = draw.choice(VALUES)
        case 5:
            message.pop(draw.choice([*message]))
        case 6:
            at = draw.randrange(len(text))
            return text[:at] + chr(draw.randrange(32, 127)) + text[at + 1 :]
        case 7:
            message |= {"prompt" if "prompt" in message else "text": draw.choice(WORDS)}
    return json.dumps(message)


class Crowd:
    """Sockets that misbehave, all at once, until they have sent so many messages.

    Args:
        url: of the server, such as ws://127.0.0.1:7860.
        sockets: how many there are at any time.
        messages: how many they send in all.
    """

    def __init__(self, url: str, *, sockets: int, messages: int, seed: int = 0) -> None:
        self.url, self.sockets, self.left = url, sockets, messages
        self.did: Counter[str] = Counter()
        self._draws = [random.Random(1000 * seed + number) for number in range(sockets)]

    async def rage(self) -> Counter[str]:
        """Let them all in; return what they did, counted."""
        await asyncio.gather(*(self._slot(draw) for draw in self._draws))
        return self.did

    async def _slot(self, draw: random.Random) -> None:
        """One socket after another."""
        while self.left > 0:
            manner = draw.choice(MANNERS)
            self.did[manner] += 1
            with suppress(WebSocketException, OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(WITHIN_S):
                    await (self._raw(draw, manner) if manner in ("http", "half") else self._socket(draw, manner))

    async def _raw(self, draw: random.Random, manner: str) -> None:
        host, _, port = self.url.removeprefix("ws://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._count()
        try:
            writer.write(head.encode()[: draw.randrange(120)] if manner == "half" else draw.randbytes(draw.randrange(1, 400)))
            await writer.drain()
            async with asyncio.timeout(draw.random()):
                await reader.read()
        finally:
            writer.transport.abort()

    async def _socket(self, draw: random.Random, manner: str) -> None:
        async with connect(f"{self.url}/v1/stream", max_size=None, compression=None, ping_interval=None) as socket:
            if manner == "hang":
                await asyncio.sleep(draw.random())
            elif manner == "deaf":
                socket.transport.pause_reading()
            if manner in ("open", "deaf"):
                await socket.send(json.dumps({**GOOD[-1], "codec": draw.choice(("jpeg", "h264"))}))
                if draw.random() < 0.7 and manner == "open":
                    self._hear(await socket.recv())
            reading = asyncio.create_task(self._read(socket)) if manner != "deaf" else None
            try:
                for _ in range(0 if manner == "hang" else draw.randrange(1, 60)):
                    if self.left <= 0:
                        break
                    self._count()
                    await socket.send(junk(draw))
                    await asyncio.sleep(0 if draw.random() < 0.9 else 0.02)
                if draw.random() < 0.4:
                    self.did["vanished"] += 1
                    socket.transport.abort()
            finally:
                if reading is not None:
                    reading.cancel()
                if manner == "deaf":
                    socket.transport.abort()

    def _count(self) -> None:
        self.left -= 1
        self.did["messages"] += 1

    async def _read(self, socket: ClientConnection) -> None:
        """Count what comes back, by the type of message."""
        with suppress(WebSocketException):
            async for message in socket:
                self._hear(message)

    def _hear(self, message: str | bytes) -> None:
        self.did["pictures" if isinstance(message, bytes) else f"told {json.loads(message)['type']}"] += 1
