"""The socket `/v1/realtime/video` of vLLM-Omni: JSON text both ways, and fragmented MP4.

A client sends `session.start`, then `session.interaction` to steer, `session.ping` and `session.stop`; the server sends
`video.start`, before every piece of video `video.chunk_metadata`, and `session.done`. Frame size, frame rate and sampler are
those of the server's model and preset; `config` of `video.start` says what holds. A preset may be asked for by
`extra_params.preset`.
Source of the messages: vllm-project/vllm-omni at 15625468, `vllm_omni/entrypoints/openai/serving_video_output_stream.py`, and at
079d7a56, `protocol/videos.py`; its README of `examples/online_serving/streaming_video_generation` at 01f6e361.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.websockets import WebSocket, WebSocketDisconnect

from strobe.core.errors import ConfigError, DataError, SessionError, StrobeError
from strobe.engine.prompts import Mode
from strobe.serve.channel import Frame
from strobe.serve.connection import OPEN_WITHIN_S
from strobe.serve.fragments import Fragments
from strobe.serve.guests import Guest, Wire, close, first_of, guest, picture_in
from strobe.serve.hub import Hub, describe
from strobe.serve.prompt_log import Origin
from strobe.serve.protocol import Text

LONGEST_START: Final = 6 * 2**20
LONGEST_CONTROL: Final = 128 * 1024
"""Bytes of a message after the first, as there."""
MOST_EVENTS: Final = 1024
"""Names of interactions that are remembered, so that none is taken twice."""

Whole = Annotated[int, Meta(ge=1, le=1 << 40)]


class _Image(Struct, kw_only=True):
    image_url: Annotated[str, Meta(max_length=LONGEST_START)] = ""
    file_id: str = ""


class _Start(Struct, kw_only=True, tag="session.start"):
    """Fields that are read of `session.start`; the sampler's are the preset's here."""

    prompt: Text
    model: str | None = None
    format: str = "m4s"
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] | None = None
    num_frames: Whole | None = None
    seconds: Annotated[str, Meta(pattern=r"^[1-9]\d{0,6}$")] | None = None
    negative_prompt: str | None = None
    image_reference: _Image | None = None
    lora: dict[str, Any] | None = None
    generate_sound: bool = False
    enable_frame_interpolation: bool = False
    sampling_params: dict[str, Any] | None = None
    extra_params: dict[str, Any] | None = None


class _Event(Struct, kw_only=True):
    prompt: Text
    negative_prompt: str | None = None
    multi_modal_data: Any = None


class _Steer(Struct, kw_only=True):
    event: _Event
    event_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    transition_chunks: Annotated[int, Meta(ge=0, le=64)] | None = None


class _Interaction(Struct, kw_only=True, tag="session.interaction"):
    interaction: _Steer


class _Stop(Struct, tag="session.stop"):
    pass


class _Ping(Struct, tag="session.ping"):
    pass


_starts = msgspec.json.Decoder(_Start)
_controls = msgspec.json.Decoder(_Interaction | _Stop | _Ping)


@dataclass(kw_only=True)
class _Update:
    """An interaction that was accepted: the epoch it begins, and frame blocks until it has taken over."""

    name: str
    epoch: int
    left: int
    begun: bool = False


@dataclass(kw_only=True, eq=False)
class OmniSession:
    """A client of vLLM-Omni's, from `session.start` to `session.done`.

    Args:
        name: of the request, as messages have it.
        chunks: pieces of video sent.
    """

    socket: WebSocket
    hub: Hub
    name: str = ""
    chunks: int = 0
    _wire: Wire = field(init=False)
    _names: set[str] = field(default_factory=set)
    _updates: list[_Update] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wire = Wire(socket=self.socket)

    async def run(self) -> None:
        """Serve the client until it goes, stops, or has all its frames."""
        await self.socket.accept()
        try:
            try:
                async with asyncio.timeout(OPEN_WITHIN_S):
                    first = await self._wire.receive(LONGEST_START)
            except TimeoutError as error:
                raise SessionError("Timeout waiting for session.start") from error
            start = _read(_starts, first)
            origin = self._origin(start)
            async with guest(self.hub, origin, kind="vllm-omni", codec="h264") as here:
                self.name = f"video_stream-{here.channel.name}"
                await self._play(here, start, origin)
        except StrobeError as error:
            self.hub.metrics.refused.labels("message").inc()
            await self._refuse(describe(error))
        except (WebSocketDisconnect, TimeoutError, ConnectionError, RuntimeError):
            pass
        finally:
            await close(self.socket)

    def _origin(self, start: _Start) -> Origin:
        """Return what the stream begins with.

        Raises:
            ConfigError: something was asked for that this server does not do.
        """
        model = self.hub.worker.model.name
        if start.model is not None and start.model != model:
            raise ConfigError(f"Model mismatch: request specifies '{start.model[:80]}' but server is running '{model}'.")
        if start.format != "m4s":
            raise ConfigError("Invalid session.start format: expected 'm4s'.")
        asked = {
            "negative_prompt": start.negative_prompt,
            "lora": start.lora,
            "generate_sound": start.generate_sound,
            "enable_frame_interpolation": start.enable_frame_interpolation,
        }
        for name, value in asked.items():
            if value:
                raise ConfigError(f"{name} is not supported by this server; leave it out")
        if not start.prompt.strip():
            raise ConfigError("prompt is empty; say what to show")
        extra = {**(start.sampling_params or {}), **(start.extra_params or {})}
        seed = start.seed if start.seed is not None else extra.get("seed", 0)
        preset = extra.get("preset", self.hub.worker.default)
        if not isinstance(preset, str) or type(seed) is not int or not 0 <= seed < 1 << 53:
            raise ConfigError("preset must be a name and seed a whole number of at most 53 bits")
        image = start.image_reference
        if image is not None and image.file_id:
            raise ConfigError("image_reference.file_id is not supported by this server; send a data: URL")
        picture = picture_in(image.image_url) if image is not None else b""
        return Origin(prompt=start.prompt.strip(), seed=seed, preset=preset, image=picture)

    async def _play(self, here: Guest, start: _Start, origin: Origin) -> None:
        defaults = self.hub.worker.model.defaults
        height, width = defaults.frame_size
        seconds = None if start.seconds is None else int(start.seconds)
        total = start.num_frames or (None if seconds is None else seconds * defaults.fps)
        config = {
            "model": self.hub.worker.model.name,
            "prompt": origin.prompt,
            "seed": origin.seed,
            "width": width,
            "height": height,
        }
        config |= {"fps": defaults.fps, "size": f"{width}x{height}", "extra_params": {"preset": origin.preset}}
        config |= {} if total is None else {"num_frames": total}
        await self._say({"type": "video.start", "request_id": self.name, "format": "m4s", "config": config})
        stopped, fragments = asyncio.Event(), Fragments(width, height, defaults.fps)
        await first_of(self._video(here, fragments, total), self._obey_all(here, stopped), here.until_ended())
        if not stopped.is_set():
            await self._send("trailer", fragments.close(), [])
        done = {"type": "session.done", "request_id": self.name, "chunks": self.chunks, "stopped": stopped.is_set()}
        await self._say(done)

    async def _video(self, here: Guest, fragments: Fragments, total: int | None) -> None:
        """Send one piece for each frame block, until `total` frames were sent."""
        sent, metrics = 0, self.hub.metrics
        async for block in here.blocks():
            frames = block if total is None else block[: total - sent]
            began = monotonic()
            data = await self.hub.aside(partial(fragments.add, [each.pixels for each in frames]))
            metrics.encode.observe((monotonic() - began) / len(frames))
            await self._send("media", data, frames)
            sent += len(frames)
            metrics.pictures.labels("h264").inc(len(frames))
            metrics.sent_bytes.inc(len(data))
            if sent == total:
                return

    async def _send(self, kind: str, data: bytes, frames: list[Frame]) -> None:
        began, active, completed = self._under_way(frames)
        told = {
            "type": "video.chunk_metadata",
            "request_id": self.name,
            "kind": kind,
            "num_frames": len(frames),
            "byte_length": len(data),
            "generation_chunk_index": self.chunks if kind == "media" else None,
            "started_event_ids": began,
            "active_event_ids": active,
            "completed_event_ids": completed,
            "transport_chunk_index": self.chunks,
        }
        await self._wire.send(json.dumps(told), data)
        self.chunks += 1

    def _under_way(self, frames: list[Frame]) -> tuple[list[str], list[str], list[str]]:
        """Return which interactions begin with these frames of a frame block, take over in them, and have taken over then."""
        epoch = max((each.epoch for each in frames), default=-1)
        here = [each for each in self._updates if each.epoch == epoch]
        self._updates = [each for each in self._updates if each.epoch >= epoch]  # a newer one takes the place of the older
        began = [each.name for each in here if not each.begun]
        for each in here:
            each.begun, each.left = True, each.left - 1
        completed = [each.name for each in here if each.left <= 0]
        self._updates = [each for each in self._updates if each.left > 0]
        return began, [each.name for each in here], completed

    async def _obey_all(self, here: Guest, stopped: asyncio.Event) -> None:
        while True:
            try:
                message = _read(_controls, await self._wire.receive(LONGEST_CONTROL))
            except DataError as error:
                await self._refuse(str(error))
                continue
            match message:
                case _Stop():
                    stopped.set()
                    return
                case _Ping():
                    await self._say({"type": "session.pong"})
                case _Interaction():
                    await self._steer(here, message.interaction)

    async def _steer(self, here: Guest, steer: _Steer) -> None:
        """Give the stream another prompt, or say why not."""
        name = steer.event_id or secrets.token_hex(16)
        if name in self._names or len(self._names) >= MOST_EVENTS:
            kind = "event_id_conflict" if name in self._names else "too many interactions; open another session"
            await self._refuse(kind, code="event_id_conflict", event_id=name)
            return
        if not steer.event.prompt.strip() or steer.event.negative_prompt is not None or steer.event.multi_modal_data is not None:
            told = "session.interaction requires a non-empty event.prompt; negative_prompt and multi_modal_data are not supported"
            await self._refuse(told)
            return
        over = steer.transition_chunks or 0
        mode: Mode = "interpolate" if over else "recache"
        try:
            epoch = await here.prompt(steer.event.prompt.strip(), mode, max(1, over))
        except StrobeError as error:
            await self._refuse(describe(error), code="interaction_failed", event_id=name)
            return
        self._names.add(name)
        self._updates.append(_Update(name=name, epoch=epoch, left=max(1, over)))
        await self._say({"type": "session.interaction.queued", "request_id": self.name, "event_id": name})

    async def _say(self, message: dict[str, Any]) -> None:
        await self._wire.send(json.dumps(message))

    async def _refuse(self, message: str, **more: str) -> None:
        told = {"type": "error", "message": message, **more}
        with suppress(WebSocketDisconnect, TimeoutError, OSError, RuntimeError):
            await self._say(told | ({"request_id": self.name} if self.name else {}))


def _read(decoder: msgspec.json.Decoder[Any], data: str | bytes) -> Any:
    """Read a message.

    Raises:
        DataError: it is none of the protocol.
    """
    if isinstance(data, bytes):
        raise DataError("a binary message; this socket reads JSON text")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DataError(f"Invalid message: {error}") from error
