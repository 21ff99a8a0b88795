"""The folder of kept streams: one owner at a time, nothing of a secret in it, nothing lost by damage that can be made again."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import httpx
import msgspec
import numpy as np
import pytest

import strobe
from faults import small_disk
from live_server import CIRCLE, SQUARE, STAR, Running, answer, expected, frames, live_stream, pictures, serving
from strobe.core.errors import DataError, SessionError
from strobe.engine.model import Model
from strobe.serve import hub as hub_module
from strobe.serve import protocol
from strobe.serve.client import RefusedError, watch
from strobe.serve.hub import Recordings
from strobe.serve.keeper import Keeper, record_of
from strobe.serve.metrics import Metrics
from strobe.serve.protocol import PromptEntry
from strobe.serve.store import SavedStream, Store, StreamFolder
from strobe.serve.streams import LiveStream, Origin

SECRET = "nobody-guesses-this-secret"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "keep", resume_s=100.0)


def worker_of(stream: LiveStream, painted: int = 0) -> Any:
    """As much of a worker as a keeper asks for."""
    stream.painted = painted
    return SimpleNamespace(stream=lambda name: stream)


def saved(**facts: Any) -> SavedStream:
    entry = PromptEntry(epoch=0, frame_block=0, text=CIRCLE, mode="recache", over=4)
    given: dict[str, Any] = {
        "name": "s", "model": "shapes", "weights": "w", "origin": Origin(prompt=CIRCLE, seed=3, preset="turbo"),
        "image_sha256": "", "generation": 0, "base": None, "log": (entry,), "waiting": None, "frames_made": 0, "painted": 0,
        "device": "cpu x", "versions": {"torch": "2"},
    }  # fmt: skip
    return SavedStream(**given | facts)


def found(store: Store) -> tuple[StreamFolder, SavedStream]:
    both = store.find(SECRET)
    assert both is not None
    return both


def test_a_stream_has_one_owner_who_alone_may_write(store: Store) -> None:
    first = store.add(SECRET, saved(), b"")
    place, before = found(store)
    assert place == first and before == saved()
    second = store.claim(place, before)
    with pytest.raises(SessionError, match="takes the stream over at this moment"):
        store.claim(place, before)  # one of several wins
    with pytest.raises(SessionError, match="has taken the stream over"):
        store.write(first, saved(painted=9))
    assert not store.touch(first) and store.touch(second)
    store.remove(first)
    store.write(second, saved(painted=5))
    third = store.claim(*found(store))
    assert found(store) == (third, saved(painted=5)) and first.taken and second.taken and not third.taken
    store.remove(third)
    assert store.find(SECRET) is None


def test_a_secret_is_nowhere_and_the_folder_is_for_its_user_alone(store: Store) -> None:
    place = store.add(SECRET, saved(), b"picture")
    everything = [str(path) + (path.read_text() if path.is_file() else "") for path in store.folder.rglob("*")]
    assert len(everything) >= 3 and not any(SECRET in each for each in everything)
    assert place.folder.stat().st_mode & 0o077 == 0
    assert store.find("../" + place.folder.name) is None and store.find(place.folder.name) is None


def test_what_nobody_touches_is_gone(store: Store) -> None:
    place = store.add(SECRET, saved(), b"")
    long_ago = time.time() - 150.0
    os.utime(place.head, (long_ago, long_ago))
    assert store.find(SECRET) is None
    store.expire()
    assert place.folder.exists()  # for a minute more, in case a clock is late
    os.utime(place.head, (long_ago - 60, long_ago - 60))
    store.expire()
    assert not place.folder.exists()
    (store.folder / "streams").rename(store.folder / "away")
    store.expire()  # whoever calls it goes on: the folder may come back


def test_damage_and_other_versions_are_told(store: Store) -> None:
    place = store.add(SECRET, saved(image_sha256="0" * 64), b"another picture")
    with pytest.raises(DataError, match="sha256 differs"):
        store.image(place, found(store)[1])
    place.head.write_bytes(msgspec.json.encode(saved()).replace(b'"v":1', b'"v":9'))
    with pytest.raises(DataError, match="version 9, and this server reads version 1"):
        store.find(SECRET)
    place.head.write_bytes(b"{")
    with pytest.raises(DataError, match="cannot be read"):
        store.find(SECRET)


def test_a_viewer_behind_a_snapshot_gets_the_one_before(model: Model, store: Store) -> None:
    """The last snapshot before what is painted stays, with all after it; what was damaged is made up for by the log."""
    stream, keeper = live_stream(model), Keeper(store, 1, Metrics(), print)
    keeper.begin(SECRET, record_of(worker_of(stream), "s"), b"")
    at = 0
    for painted in (0, 0, 9, 9, 30, 33):
        if painted == 9 and not at:
            _, at = stream.prompt(SQUARE, "recache", 4)  # type: ignore[assignment]
        keeper.made(worker_of(stream, painted), "s", stream.make(), lambda: None)
        keeper._snapshots.submit(lambda: None).result(60)
    keeper.close()
    place, head = found(store)
    assert [each.frame for each in head.states] == [33, 45, 57, 69]
    assert {path.name for path in place.folder.glob("*.safetensors")} == {each.file for each in head.states}
    assert all(each.num_bytes == (place.folder / each.file).stat().st_size for each in head.states)
    assert [(each.text, each.frame_block) for each in head.log] == [(CIRCLE, 0), (SQUARE, at)]
    whole = expected(model, 8, strobe.Switch(frame_block=at, prompt=SQUARE))
    state = head.states[1]
    other = live_stream(model, opened=False)
    other.resume(head.log, store.load(place, state), state.frame)
    assert np.array_equal(frames(other, 2), whole[45:69])
    path = place.folder / state.file
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(SessionError, match="damaged"):
        store.load(place, state)


def test_prompts_of_the_log_take_effect_at_their_blocks_and_a_new_one_waits_for_them(model: Model) -> None:
    log = [
        PromptEntry(epoch=0, frame_block=0, text=CIRCLE, mode="recache", over=4),
        PromptEntry(epoch=1, frame_block=1, text=SQUARE, mode="soft", over=4),
        PromptEntry(epoch=3, frame_block=3, text=STAR, mode="recache", over=4),
    ]
    stream = live_stream(model, opened=False)
    stream.resume(log)
    made = [stream.make()]
    epoch, at = stream.prompt("an orange star gliding slowly up on forest", "recache", 4)
    assert epoch == 4 and at is None and stream.waiting is not None and stream.waiting.epoch == 4
    stream.suspend()
    made += [stream.make() for _ in range(4)]
    switches = [
        strobe.Switch(frame_block=1, prompt=SQUARE, mode="soft"),
        strobe.Switch(frame_block=3, prompt=STAR),
        strobe.Switch(frame_block=4, prompt="an orange star gliding slowly up on forest"),
    ]
    assert np.array_equal(np.concatenate([block.frames for block in made]), expected(model, 5, *switches))
    assert [block.epoch for block in made] == [0, 1, 1, 3, 4] and stream.log[-1].frame_block == 4 and stream.waiting is None


def test_a_full_disk_stops_no_stream(model: Model, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    stream, keeper, handed_out = live_stream(model), Keeper(store, 1, Metrics(), failed.append), []
    keeper.begin(SECRET, record_of(worker_of(stream), "s"), b"")

    def full(*_: Any) -> None:
        raise DataError("the disk is full")

    monkeypatch.setattr(store, "write", full)
    monkeypatch.setattr(store, "save", full)
    keeper.made(worker_of(stream), "s", stream.make(), lambda: handed_out.append(1))
    keeper.close()
    assert handed_out == [1] and keeper.metrics.not_kept._value.get() == 2
    assert failed == ["s", "s"] and not keeper.up_to_date("s")  # its log and its snapshot
    assert found(store)[1].frames_made == 0


FPS = 16


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 256 KB for all temporary files."""
    with small_disk(tmp_path, 256 << 10) as limit:
        if limit:
            pytest.skip("no file system can be mounted here: run as root")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        yield tmp_path


def fill(disk: Path, left: int) -> None:
    """Leave so many bytes of the disk."""
    with (disk / "other").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() // 4096 * 4096 - left)


def noise(frames: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 255, (frames, 64, 64, 3), np.uint8)


def decoded(data: bytes) -> int:
    """How many frames play."""
    with av.open(io.BytesIO(data)) as clip:
        return sum(1 for _ in clip.decode(video=0))


def failures(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("strobe_not_recorded_total") or 0.0


async def test_a_viewer_is_told_at_once_and_downloads_what_is_whole(
    bundled: Running, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = bundled.hub
    own, hub.recordings = hub.recordings, Recordings(hub.metrics, hub.recorded)
    before = failures(hub.metrics)
    try:
        async with watch(bundled.ws, prompt=CIRCLE) as viewer:
            await viewer.send(protocol.Record(on=True))
            assert (await answer(viewer, protocol.RecordingState)).on
            fill(disk, 16 << 10)
            found = await answer(viewer, protocol.RecordingState)  # nobody asked
            await viewer.send(protocol.Record(on=False))
            again = await answer(viewer, protocol.RecordingState)
            (disk / "other").unlink()
            await viewer.send(protocol.Record(on=True))
            assert (await answer(viewer, protocol.RecordingState)).on
            await pictures(viewer, 40)  # more than wait at the viewer
            await viewer.send(protocol.Record(on=False))
            other = await answer(viewer, protocol.RecordingState)
        clip = httpx.get(bundled.http + found.download)
        assert clip.status_code == 200 and decoded(clip.content) == found.frames > 0
    finally:
        hub.recordings.close()
        hub.recordings = own
    assert not found.on and "could not write more" in found.why and str(disk) not in found.why and found == again
    assert not other.why and other.frames > 0 and other.download != found.download
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "recording failed" in line]
    assert len(events) == 1 and "the disk is full" in events[0]["error"] and events[0]["frames"] == found.frames
    assert failures(hub.metrics) == before + 1


def nothing() -> None:
    """Fill no disk."""


def ended(
    frames: list[np.ndarray[Any, Any]], before_frames: Callable[[], None] = nothing, before_end: Callable[[], None] = nothing
) -> tuple[protocol.RecordingState, list[protocol.RecordingState], int]:
    """Record frames; return what is told in the end, what was told before, and how many frames of the clip play."""
    told: list[protocol.RecordingState] = []
    here = Recordings(Metrics(), lambda name, clip: told.append(clip))
    try:
        here.start("a", FPS)
        before_frames()
        for part in frames:
            here.add("a", part)
        here._writer.submit(before_end).result()
        clip = asyncio.run(here.end("a"))
        return clip, told, decoded(here.clips[clip.download.rpartition("/")[2]].read_bytes()) if clip.download else 0
    finally:
        here.close()


def test_a_disk_without_room_for_one_frame_keeps_nothing_and_says_so(disk: Path) -> None:
    clip, told, plays = ended([noise(1), noise(8)], before_frames=lambda: fill(disk, 0))
    assert told == [clip] and clip.why and not clip.download and clip.frames == plays == 0


def test_a_disk_that_is_full_when_the_clip_ends_keeps_all_of_it(disk: Path) -> None:
    """The index that is moved to the front needs the room of the clip once more."""
    clip, told, plays = ended([noise(24)], before_end=lambda: fill(disk, 64 << 10))
    assert not told and clip.why and clip.frames == plays == 24


def test_a_clip_that_is_as_long_as_it_may_be_ends_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LONGEST_CLIP_S", 1)
    clip, told, plays = ended([noise(12)] * 3)
    assert told == [clip] and "at most 1 s" in clip.why and clip.frames == plays == FPS


def test_a_clip_that_nobody_asked_for_leaves_no_file() -> None:
    here = Recordings(Metrics(), lambda *_: None)
    here.start("a", FPS)
    here.add("a", noise(12))
    there = here._writer.submit(lambda: list(Path(here._folder.name).iterdir())).result()
    here.stop("a")
    assert there and not here._writer.submit(lambda: list(Path(here._folder.name).iterdir())).result()
    here.close()


async def test_a_kept_stream_plays_on_and_its_viewer_and_operator_are_told_once(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until there is room again: then its log is written with the next frame block."""
    with serving(keep=disk / "streams", keep_every=0) as here:
        keeper, told = here.hub.keeper, list[Any]()
        assert keeper is not None
        async with watch(here.ws, prompt=CIRCLE) as viewer:
            await pictures(viewer, 3)
            fill(disk, 0)
            for text in (SQUARE, STAR, SQUARE):
                await viewer.send(protocol.Prompt(text=text))
                await pictures(viewer, 13, told)
            full = keeper.up_to_date(viewer.welcome.stream)
            with pytest.raises(RefusedError) as refused:
                async with watch(here.ws, prompt=CIRCLE):
                    pass
            (disk / "other").unlink()
            await pictures(viewer, 30)
            later = keeper.up_to_date(viewer.welcome.stream)
        counted = httpx.get(f"{here.http}/metrics").text
    assert [each.message for each in told if isinstance(each, protocol.Error)] == [
        "the server cannot keep this stream now: if the server ends, the stream comes back in an older state"
    ]
    assert not full and later and "can keep no stream now" in str(refused.value) and str(disk) not in str(refused.value)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"not kept"' in line]
    assert len(events) == 2 and all(
        "the disk is full" in each["error"] for each in events
    )  # of the stream, and of the one refused
    assert float(counted.split("\nstrobe_not_kept_total ")[1].split()[0]) > 2
