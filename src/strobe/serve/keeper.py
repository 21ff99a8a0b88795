"""Keeping of streams outside the server: each change of a log before its frames are shown, and a snapshot every few frame blocks.

Two threads write. One has the logs, and every frame block of a kept stream passes through it in order, so that no viewer sees a
frame whose prompt is not on the disk. The other has the snapshots, at most one of a stream at a time; one that comes while the
one before is written is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from msgspec.structs import replace

from strobe.core.errors import SessionError, StrobeError
from strobe.engine.snapshot import Snapshot, device_name, versions
from strobe.serve.metrics import Metrics, log_event
from strobe.serve.store import SavedBranch, SavedState, SavedStream, Store, StreamFolder
from strobe.serve.streams import Block, Branch
from strobe.serve.worker import Worker

BEAT: Final = 16
"""Frame blocks after which a log is written at the latest, with how far the stream is."""


@dataclass(kw_only=True, eq=False)
class _Kept:
    """A stream that is kept, `saved` as it was written last. `busy`: a snapshot of it is being written; `failing`: "log" or
    "snapshot" could not be written the last time; `lost`: another server has taken it over."""

    place: StreamFolder
    saved: SavedStream
    busy: bool = False
    failing: set[str] = field(default_factory=set)
    lost: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Keeper:
    """All streams of a server that are kept. Its methods may be called from any thread but for those that say otherwise.

    Args:
        every: frame blocks between two snapshots; 0: none, a stream then comes back from its start.
        failed: called from any thread with the name of a stream that can be kept no longer.
    """

    def __init__(self, store: Store, every: int, metrics: Metrics, failed: Callable[[str], None]) -> None:
        self.store, self.every, self.metrics, self._failed = store, every, metrics, failed
        self._kept: dict[str, _Kept] = {}
        self._logs = ThreadPoolExecutor(1, thread_name_prefix="strobe-keep-log")
        self._snapshots = ThreadPoolExecutor(1, thread_name_prefix="strobe-keep")

    def has(self, name: str) -> bool:
        return name in self._kept

    def begin(self, secret: str, saved: SavedStream, image: bytes) -> None:
        """Keep a stream that was opened.

        Raises:
            SessionError: it cannot be written; the log says why.
        """
        try:
            place = self.store.add(secret, saved, image)
        except StrobeError as error:
            self._report(saved.name, error)
            raise SessionError("the server can keep no stream now; its log says why") from error
        self._kept[saved.name] = _Kept(place=place, saved=saved)

    def go_on(self, place: StreamFolder, saved: SavedStream) -> None:
        """Keep a stream that was taken over."""
        self._kept[saved.name] = _Kept(place=place, saved=saved)

    def still_here(self, name: str) -> bool:
        """Touch a stream; return whether it is still this server's."""
        kept = self._kept.get(name)
        return kept is None or (not kept.lost and self.store.touch(kept.place))

    def up_to_date(self, name: str) -> bool:
        """Return whether the stream would come back as it was when its log changed last."""
        kept = self._kept.get(name)
        return kept is not None and "log" not in kept.failing

    def end(self, name: str) -> None:
        """Keep a stream no longer, and delete it if it is still this server's."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.lost = True
            self._logs.submit(self.store.remove, kept.place)

    def made(self, worker: Worker, name: str, block: Block, then: Callable[[], None]) -> None:
        """Keep what a frame block changed, then call `then`. On the device's thread."""
        kept = self._kept.get(name)
        if kept is None:
            then()
            return
        record = record_of(worker, name)
        beat = (block.index + 1) % (self.every or BEAT) == 0
        last, changed = kept.saved, beat or "log" in kept.failing
        changed |= (last.generation, last.log, last.waiting) != (record.generation, record.log, record.waiting)
        self._logs.submit(self._write_then, kept, record if changed else None, then)
        if self.every and beat and not kept.busy and record.waiting is None and record.painted <= record.frames_made:
            began = perf_counter()
            snapshot = worker.stream(name).session.snapshot().to("cpu")
            self.metrics.keep_copy.observe(perf_counter() - began)
            self.save(name, snapshot, record)

    def write(self, record: SavedStream) -> Future[None]:
        """Write the log of a stream if it has changed."""
        kept = self._kept.get(record.name)
        return self.flush() if kept is None else self._logs.submit(self._write_then, kept, record, lambda: None)

    def save(self, name: str, snapshot: Snapshot, record: SavedStream) -> Future[None]:
        """Write a snapshot that was taken when the stream was as the record says, unless the stream was closed meanwhile."""
        kept = self._kept.get(name)
        if kept is None:
            return self.flush()
        kept.busy = True
        file = f"{record.generation}-{snapshot.state.next_block}-{kept.place.owner}.safetensors"
        return self._snapshots.submit(self._save, kept, snapshot, record, file, None)

    def save_branch(self, name: str, branch: Branch, record: SavedStream) -> None:
        kept = self._kept.get(name)
        if kept is not None:
            file = f"branch-{branch.number}-{kept.place.owner}.safetensors"
            self._snapshots.submit(self._save, kept, branch.snapshot, record, file, branch)

    def flush(self) -> Future[None]:
        """Return what is done once every log up to now is written, and every frame block handed out."""
        return self._logs.submit(lambda: None)

    def close(self) -> None:
        """Finish what is being written."""
        self._snapshots.shutdown(wait=True)
        self._logs.shutdown(wait=True)

    def _write_then(self, kept: _Kept, record: SavedStream | None, then: Callable[[], None]) -> None:
        """Write, and go on even if that failed: the stream plays, and can be resumed from what was written before."""
        try:
            if record is not None:
                self._write(kept, record)
        finally:
            then()

    def _write(self, kept: _Kept, record: SavedStream) -> None:
        with kept.lock:
            before = kept.saved
            states = before.states
            if record.generation != before.generation:
                states = tuple(each.state for each in before.branches if each.number == record.base)
            self._put(kept, replace(record, states=states, branches=before.branches))

    def _put(self, kept: _Kept, saved: SavedStream) -> None:
        """Write a log, and then delete the snapshots that it names no longer."""
        unneeded = _files(kept.saved) - _files(saved)
        kept.saved = saved
        if kept.lost:
            return
        try:
            self.store.write(kept.place, saved)
            self.store.forget(kept.place, unneeded)
            self.metrics.kept.labels("log").inc()
            kept.failing.discard("log")
        except SessionError:
            kept.lost = True
        except StrobeError as error:
            self._not_kept(kept, "log", error)

    def _not_kept(self, kept: _Kept, what: str, error: StrobeError) -> None:
        """Count what could not be written; of several in a row the first one is told to the viewer and the log."""
        if what in kept.failing:
            self.metrics.not_kept.inc()
            return
        kept.failing.add(what)
        self._report(kept.saved.name, error)
        self._failed(kept.saved.name)

    def _report(self, name: str, error: StrobeError) -> None:
        self.metrics.not_kept.inc()
        log_event("not kept", stream=name, error=str(error))

    def _save(self, kept: _Kept, snapshot: Snapshot, record: SavedStream, file: str, branch: Branch | None) -> None:
        try:
            size = 0 if kept.lost else self.store.save(kept.place, file, snapshot)
        except SessionError:
            kept.lost = True
            return
        except StrobeError as error:
            self._not_kept(kept, "snapshot", error)
            return
        finally:
            kept.busy = False if branch is None else kept.busy
        if kept.lost:
            return
        kept.failing.discard("snapshot")
        self.metrics.kept.labels("snapshot").inc()
        self.metrics.kept_bytes.inc(size)
        state = SavedState(
            file=file,
            frame_block=snapshot.next_block,
            frame=record.frames_made if branch is None else branch.frame,
            num_bytes=size,
            preset=record.origin.preset,
            device=record.device,
            versions=record.versions,
        )
        self._logs.submit(self._list, kept, state, record, branch)

    def _list(self, kept: _Kept, state: SavedState, record: SavedStream, branch: Branch | None) -> None:
        """Name a snapshot file in the log; the last snapshot before what is painted stays, and all after it."""
        with kept.lock:
            saved = kept.saved
            if branch is not None:
                entry = SavedBranch(number=branch.number, name=branch.name, origin=record.origin, log=branch.log, state=state)
                self._put(kept, replace(saved, branches=(*saved.branches, entry)))
            elif record.generation == saved.generation:
                states = (*saved.states, state)
                oldest = max((each.frame for each in states if each.frame <= saved.painted), default=0)
                self._put(kept, replace(saved, states=tuple(each for each in states if each.frame >= oldest)))
            else:
                self.store.forget(kept.place, {state.file})  # the stream was reset meanwhile


def record_of(worker: Worker, name: str) -> SavedStream:
    """Describe a stream as it is now, without its snapshots. On the device's thread."""
    stream = worker.stream(name)
    image = stream.origin.image
    return SavedStream(
        name=name,
        model=stream.sessions.model.name,
        weights=stream.sessions.model.weights_hash,
        origin=dataclasses.replace(stream.origin, image=b""),
        image_sha256=hashlib.sha256(image).hexdigest() if image else "",
        generation=stream.generation,
        base=stream.base,
        log=tuple(stream.log),
        waiting=stream.waiting,
        frames_made=stream.frames_made,
        painted=stream.painted,
        device=device_name(stream.sessions.device),
        versions=versions(),
    )


def _files(saved: SavedStream) -> set[str]:
    return {each.file for each in (*saved.states, *(branch.state for branch in saved.branches))}
