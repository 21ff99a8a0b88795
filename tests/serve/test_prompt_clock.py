"""The clock of `strobe_prompt_to_pixel_seconds` starts when a prompt arrives, whatever holds it up on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from live_server import Running
from strobe.serve import protocol
from strobe.serve.client import watch
from strobe.serve.protocol import Picture

KEEP_S = 0.5


def test_what_holds_a_prompt_up_counts(running: Running, run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts at once: the disk holds up the first one, and the first one the second."""
    hub = running.server.hub
    assert hub is not None

    def figure(kind: str) -> float:
        return hub.metrics.registry.get_sample_value(f"strobe_prompt_to_pixel_seconds_{kind}") or 0.0

    async def slow(channel: Any) -> None:
        await asyncio.sleep(KEEP_S)

    async def stream() -> None:
        async with watch(running.ws, prompt="a red circle moving left") as viewer:
            while not isinstance(message := await viewer.receive(), Picture):
                pass
            monkeypatch.setattr(hub, "keep", slow)
            await viewer.send(protocol.Prompt(text="a blue square moving up"))
            await viewer.send(protocol.Prompt(text="a green star moving right"))
            await viewer.seen(message)
            while figure("count") < counted + 2:
                if isinstance(message := await viewer.receive(), Picture):
                    await viewer.seen(message)
            await viewer.send(protocol.Close())

    counted, before = figure("count"), figure("sum")
    run(stream())
    assert figure("sum") - before >= 4 * KEEP_S
