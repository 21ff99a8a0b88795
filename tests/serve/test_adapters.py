"""Clients of vLLM-Omni and of SGLang, written from those projects' own description, find here what they know."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from typing import Any

import av
import httpx
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import strobe
from live_server import Running, serving
from strobe.serve.encode import new_encoder

CIRCLE, SQUARE = "a red circle moving left", "a blue square moving up"
Run = Callable[[Any], Any]


def frames(blocks: int, *switches: strobe.Switch, seed: int = 42) -> NDArray[np.uint8]:
    """The frames that a stream of these prompts comes to."""
    with strobe.Session(CIRCLE, preset="turbo", seed=seed, device="cpu") as session:
        return np.concatenate([block.frames.numpy() for block in session.stream(blocks, switches=list(switches))])


def error_of(found: list[NDArray[np.uint8]], expected: NDArray[np.uint8]) -> float:
    """Mean squared error of pictures that went through an encoder."""
    assert len(found) == len(expected)
    return max(float(((a.astype(float) - b) ** 2).mean()) for a, b in zip(found, expected, strict=True))


async def until_left(running: Running) -> None:
    hub = running.server.hub
    assert hub is not None
    for _ in range(200):
        if not hub.channels and not hub.device._playing:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the stream is left over")


class Omni:
    """A client of vLLM-Omni's `/v1/realtime/video`: it does what its example does, and plays all pieces as one file."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.video, self.told = socket, b"", list[dict[str, Any]]()

    async def start(self, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": "session.start", **fields}))

    async def until(self, *kinds: str) -> dict[str, Any]:
        """Read on until a message of these types; a piece of video has to be the one that was announced."""
        while True:
            message = await self.socket.recv()
            if isinstance(message, bytes):
                assert self.told[-1]["type"] == "video.chunk_metadata" and self.told[-1]["byte_length"] == len(message)
                self.video += message
                continue
            told = json.loads(message)
            self.told.append(told)
            if told["type"] in kinds:
                return told

    def pieces(self) -> list[dict[str, Any]]:
        return [each for each in self.told if each["type"] == "video.chunk_metadata"]

    def decoded(self) -> list[NDArray[np.uint8]]:
        with av.open(io.BytesIO(self.video), format="mp4") as container:
            return [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]


def test_a_client_of_vllm_omni_gets_its_frames(bundled: Running, run: Run) -> None:
    async def stream() -> Omni:
        async with connect(f"{bundled.ws}/v1/realtime/video", max_size=None) as socket:
            client = Omni(socket)
            sampler = {"width": 640, "height": 384, "fps": 16, "guidance_scale": 1.0, "num_inference_steps": 4}
            await client.start(model="shapes", prompt=CIRCLE, num_frames=15, seed=42, **sampler)
            await client.until("session.done")
            await until_left(bundled)
            return client

    client = run(stream())
    started, done, pieces = client.told[0], client.told[-1], client.pieces()
    assert started["type"] == "video.start" and started["format"] == "m4s" and started["config"]["num_frames"] == 15
    assert (started["config"]["width"], started["config"]["height"]) == (128, 128)  # what holds, not what was asked for
    assert done == {"type": "session.done", "request_id": started["request_id"], "chunks": len(pieces), "stopped": False}
    assert [each["kind"] for each in pieces] == ["media", "media", "trailer"]
    assert [each["transport_chunk_index"] for each in pieces] == [0, 1, 2]
    assert sum(each["num_frames"] for each in pieces) == 15
    assert error_of(client.decoded(), frames(2)[:15]) < 60


def test_a_client_of_vllm_omni_steers_and_stops(running: Running, run: Run) -> None:
    async def stream() -> Omni:
        async with connect(f"{running.ws}/v1/realtime/video", max_size=None) as socket:
            client = Omni(socket)
            await client.start(prompt=CIRCLE, seconds="60")
            await client.until("video.chunk_metadata")
            for text in ("[", '{"type": "nothing"}', '{"type": "session.interaction", "interaction": {}}'):
                await socket.send(text)
                await client.until("error")
            await socket.send('{"type": "session.ping"}')
            await client.until("session.pong")
            update = {"event_id": "e1", "event": {"prompt": SQUARE}, "transition_chunks": 2}
            steer = {"type": "session.interaction", "interaction": update}
            await socket.send(json.dumps(steer))
            assert (await client.until("session.interaction.queued"))["event_id"] == "e1"
            await socket.send(json.dumps(steer))
            assert (await client.until("error"))["code"] == "event_id_conflict"
            steer["interaction"] = {"event_id": "e2", "event": {"prompt": "an elephant"}}
            await socket.send(json.dumps(steer))
            assert "elephant" in (await client.until("error"))["message"]
            while not client.pieces()[-1]["completed_event_ids"]:
                await client.until("video.chunk_metadata")
            await socket.send('{"type": "session.stop"}')
            assert (await client.until("session.done"))["stopped"]
            await until_left(running)
            return client

    pieces = run(stream()).pieces()
    shown = [each for each in pieces if each["active_event_ids"]]
    assert [each["started_event_ids"] for each in shown] == [["e1"], []]
    assert [each["completed_event_ids"] for each in shown] == [[], ["e1"]]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"prompt": "an elephant"}, "elephant"),
        ({"prompt": CIRCLE, "model": "BestWishYsh/Helios-Distilled"}, "Model mismatch"),
        ({"prompt": CIRCLE, "format": "ts"}, "m4s"),
        ({"prompt": CIRCLE, "negative_prompt": "blur"}, "negative_prompt"),
        ({"prompt": CIRCLE, "image_reference": {"image_url": "http://169.254.169.254/"}}, "fetches no address"),
        ({"prompt": CIRCLE, "image_reference": {"image_url": "file:///etc/passwd"}}, "opens no path"),
        ({"prompt": CIRCLE, "extra_params": {"preset": "ultra"}}, "turbo"),
        ({"prompt": CIRCLE, "seed": -1}, "seed"),
        ({}, "prompt"),
    ],
)
def test_what_a_client_of_vllm_omni_cannot_have_is_said(running: Running, run: Run, asked: dict[str, Any], why: str) -> None:
    async def stream() -> str:
        async with connect(f"{running.ws}/v1/realtime/video") as socket:
            client = Omni(socket)
            await client.start(**asked)
            return str((await client.until("error"))["message"])

    assert why in run(stream())


class Sglang:
    """A client of SGLang's `/v1/realtime_video/generate`: what its web page does with each message."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.header = socket, dict[str, Any]()
        self.frames, self.headers, self.told = list[NDArray[np.uint8]](), list[dict[str, Any]](), list[dict[str, Any]]()

    async def send(self, **fields: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(fields))

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            data = await self.socket.recv()
            assert isinstance(data, bytes)
            if self.header:
                header, self.header = self.header, {}
                self._take(header, data)
                continue
            message = msgspec.msgpack.decode(data)
            if message["type"] == "frame_batch_header":
                self.header = message
            elif message["type"] == "frame_batch":
                self._take(message, message.pop("payload"))
            else:
                self.told.append(message)
                if message["type"] == kind:
                    return message

    def _take(self, header: dict[str, Any], data: bytes) -> None:
        assert len(data) == header["total_size"]
        self.headers.append(header)
        if header["content_type"] == "application/x-raw-rgb":
            shape = header["num_frames"], header["height"], header["width"], header["channels"]
            self.frames += list(np.frombuffer(data, np.uint8).reshape(shape))
            return
        codec = {"image/jpeg": "mjpeg", "image/webp": "webp"}[header["content_type"]]
        at = 0
        for length in header["payload_lengths"]:
            decoder = av.CodecContext.create(codec, "r")
            assert isinstance(decoder, av.VideoCodecContext)
            found = decoder.decode(av.Packet(data[at : at + length])) or decoder.decode(None)
            self.frames.append(found[0].to_ndarray(format="rgb24"))
            at += length
        assert at == len(data)


@pytest.mark.parametrize(("kind", "most"), [("raw", 0.0), ("jpeg", 40.0), ("webp", 60.0)])
def test_a_client_of_sglang_gets_its_frames(bundled: Running, run: Run, kind: str, most: float) -> None:
    async def stream() -> tuple[Sglang, str]:
        async with connect(f"{bundled.ws}/v1/realtime_video/generate", max_size=None) as socket:
            client = Sglang(socket)
            await client.send(type="nonsense")
            assert "invalid generate request" in (await client.until("error"))["content"]
            sampler = {"size": "832x480", "fps": 25, "num_inference_steps": 4, "guidance_scale": 1.0, "model": ""}
            await client.send(type="init", prompt=CIRCLE, seed=42.0, max_chunks=2, realtime_output_format=kind, **sampler)
            await client.until("chunk_stats")
            await client.until("chunk_stats")
            with pytest.raises(ConnectionClosed):
                await client.until("anything")
            await until_left(bundled)
            return client, socket.close_reason or ""

    client, reason = run(stream())
    assert reason == "generation complete"
    assert error_of(client.frames, frames(2)) <= most
    assert [each["num_frames"] for each in client.told if each["type"] == "chunk_stats"] == [9, 12]
    assert [each["chunk_index"] for each in client.headers if each["is_final_frame_batch"]] == [0, 1]
    assert all(each["encoding"] == kind for each in client.headers)


def test_a_client_of_sglang_steers(bundled: Running, run: Run) -> None:
    async def stream() -> Sglang:
        async with connect(f"{bundled.ws}/v1/realtime_video/generate", max_size=None) as socket:
            client = Sglang(socket)
            green = np.full((64, 64, 3), (0, 200, 0), np.uint8)
            picture, _ = new_encoder("jpeg", 64, 64, 16).encode(green)
            await client.send(type="init", prompt=CIRCLE, first_frame=picture, realtime_output_format="raw")
            await client.until("chunk_stats")
            await client.send(type="event", kind="heartbeat")
            for kind, payload in (("camera_actions", [["w"]]), ("prompt", ""), ("prompt", "an elephant")):
                await client.send(type="event", kind=kind, payload=payload, event_id=1)
                assert "invalid event" in (await client.until("error"))["content"]
            await client.send(type="event", kind="prompt", payload=SQUARE, event_id=70_000.0)
            while (await client.until("chunk_stats"))["event_id"] is None:
                pass
            return client

    client = run(stream())
    assert client.frames[0][..., 1].mean() > 120  # it began with the picture
    events = [each.get("event_id") for each in client.headers]
    assert events[0] is None and events[-1] == 70_000


@pytest.mark.parametrize("first", ["http://169.254.169.254/", "/etc/passwd", 7, b"x" * 10])
def test_pictures_of_others_are_neither_fetched_nor_opened(running: Running, run: Run, first: Any) -> None:
    async def stream() -> str:
        async with connect(f"{running.ws}/v1/realtime_video/generate") as socket:
            client = Sglang(socket)
            await client.send(type="init", prompt=CIRCLE, first_frame=first)
            return str((await client.until("error"))["content"])

    assert run(stream())


@pytest.mark.parametrize("path", ["/v1/realtime/video", "/v1/realtime_video/generate"])
def test_the_doors_of_others_are_guarded_and_bounded(running: Running, run: Run, path: str) -> None:
    async def refused(url: str, **how: Any) -> int:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url + path, **how):
                pass
        return caught.value.response.status_code

    async def noise() -> None:
        hub = running.server.hub
        assert hub is not None
        for data in ("", "[" * 5000, b"\x93" * 5000, b"\xff", base64.b64encode(b"x" * 5000).decode(), "\x00"):
            async with connect(running.ws + path) as socket:
                for _ in range(5):
                    await socket.send(data)
        async with connect(running.ws + path) as socket:
            with pytest.raises(ConnectionClosed):
                for _ in range(100_000):
                    await socket.send("{}" if "realtime/" in path else b"\x80")
                    await asyncio.sleep(0)
                while True:
                    await socket.recv()
        await until_left(running)

    assert run(refused(running.ws, origin="https://evil.example")) == 403
    assert httpx.get(running.http + path, headers={"Host": "evil.example"}).status_code == 403
    with serving(token="correct horse battery") as closed:
        assert run(refused(closed.ws)) == 401
    run(noise())
