"""Messages between a viewer and the server: JSON text both ways, pictures as binary messages of the server.

A connection carries one stream. The viewer opens it with `Open`; the server answers `Welcome` or `Refused`. Numbers of frames and
frame blocks count from the start of the stream. `generation` counts its resets and returns to a branch: pictures of an earlier
generation are of no more use. `epoch` counts the prompts that took effect.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from strobe.core.errors import DataError

VERSION: Final = 1
"""Of the protocol. A viewer that asks for another is refused with this one."""
Codec = Literal["h264", "jpeg"]
Mode = Literal["recache", "soft", "interpolate", "shot"]
CODECS: Final[dict[Codec, int]] = {"h264": 1, "jpeg": 2}
"""Number of each codec in the header of a picture."""
LONGEST_PROMPT: Final = 2000
LONGEST_IMAGE: Final = 6_000_000  # characters of a start image in base64
LONGEST_MESSAGE: Final = LONGEST_IMAGE + 16_384  # bytes of one message of a viewer
MARKS: Final = 8
"""Branches that a stream keeps."""

Text = Annotated[str, Meta(max_length=LONGEST_PROMPT)]
Name = Annotated[str, Meta(max_length=64)]
Seed = Annotated[int, Meta(ge=0, lt=1 << 53)]
Count = Annotated[int, Meta(ge=0, lt=1 << 48)]


class Open(Struct, tag="open", kw_only=True, forbid_unknown_fields=True):
    """Start a stream, or go on with one.

    `resume` is the secret of a stream that this viewer had; `frame` of `generation` is then the first one it has not painted.
    `image` is a picture to start from, in base64: PNG, JPEG or WebP.
    """

    v: int
    prompt: Text = ""
    seed: Seed = 0
    preset: Name = ""
    codec: Codec = "h264"
    image: Annotated[str, Meta(max_length=LONGEST_IMAGE)] = ""
    resume: Annotated[str, Meta(max_length=128)] = ""
    frame: Count | None = None
    generation: Count = 0


class Prompt(Struct, tag="prompt", kw_only=True, forbid_unknown_fields=True):
    """Steer the stream; `typed_ms` is the viewer's clock, sent back with the answer."""

    text: Text
    mode: Mode = "recache"
    over: Annotated[int, Meta(ge=1, le=64)] = 4
    typed_ms: float = 0.0


class Play(Struct, tag="play", kw_only=True, forbid_unknown_fields=True):
    """Go on making frames."""


class Pause(Struct, tag="pause", kw_only=True, forbid_unknown_fields=True):
    """Make no more frames until `Play`."""


class Reset(Struct, tag="reset", kw_only=True, forbid_unknown_fields=True):
    """Begin again at frame 0 with this prompt, seed and preset; those that are left out stay as they are."""

    prompt: Text | None = None
    seed: Seed | None = None
    preset: Name | None = None


class Mark(Struct, tag="mark", kw_only=True, forbid_unknown_fields=True):
    """Keep the stream as it is at its next frame block, as a branch to return to."""

    name: Name


class Go(Struct, tag="go", kw_only=True, forbid_unknown_fields=True):
    """Return to a branch; a new generation begins there."""

    branch: Count


class Fork(Struct, tag="fork", kw_only=True, forbid_unknown_fields=True):
    """Make a second stream that goes on from a branch; its secret comes back in `Forked`."""

    branch: Count


class Record(Struct, tag="record", kw_only=True, forbid_unknown_fields=True):
    """Begin or end writing the frames that are made to an mp4 on the server."""

    on: bool


class AskRecipe(Struct, tag="recipe", kw_only=True, forbid_unknown_fields=True):
    """Ask for a recipe from which this stream can be made again."""


class Received(Struct, tag="received", kw_only=True, forbid_unknown_fields=True):
    """Report the newest picture received. Few JPEG pictures are sent ahead of it, so a slow connection has no old ones."""

    frame: Count
    generation: Count


class PaintedFrame(Struct, tag="seen", kw_only=True, forbid_unknown_fields=True):
    """Report the last painted picture, its time and how many wait, so that the server does not make too many.

    `late_ms` is the painting's time less the picture's due time; `made_to_paint_ms` the time since the server handed it to the
    encoder, for a viewer that shares the server's clock, else 0. `stalls` and `stall_ms` count since the stream was opened.
    """

    frame: Count
    generation: Count
    epoch: Count
    waiting: Annotated[int, Meta(ge=0, le=100_000)] = 0
    late_ms: float = 0.0
    decode_ms: float = 0.0
    made_to_paint_ms: float = 0.0
    stalls: Count = 0
    stall_ms: float = 0.0


class Close(Struct, tag="close", kw_only=True, forbid_unknown_fields=True):
    """End the stream for good."""


FromViewer = Open | Prompt | Play | Pause | Reset | Mark | Go | Fork | Record | AskRecipe | Received | PaintedFrame | Close


class PresetOffer(Struct, kw_only=True):
    """A preset that runs here: time of a steady frame block, `measured` here or predicted, and bytes of one stream."""

    name: str
    block_ms: float
    measured: bool
    stream_bytes: int


class Welcome(Struct, tag="welcome", kw_only=True):
    """The stream is open. `secret`, not to be shared, opens it again; `note` says why it is not `bit_equal` then."""

    v: int
    stream: str
    secret: str
    model: str
    preset: str
    presets: list[PresetOffer]
    prompt: str
    seed: int
    width: int
    height: int
    fps: int
    block_frames: int
    codec: Codec
    words: dict[str, list[str]]
    examples: list[str]
    guide: str
    modes: dict[str, str]
    start_buffer_ms: float
    resumed_at_frame: int
    bit_equal: bool
    note: str
    generation: int = 0


class Prompted(Struct, tag="prompted", kw_only=True):
    """Prompt number `epoch` is accepted. `frame_block`, the first that follows it, is None while the text is encoded."""

    text: str
    mode: str
    epoch: int
    frame_block: int | None
    typed_ms: float


class Effective(Struct, tag="effective", kw_only=True):
    """A prompt took effect: the first picture of `epoch` is `frame`; pictures before it that were not sent are not.

    Its time on the server in ms: `wait_ms` waiting for the device, `text_ms` encoding its text, `block_ms` making its frames.
    All 0 for a stream's first prompt.
    """

    epoch: int
    frame_block: int
    frame: int
    text: str
    wait_ms: float = 0.0
    text_ms: float = 0.0
    block_ms: float = 0.0


class Made(Struct, tag="made", kw_only=True):
    """A frame block was made: its times in ms, and what the server still holds of it."""

    frame_block: int
    first_frame: int
    frames: int
    epoch: int
    generation: int
    block_ms: float
    denoise_ms: float
    commit_ms: float
    decode_ms: float
    encode_ms: float
    queued: int
    ahead_ms: float
    real_time_factor: float
    cache: dict[str, int]


class Flushed(Struct, tag="flushed", kw_only=True):
    """All frames of earlier generations are void; the next picture is number `frame`."""

    generation: int
    frame: int
    prompt: str
    seed: int
    preset: str
    why: str


class Marked(Struct, tag="marked", kw_only=True):
    """A branch is kept."""

    branch: int
    name: str
    frame_block: int
    frame: int


class Forked(Struct, tag="forked", kw_only=True):
    """A second stream exists; open it with `Open(resume=secret)` on a connection of its own."""

    stream: str
    secret: str
    branch: int


class RecordingState(Struct, tag="recorded", kw_only=True):
    """Recording began (`download` is empty) or ended, `why` if by itself; the clip is at that path for some minutes."""

    on: bool
    download: str
    frames: int
    why: str = ""


class PromptEntry(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A prompt of a stream, and the first frame block that follows it."""

    epoch: int = 0
    frame_block: int
    text: str
    mode: Mode
    over: int


class RecipeAnswer(Struct, tag="recipe", kw_only=True):
    """A recipe from which a machine of the same kind makes the stream again, bit by bit: `strobe generate --replay FILE`.

    `weights` and `image_sha256` are hexadecimal; `image` is base64, empty without one. `frame_blocks` were made so far.
    """

    v: int
    model: str
    weights: str
    preset: str
    seed: int
    prompts: list[PromptEntry]
    frame_blocks: int
    image: str
    image_sha256: str
    device: str
    versions: dict[str, str]


class State(Struct, tag="state", kw_only=True):
    """The state of the stream: playing, paused, or suspended to main memory."""

    state: Literal["playing", "paused", "suspended"]


class Refused(Struct, tag="refused", kw_only=True):
    """The stream was not opened. `fits` names presets that would be; `retry_s` is when to try again, None if that is unknown."""

    reason: str
    fits: list[str]
    retry_s: float | None


class Error(Struct, tag="error", kw_only=True):
    """A message was refused; the stream goes on unchanged."""

    message: str


class Ended(Struct, tag="ended", kw_only=True):
    """The server ends the stream. `resume_s`: for how long its secret opens it again."""

    reason: str
    resume_s: float


FromServer = (
    Welcome
    | Prompted
    | Effective
    | Made
    | Flushed
    | Marked
    | Forked
    | RecordingState
    | RecipeAnswer
    | State
    | Refused
    | Error
    | Ended
)

_HEADER: Final = struct.Struct("<BBBxIIIQ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One picture as it travels: a header of 24 bytes, little-endian, then the codec's bytes.

    | bytes | what |
    |---|---|
    | 0 | version of the protocol |
    | 1 | codec: 1 H.264 Annex B, 2 JPEG |
    | 2 | 1 if it can be decoded without those before it |
    | 3 | 0 |
    | 4-7 | generation |
    | 8-11 | frame |
    | 12-15 | epoch |
    | 16-23 | when the frame was handed to the encoder, microseconds since 1970 |
    """

    codec: Codec
    key: bool
    generation: int
    frame: int
    epoch: int
    made_us: int
    data: bytes

    def header(self) -> bytes:
        """Return the 24 bytes before the data."""
        return _HEADER.pack(VERSION, CODECS[self.codec], self.key, self.generation, self.frame, self.epoch, self.made_us)


def read_picture(data: bytes) -> Picture:
    """Read a binary message of the server."""
    if len(data) < _HEADER.size:
        raise DataError(f"a picture of {len(data)} bytes has no header; {_HEADER.size} bytes are the least")
    version, codec, key, generation, frame, epoch, made_us = _HEADER.unpack_from(data)
    names = {number: name for name, number in CODECS.items()}
    if version != VERSION or codec not in names:
        raise DataError(f"a picture of version {version} with codec {codec}; this client reads version {VERSION}, codecs {names}")
    return Picture(
        codec=names[codec], key=bool(key), generation=generation, frame=frame, epoch=epoch, made_us=made_us,
        data=data[_HEADER.size :],
    )  # fmt: skip


_viewer = msgspec.json.Decoder(FromViewer)
_server = msgspec.json.Decoder(FromServer)


def read_viewer(text: str | bytes) -> FromViewer:
    """Read a message of a viewer.

    Raises:
        DataError: it is none, or a field is missing, unknown or out of bounds; says which.
    """
    if len(text) > LONGEST_MESSAGE:
        raise DataError(f"a message of {len(text)} bytes; at most {LONGEST_MESSAGE} are read")
    try:
        found: FromViewer = _viewer.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DataError(f"not a message of this protocol: {error}; see docs/protocol.md") from error
    return found


def read_server(text: str | bytes) -> FromServer:
    """Read a message of the server."""
    try:
        found: FromServer = _server.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DataError(f"not a message of protocol version {VERSION}: {error}") from error
    return found


def write(message: FromViewer | FromServer) -> str:
    """Encode a message as text."""
    return msgspec.json.encode(message).decode()
