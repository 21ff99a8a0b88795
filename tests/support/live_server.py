"""A server in a thread of its own, on the bundled model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import torch
import uvicorn

from strobe.engine.load import load
from strobe.serve.app import Server
from strobe.serve.settings import ServeSettings


class Running:
    """A server that listens."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self.http = f"http://127.0.0.1:{port}"
        self.ws = f"ws://127.0.0.1:{port}"

    @property
    def open_streams(self) -> int:
        hub = self.server.hub
        return 0 if hub is None else len(hub.channels)


@contextmanager
def serving(**settings: Any) -> Iterator[Running]:
    listening = socket.create_server(("127.0.0.1", 0))
    model = load("shapes")
    server = Server(lambda: model, torch.device("cpu"), preset="turbo", settings=ServeSettings(port=0, **settings))
    config = uvicorn.Config(server.app, log_level="error", access_log=False, timeout_graceful_shutdown=2)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    here = Running(server, listening.getsockname()[1])
    try:
        ends = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{here.http}/readyz").json()["ready"]:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < ends, "the server did not get ready"
            time.sleep(0.05)
        assert server.hub is not None
        worker = server.hub.device
        worker.costs = {name: replace(cost, block_s=0.05, longest_s=0.08) for name, cost in worker.costs.items()}
        worker._learn = lambda preset, block: None  # type: ignore[method-assign]  # who is let in depends on no machine
        yield here
    finally:
        running.should_exit = True
        thread.join(30)
        listening.close()
