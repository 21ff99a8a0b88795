"""The server over its real sockets: streams, switches, branches, reconnects, refusals."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import av
import httpx
import pytest
import torch

import strobe
from live_server import CIRCLE, SQUARE, TOKEN, Running, answer, jpegs, pictures
from strobe.core.errors import ConfigError, SessionError
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.picture import SIZE
from strobe.serve import protocol
from strobe.serve.client import RefusedError, watch
from strobe.serve.hub import Encoder
from strobe.serve.protocol import Picture
from strobe.serve.streams import Origin
from train_shapes.render import render


async def test_a_prompt_takes_effect_at_the_block_that_was_said(running: Running) -> None:
    told: list[Any] = []
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        found = await pictures(viewer, 5, told)
        await viewer.send(protocol.Prompt(text=SQUARE, typed_ms=7.0))
        found += await pictures(viewer, 50, told)
        await viewer.send(protocol.Prompt(text="a purple elephant moving up"))
        assert "elephant" in (await answer(viewer, protocol.Error)).message
    (prompted,) = [message for message in told if isinstance(message, protocol.Prompted)]
    effective = next(message for message in told if isinstance(message, protocol.Effective) and message.epoch == 1)
    assert prompted.typed_ms == 7.0 and effective.frame_block == prompted.frame_block
    assert {picture.epoch for picture in found if picture.frame < effective.frame} == {0}
    assert {picture.epoch for picture in found if picture.frame >= effective.frame} == {1}
    expected = jpegs(9, strobe.Switch(frame_block=prompted.frame_block, prompt=SQUARE))
    assert [picture.data for picture in found] == [expected[picture.frame] for picture in found]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("way", ["branch", "reset"])
async def test_no_frame_is_lost_while_a_stream_begins_again(
    running: Running, way: str, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that keeps a log may be slow, and the viewer may be gone before it has answered."""
    hub = running.hub

    async def slow(channel: Any) -> None:
        await asyncio.sleep(0.5)  # time for some frame blocks

    async with watch(running.ws, prompt=CIRCLE) as viewer:
        await pictures(viewer, 12)
        await viewer.send(protocol.Mark(name="here"))
        marked = await answer(viewer, protocol.Marked)
        monkeypatch.setattr(hub, "keep", slow)
        begin = protocol.Go(branch=marked.branch) if way == "branch" else protocol.Reset(prompt=SQUARE, seed=5)
        await viewer.send(begin)
        if leaves:
            await asyncio.sleep(0.2)
            viewer.socket.transport.abort()
        else:
            flushed = await answer(viewer, protocol.Flushed)
            found = await pictures(viewer, 8)
            await viewer.send(protocol.Close())
    if leaves:
        async with watch(running.ws, resume=viewer) as again:
            flushed = await answer(again, protocol.Flushed)
            found = await pictures(again, 8)
            await again.send(protocol.Close())
    start = marked.frame if way == "branch" else 0
    assert flushed.generation == 1 and flushed.frame == start
    assert [(picture.generation, picture.frame) for picture in found] == [(1, start + number) for number in range(8)]
    wanted = jpegs(5) if way == "branch" else jpegs(1, seed=5, first=SQUARE)
    assert [picture.data for picture in found] == wanted[start : start + 8]


async def test_back_to_a_branch_and_a_second_stream_from_it(running: Running) -> None:
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        await pictures(viewer, 4)
        await viewer.send(protocol.Mark(name="here"))
        marked = await answer(viewer, protocol.Marked)
        expected = jpegs(8)[marked.frame :]
        await viewer.send(protocol.Prompt(text=SQUARE))
        await pictures(viewer, 30)
        await viewer.send(protocol.Fork(branch=marked.branch))
        forked = await answer(viewer, protocol.Forked)
        await viewer.send(protocol.Go(branch=marked.branch))
        flushed = await answer(viewer, protocol.Flushed)
        assert flushed.frame == marked.frame and flushed.prompt == CIRCLE
        assert [picture.data for picture in await pictures(viewer, 15)] == expected[:15]
        await viewer.send(protocol.Pause())
        async with watch(running.ws, resume=forked.secret) as other:
            assert [picture.data for picture in await pictures(other, 15)] == expected[:15]
            await other.send(protocol.Close())


async def test_a_lost_connection_goes_on_with_the_next_frame_bit_by_bit(running: Running) -> None:
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        assert viewer.welcome.fps == 16 and viewer.welcome.preset == "turbo" and viewer.welcome.words["colour"][0] == "red"
        found = await pictures(viewer, 13)
        secret = viewer.welcome.secret
        viewer.socket.transport.abort()
    await asyncio.sleep(2.5)  # suspended meanwhile
    async with watch(running.ws, resume=secret) as viewer:
        assert viewer.welcome.resumed_at_frame == len(found)
        found += await pictures(viewer, 25)
        await viewer.send(protocol.Close())
    with pytest.raises(RefusedError, match="secret"):
        async with watch(running.ws, resume=secret):
            pass
    assert [picture.frame for picture in found] == list(range(38))
    assert [picture.data for picture in found] == jpegs(4)[:38]


async def test_a_viewer_that_paints_nothing_gets_no_more_than_it_may_hold(running: Running) -> None:
    last = 0
    async with watch(running.ws, prompt=CIRCLE, codec="h264") as viewer:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(2.0):
                    message = await viewer.receive()
                last = message.frame if isinstance(message, Picture) else last
    assert 8 <= last <= 0.5 * 16 + 3 * 12


@pytest.mark.parametrize("codec", ["jpeg", "h264"])
async def test_a_viewer_plays_and_tells_which_prompts_were_refused(running: Running, codec: protocol.Codec) -> None:
    async with watch(running.ws, prompt=CIRCLE, codec=codec) as viewer:
        playback = await viewer.play(4.0, prompts=[(0.2, "a dragon in the snow"), (0.4, "a blue square moving up")])
        await viewer.send(protocol.Close())
    assert playback.painted == len(playback.late_ms) > 16
    assert len(playback.errors) == 1 and "dragon" in playback.errors[0]
    assert "errors=[" in repr(playback) and not any(name in repr(playback) for name in ("_due", "_dry", "_epoch"))


async def test_recording_and_recipe(running: Running) -> None:
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        await pictures(viewer, 2)
        await viewer.send(protocol.Record(on=True))
        assert (await answer(viewer, protocol.RecordingState)).on
        await pictures(viewer, 40)
        await viewer.send(protocol.Record(on=False))
        recorded = await answer(viewer, protocol.RecordingState)
        await viewer.send(protocol.AskRecipe())
        recipe = await answer(viewer, protocol.RecipeAnswer)
    clip = httpx.get(running.http + recorded.download)
    assert (
        clip.status_code == 200 and clip.headers["content-type"] == "video/mp4" and recorded.frames % 12 == 0 and recorded.frames
    )
    assert b"ftyp" in clip.content[:16] and "attachment" in clip.headers["content-disposition"]
    assert httpx.get(running.http + "/v1/clips/../etc/passwd").status_code == 404
    assert (
        recipe.prompts[0].text == CIRCLE
        and recipe.preset == "turbo"
        and recipe.frame_blocks > 3
        and recipe.versions["strobe"] == strobe.__version__
    )


async def test_a_start_image_is_decoded_within_bounds(bundled: Running) -> None:
    async def opened(image: str) -> Any:
        async with watch(bundled.ws, prompt=CIRCLE, image=image) as viewer:
            return (await pictures(viewer, 1))[0]

    scene = torch.tensor([[parse("a green square moving up on a forest background").attributes]])
    green = render(scene, torch.zeros(1, 1, 2), torch.zeros(1, 2), torch.tensor([28.0]))[0, 0]
    data, _ = Encoder("jpeg", SIZE, SIZE, 16).encode((255 * green.permute(1, 2, 0)).to(torch.uint8).numpy())
    picture = await opened(base64.b64encode(data).decode())
    decoder = av.CodecContext.create("mjpeg", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    (frame,) = decoder.decode(av.Packet(picture.data))
    red, green_mean, blue = frame.to_ndarray(format="rgb24").mean(axis=(0, 1))
    assert green_mean > 2 * red and green_mean > 1.5 * blue
    for bad, word in (("%%%", "base64"), (base64.b64encode(b"no picture").decode(), "picture|data")):
        with pytest.raises(SessionError, match=word):
            await opened(bad)


async def test_unknown_presets_and_versions_are_refused_with_what_fits(running: Running) -> None:
    with pytest.raises(RefusedError, match="would fit: .*turbo"):
        await opened(running.ws, preset="ultra")
    with pytest.raises(RefusedError, match="elephant"):
        await opened(running.ws, prompt="an elephant")


async def test_a_preset_that_stalls_names_a_faster_one_if_there_is_one(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {name: replace(cost, block_s=9.0 - (name == "turbo")) for name, cost in running.hub.worker.costs.items()}
    monkeypatch.setattr(running.hub.worker, "costs", costs)
    for preset, advice in (("turbo", "no preset here is faster"), ("balanced", "turbo is faster")):
        async with watch(running.ws, prompt=CIRCLE, preset=preset) as viewer:
            assert viewer.welcome.note.endswith(advice)
            await viewer.send(protocol.Close())


def test_what_operators_read(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert httpx.get(f"{running.http}/healthz").json() == {"ok": True, "error": ""}
    ready = httpx.get(f"{running.http}/readyz").json()
    assert ready["ready"] and ready["done"] == ready["total"]
    metrics = httpx.get(f"{running.http}/metrics").text
    for name in ("strobe_streams", "strobe_block_seconds_bucket", "strobe_refused_total", "strobe_device_busy_seconds_total"):
        assert name in metrics
    monkeypatch.setattr(running.hub, "draining", True)
    assert httpx.get(f"{running.http}/readyz").status_code == 503  # a proxy that asks sends nobody any more


def test_a_viewer_that_goes_amid_opening_or_closing_leaves_no_stream_on_the_device(running: Running) -> None:
    """The device is busy meanwhile, so that what the viewer asked for waits its turn, and is cancelled there."""
    hub = running.hub
    origin = Origin(prompt=CIRCLE, seed=0, preset="turbo")

    async def cancelled(work: Coroutine[Any, Any, Any]) -> None:
        busy = hub.worker.submit(lambda: time.sleep(0.2))
        task = asyncio.create_task(work)
        await asyncio.sleep(0.05)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.wrap_future(busy)
        await hub.on_device(lambda: None)  # what was handed in before is done

    async def both() -> None:
        await cancelled(hub.new_stream("ghost", "turbo", lambda: hub.worker.open("ghost", origin)))
        assert "ghost" not in hub.worker._playing
        stream = await hub.new_stream("guest", "turbo", lambda: hub.worker.open("guest", origin))
        assert "guest" in hub.worker._playing
        await cancelled(hub.drop(hub.add(stream, "jpeg")))
        assert "guest" not in hub.worker._playing

    asyncio.run_coroutine_threadsafe(both(), hub.loop).result(60)


async def test_a_viewer_that_comes_back_while_its_stream_fails_is_told(running: Running) -> None:
    hub = running.hub
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        await pictures(viewer, 2)
        viewer.socket.transport.abort()
    hub.worker.submit(lambda: hub.worker.drop(viewer.welcome.stream)).result(60)
    with pytest.raises(SessionError, match="closed"):
        async with watch(running.ws, resume=viewer):
            pass


async def test_of_two_connections_that_open_a_stream_again_at_once_one_has_it(running: Running) -> None:
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        await pictures(viewer, 5)
    running.hub.worker.submit(lambda: time.sleep(1.0))  # until both have asked

    async def come() -> list[int]:
        async with watch(running.ws, resume=viewer.welcome.secret) as again:
            return [picture.frame for picture in await pictures(again, 40)]

    found = await asyncio.gather(come(), come(), return_exceptions=True)
    assert list(range(5, 45)) in found and not all(isinstance(each, list) for each in found)


KEEP_S = 0.5


async def test_what_holds_a_prompt_up_counts(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts at once: the disk holds up the first one, and the first one the second."""
    hub = running.hub

    def figure(kind: str) -> float:
        return hub.metrics.registry.get_sample_value(f"strobe_prompt_to_pixel_seconds_{kind}") or 0.0

    async def slow(channel: Any) -> None:
        await asyncio.sleep(KEEP_S)

    counted, before = figure("count"), figure("sum")
    async with watch(running.ws, prompt="a red circle moving left") as viewer:
        await pictures(viewer, 1)
        monkeypatch.setattr(hub, "keep", slow)
        await viewer.send(protocol.Prompt(text="a blue square moving up"))
        await viewer.send(protocol.Prompt(text="a green star moving right"))
        while figure("count") < counted + 2:
            await pictures(viewer, 1)
        await viewer.send(protocol.Close())
    assert figure("sum") - before >= 4 * KEEP_S


async def opened(url: str, **asked: Any) -> str:
    async with watch(url, **({"prompt": CIRCLE} | asked)) as viewer:
        return viewer.welcome.preset


async def test_of_viewers_who_come_at_once_no_more_are_let_in_than_fit(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.hub.worker, "most", 1)
    running.hub.worker.submit(lambda: time.sleep(1.0))  # until all have asked
    found = await asyncio.gather(*(opened(running.ws) for _ in range(4)), return_exceptions=True)
    assert sum("more are not allowed" in str(each) for each in found) == 3, found


async def test_the_server_s_status_and_sentence_are_passed_on(closed: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SessionError, match=r"401: log in first.*watch\(\.\.\., token="):
        await opened(closed.ws)
    with pytest.raises(SessionError, match="401: that is not the token"):
        await opened(closed.ws, token="wrong horse battery")
    real = socket.getaddrinfo
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more))
    with pytest.raises(SessionError, match="403: .*--allow-host"):
        await opened(f"ws://other.example:{closed.port}", token=TOKEN)
    for address in (closed.ws, closed.http + "/"):  # the second: as the server prints it
        assert await opened(address, token=TOKEN) == "turbo"
    monkeypatch.setattr(closed.server, "hub", None)
    with pytest.raises(SessionError, match="503: the server is warming up"):
        await opened(closed.ws, token=TOKEN)


async def test_an_address_that_nobody_answers_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"cannot connect to {url}: .*; start `strobe serve`, or give the address"):
            await opened(url)


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port"])
async def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match=r"give it as `strobe serve` prints it, such as http://127\.0\.0\.1:7860"):
        await opened(url)
