"""Lines of a run that loads a server of live streams: the server, and each viewer that came."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from strobe.perf.records.base import Line, Prose

Arrivals = Literal["poisson", "together"]
"""Viewers come at random moments and leave, or all at once and stay."""
Refusal = Literal["", "refused", "failed"]


class Server(Line, frozen=True, kw_only=True):
    """The server that a run put under load, as the server described itself."""

    url: Annotated[str, Meta(description="address of the server")]
    own: Annotated[bool, Meta(description="true: the run started the server on this machine; false: it was running already")]
    model: Annotated[str, Meta(description="model of the streams")]
    device: Annotated[str, Meta(description="device that the server runs on; empty: not known")]
    width: Annotated[int, Meta(description="width of a picture, pixels")]
    height: Annotated[int, Meta(description="height of a picture, pixels")]
    fps: Annotated[int, Meta(description="pictures per second of video")]
    block_frames: Annotated[int, Meta(description="number of pictures in a steady frame block")]
    start_buffer_ns: Annotated[int, Meta(description="length of video that a viewer buffers before it plays, ns")]


class Served(Line, frozen=True, kw_only=True):
    """The server's own account of one load: what it did while the viewers were there."""

    load: Annotated[float, Meta(description="requested mean number of concurrent viewers")]
    wall_ns: Annotated[int, Meta(description="length of the load, ns")]
    blocks: Annotated[int, Meta(description="number of frame blocks made")]
    busy_ns: Annotated[int, Meta(description="total time that frame blocks held the device, ns")]
    pictures: Annotated[int, Meta(description="number of pictures encoded")]
    encode_ns: Annotated[int, Meta(description="total time to encode them, over all encoding threads, ns")]
    stream_bytes: Annotated[
        int | None,
        Meta(description="device memory of one more stream of the server's preset, measured at its start; null: not on a GPU"),
    ]
    suspend_ns: Annotated[
        int | None, Meta(description="mean time that the device was held to move a stream to main memory, ns; null: never")
    ]
    wake_ns: Annotated[int | None, Meta(description="mean time that the device was held to bring a stream back, ns; null: never")]


class Viewer(Line, frozen=True, kw_only=True):
    """One viewer of the server: arrival, admission and playback."""

    load: Annotated[float, Meta(description="requested mean number of concurrent viewers")]
    arrivals: Annotated[
        Arrivals, Meta(description="`poisson`: viewers come and go at random; `together`: all come at once and stay")
    ]
    viewer: Annotated[int, Meta(description="number of the viewer within this load, from 0, in order of arrival")]
    preset: Annotated[
        str,
        Meta(
            description="preset of the stream; for a viewer that was not admitted: the preset it asked for, empty for the "
            "server's own"
        ),
    ]
    codec: Annotated[str, Meta(description="video codec of the pictures")]
    arrived_ns: Annotated[int, Meta(description="planned time from the start of this load to the arrival of the viewer, ns")]
    watched_ns: Annotated[int, Meta(description="time from connecting to leaving, ns")]
    refusal: Annotated[
        Refusal, Meta(description="empty: the viewer was admitted; `refused`: by the server; `failed`: the connection broke")
    ] = ""
    cause: Annotated[
        Prose, Meta(description="reason that the server gave for the refusal, or the error that broke the connection")
    ] = ""
    first_picture_ns: Annotated[
        int | None, Meta(description="time from connecting to the first painted picture, ns; null: no picture was painted")
    ] = None
    painted: Annotated[int, Meta(description="number of pictures that were painted")] = 0
    late_ns: Annotated[
        tuple[int, ...], Meta(description="lateness of each painted picture: time from its due time to painting, ns")
    ] = ()
    block_gaps_ns: Annotated[tuple[int, ...], Meta(description="times between the arrivals of consecutive frame blocks, ns")] = ()
    prompt_to_pixel_ns: Annotated[
        tuple[int, ...],
        Meta(description="latency of each answered prompt: time from sending it to painting its first picture, ns"),
    ] = ()
    unanswered: Annotated[
        int,
        Meta(description="number of prompts without a painted picture: refused, replaced by the next prompt, or sent too late"),
    ] = 0
    stalls: Annotated[int, Meta(description="number of stalls: times that the playback buffer ran empty")] = 0
    stall_ns: Annotated[int, Meta(description="total length of the stalls, ns")] = 0
    lost: Annotated[
        int, Meta(description="number of pictures that never arrived although later pictures of the same prompt did")
    ] = 0
