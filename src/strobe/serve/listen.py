"""The server on its socket."""

from __future__ import annotations

import socket
from typing import Final

import uvicorn

from strobe.serve.app import StreamServer
from strobe.serve.settings import ServeSettings

LARGEST_MESSAGE: Final = 8 * 2**20
"""Bytes of a viewer's message that are read from the network."""


class Listening(uvicorn.Server):
    """uvicorn, which saves streams and tells viewers before it closes their connections. It ends if the server cannot start.

    Args:
        server: what answers.
        settings: certificate and key.
        log_level: of uvicorn's own lines.
    """

    def __init__(self, server: StreamServer, settings: ServeSettings, *, log_level: str = "warning") -> None:
        super().__init__(
            uvicorn.Config(
                server.app,
                log_level=log_level,
                access_log=False,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                ws_max_size=LARGEST_MESSAGE,
                ws_ping_interval=20.0,
                ws_ping_timeout=20.0,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
        )
        self._server = server

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end now."""
        return await super().on_tick(counter) or self._server.error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: viewers are told while their connections are still open."""
        await self._server.drain()
        await super().shutdown(sockets)
