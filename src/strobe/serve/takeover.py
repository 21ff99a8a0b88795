"""Handing a stream over, and taking one over that another server made: the same frames go on, from a snapshot and the log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

from strobe.core.errors import DataError, SessionError, StrobeError
from strobe.engine.snapshot import Snapshot, device_name, versions
from strobe.serve.hub import Channel, Hub, describe
from strobe.serve.keeper import BEAT, Keeper, record_of
from strobe.serve.metrics import log_event
from strobe.serve.protocol import Ended, Open
from strobe.serve.scheduler import NotOpenedError
from strobe.serve.store import SavedState, SavedStream, StreamFolder
from strobe.serve.streams import Branch, LiveStream

PAINT_WITHIN_S: Final = 3.0
"""How long viewers are given to paint what is made, before their streams are handed over."""
SAVE_WITHIN_S: Final = 20.0
"""How long the snapshots of all streams may take then; what is not written by then is made again from the log."""


async def find_stream(hub: Hub, asked: Open) -> Channel:
    """Return the channel of a secret: one of this server, or one that it takes over.

    Raises:
        NotOpenedError: there is none, or it cannot run here.
    """
    async with hub.taking:
        channel, keeper = hub.find(asked.resume), hub.keeper
        if channel is not None:
            if keeper is None or await asyncio.to_thread(keeper.still_here, channel.name):
                return channel
            await let_go(hub, channel)
        if keeper is None:
            raise NotOpenedError("secret", "no stream has that secret any more; open a new one")
        return await take_over(hub, keeper, asked)


async def take_over(hub: Hub, keeper: Keeper, asked: Open) -> Channel:
    """Take over the stream of a secret.

    Raises:
        NotOpenedError: there is none, or it cannot run here.
    """
    worker = hub.worker
    try:
        found = await asyncio.to_thread(keeper.store.find, asked.resume)
        if found is None:
            raise NotOpenedError("secret", "no stream has that secret any more; open a new one")
        place, saved = found
        _check(hub, saved)
        if (refused := await hub.refusal(saved.origin.preset)) is not None:
            refused.retry_s = 2.0
            raise refused
        place = await asyncio.to_thread(keeper.store.claim, place, saved)
        image = await asyncio.to_thread(keeper.store.image, place, saved)
        branches = await asyncio.to_thread(_branches, keeper, place, saved)
    except SessionError as error:
        raise NotOpenedError("taken", str(error), retry_s=1.0) from error
    except DataError as error:
        raise NotOpenedError("damaged", str(error)) from error
    frame = _frame(hub, keeper, asked, saved)
    keeper.go_on(place, saved)

    def begun(state: SavedState | None, snapshot: Snapshot | None) -> LiveStream:
        origin = replace(saved.origin, image=image)
        stream = LiveStream(name=saved.name, sessions=worker.sessions, origin=origin, config=worker.configs[origin.preset])
        stream.generation, stream.base = saved.generation, saved.base
        stream.resume(saved.log, snapshot, 0 if state is None else state.frame, saved.waiting)
        _ = stream.session  # on the device, so that what does not fit is known now
        stream.keep_branches(branches)
        worker.adopt(stream)
        return stream

    stream, state = await _begin(hub, keeper, place, saved, frame, begun)
    differs = saved.differs(state, device_name(worker.device), versions())
    channel = hub.add(stream, asked.codec, secret=asked.resume)
    channel.cursor = channel.received = channel.painted = frame
    channel.stalls = channel.stall_ms = sys.maxsize  # until its viewer says how many it had; the server before has counted them
    channel.differs = "; ".join(differs)
    keeper.write(await hub.on_device(lambda: record_of(worker, saved.name)))
    hub.metrics.taken_over.labels("other" if differs else "same").inc()
    log_event(
        "stream taken over",
        stream=saved.name,
        frame=frame,
        from_frame=0 if state is None else state.frame,
        owner=place.owner,
        differs=differs,
    )
    return channel


def _check(hub: Hub, saved: SavedStream) -> None:
    worker = hub.worker
    if saved.weights != worker.model.weights_hash:
        raise NotOpenedError(
            "weights",
            f"the stream is of {saved.model} with weights {saved.weights[:12]}, and this server runs {worker.model.name} with "
            f"{worker.model.weights_hash[:12]}; open a new one",
        )
    if saved.origin.preset not in worker.configs:
        raise NotOpenedError("preset", f"preset {saved.origin.preset!r} does not run here", fits=tuple(worker.configs))


def _frame(hub: Hub, keeper: Keeper, asked: Open, saved: SavedStream) -> int:
    """Return the first frame that the viewer has not painted, as it says itself, if that can be."""
    if asked.frame is None or asked.generation != saved.generation:
        return saved.painted
    defaults = hub.worker.model.defaults
    unwritten = ((keeper.every or BEAT) + 2) * defaults.frame_block * defaults.stride.time
    return min(max(asked.frame, saved.painted), saved.frames_made + unwritten)


async def _begin(
    hub: Hub,
    keeper: Keeper,
    place: StreamFolder,
    saved: SavedStream,
    frame: int,
    begun: Callable[[SavedState | None, Snapshot | None], LiveStream],
) -> tuple[LiveStream, SavedState | None]:
    """Begin the stream from its last snapshot that is sound; without one from its start, which takes as long as it has run."""
    states = sorted((each for each in saved.states if each.frame <= frame), key=lambda each: -each.frame)
    for state in (*states, None):
        try:
            snapshot = None if state is None else await asyncio.to_thread(keeper.store.load, place, state)
            return await hub.new_stream(saved.name, saved.origin.preset, partial(begun, state, snapshot)), state
        except (DataError, SessionError) as error:
            log_event("snapshot not used", stream=saved.name, error=str(error))
            if state is None:
                raise NotOpenedError("damaged", str(error)) from error
        except StrobeError as error:
            raise NotOpenedError("device", describe(error), retry_s=5.0) from error
    raise AssertionError("the start is always tried")


def _branches(keeper: Keeper, place: StreamFolder, saved: SavedStream) -> dict[int, Branch]:
    """Read the branches of a stream; one that was damaged is left out."""
    found = {}
    for each in saved.branches:
        try:
            snapshot = keeper.store.load(place, each.state)
        except (DataError, SessionError) as error:
            log_event("branch lost", stream=saved.name, branch=each.number, error=str(error))
            continue
        found[each.number] = Branch(
            number=each.number,
            name=each.name,
            snapshot=snapshot,
            origin=each.origin,
            log=each.log,
            frame_block=each.state.frame_block,
            frame=each.state.frame,
        )
    return found


async def hand_over(hub: Hub, keeper: Keeper) -> None:
    """Let viewers paint what is made, and save every stream as it is then, so that another server goes on at once."""
    kept = [channel for channel in hub.channels.values() if keeper.has(channel.name)]
    for channel in kept:
        hub.tell_worker(channel)
    await hub.on_device(lambda: None)  # the frame block that was being made is done, and then handed out
    await asyncio.wrap_future(keeper.flush())
    ends = monotonic() + PAINT_WITHIN_S
    while monotonic() < ends and any(channel.frames and channel.send is not None and channel.playing for channel in kept):
        await asyncio.sleep(0.05)
    saving: list[asyncio.Future[None]] = []
    for channel in kept:
        try:
            saving.append(asyncio.wrap_future(await hub.on_device(partial(_saved, hub, keeper, channel.name))))
        except StrobeError as error:
            log_event("not kept", stream=channel.name, error=str(error))
    if saving:
        await asyncio.wait(saving, timeout=SAVE_WITHIN_S)
    log_event("streams handed over", streams=len(kept))


def _saved(hub: Hub, keeper: Keeper, name: str) -> Future[None]:
    """Begin to save a stream as it is. On the device's thread."""
    stream, record = hub.worker.stream(name), record_of(hub.worker, name)
    keeper.write(record)
    if not keeper.every or record.waiting is not None:
        return keeper.write(record)
    stream.suspend()
    return keeper.save(name, stream.snapshot, record)


async def watch_owners(hub: Hub, keeper: Keeper) -> None:
    """Touch the streams of this server, and let go of those that another one has taken over. Runs until cancelled."""
    every, number = min(5.0, hub.resume_s / 4), 0
    while True:
        await asyncio.sleep(every)
        for channel in list(hub.channels.values()):
            if not await asyncio.to_thread(keeper.still_here, channel.name):
                await let_go(hub, channel)
        number += 1
        if number % 12 == 1:
            await asyncio.to_thread(keeper.store.expire)


async def let_go(hub: Hub, channel: Channel) -> None:
    """Close a stream here that another server has taken over."""
    channel.tell(Ended(reason="the stream was opened on another connection", resume_s=0.0))
    await hub.drop(channel)
