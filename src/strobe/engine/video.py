"""Frames written to a file as H.264, and a picture read as a frame."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from strobe.core.errors import ConfigError, DataError, SessionError, ShapeError, nearest
from strobe.core.files import not_written

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer, OutputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream
    from torch import Tensor


MOST_PIXELS: Final = 64_000_000
"""Of a picture that is read: more is a mistake, or meant to fill the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """The container of a file suffix, as FFmpeg names it, and its options."""

    muxer: str
    options: dict[str, str]


CODEC: Final = "libx264"
H264: Final = {"preset": "veryfast", "crf": "18", "x264-params": "sliced-threads=1:rc-lookahead=3:sync-lookahead=0"}
"""The encoder looks 4 frames ahead, not 11: at a killed process no more are lost; a file is as large."""
FORMATS: Final[dict[str, Format]] = {
    ".mp4": Format(  # playable, always
        muxer="mp4", options={"movflags": "+frag_every_frame+empty_moov+default_base_moof", "flush_packets": "1"}
    ),
    ".mkv": Format(muxer="matroska", options={"cluster_time_limit": "500", "flush_packets": "1"}),
}


class _File(io.FileIO):
    """A file that raises on its first error and ignores later writes, which PyAV would otherwise report once more."""

    failed = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        rest = memoryview(data)[len(data) if self.failed else 0 :]
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError:
            self.failed = True
            raise
        return len(data)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Output:
    container: OutputContainer
    stream: VideoStream
    size: tuple[int, int]


def check_video_path(path: Path) -> Format:
    """Check, before any work is done, that a clip could be written there; return its format.

    Raises:
        ConfigError: another suffix than those of `FORMATS` (names the nearest), a folder of that name, or no folder for it.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        hint = nearest(suffix, FORMATS)
        raise ConfigError(f"cannot write {str(path)!r}: unknown suffix {suffix!r}{hint}; allowed: {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {str(path)!r}: no folder {str(path.parent)!r}; create it first")
    if path.is_dir():
        raise ConfigError(f"cannot write {str(path)!r}: it is a folder; name a file, such as {str(path / f'clip{suffix}')!r}")
    return FORMATS[suffix]


def can_encode() -> bool:
    """Return whether this machine's PyAV has the encoder of clips."""
    import av

    return CODEC in av.codecs_available


def write_png(path: Path, pixels: Tensor) -> None:
    """Write a picture, uint8 [Y, X, 3], as PNG."""
    import av

    picture = av.VideoFrame.from_ndarray(pixels.numpy(), format="rgb24")
    encoder = av.CodecContext.create("png", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = picture.width, picture.height, "rgb24", Fraction(1)
    path.write_bytes(b"".join(bytes(packet) for packet in (*encoder.encode(picture), *encoder.encode())))


def read_image(path: Path, size: tuple[int, int]) -> Tensor:
    """Read a picture as a frame, uint8 [1, Y, X, 3] of height and width `size`: scaled to fill it, the middle of it kept.

    Raises:
        DataError: no such file, or no picture.
    """
    try:
        return decode_image(path.read_bytes(), size)
    except (OSError, DataError) as error:
        why = f"{error.strerror}; give a .png, .jpg or .webp file" if isinstance(error, OSError) else error
        raise DataError(f"cannot read the picture {path}: {why}") from error


def decode_image(data: bytes, size: tuple[int, int]) -> Tensor:
    """Read a picture of a file's bytes; see `read_image`.

    Raises:
        DataError: it is no picture, or has more than `MOST_PIXELS`.
    """
    import av
    import torch

    try:
        with cast("InputContainer", av.open(io.BytesIO(data))) as file:
            told = file.streams.video[0].codec_context
            if told.width * told.height > MOST_PIXELS:
                raise DataError(f"the start image has {told.width}x{told.height} pixels, and at most {MOST_PIXELS} are read")
            picture = next(file.decode(video=0))
            turns = picture.rotation // 90  # counterclockwise, as a camera that was held upright has it
            size = size[::-1] if turns % 2 else size
            scale = max(size[0] / picture.height, size[1] / picture.width)
            height, width = (
                max(wanted, round(scale * own)) for wanted, own in zip(size, (picture.height, picture.width), strict=True)
            )
            if height * width > MOST_PIXELS:  # of a line of pixels
                raise DataError(f"the start image has {told.width}x{told.height} pixels, too long and narrow; cut it")
            pixels = picture.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")
    except (OSError, av.FFmpegError, IndexError, StopIteration) as error:
        raise DataError("the start image has no PNG, JPEG or WebP picture in it that can be read") from error
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return torch.from_numpy(pixels[top : top + size[0], left : left + size[1]]).rot90(turns).unsqueeze(0)


class VideoFile:
    """A writer of frames to a file as they come. Used as a context manager it leaves a playable file even after an error.

    A clip grows beside its place, as `clip.partial.mp4`, and takes the place of an earlier one when it is complete: a killed
    process leaves both. An mp4 or mkv grows in fragments, so that all but the newest frames play at any moment; `close` puts the
    index of an mp4 first (faststart). A clip that an error ended takes its place if nothing stands there, else keeps its name.
    After a failed write the error says how much plays; a file of which nothing does is removed.

    Args:
        path: suffix .mp4 or .mkv.
        fps: frames per second.

    Raises:
        ConfigError: another suffix (names the nearest), no such folder, a folder of that name, or fps not positive.
        StrobeError: the file cannot be written.
    """

    def __init__(self, path: str | Path, *, fps: int) -> None:
        import av

        self._av = av
        self.path = Path(path)
        self._format = check_video_path(self.path)
        if fps <= 0:
            raise ConfigError(f"fps {fps} is not positive")
        self._fps = fps
        self._output: _Output | None = None
        self._closed = False
        self._file: _File | None = None
        self.broken = False
        """A write failed; its error says what is left of the file."""
        self.num_frames = 0
        self._place = self.path.resolve()  # of a link what it names
        self._is_stream = self.path.exists() and not self.path.is_file()
        self.written = self.path
        """Where the frames are: under a name of its own while the clip grows, and in its place when that is taken."""
        with self._clear_errors():  # now, not after the first frame block, is the time to learn that it cannot be written
            if self.path.exists():
                self.path.open("ab").close()
            if not self._is_stream:
                self._begin().close()
                self.written.unlink()

    def write(self, frames: Tensor) -> None:
        """Add frames, uint8 [F, Y, X, 3] on the CPU, all of one size. The last row or column of odd sizes is repeated.

        Raises:
            ShapeError: not such frames, or another size than before.
            StrobeError: the disk is full or the file cannot be written.
            SessionError: the writer was closed or failed before.
        """
        import torch

        if self._closed or self.broken:
            raise SessionError(f"{self.path} is {'closed' if self._closed else 'incomplete'}; open another VideoFile")
        if frames.dim() != 4 or frames.shape[-1] != 3 or frames.dtype != torch.uint8:
            raise ShapeError(f"frames: got {frames.dtype} {tuple(frames.shape)}, expected torch.uint8 [F, Y, X, 3]")
        size = (frames.shape[1], frames.shape[2])
        if self._output is not None and self._output.size != size:
            given, own = (f"{height}x{width}" for height, width in (size, self._output.size))
            raise ShapeError(f"frames: got {given}, the clip is {own}")
        with self._clear_errors():
            if self._output is None:
                self._output = self._open(size)
            for pixels in self._padded(frames).numpy():
                self._encode(self._output, self._av.VideoFrame.from_ndarray(pixels, format="rgb24"))

    def close(self) -> None:
        """Finish the clip and move it to its place. Closing twice does nothing; without a single frame there is no file."""
        self._close(complete=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close(complete=kind is None)

    def _close(self, *, complete: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._output is not None and not self.broken:
            with self._clear_errors():
                self._finish(self._output)
                self._settle(complete=complete)

    def _begin(self) -> _File:
        """Create a new file with an unused name beside the clip's place."""
        if self._is_stream:
            return _File(self.path, "wb")
        for number in itertools.count(1):
            again = f".{number}" if number > 1 else ""
            self.written = self._place.with_name(f"{self._place.stem}.partial{again}{self._place.suffix}")
            with suppress(FileExistsError):
                return _File(self.written, "xb")
        raise AssertionError("numbers do not end")

    def _settle(self, *, complete: bool) -> None:
        """Move the clip to its place: a complete one always, a partial one if nothing stands there."""
        if not self._is_stream and (complete or not self._place.exists()):
            self.written.replace(self._place)
            self.written = self.path

    def _open(self, size: tuple[int, int]) -> _Output:
        self._file = self._begin()
        container = self._av.open(self._file, "w", format=self._format.muxer, container_options=self._format.options)
        stream = container.add_stream(CODEC, rate=self._fps, options=H264)
        stream.pix_fmt, stream.gop_size = "yuv420p", self._fps
        stream.height, stream.width = (side + side % 2 for side in size)
        return _Output(container=container, stream=stream, size=size)

    def _encode(self, output: _Output, frame: VideoFrame) -> None:
        frame.pts, frame.time_base = self.num_frames, Fraction(1, self._fps)
        output.container.mux(output.stream.encode(frame))
        self.num_frames += 1

    def _finish(self, output: _Output) -> None:
        output.container.mux(output.stream.encode(None))
        output.container.close()
        assert self._file is not None
        if not self._is_stream:
            os.fsync(self._file.fileno())
        self._file.close()
        if self._format.muxer == "mp4" and not self._is_stream:
            self._index_first()

    def _index_first(self) -> None:
        """Copy the fragments into a plain file with the index in front, so that a browser can start at once."""
        target = self.written.with_name(f".{self.written.stem}.index.mp4")
        try:
            options = {"movflags": "+faststart"}
            with self._av.open(str(self.written)) as source, self._av.open(str(target), "w", container_options=options) as copy:
                stream = copy.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.dts is not None:
                        packet.stream = stream
                        copy.mux(packet)
            target.replace(self.written)
        finally:
            target.unlink(missing_ok=True)

    def _padded(self, frames: Tensor) -> Tensor:
        import torch

        if frames.shape[1] % 2:
            frames = torch.cat([frames, frames[:, -1:]], dim=1)
        if frames.shape[2] % 2:
            frames = torch.cat([frames, frames[:, :, -1:]], dim=2)
        return frames.contiguous()

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._av.FFmpegError) as error:
            self.broken = True
            cause = error.__cause__ or error  # PyAV wraps what the file said
            left = self._left()
            raise not_written(self.path, cause if isinstance(cause, OSError) else OSError(str(cause)), then=left) from error

    def _left(self) -> str:
        """Close the file after a failed write, remove it if nothing of it plays, and describe what is left."""
        if self._file is None:
            return ""
        for close in (self._output.container.close, self._file.close) if self._output else (self._file.close,):
            with suppress(OSError, self._av.FFmpegError):
                close()
        if not self.written.is_file():  # a device keeps nothing, and reading it may have no end
            return ""
        playable = self._keep_whole()
        self.num_frames = playable
        if not playable:
            self.written.unlink(missing_ok=True)
            return "nothing of it plays, so it is removed; "
        self._settle(complete=False)
        own = "" if self.written == self.path else f" as {self.written}"
        return f"the first {playable} of its frames are kept{own}; "

    def _keep_whole(self) -> int:
        """Cut a half-written packet, at which some players stop, off the end of an mp4, and count the frames that play.

        Frames before the last key frame are counted by their packets, the others by decoding.
        """
        packets: list[Packet[VideoStream]] = []
        count = 0
        with suppress(OSError, self._av.FFmpegError), self._av.open(str(self.written)) as source:
            with suppress(OSError, self._av.FFmpegError):
                packets.extend(packet for packet in source.demux(video=0) if packet.size and not packet.is_corrupt)
            count = max((index for index, packet in enumerate(packets) if packet.is_keyframe), default=0)
            for packet in (*packets[count:], None):
                count += len(source.streams.video[0].decode(packet))
        if self._format.muxer == "mp4" and packets:
            os.truncate(self.written, max(packet.pos + packet.size for packet in packets if packet.pos is not None))
        return count
