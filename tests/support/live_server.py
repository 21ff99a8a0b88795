"""A server in a thread of its own, on a model that makes a frame block in milliseconds unless another is given."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from websockets.exceptions import ConnectionClosed

import strobe
from strobe.engine.load import load
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.serve import protocol
from strobe.serve.app import Listening, StreamServer
from strobe.serve.client import LoadViewer
from strobe.serve.hub import Encoder, Hub
from strobe.serve.protocol import Picture
from strobe.serve.settings import ServeSettings
from strobe.serve.streams import LiveStream, Origin, SpareSessions
from tiny_model import well_read_model

CIRCLE, SQUARE, STAR = "a red circle moving left", "a blue square moving up", "a green star moving right on navy"
TOKEN = "correct horse battery"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Running:
    """A server that listens."""

    def __init__(self, server: StreamServer, listening: Listening, port: int) -> None:
        self.server, self.port = server, port
        self._listening = listening
        self.http = f"http://127.0.0.1:{port}"
        self.ws = f"ws://127.0.0.1:{port}"

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self._listening.should_exit = True

    @property
    def hub(self) -> Hub:
        assert self.server.hub is not None
        return self.server.hub


def live_stream(
    model: Model, seed: int = 3, name: str = "turbo", spares: SpareSessions | None = None, *, opened: bool = True
) -> LiveStream:
    """A stream without a server, on the CPU."""
    sessions = SpareSessions(model, torch.device("cpu"), most=0) if spares is None else spares
    origin = Origin(prompt=CIRCLE, seed=seed, preset=name)
    stream = LiveStream(name="s", sessions=sessions, origin=origin, config=preset(name))
    if opened:
        stream.open()
    return stream


def frames(stream: LiveStream, count: int) -> np.ndarray:
    """Frames of the next frame blocks of a stream."""
    return np.concatenate([stream.make().frames for _ in range(count)])  # type: ignore[union-attr]


def expected(model: Model, count: int, *switches: strobe.Switch) -> np.ndarray:
    """Frames of the session that a `live_stream` stands for."""
    with strobe.Session(CIRCLE, preset="turbo", model=model, seed=3, device="cpu") as session:
        return np.concatenate([block.frames.numpy() for block in session.stream(count, switches=switches)])


def in_shots() -> Model:
    """Return the bundled model as one whose prompts may begin shots."""
    model = load("shapes")
    own = replace(model.defaults, past="shots", sampler="unipc", positions="absolute", window=12, sink=3)
    return replace(model, defaults=own)


@contextmanager
def serving(model: Model | None = None, preset: str = "turbo", **settings: Any) -> Iterator[Running]:
    listening = socket.create_server((settings.get("host", "127.0.0.1"), 0))
    model = model or replace(well_read_model(), name="shapes")  # whose words and examples the server offers
    given = ServeSettings(port=0, **settings)
    server = StreamServer(lambda: model, torch.device("cpu"), preset=preset, settings=given)
    running = Listening(server, given, log_level="error")
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    here = Running(server, running, listening.getsockname()[1])
    try:
        ends = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{here.http}/readyz").json()["ready"]:
                    break
            except httpx.TransportError:
                pass
            assert server.error is None, server.failure
            assert time.monotonic() < ends, "the server did not get ready"
            time.sleep(0.05)
        worker = here.hub.worker
        worker.costs = {name: replace(cost, block_s=0.05, longest_s=0.08) for name, cost in worker.costs.items()}
        worker._learn = lambda preset, block: None  # type: ignore[method-assign]  # who is let in depends on no machine
        yield here
    finally:
        running.should_exit = True
        thread.join(30)
        listening.close()


def until(what: str, check: Callable[[], bool]) -> None:
    """Wait for a minute at most."""
    for _ in range(600):
        if check():
            return
        time.sleep(0.1)
    raise AssertionError(what)


def jpegs(
    blocks: int, *switches: strobe.Switch, model: str | Model | None = None, seed: int = 0, first: str = CIRCLE
) -> list[bytes]:
    """The pictures of a stream that is never interrupted, or that one of the same prompts comes to."""
    with strobe.Session(first or CIRCLE, preset="turbo", model=model or well_read_model(), seed=seed, device="cpu") as session:
        frames = np.concatenate([block.frames.numpy() for block in session.stream(blocks, switches=list(switches))])
    encoder = Encoder("jpeg", frames.shape[2], frames.shape[1], 16)
    return [encoder.encode(frame)[0] for frame in frames]


def only_prompts_leave_frames_out(found: Sequence[Picture]) -> bool:
    """Return whether pictures follow each other frame by frame; those of a new prompt may follow any earlier one."""
    return all(
        after.frame == before.frame + 1 or (after.frame > before.frame and after.epoch > before.epoch)
        for before, after in pairwise(found)
    )


def recorded(page: Any, file: Path) -> None:
    """Record a clip with the buttons of a page that plays, and download it."""
    page.click("#record")
    page.locator("#record[aria-pressed='true']").wait_for(timeout=10_000)
    made = page.evaluate("() => strobe.strip.blocks.at(-1)?.index ?? 0")
    page.wait_for_function("(made) => strobe.strip.blocks.at(-1)?.index > made + 1", arg=made, timeout=30_000)
    page.click("#record")
    page.locator("#download").wait_for(state="visible", timeout=20_000)
    with page.expect_download() as started:
        page.click("#download")
    started.value.save_as(file)
    assert file.read_bytes()[4:8] == b"ftyp"


async def pictures(viewer: LoadViewer, count: int, told: list[Any] | None = None) -> list[Picture]:
    """Return the next pictures, each said to be seen as it comes; what else is told meanwhile is kept in a list."""
    found: list[Picture] = []
    while len(found) < count:
        message = await viewer.receive()
        if isinstance(message, Picture):
            found.append(message)
            await viewer.seen(message)
        elif told is not None:
            told.append(message)
    return found


async def answer(viewer: LoadViewer, kind: type, found: list[Picture] | None = None) -> Any:
    """Return the next message of a kind; pictures before it are seen, and kept in a list."""
    while True:
        message = await viewer.receive()
        if isinstance(message, kind):
            return message
        if isinstance(message, Picture):
            if found is not None:
                found.append(message)
            with suppress(ConnectionClosed):  # what came before can still be read
                await viewer.seen(message)
        assert not isinstance(message, protocol.Error), message
