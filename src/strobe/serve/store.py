"""A folder in which streams outlive the server that runs them: for each, its log and its last snapshots.

What a stream shows is a function of its origin and its log, so the log alone brings it back; a snapshot only shortens the way.
Servers that share the folder take a stream over by its secret. Its folder is named after the sha256 of the secret, which is kept
nowhere.

    streams/<sha256>/1.json            the stream as its first owner wrote it last
    streams/<sha256>/2.json            the same by the second owner: from then on the first one may not write
    streams/<sha256>/*.safetensors     snapshots, see `strobe.engine.snapshot`
    streams/<sha256>/image             start image
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct

from strobe.core.errors import ConfigError, DataError, SessionError
from strobe.core.files import file_inside, write_whole
from strobe.engine.snapshot import Snapshot, read_snapshot
from strobe.serve.protocol import PromptEntry
from strobe.serve.streams import Origin

VERSION: Final = 1
"""Of what is written here."""


class SavedState(Struct, frozen=True, kw_only=True):
    """A snapshot file of a stream, where in the stream it is, and the facts beside the configuration that its bits depend on."""

    file: str
    frame_block: int
    frame: int
    num_bytes: int
    preset: str
    device: str
    versions: dict[str, str]


class SavedBranch(Struct, frozen=True, kw_only=True):
    """A branch of a stream."""

    number: int
    name: str
    origin: Origin
    log: tuple[PromptEntry, ...]
    state: SavedState


class SavedStream(Struct, frozen=True, kw_only=True):
    """A stream as its owner wrote it last.

    Args:
        name: what others call it; no secret.
        model, weights: name of the model and hash of its weights.
        origin: without the bytes of the picture.
        image_sha256: of the picture; empty without one.
        base: branch that the generation began with; None: it began at frame 0.
        log: prompts with the frame blocks at which they took effect.
        waiting: the prompt that has no frame block yet.
        frames_made, painted: how far the stream and its viewer were.
        states: snapshots of this generation, the oldest first.
        device, versions: of the owner.
    """

    v: int = VERSION
    name: str
    model: str
    weights: str
    origin: Origin
    image_sha256: str
    generation: int
    base: int | None
    log: tuple[PromptEntry, ...]
    waiting: PromptEntry | None
    frames_made: int
    painted: int
    device: str
    versions: dict[str, str]
    states: tuple[SavedState, ...] = ()
    branches: tuple[SavedBranch, ...] = ()

    def differs(self, state: SavedState | None, device: str, versions: dict[str, str]) -> list[str]:
        """Return what differs between here and where the snapshot and the last frames were made, a phrase each."""
        found = []
        for made in (self, state):
            there = {} if made is None else {"device": made.device, **made.versions}
            here = {"device": device, **versions}
            found += [f"{name}: {there[name]} then, {here.get(name)} now" for name in there if there[name] != here.get(name)]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamFolder:
    """The folder of a stream, and the number of the owner who may write there."""

    folder: Path
    owner: int

    @property
    def head(self) -> Path:
        """File of the stream as this owner wrote it last."""
        return self.folder / f"{self.owner}.json"

    @property
    def taken(self) -> bool:
        return any(owner > self.owner for owner in _owners(self.folder))


class Store:
    """The folder of a server, or of several that share it. Its methods may be called from any thread.

    Args:
        folder: created if it is not there; for its user alone.
        resume_s: a stream that no server has touched for so long is gone.
    """

    def __init__(self, folder: Path, *, resume_s: float) -> None:
        self.folder, self.resume_s = folder, resume_s
        try:
            for each in (folder, folder / "streams"):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(folder / ".writable", b"")
        except OSError as error:
            raise ConfigError(f"--keep {folder}: {error.strerror or error}; give a folder that can be written") from error

    def _folder(self, secret: str) -> Path:
        return self.folder / "streams" / hashlib.sha256(secret.encode()).hexdigest()

    def add(self, secret: str, saved: SavedStream, image: bytes) -> StreamFolder:
        """Begin a stream's folder."""
        place = StreamFolder(folder=self._folder(secret), owner=1)
        try:
            place.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot keep the stream in {self.folder}: {error.strerror or error}") from error
        if image:
            write_whole(place.folder / "image", image)
        write_whole(place.head, msgspec.json.encode(saved))
        return place

    def find(self, secret: str) -> tuple[StreamFolder, SavedStream] | None:
        """Read a stream; None: there is none of that secret any more.

        Raises:
            DataError: what is there cannot be read, or is of another version.
        """
        folder = self._folder(secret)
        owners = _owners(folder)
        if not owners or self._expired(folder):
            return None
        place = StreamFolder(folder=folder, owner=owners[-1])
        try:
            found = msgspec.json.decode(place.head.read_bytes(), type=dict[str, Any])
            if found.get("v") != VERSION:
                raise DataError(f"the stream was kept in version {found.get('v')}, and this server reads version {VERSION}")
            return place, msgspec.convert(found, SavedStream)
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise DataError(f"the stream that was kept cannot be read: {error}") from error

    def claim(self, place: StreamFolder, saved: SavedStream) -> StreamFolder:
        """Take a stream over that `find` found: from now on its former owner may not write. Return the new owner's place.

        Raises:
            SessionError: another server has taken it over meanwhile.
            StrobeError: it cannot be written.
        """
        mine = StreamFolder(folder=place.folder, owner=place.owner + 1)
        beside = place.folder / f".{secrets.token_hex(4)}.tmp"
        try:
            write_whole(beside, msgspec.json.encode(saved))
            os.link(beside, mine.head)  # one of several wins
        except FileExistsError as error:
            raise SessionError("another server takes the stream over at this moment; connect again") from error
        except OSError as error:
            raise DataError(f"cannot take the stream over: {error.strerror or error}") from error
        finally:
            beside.unlink(missing_ok=True)
        for owner in _owners(place.folder):
            if owner < place.owner:
                (place.folder / f"{owner}.json").unlink(missing_ok=True)
        return mine

    def write(self, place: StreamFolder, saved: SavedStream) -> None:
        """Write a stream's log; it is on the disk when this returns.

        Raises:
            SessionError: another server has taken the stream over.
            StrobeError: it cannot be written.
        """
        _check_owned(place)
        write_whole(place.head, msgspec.json.encode(saved))

    def save(self, place: StreamFolder, name: str, snapshot: Snapshot) -> int:
        """Write a snapshot file; return its bytes. Raises: see `write`."""
        _check_owned(place)
        path = place.folder / name
        snapshot.save(path)
        return path.stat().st_size

    def load(self, place: StreamFolder, state: SavedState) -> Snapshot:
        """Read a snapshot onto the CPU.

        Raises:
            DataError: it is not there.
            SessionError: it was damaged, or is of another version.
        """
        try:
            return read_snapshot(file_inside(place.folder, state.file), torch.device("cpu"))
        except OSError as error:
            raise DataError(f"the snapshot {state.file} is gone: {error.strerror or error}") from error

    def image(self, place: StreamFolder, saved: SavedStream) -> bytes:
        """Return the bytes of a stream's start image; empty without one.

        Raises:
            DataError: it is not the one that the stream began with.
        """
        if not saved.image_sha256:
            return b""
        try:
            data = (place.folder / "image").read_bytes()
        except OSError as error:
            raise DataError(f"the start image of the stream is gone: {error.strerror or error}") from error
        if hashlib.sha256(data).hexdigest() != saved.image_sha256:
            raise DataError("the start image that was kept is not the one the stream began with: its sha256 differs")
        return data

    def forget(self, place: StreamFolder, files: set[str]) -> None:
        """Delete snapshots that nothing needs any more."""
        if not place.taken:
            for name in files:
                (place.folder / name).unlink(missing_ok=True)

    def remove(self, place: StreamFolder) -> None:
        """Delete a stream, unless another server has taken it over."""
        if not place.taken:
            shutil.rmtree(place.folder, ignore_errors=True)

    def touch(self, place: StreamFolder) -> bool:
        """Note that the stream is alive; return whether it is still the owner's. A folder out of reach changes no owner."""
        with suppress(OSError):
            if place.taken:
                return False
            os.utime(place.head)
        return True

    def expire(self) -> None:
        """Delete streams that no server has touched for `resume_s`, at least a minute."""
        with suppress(OSError):  # the folder is out of reach
            for folder in (self.folder / "streams").iterdir():
                if self._expired(folder, spare_s=60.0):
                    shutil.rmtree(folder, ignore_errors=True)

    def _expired(self, folder: Path, spare_s: float = 0.0) -> bool:
        try:
            touched = max((path.stat().st_mtime for path in folder.glob("*.json")), default=folder.stat().st_mtime)
        except OSError:
            return True
        return time.time() - touched > self.resume_s + spare_s


def _owners(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())


def _check_owned(place: StreamFolder) -> None:
    if place.taken:
        raise SessionError("another server has taken the stream over")
