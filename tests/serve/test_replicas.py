"""Replicas on a Ray cluster: one that is killed loses no stream, one that is to end hands its streams over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

import strobe
from live_server import CIRCLE, SQUARE, jpegs, only_prompts_leave_frames_out, pictures
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.engine.load import load
from strobe.serve import protocol, replicas
from strobe.serve.client import LoadViewer, watch
from strobe.serve.protocol import Picture
from strobe.serve.replicas import ReplicaApp, Replicas, start
from strobe.serve.settings import ServeSettings

PATIENCE_S = 400.0


def given(folder: Path, **changed: Any) -> Replicas:
    settings = ServeSettings(keep=folder, port=7861)
    return replace(Replicas(model=lambda: load("shapes"), device="cpu", preset="turbo", settings=settings, number=2), **changed)


def test_what_does_not_fit_several_servers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for changed, words in (
        ({"number": 0}, "--replicas 0: give 1 or more"),
        ({"settings": ServeSettings()}, "give --keep DIR too"),
        ({"settings": ServeSettings(keep=tmp_path, port=0)}, "--port 0: give a port"),
        ({"device": "cuda:1"}, "--device cuda:1: give cpu or cuda"),
    ):
        with pytest.raises(ConfigError, match=words):
            given(tmp_path, **changed)
    monkeypatch.setattr("strobe.serve.replicas.broken", lambda module: f"{module} cannot be imported (ImportError: half)")
    with pytest.raises(ImplUnavailableError, match=r"ImportError: half\); pip install .*\[ray\].*would run here: local"):
        start(given(tmp_path), None)


async def test_a_replica_that_nobody_asks_for_its_health_hands_over_and_goes_on_if_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "SILENCE_S", 0.3)
    monkeypatch.setattr(replicas, "HEALTH_S", 0.02)

    class Told:
        def __init__(self) -> None:
            self.drained, self.failure = False, ""

        async def drain(self) -> None:
            self.drained = True

        def go_on(self) -> None:
            self.drained = False

    app, server, found = ReplicaApp(given(tmp_path)), Told(), []
    watching = asyncio.create_task(app._watch(server))  # type: ignore[arg-type]

    async def look(asked: bool) -> None:
        for _ in range(100):
            if asked:
                app.asked()
            await asyncio.sleep(0.02)
            if server.drained != asked:
                break
        found.append(server.drained)

    await asyncio.sleep(0.5)
    found.append(server.drained)  # it starts, and was not asked yet
    await look(asked=True)
    await look(asked=False)
    await look(asked=True)
    watching.cancel()
    assert found == [False, False, True, False]


# ------------------------------------------------------------------------------------------------------------- two real replicas


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of one machine."""
    pytest.importorskip("ray.serve", reason="needs the extra ray")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 4, "object_store_memory": 160 * 2**20, "include_dashboard": False}
    for left in (2, 1, 0):
        try:
            found = Cluster(initialize_head=True, head_node_args=size)
            break
        except Exception:  # Ray gives its agents 15 s to start, which a busy machine may not have
            if not left:
                raise
    yield found.address
    found.shutdown()


@pytest.fixture(scope="module")
def served(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`strobe serve` with two replicas, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    keep = tmp_path_factory.mktemp("keep")
    words = ["serve", "--executor", f"ray:{cluster}", "--replicas", "2", "--device", "cpu", "--preset", "turbo"]
    words += ["--keep", str(keep), "--keep-every", "2", "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "strobe", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if f"strobe serve: http://127.0.0.1:{port}/" in line:
            break
    assert process.poll() is None, said
    yield process, f"ws://127.0.0.1:{port}"
    process.kill()
    process.wait(60)


def replica_processes() -> dict[int, int]:
    """Replicas by process id, with the processor time that each has used."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::ServeReplica:strobe" in (place / "cmdline").read_bytes():
                found[int(place.name)] = sum(map(int, (place / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            continue
    return found


async def until_closed(viewer: LoadViewer, told: list[Any]) -> list[Picture]:
    """Everything up to the end of the connection."""
    found: list[Picture] = []
    while True:
        try:
            found += await pictures(viewer, 1, told)
        except ConnectionClosed:
            return found


async def resumed(url: str, before: LoadViewer, count: int) -> tuple[protocol.Welcome, list[Picture]]:
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with watch(url, resume=before) as viewer:
                return viewer.welcome, await pictures(viewer, count, [])
        except (StrobeError, OSError, ConnectionClosed):
            assert time.monotonic() < ends
            await asyncio.sleep(0.5)


@pytest.mark.rest
def test_a_killed_replica_loses_no_stream_and_not_a_bit(served: tuple[subprocess.Popen[str], str]) -> None:
    _, url = served

    async def stream() -> tuple[list[Picture], int, protocol.Welcome]:
        told: list[Any] = []
        async with watch(url, prompt=CIRCLE) as viewer:
            found = await pictures(viewer, 20, told)
            await viewer.send(protocol.Prompt(text=SQUARE))
            found += await pictures(viewer, 25, told)
            before = replica_processes()
            assert len(before) == 2
            found += await pictures(viewer, 24, told)
            after = replica_processes()
            os.kill(max(after, key=lambda each: after[each] - before[each]), signal.SIGKILL)
            found += await until_closed(viewer, told)
        (at,) = [message.frame_block for message in told if isinstance(message, protocol.Prompted)]
        welcome, more = await resumed(url, viewer, 40)
        return found + more, at, welcome

    found, at, welcome = asyncio.run(stream())
    assert welcome.bit_equal and welcome.resumed_at_frame == found[-40].frame
    assert only_prompts_leave_frames_out(found)
    expected = jpegs(found[-1].frame // 12 + 2, strobe.Switch(frame_block=at, prompt=SQUARE), model="shapes")
    assert [picture.data for picture in found] == [expected[picture.frame] for picture in found]


@pytest.mark.rest
def test_replicas_that_end_tell_their_viewers_that_the_streams_are_kept(served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served

    async def stream() -> list[Any]:
        told: list[Any] = []
        async with watch(url, prompt=CIRCLE) as viewer:
            await pictures(viewer, 10, told)
            process.send_signal(signal.SIGTERM)
            await until_closed(viewer, told)
        return told

    ended = [message for message in asyncio.run(stream()) if isinstance(message, protocol.Ended)]
    assert len(ended) == 1 and "the stream is kept" in ended[0].reason and ended[0].resume_s == 300.0
    assert process.wait(PATIENCE_S) == 0
