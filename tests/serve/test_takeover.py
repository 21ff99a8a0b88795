"""A stream outlives its server: another one that shares the folder goes on with the same frames, bit by bit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strobe
from live_server import CIRCLE, SQUARE, STAR, Running, answer, jpegs, only_prompts_leave_frames_out, pictures, serving
from strobe.serve import protocol
from strobe.serve.client import LoadViewer, RefusedError, watch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keep")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[Running, Running]]:
    with serving(keep=folder, keep_every=2) as one, serving(keep=folder, keep_every=2) as other:
        yield one, other


def settle(server: Running) -> None:
    """Wait until what the server keeps is on the disk."""
    hub = server.hub
    assert hub.keeper is not None
    hub.worker.submit(lambda: None).result(60)
    hub.keeper._snapshots.submit(lambda: None).result(60)
    hub.keeper._logs.submit(lambda: None).result(60)


async def test_another_server_goes_on_bit_by_bit_with_its_prompts(servers: tuple[Running, Running], folder: Path) -> None:
    one, other = servers
    told: list[Any] = []
    async with watch(one.ws, prompt=CIRCLE) as viewer:
        found = await pictures(viewer, 30, told)
        await viewer.send(protocol.Prompt(text=SQUARE, mode="interpolate", over=3))
        found += await pictures(viewer, 43, told)
        await viewer.send(protocol.Prompt(text=STAR))
        prompted = await answer(viewer, protocol.Prompted, found)
        viewer.socket.transport.abort()  # the last prompt was accepted, and may have had no frame yet
        before = viewer
    told.append(prompted)
    at = [message.frame_block for message in told if isinstance(message, protocol.Prompted)]
    async with watch(other.ws, resume=before) as viewer:
        welcome = viewer.welcome
        await viewer.send(protocol.PaintedFrame(frame=0, generation=0, epoch=0, stalls=7, stall_ms=9e3))  # on the other server
        found += await pictures(viewer, 60)
        await viewer.send(protocol.Close())
    assert other.hub.metrics.registry.get_sample_value("strobe_stalls_total") == 0
    assert len(at) == 2 and welcome.bit_equal and not welcome.note.startswith("other bits") and welcome.prompt == STAR
    assert only_prompts_leave_frames_out(found)
    switches = [
        strobe.Switch(frame_block=at[0], prompt=SQUARE, mode="interpolate", over=3),
        strobe.Switch(frame_block=at[1], prompt=STAR),
    ]
    expected = jpegs(2 + found[-1].frame // 12, *switches)
    assert [picture.data for picture in found] == [expected[picture.frame] for picture in found]


async def test_the_server_that_lost_a_stream_lets_go_of_it_and_writes_no_more(folder: Path) -> None:
    with serving(keep=folder / "a", resume_s=4.0) as one, serving(keep=folder / "a", resume_s=4.0) as other:
        async with watch(one.ws, prompt=CIRCLE) as viewer:
            await pictures(viewer, 3)
            async with watch(other.ws, resume=viewer) as taken:
                assert taken.welcome.resumed_at_frame == 3 and taken.welcome.stream == viewer.welcome.stream
                await pictures(taken, 3)
                ended = await answer(viewer, protocol.Ended)
                await pictures(taken, 3)
        assert "another connection" in ended.reason
        assert not one.hub.channels and len(other.hub.channels) == 1
        settle(other)
        (head,) = [path.name for path in (folder / "a").glob("streams/*/2.json")]
        assert head == "2.json"


async def test_branches_resets_and_what_is_shown_come_along(servers: tuple[Running, Running]) -> None:
    one, other = servers
    async with watch(one.ws, prompt=SQUARE) as viewer:
        await pictures(viewer, 3)
        await viewer.send(protocol.Reset(prompt=CIRCLE, seed=7))
        assert (await answer(viewer, protocol.Flushed)).generation == 1
        await pictures(viewer, 12)
        await viewer.send(protocol.Mark(name="here"))
        marked = await answer(viewer, protocol.Marked)
        await pictures(viewer, 20)
        await asyncio.to_thread(settle, one)
        viewer.socket.transport.abort()
        before = viewer
    async with watch(other.ws, resume=before) as viewer:
        assert viewer.welcome.generation == 1 and viewer.welcome.seed == 7 and viewer.welcome.bit_equal
        expected, start = jpegs(6, seed=7), viewer.welcome.resumed_at_frame
        assert start == before.painted
        assert [picture.data for picture in await pictures(viewer, 10)] == expected[start : start + 10]
        await viewer.send(protocol.Go(branch=marked.branch))
        flushed = await answer(viewer, protocol.Flushed)
        assert flushed.generation == 2 and flushed.frame == marked.frame
        found = await pictures(viewer, 8)
        viewer.socket.transport.abort()
        before = viewer
    async with watch(one.ws, resume=before) as viewer:
        assert viewer.welcome.generation == 2
        found += await pictures(viewer, 8)
        assert {picture.generation for picture in found} == {2}
        assert [picture.data for picture in found] == expected[marked.frame : marked.frame + 16]
        await viewer.send(protocol.Close())


async def test_other_machines_are_named_and_other_weights_refused(servers: tuple[Running, Running], folder: Path) -> None:
    one, other = servers

    async def opened() -> LoadViewer:
        async with watch(one.ws, prompt=CIRCLE) as viewer:
            await pictures(viewer, 3)
            return viewer

    async def resumed(viewer: LoadViewer) -> protocol.Welcome:
        async with watch(other.ws, resume=viewer) as found:
            await pictures(found, 1)
            await found.send(protocol.Close())
            return found.welcome

    def altered(viewer: LoadViewer, **facts: Any) -> None:
        settle(one)
        (path,) = [
            path for path in folder.glob("streams/*/1.json") if json.loads(path.read_bytes())["name"] == viewer.welcome.stream
        ]
        path.write_text(json.dumps(json.loads(path.read_bytes()) | facts))

    viewer = await opened()
    altered(viewer, device="NVIDIA H200", versions={"strobe": strobe.__version__, "torch": "0.1"})
    welcome = await resumed(viewer)
    assert not welcome.bit_equal and "device: NVIDIA H200 then, cpu" in welcome.note and "torch: 0.1 then" in welcome.note
    viewer = await opened()
    altered(viewer, weights="1" * 64)
    with pytest.raises(RefusedError, match="weights 111111111111"):
        await resumed(viewer)
    with pytest.raises(RefusedError, match="no stream has that secret"):
        async with watch(other.ws, resume="x" * 32):
            pass


@pytest.mark.parametrize("every", [0, 2])
async def test_a_server_that_ends_tells_its_viewers_and_the_next_one_goes_on(tmp_path: Path, every: int) -> None:
    with serving(keep=tmp_path, keep_every=every) as one:
        async with watch(one.ws, prompt=CIRCLE) as before:
            found = await pictures(before, 23)
            one.stop()
            ended = await answer(before, protocol.Ended, found)
    assert "the server is shutting down; the stream is kept, connect again" in ended.reason and ended.resume_s == 300.0
    (saved,) = (json.loads(path.read_bytes()) for path in tmp_path.glob("streams/*/*.json"))
    assert saved["painted"] == saved["frames_made"] == len(found) or not every
    assert bool(saved["states"]) == bool(every)
    assert before.welcome.secret not in "".join(map(str, tmp_path.rglob("*"))) + json.dumps(saved)
    with serving(keep=tmp_path, keep_every=every) as other:
        async with watch(other.ws, resume=before) as viewer:
            assert viewer.welcome.bit_equal
            found += await pictures(viewer, 20)
    assert [picture.frame for picture in found] == list(range(len(found)))
    assert [picture.data for picture in found] == jpegs(2 + len(found) // 12)[: len(found)]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_snapshot_cut_short_ends_no_other_stream(servers: Any, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(session: Any) -> Any:
        monkeypatch.undo()
        servers[0].hub.keeper.end(viewer.welcome.stream)  # its viewer has closed it
        return None if fails else session.snapshot()

    async with asyncio.timeout(20), watch(servers[0].ws, prompt=CIRCLE) as viewer:
        monkeypatch.setattr("strobe.engine.session.Session.snapshot", snapshot)
        await (answer(viewer, protocol.Ended) if fails else pictures(viewer, 40))
        async with watch(servers[0].ws, prompt=CIRCLE) as other:
            await pictures(other, 1)
