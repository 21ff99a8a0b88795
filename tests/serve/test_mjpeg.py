"""Viewers that report nothing of what they paint: seen by operators like others, and never counted as on time."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from live_server import CIRCLE, Running, until
from strobe.serve.mjpeg import Mjpeg
from strobe.serve.streams import Origin

Run = Callable[[Any], Any]


def figures(running: Running, start: str) -> dict[str, float]:
    """Metrics whose names begin so."""
    lines = httpx.get(f"{running.http}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith(start))}


def events(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def watched(running: Running, frames: int, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Watch MJPEG for some frames, as curl does."""
    with httpx.stream("GET", f"{running.http}/v1/mjpeg", params={"prompt": CIRCLE}, timeout=60) as response:
        found, body = b"", response.iter_bytes()  # a `for` loop that is left would close the connection
        while found.count(b"--frame") <= frames:
            found += next(body)
        meanwhile()
        body.close()


def test_operators_see_who_watches_mjpeg(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    painted = figures(running, "strobe_pictures_painted_total")
    sent = figures(running, "strobe_pictures_sent_total").get('strobe_pictures_sent_total{codec="jpeg"}', 0.0)
    watched(running, 12, lambda: until("no viewer is counted", lambda: figures(running, "strobe_viewers")["strobe_viewers"] == 1))
    until("the stream is left over", lambda: running.open_streams == 0)
    assert figures(running, "strobe_pictures_painted_total") == painted  # nobody measured when they were painted
    assert figures(running, "strobe_pictures_sent_total")['strobe_pictures_sent_total{codec="jpeg"}'] >= sent + 12
    opened, closed = (each for each in events(capfd.readouterr().err) if each["event"] in ("stream opened", "stream closed"))
    assert opened["codec"] == "mjpeg" and opened["preset"] == "turbo" and opened["stream"] == closed["stream"]


def test_operators_see_whom_mjpeg_refused(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    before = figures(running, "strobe_refused_total")
    for asked, code, kind in (({"prompt": "an elephant"}, 400, "prompt"), ({"preset": "ultra"}, 400, "preset")):
        assert httpx.get(f"{running.http}/v1/mjpeg", params=asked).status_code == code
        name = f'strobe_refused_total{{reason="{kind}"}}'
        assert figures(running, "strobe_refused_total")[name] == before.get(name, 0.0) + 1
    told = [each for each in events(capfd.readouterr().err) if each["event"] == "stream refused"]
    assert [each["reason"] for each in told] == ["prompt", "preset"]


def test_mjpeg_ends_when_its_stream_does(running: Running) -> None:
    """A stream that failed, or a server that goes, ends the picture instead of leaving it still for ever."""
    hub = running.server.hub
    assert hub is not None
    began = time.monotonic()
    with httpx.stream("GET", f"{running.http}/v1/mjpeg", params={"prompt": CIRCLE}, timeout=30) as response:
        body = response.iter_bytes()
        next(body)
        (name,) = hub.channels
        hub.failed(name, RuntimeError("no more"))
        for _ in body:
            pass
    assert time.monotonic() - began < 25


def test_who_takes_no_mjpeg_keeps_no_stream(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.serve.mjpeg.SEND_WITHIN_S", 0.5)
    hub = running.server.hub
    assert hub is not None

    async def hang(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def never() -> Any:
        await asyncio.Event().wait()

    async def answered() -> None:
        async with asyncio.timeout(60):
            await Mjpeg(hub, Origin(prompt=CIRCLE, seed=0, preset="turbo"))({"type": "http"}, never, hang)

    asyncio.run_coroutine_threadsafe(answered(), hub.loop).result(90)
    assert not hub.channels and not hub.worker._playing


def test_the_event_log_never_has_a_prompt(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    watched(running, 2)
    until("the stream is left over", lambda: running.open_streams == 0)
    assert not re.search("circle", capfd.readouterr().err)
