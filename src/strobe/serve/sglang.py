"""The socket `/v1/realtime_video/generate` of SGLang Diffusion: msgpack both ways, and batches of frames.

A client sends `init`, then events: `prompt` steers, `heartbeat` and `client_trace` are heard and do nothing, any other is
refused as there. The server sends the frames of each frame block, one or more in a message, and `chunk_stats` after them. A
batch under 64 KiB is one message, `frame_batch`; a larger one is `frame_batch_header` and the bytes alone. Frames are raw RGB,
JPEG or WebP. Their size and rate, and the sampler, are those of the server's model and preset, as the headers say.
Source of the messages: sgl-project/sglang, folder `python/sglang/multimodal_gen/`, files
`runtime/entrypoints/openai/realtime/realtime_video_api.py` at 0133260a and `realtime_output_adapter.py` at 008b79d2; the client
`apps/realtime_webui/app.js` at 00e7d615.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.websockets import WebSocket, WebSocketDisconnect

from strobe.core.errors import ConfigError, DataError, SessionError, StrobeError
from strobe.serve.channel import Frame
from strobe.serve.connection import OPEN_WITHIN_S
from strobe.serve.encode import Encoder, Jpeg, Webp
from strobe.serve.guests import Guest, Wire, close, first_of, guest, picture_in
from strobe.serve.hub import Hub
from strobe.serve.prompt_log import Origin
from strobe.serve.protocol import LONGEST_IMAGE, LONGEST_MESSAGE, Text

LONGEST_EVENT: Final = 128 * 1024
"""Bytes of an event."""
ALONE: Final = 64 * 1024
"""Bytes of a batch from which on it follows its header as a message of its own."""
RAW_FRAMES: Final = 16
ENCODED_FRAMES: Final = 6
"""Frames of a message, raw and encoded."""
QUALITIES: Final = {"jpeg": 95, "webp": 90}
IGNORED: Final = frozenset({"heartbeat", "client_trace"})


Whole = Annotated[int, Meta(ge=0, lt=1 << 53)] | Annotated[float, Meta(ge=0.0, lt=2.0**53)]
"""A number that browsers send as a float where it has more than 16 bits."""


class _Init(Struct, kw_only=True, tag="init"):
    """Fields that are read of `init`; the sampler's are the preset's here."""

    prompt: Text
    seed: Whole | None = 42
    max_chunks: Whole | None = None
    first_frame: Any = None
    realtime_output_format: Literal["raw", "webp", "jpeg"] | None = None
    realtime_preview_max_width: Whole | None = None
    output_compression: int | float | None = None
    negative_prompt: str | None = None
    enable_upscaling: bool | None = False
    enable_frame_interpolation: bool | None = False
    preset: str | None = None


class _Event(Struct, kw_only=True, tag="event"):
    kind: Annotated[str, Meta(max_length=64)]
    payload: Any = None
    event_id: Whole | None = None


_inits = msgspec.msgpack.Decoder(_Init)
_events = msgspec.msgpack.Decoder(_Event)


@dataclass(kw_only=True)
class _Sent:
    """Parts of a frame block that were sent."""

    batches: int = 0
    frames: int = 0
    bytes: int = 0
    encode_s: float = 0.0
    write_s: float = 0.0


@dataclass(kw_only=True, eq=False)
class SglangSession:
    """A client of SGLang Diffusion's, from `init` to its end."""

    socket: WebSocket
    hub: Hub
    _wire: Wire = field(init=False)
    _steered: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._wire = Wire(socket=self.socket)

    async def run(self) -> None:
        """Serve the client until it goes, or has all its chunks."""
        await self.socket.accept()
        reason = ""
        try:
            try:
                async with asyncio.timeout(OPEN_WITHIN_S):
                    init, origin = await self._begin()
            except TimeoutError as error:
                raise SessionError("no init came in time") from error
            async with guest(self.hub, origin, kind="sglang") as here:
                await first_of(self._video(here, init), self._obey_all(here), here.until_ended())
                reason = "generation complete"
        except StrobeError as error:
            self.hub.metrics.refused.labels("message").inc()
            with suppress(WebSocketDisconnect, TimeoutError, OSError, RuntimeError):
                await self._refuse(str(error))
        except (WebSocketDisconnect, TimeoutError, ConnectionError, RuntimeError):
            pass
        finally:
            await close(self.socket, reason)

    async def _begin(self) -> tuple[_Init, Origin]:
        """Return the first `init` that can be obeyed; others are refused, and the client may try again."""
        while True:
            try:
                init = _read(_inits, await self._wire.receive(LONGEST_MESSAGE))
                return init, self._origin(init)
            except (ConfigError, DataError) as error:
                await self._refuse(f"invalid generate request: {error}")

    def _origin(self, init: _Init) -> Origin:
        if not init.prompt.strip():
            raise ConfigError("prompt is empty; say what to show")
        asked = (init.negative_prompt, init.enable_upscaling, init.enable_frame_interpolation)
        for name, value in zip(("negative_prompt", "enable_upscaling", "enable_frame_interpolation"), asked, strict=True):
            if value:
                raise ConfigError(f"{name} is not supported by this server; leave it out")
        first = init.first_frame or b""
        if not isinstance(first, (bytes, str)) or len(first) > LONGEST_IMAGE:
            raise ConfigError(f"first_frame: give the bytes of a picture, at most {LONGEST_IMAGE}")
        if init.max_chunks == 0:
            raise ConfigError("max_chunks: give at least 1, or leave it out")
        return Origin(
            prompt=init.prompt.strip(),
            seed=42 if init.seed is None else int(init.seed),
            preset=init.preset or self.hub.worker.default,
            image=picture_in(first) if isinstance(first, str) else first,
        )

    async def _video(self, here: Guest, init: _Init) -> None:
        """Send one frame block after another, until `max_chunks` were sent."""
        chunk = 0
        async for frames in here.blocks():
            await self._send(here, init, chunk, frames)
            chunk += 1
            if chunk == init.max_chunks:
                return

    async def _send(self, here: Guest, init: _Init, chunk: int, frames: list[Frame]) -> None:
        began, sent, request = monotonic(), _Sent(), f"{here.channel.name}_{secrets.token_hex(8)}"
        encoder, about = _format(init, frames[0])
        each = ENCODED_FRAMES if encoder else RAW_FRAMES
        parts = [frames[at : at + each] for at in range(0, len(frames), each)]
        event = self._event(frames)
        for number, part in enumerate(parts):
            now = monotonic()
            pictures = await self.hub.aside(partial(_encoded, encoder, part))
            payload = b"".join(pictures)
            sent.encode_s += monotonic() - now
            header = {
                "type": "frame_batch_header",
                "request_id": request,
                "chunk_index": chunk,
                "num_frames": len(part),
                "total_size": len(payload),
                "frame_batch_index": number,
                "num_frame_batches": len(parts),
                "is_final_frame_batch": number == len(parts) - 1,
                **({} if event is None else {"event_id": event}),
                **about,
                **({"payload_lengths": list(map(len, pictures))} if encoder else {"raw_size": len(payload)}),
            }
            now = monotonic()
            if len(payload) >= ALONE:
                await self._wire.send(msgspec.msgpack.encode(header), payload)
            else:
                await self._wire.send(msgspec.msgpack.encode({**header, "type": "frame_batch", "payload": payload}))
            sent.write_s += monotonic() - now
            sent.batches, sent.frames, sent.bytes = sent.batches + 1, sent.frames + len(part), sent.bytes + len(payload)
        await self._stats(here, chunk, request, frames, sent, monotonic() - began)
        metrics = self.hub.metrics
        metrics.encode.observe(sent.encode_s / len(frames))
        metrics.pictures.labels(str(about["encoding"])).inc(len(frames))
        metrics.sent_bytes.inc(sent.bytes)

    async def _stats(self, here: Guest, chunk: int, request: str, frames: list[Frame], sent: _Sent, took_s: float) -> None:
        """Tell the times of a chunk in whole ms, as there; those of parts that do not exist here are 0."""
        block = frames[-1].block
        made_ms = 0.0 if block is None else block.block_ms
        times = {"scheduler_forward_ms": made_ms, "raw_payload_build_ms": 1e3 * sent.encode_s, "raw_write_ms": 1e3 * sent.write_s}
        times |= {"ws_write_ms": 1e3 * sent.write_s, "chunk_total_ms": made_ms + 1e3 * took_s}
        times |= dict.fromkeys(("request_prepare_ms", "pace_wait_ms", "header_write_ms"), 0.0)
        told = {
            "type": "chunk_stats",
            "trace_id": here.channel.name,
            "session_id": here.channel.name,
            "request_id": request,
            "chunk_index": chunk,
            "event_id": self._event(frames),
            **{name: round(value) for name, value in times.items()},
            "num_batches": sent.batches,
            "num_frames": sent.frames,
            "raw_bytes": sum(each.pixels.nbytes for each in frames),
            "ws_payload_bytes": sent.bytes,
        }
        await self._wire.send(msgspec.msgpack.encode(told))

    def _event(self, frames: list[Frame]) -> int | None:
        """Return the newest event that these frames show, None before any does."""
        epoch = max(each.epoch for each in frames)
        shown = [each for each in self._steered if each <= epoch]
        for old in sorted(shown)[:-1]:
            del self._steered[old]
        return self._steered[max(shown)] if shown else None

    async def _obey_all(self, here: Guest) -> None:
        while True:
            try:
                event: _Event = _read(_events, await self._wire.receive(LONGEST_EVENT))
                if event.kind in IGNORED:
                    continue
                if event.kind != "prompt" or not isinstance(event.payload, str) or not event.payload.strip():
                    raise ConfigError("this server takes events of kind prompt, whose payload is a text")
                if len(event.payload) > 2000:
                    raise ConfigError("a prompt has at most 2000 characters")
                epoch = await here.prompt(event.payload.strip(), "recache", 1)
                if event.event_id is not None:
                    self._steered[epoch] = int(event.event_id)
            except (ConfigError, DataError) as error:
                await self._refuse(f"invalid event: {error}")

    async def _refuse(self, message: str) -> None:
        await self._wire.send(msgspec.msgpack.encode({"type": "error", "content": message}))


def _format(init: _Init, frame: Frame) -> tuple[Encoder | None, dict[str, Any]]:
    """Return the encoder of the frames, None for raw ones, and what headers say of them."""
    height, width = frame.pixels.shape[:2]
    kind = init.realtime_output_format or "raw"
    if kind == "raw":
        about = {"format": "rgb24", "width": width, "height": height, "channels": 3, "bytes_per_frame": frame.pixels.nbytes}
        return None, {"content_type": "application/x-raw-rgb", "encoding": "raw", **about}
    most = init.realtime_preview_max_width or 0
    small = int(most) if 16 <= most < width else width
    size = small, max(1, round(height * small / width))
    quality = min(100, max(1, round(init.output_compression or QUALITIES[kind])))
    encoder = (Jpeg if kind == "jpeg" else Webp)(*size, 1, quality)
    about = {"source_width": width, "source_height": height, "preview_width": size[0], "preview_height": size[1]}
    about |= {"width": size[0], "height": size[1], "channels": 3, "bytes_per_frame": frame.pixels.nbytes}
    return encoder, {"content_type": f"image/{kind}", "format": kind, "encoding": kind, **about}


def _encoded(encoder: Encoder | None, frames: list[Frame]) -> list[bytes]:
    return [each.pixels.tobytes() if encoder is None else encoder.encode(each.pixels)[0] for each in frames]


def _read(decoder: msgspec.msgpack.Decoder[Any], data: str | bytes) -> Any:
    """Read a message.

    Raises:
        DataError: it is none of the protocol.
    """
    if isinstance(data, str):
        raise DataError("a text message; this socket reads msgpack")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DataError(str(error)) from error
