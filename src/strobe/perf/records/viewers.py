"""Lines of a run that loads a server of live streams: the server, and each viewer that came."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from strobe.perf.records.base import Line, Prose

Arrivals = Literal["poisson", "together"]
"""Viewers come at random moments and leave, or all at once and stay."""
Refusal = Literal["", "refused", "failed"]


class Server(Line, frozen=True, kw_only=True):
    """The server that was loaded, as it described itself."""

    url: Annotated[str, Meta(description="address of the server")]
    own: Annotated[bool, Meta(description="it was started for this run, on this machine")]
    model: Annotated[str, Meta(description="model of the streams")]
    device: Annotated[str, Meta(description="device that the server runs on; empty if it is not known")]
    width: Annotated[int, Meta(description="pixels of a picture's row")]
    height: Annotated[int, Meta(description="rows of a picture")]
    fps: Annotated[int, Meta(description="pictures per second of video")]
    block_frames: Annotated[int, Meta(description="pictures of a steady frame block")]
    start_buffer_ns: Annotated[int, Meta(description="video that a viewer holds before it plays, ns")]


class Viewer(Line, frozen=True, kw_only=True):
    """One viewer: when it came, whether it was let in, and what it saw."""

    load: Annotated[float, Meta(description="viewers that were asked for at once, on average")]
    arrivals: Annotated[Arrivals, Meta(description="`poisson`: they come and go at random; `together`: all come and stay")]
    viewer: Annotated[int, Meta(description="number of the viewer at this load, from 0, in order of arrival")]
    preset: Annotated[str, Meta(description="preset that it asked for")]
    codec: Annotated[str, Meta(description="codec of its pictures")]
    arrived_ns: Annotated[int, Meta(description="from the start of this load until it connected, ns")]
    watched_ns: Annotated[int, Meta(description="from connecting until it left, ns")]
    refusal: Annotated[Refusal, Meta(description="empty: it was let in; `failed`: the connection broke")] = ""
    cause: Annotated[Prose, Meta(description="the answer to a refused viewer, or what broke")] = ""
    first_picture_ns: Annotated[
        int | None, Meta(description="from connecting until the first picture was painted, ns; null if none was")
    ] = None
    painted: Annotated[int, Meta(description="pictures that it painted")] = 0
    late_ns: Annotated[tuple[int, ...], Meta(description="of each picture, from its due time until it was painted, ns")] = ()
    block_gaps_ns: Annotated[tuple[int, ...], Meta(description="between the arrivals of consecutive frame blocks, ns")] = ()
    prompt_to_pixel_ns: Annotated[
        tuple[int, ...], Meta(description="of each prompt, from sending it until its first picture was painted, ns")
    ] = ()
    unanswered: Annotated[
        int, Meta(description="prompts of which no picture was painted: refused, replaced by the next one, or too late")
    ] = 0
    stalls: Annotated[int, Meta(description="times that it ran dry while playing")] = 0
    stall_ns: Annotated[int, Meta(description="time that it waited after running dry, ns")] = 0
    lost: Annotated[int, Meta(description="pictures inside a prompt that never came")] = 0
