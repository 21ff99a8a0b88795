"""The event loop's record of streams and viewers, beside the thread that owns the device.

A frame goes from the device's thread into its channel, from there through an encoder of a small pool to the viewer, and is
forgotten once the viewer has painted it. Every place is bounded: the device makes no frames that the viewer does not come for.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

import av
import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import SessionError, StrobeError
from strobe.engine.video import VideoFile
from strobe.serve.keeper import Keeper, record_of
from strobe.serve.metrics import ON_TIME_MS, Metrics, log_event
from strobe.serve.protocol import (
    Codec,
    Effective,
    Ended,
    Error,
    Flushed,
    FromServer,
    Made,
    PaintedFrame,
    Picture,
    Received,
    RecordingState,
    State,
)
from strobe.serve.scheduler import NotOpenedError
from strobe.serve.streams import Block, LiveStream, PromptTimes
from strobe.serve.worker import StreamGoneError, Worker

CLIPS: Final = 16
"""Finished clips that are kept."""
LONGEST_CLIP_S: Final = 600


@dataclass(kw_only=True, eq=False, slots=True)
class _Growing:
    """A clip that grows on the server's disk, and what became of it."""

    stream: str
    video: VideoFile
    most_frames: int
    ended: RecordingState | None = None


class Recordings:
    """The clips of a server, at most one that grows for each stream. One thread writes them: frames keep their order.

    Args:
        ended: called on that thread with the stream's name and its clip when the clip ends by itself: it could not be written, or
            is as long as a clip may be.
    """

    def __init__(self, metrics: Metrics, ended: Callable[[str, RecordingState], None]) -> None:
        self.clips: dict[str, Path] = {}
        self._metrics, self._ended = metrics, ended
        self._growing: dict[str, _Growing] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="strobe-record")
        self._folder = tempfile.TemporaryDirectory(prefix="strobe-serve-")

    def start(self, stream: str, fps: int) -> None:
        """Begin to write the frames that are made from now on."""
        growing = self._growing.get(stream)
        if growing is None or growing.ended is not None:
            video = VideoFile(Path(self._folder.name) / f"{secrets.token_urlsafe(16)}.mp4", fps=fps)
            self._growing[stream] = _Growing(stream=stream, video=video, most_frames=LONGEST_CLIP_S * fps)

    def add(self, stream: str, frames: NDArray[np.uint8]) -> None:
        """Write frames if the stream is being recorded."""
        if stream in self._growing:
            self._writer.submit(self._write, self._growing[stream], frames)

    async def end(self, stream: str) -> RecordingState:
        """Finish the clip; one that ended by itself is told once more."""
        growing = self._growing.pop(stream, None)
        if growing is None:
            return RecordingState(on=False, download="", frames=0)
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._finish, growing)

    def stop(self, stream: str) -> None:
        """End and remove a clip that nobody has asked for in time; one that ended by itself can be downloaded."""
        growing = self._growing.pop(stream, None)
        if growing is not None and growing.ended is None:
            self._writer.submit(growing.video.close)
            self._writer.submit(lambda: growing.video.written.unlink(missing_ok=True))

    def close(self) -> None:
        for stream in list(self._growing):
            self.stop(stream)
        self._writer.shutdown(wait=True)
        self._folder.cleanup()

    def _write(self, growing: _Growing, frames: NDArray[np.uint8]) -> None:
        """Append frames; when that fails, or no more may come, the clip ends and its viewer is told."""
        import torch

        if growing.ended is not None:
            return
        room = growing.most_frames - growing.video.num_frames
        try:
            growing.video.write(torch.from_numpy(frames[:room]))
        except StrobeError as error:
            clip = self._finish(growing, error)
        else:
            if len(frames) < room:
                return
            clip = self._finish(growing, why=f"a clip has at most {LONGEST_CLIP_S} s; record another one")
        self._ended(growing.stream, clip)

    def _finish(self, growing: _Growing, error: StrobeError | None = None, why: str = "") -> RecordingState:
        """Close a clip's file and keep the frames in it that are whole. Again: returns the same."""
        if growing.ended is not None:
            return growing.ended
        try:
            growing.video.close()
        except StrobeError as late:
            error = error or late
        frames, path, download = growing.video.num_frames, growing.video.written, ""
        if error is not None:
            why = "the server could not write more of the clip; its log says why"
            self._metrics.not_recorded.inc()
            log_event("recording failed", stream=growing.stream, frames=frames, error=str(error))
        if frames:
            name = secrets.token_urlsafe(24)
            self.clips[name], download = path, f"/v1/clips/{name}"
        while len(self.clips) > CLIPS:
            self.clips.pop(next(iter(self.clips))).unlink(missing_ok=True)
        growing.ended = RecordingState(on=False, download=download, frames=frames, why=why)
        return growing.ended


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WaitingFrame:
    """A frame that was made and not yet painted."""

    number: int
    epoch: int
    pixels: NDArray[np.uint8]
    block: Block | None


@dataclass(kw_only=True, eq=False)
class Channel:
    """The event loop's part of a stream.

    Args:
        secret: opens it again.
        frames: made and not painted, in order.
        cursor: number of the frame that is sent next.
        received: number of the first frame that the viewer has not received.
        painted: number of the first frame that it has not painted.
        epochs: when the prompt of each epoch arrived that the viewer has not seen yet, by the monotonic clock.
    """

    name: str
    secret: str
    codec: Codec
    preset: str
    generation: int = 0
    frames: deque[WaitingFrame] = field(default_factory=deque)
    cursor: int = 0
    received: int = 0
    painted: int = 0
    playing: bool = True
    asleep: bool = False
    send: Callable[[FromServer], None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    left_s: float = 0.0
    quiet_s: float = 0.0
    epochs: dict[int, float] = field(default_factory=dict)
    stalls: int = 0
    stall_ms: float = 0.0
    encode_ms: float = 0.0
    differs: str = ""
    """What differs from where the stream was made before it was taken over; empty: nothing, its bits are the same."""

    def tell(self, message: FromServer) -> None:
        if self.send is not None:
            self.send(message)

    def flush(self, generation: int, frame: int) -> None:
        """Drop all frames; the next one has number `frame`."""
        self.frames.clear()
        self.generation, self.cursor, self.received, self.painted = generation, frame, frame, frame
        self.epochs.clear()
        self.changed.set()


T = TypeVar("T")
ENCODERS: Final = max(2, len(os.sched_getaffinity(0)) // 2)
JPEGS_UNDER_WAY: Final = 3
"""JPEG pictures sent and not received; a slow connection gets fewer frames made, not older ones."""
PICTURES_UNDER_WAY: Final = 64
"""The same of H.264."""


class Hub:
    """All streams of a server.

    Args:
        loop: the event loop that everything here but `made` and `failed` runs on.
        suspend_s: a stream that is paused or unwatched for so long is moved to main memory.
        resume_s: a stream that nobody watches is closed after so long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, *, suspend_s: float, resume_s: float) -> None:
        self.loop, self.metrics = loop, metrics
        self.suspend_s, self.resume_s = suspend_s, resume_s
        self._worker: Worker | None = None
        self.channels: dict[str, Channel] = {}
        self.draining = False
        self.keeper: Keeper | None = None
        self.taking = asyncio.Lock()
        self._secrets: dict[str, str] = {}
        self._rewinding: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(ENCODERS, thread_name_prefix="strobe-encode")
        self.recordings = Recordings(metrics, self.recorded)

    @property
    def fps(self) -> int:
        return self.worker.model.defaults.fps

    @property
    def worker(self) -> Worker:
        """The thread that owns the device, once it has started; built with this hub's `made` and `failed`."""
        assert self._worker is not None
        return self._worker

    def begin(self, worker: Worker) -> None:
        """Take the worker of the streams to come; `close` ends it."""
        self._worker = worker

    async def on_device(self, work: Callable[[], T]) -> T:
        """Run a function on the device's thread, and await its result. It runs even if whoever awaits it is cancelled.

        Raises:
            StrobeError: what it raised, also where that is no error of ours, such as memory that runs out.
        """
        coming = asyncio.wrap_future(self.worker.submit(work))
        try:
            return await waited(coming)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, StrobeError):
                raise
            log_event("device failed", error=str(error))
            raise SessionError(f"the device failed ({error}); try again, or ask for a preset that needs less") from error

    async def new_stream(self, name: str, preset: str, make: Callable[[], LiveStream]) -> LiveStream:
        """Make a stream on the device's thread if it fits by then; close it again if whoever awaits it is cancelled.

        Raises:
            StrobeError: others took its place meanwhile, or what `make` raised.
        """

        def admitted() -> LiveStream:
            if (refused := self.worker.refusal(preset)) is not None:
                raise refused
            return make()

        try:
            return await self.on_device(admitted)
        except asyncio.CancelledError:
            self.worker.submit(lambda: self.worker.drop(name))
            raise

    async def refusal(self, preset: str) -> NotOpenedError | None:
        """Say why one more stream does not fit, after unwatched and paused ones were moved to main memory; None if it does."""
        found = await self.on_device(lambda: self.worker.refusal(preset))
        if found is None:
            return None
        for channel in [each for each in self.channels.values() if each.send is None or not each.playing]:
            if not channel.asleep:
                await self.suspend(channel)
        return await self.on_device(lambda: self.worker.refusal(preset))

    def add(self, stream: LiveStream, codec: Codec, secret: str = "") -> Channel:
        """Make the channel of a stream that was opened, forked, or taken over with its secret."""
        secret = secret or secrets.token_urlsafe(24)
        channel = Channel(name=stream.name, secret=secret, codec=codec, preset=stream.origin.preset, asleep=stream.asleep)
        channel.flush(stream.generation, stream.frames_made)
        channel.left_s = channel.quiet_s = monotonic()
        self.channels[stream.name] = channel
        self._secrets[secret] = stream.name
        return channel

    def find(self, secret: str) -> Channel | None:
        for known, name in self._secrets.items():
            if secrets.compare_digest(known.encode(), secret.encode()):
                return self.channels.get(name)
        return None

    async def drop(self, channel: Channel) -> None:
        self.channels.pop(channel.name, None)
        self._secrets.pop(channel.secret, None)
        channel.frames.clear()
        channel.changed.set()
        self.recordings.stop(channel.name)
        if self.keeper is not None:
            self.keeper.end(channel.name)
        log_event("stream closed", stream=channel.name)
        await self.on_device(lambda: self.worker.drop(channel.name))

    def made(self, name: str, block: Block) -> None:
        """Take a new frame block over to the event loop, once its log is kept. Called on the device's thread."""

        def hand_out() -> None:
            self.loop.call_soon_threadsafe(self._made, name, block)

        if self.keeper is None:
            hand_out()
        else:
            self.keeper.made(self.worker, name, block, hand_out)
        self.metrics.blocks.observe(block.block_ms() / 1e3)
        self.metrics.busy.inc(block.block_ms() / 1e3)

    async def keep(self, channel: Channel) -> None:
        """Keep a stream, which begins here or has changed. Returns when its log is on the disk.

        Raises:
            StrobeError: a stream that begins cannot be kept.
        """
        keeper, worker, name = self.keeper, self.worker, channel.name
        if keeper is None:
            return
        record, image = await self.on_device(lambda: (record_of(worker, name), worker.stream(name).origin.image))
        if keeper.has(name):
            await asyncio.wrap_future(keeper.write(record))
        else:
            await asyncio.to_thread(keeper.begin, channel.secret, record, image)

    def failed(self, name: str, error: BaseException) -> None:
        """Take the failure of a stream over to the event loop. Called on the device's thread."""
        self.loop.call_soon_threadsafe(self._failed, name, error)

    def not_kept(self, name: str) -> None:
        """Tell a viewer that its stream is kept no longer. Called from any thread."""
        told = "the server cannot keep this stream now: if the server ends, the stream comes back in an older state"
        self.loop.call_soon_threadsafe(self._tell, name, Error(message=told))

    def recorded(self, name: str, clip: RecordingState) -> None:
        """Take a clip that ended by itself over to the event loop. Called on the recordings' thread."""
        self.loop.call_soon_threadsafe(self._tell, name, clip)

    def _tell(self, name: str, message: FromServer) -> None:
        if name in self.channels:
            self.channels[name].tell(message)

    def _failed(self, name: str, error: BaseException) -> None:
        self.metrics.failed.inc()
        log_event("stream failed", stream=name, error=type(error).__name__)
        channel = self.channels.pop(name, None)
        if channel is not None:
            self._secrets.pop(channel.secret, None)
            self.recordings.stop(name)
            if self.keeper is not None:
                self.keeper.end(name)
            told = str(error) if isinstance(error, StrobeError) else f"the server could not go on: {type(error).__name__}"
            channel.tell(Ended(reason=told, resume_s=0.0))

    def _made(self, name: str, block: Block) -> None:
        channel = self.channels.get(name)
        if block.woken_ms:
            self.metrics.wake.observe(block.woken_ms / 1e3)
        for phase, spent in block.phases.items():
            self.metrics.phases.labels(phase.removesuffix("_ms")).observe(spent / 1e3)
        if channel is None or block.generation != channel.generation:
            return
        seen = block.first_frame + len(block.frames) <= channel.painted  # made again for a viewer who has painted it
        if block.entered is not None and not seen:
            entry = block.entered
            channel.tell(
                Effective(
                    epoch=entry.epoch, frame_block=block.index, frame=block.first_frame, text=entry.text, **_parts(block.timed)
                )
            )
            while channel.frames and channel.frames[-1].number >= channel.cursor:
                channel.frames.pop()  # the viewer shows a new prompt at once: what it was not sent of the old one is of no use
        for offset, pixels in enumerate(block.frames):
            if block.first_frame + offset < channel.painted:
                continue
            last = block if offset == len(block.frames) - 1 else None
            channel.frames.append(WaitingFrame(number=block.first_frame + offset, epoch=block.epoch, pixels=pixels, block=last))
        channel.changed.set()
        if not seen:
            self.recordings.add(name, block.frames)

    def seen(self, channel: Channel, message: PaintedFrame) -> None:
        if message.generation != channel.generation:
            return
        painted = min(max(channel.painted, message.frame + 1), channel.cursor)
        shown = sum(channel.painted <= each.number < painted and each.epoch == message.epoch for each in channel.frames)
        self.metrics.painted.labels("on time" if message.late_ms <= ON_TIME_MS else "late").inc(shown)
        channel.received = min(max(channel.received, painted + message.waiting), channel.cursor)
        for epoch in [each for each in channel.epochs if each <= message.epoch]:
            self.metrics.prompt_to_pixel.observe(monotonic() - channel.epochs.pop(epoch))
        self.metrics.stalls.inc(max(0, message.stalls - channel.stalls))
        self.metrics.stall_seconds.inc(max(0.0, min(message.stall_ms - channel.stall_ms, 60_000.0)) / 1e3)
        channel.stalls, channel.stall_ms = message.stalls, message.stall_ms
        self.passed(channel, painted)

    def passed(self, channel: Channel, frame: int) -> None:
        """Let go of all frames before `frame`, which the viewer has painted."""
        channel.painted = min(max(channel.painted, frame), channel.cursor)
        channel.received = max(channel.received, channel.painted)
        while channel.frames and channel.frames[0].number < channel.painted:
            channel.frames.popleft()
        channel.quiet_s = monotonic()
        channel.changed.set()
        self.tell_worker(channel)

    def received(self, channel: Channel, message: Received) -> None:
        if message.generation == channel.generation:
            channel.received = min(max(channel.received, message.frame + 1), channel.cursor)
            channel.quiet_s = monotonic()
            channel.changed.set()

    def tell_worker(self, channel: Channel) -> None:
        """Tell the device's thread what is painted and whether the stream is to run."""
        running = channel.playing and channel.send is not None and not channel.asleep and not self.draining
        self.worker.painted(channel.name, channel.generation, channel.painted, running)

    async def pictures(
        self, channel: Channel, post: Callable[[FromServer], None], send: Callable[[bytes, bytes], Awaitable[None]]
    ) -> None:
        """Encode and send frames as they come, until cancelled, while the channel's messages go to `post`."""
        encoder = None
        generation, width, height = -1, 0, 0
        most = JPEGS_UNDER_WAY if channel.codec == "jpeg" else PICTURES_UNDER_WAY
        while True:
            frame = next((each for each in channel.frames if each.number >= channel.cursor), None)
            if channel.send != post or frame is None or channel.cursor - channel.received >= most:
                channel.changed.clear()
                await channel.changed.wait()
                continue
            if encoder is None or generation != channel.generation:
                height, width = frame.pixels.shape[:2]
                encoder, generation = Encoder(channel.codec, width, height, self.fps), channel.generation
            began, made_us = monotonic(), time.time_ns() // 1000
            data, key = await self.loop.run_in_executor(self._pool, encoder.encode, frame.pixels)
            spent = monotonic() - began
            if generation != channel.generation or channel.send != post:
                continue
            channel.cursor, channel.encode_ms = frame.number + 1, channel.encode_ms + spent * 1e3
            picture = Picture(
                codec=channel.codec,
                key=key,
                generation=generation,
                frame=frame.number,
                epoch=frame.epoch,
                made_us=made_us,
                data=data,
            )
            await send(picture.header(), data)
            self.metrics.encode.observe(spent)
            self.metrics.pictures.labels(channel.codec).inc()
            self.metrics.sent_bytes.inc(len(data))
            if frame.block is not None:
                self._tell_made(channel, frame.block)

    def _tell_made(self, channel: Channel, block: Block) -> None:
        content_ms = 1e3 * len(block.frames) / self.fps
        phases = {"denoise_ms": 0.0, "commit_ms": 0.0, "decode_ms": 0.0} | block.phases
        channel.tell(
            Made(
                frame_block=block.index,
                first_frame=block.first_frame,
                frames=len(block.frames),
                epoch=block.epoch,
                generation=block.generation,
                block_ms=block.block_ms(),
                encode_ms=channel.encode_ms,
                queued=len(channel.frames),
                ahead_ms=1e3 * len(channel.frames) / self.fps,
                real_time_factor=content_ms / block.block_ms(),
                cache=block.cache,
                **phases,
            )
        )
        channel.encode_ms = 0.0

    async def rewind(self, channel: Channel, work: Callable[[], LiveStream], why: str) -> None:
        """Reset a stream or take it to a branch. Once begun it is finished, even if whoever awaits it is cancelled.

        Raises:
            StrobeError: what `work` raised; the stream plays on as it was.
        """
        rewinding = asyncio.create_task(self._rewind(channel, work, why))
        self._rewinding.add(rewinding)
        rewinding.add_done_callback(self._rewinding.discard)
        await waited(rewinding)

    async def _rewind(self, channel: Channel, work: Callable[[], LiveStream], why: str) -> None:
        stream = await self.on_device(work)
        channel.asleep = False
        await self.keep(channel)
        channel.flush(stream.generation, stream.frames_made)
        channel.preset = stream.origin.preset
        channel.tell(
            Flushed(
                generation=stream.generation,
                frame=stream.frames_made,
                prompt=stream.log[-1].text,
                seed=stream.origin.seed,
                preset=stream.origin.preset,
                why=why,
            )
        )
        self.tell_worker(channel)

    async def housekeeping(self) -> None:
        """Suspend streams that are paused or unwatched, and close those left alone too long. Runs until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            await self._keep_all()
            states = ["suspended" if each.asleep else "playing" if each.playing else "paused" for each in self.channels.values()]
            for state in ("playing", "paused", "suspended"):
                self.metrics.streams.labels(state).set(states.count(state))
            self.metrics.viewers.set(sum(channel.send is not None for channel in self.channels.values()))
            self.metrics.queued.set(sum(len(channel.frames) for channel in self.channels.values()))

    async def _keep_all(self) -> None:
        """Its variable ends with it: the loop would hold the channel that was closed last."""
        for channel in list(self.channels.values()):
            await self._keep(channel)

    async def _keep(self, channel: Channel) -> None:
        now = monotonic()
        away = channel.send is None
        if away and now - channel.left_s > self.resume_s:
            await self.drop(channel)
            return
        idle = now - (channel.left_s if away else channel.quiet_s)
        if not channel.asleep and (away or not channel.playing) and idle > self.suspend_s:
            await self.suspend(channel)

    async def suspend(self, channel: Channel) -> None:
        """Move a stream to main memory, unless it is closed or woken meanwhile."""
        channel.asleep = True
        self.tell_worker(channel)
        try:
            spent_ms = await self.on_device(lambda: self.worker.stream(channel.name).suspend())
            self.metrics.suspend.observe(spent_ms / 1e3)
        except StreamGoneError:
            pass
        except StrobeError:  # it stays where it is
            channel.asleep = False
        if not channel.asleep or self.channels.get(channel.name) is not channel:
            return
        self.metrics.suspended.inc()
        channel.tell(State(state="suspended"))
        log_event("stream suspended", stream=channel.name)

    async def close(self) -> None:
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)
        self._pool.shutdown(wait=True)
        if self.keeper is not None:
            await asyncio.to_thread(self.keeper.close)
        self.recordings.close()


async def waited(work: asyncio.Future[T]) -> T:
    """Await work that is done even if whoever awaits it is cancelled; its error is nobody's then.

    `asyncio.shield` alone leaves such an error to be logged, with a traceback that holds the stream.
    """
    work.add_done_callback(lambda each: each.cancelled() or each.exception())
    return await asyncio.shield(work)


def _parts(timed: PromptTimes | None) -> dict[str, float]:
    """Return where the time of a prompt went until its frames were there, in ms; nothing for one that a stream began with."""
    if timed is None or timed.encoded_s is None or timed.begun_s is None or timed.made_s is None:
        return {}
    return {
        "wait_ms": 1e3 * (timed.asked_s - timed.arrived_s + timed.begun_s - timed.encoded_s),
        "text_ms": 1e3 * (timed.encoded_s - timed.asked_s),
        "block_ms": 1e3 * (timed.made_s - timed.begun_s),
    }


def describe(error: BaseException) -> str:
    """Describe an error to a viewer: the package's own errors by their message, others by their type alone."""
    return str(error) if isinstance(error, StrobeError) else f"the server could not do that: {type(error).__name__}"


# Encoding of frames to pictures for the network: H.264 as Annex B, or JPEG. On the CPU: an H200 has no video encoder.

KEY_EVERY_S: Final = 2
"""Seconds between frames that a decoder can begin with."""
QUALITY: Final = 85
"""Of a JPEG, 1 to 100."""


class Encoder:
    """An encoder of one viewer's pictures, in order: each frame gives its picture at once.

    H.264 is not reordered and has the parameter sets before every key frame; a JPEG stands by itself.

    Args:
        width, height: of a frame, even.
    """

    def __init__(self, codec: Codec, width: int, height: int, fps: int) -> None:
        context = av.CodecContext.create("libx264" if codec == "h264" else "mjpeg", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.time_base = width, height, Fraction(1, fps)
        if codec == "h264":
            context.options = {
                "preset": "ultrafast",
                "tune": "zerolatency",
                "x264-params": "repeat-headers=1:annexb=1:scenecut=0:bframes=0:sliced-threads=1",
                "crf": "20",
            }
            context.pix_fmt, context.framerate, context.profile = "yuv420p", Fraction(fps), "Baseline"
            context.gop_size, context.thread_count = fps * KEY_EVERY_S, 1
        else:
            scale = max(1, round((100 - QUALITY) / 3))  # of MPEG's quantisers, 1 is the finest
            context.pix_fmt, context.options = "yuvj420p", {"qmin": str(scale), "qmax": str(scale), "q:v": str(scale)}
        self._context, self._count = context, 0

    def encode(self, frame: NDArray[np.uint8]) -> tuple[bytes, bool]:
        """Encode a frame, uint8 [Y, X, 3], and return its bytes, and whether a decoder can begin with it."""
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format=self._context.pix_fmt)
        picture.pts, self._count = self._count, self._count + 1
        packets = self._context.encode(picture)
        return b"".join(bytes(packet) for packet in packets), any(packet.is_keyframe for packet in packets)
