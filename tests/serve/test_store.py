"""The folder of kept streams: one owner at a time, nothing of a secret in it, nothing lost by damage that can be made again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import strobe
from live_server import CIRCLE, SQUARE, STAR
from strobe.core.errors import DataError, SessionError
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.serve.keeper import Keeper, record_of
from strobe.serve.metrics import Metrics
from strobe.serve.protocol import PromptEntry
from strobe.serve.store import SavedStream, Store, StreamFolder
from strobe.serve.streams import LiveStream, Origin, SpareSessions, text_hash
from tiny_model import well_read_model

SECRET = "nobody-guesses-this-secret"


@pytest.fixture(scope="module")
def model() -> Model:
    return well_read_model()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "keep", resume_s=100.0)


def new_stream(model: Model) -> LiveStream:
    origin = Origin(prompt=CIRCLE, seed=3, preset="turbo")
    return LiveStream(name="s", sessions=SpareSessions(model, torch.device("cpu"), most=0), origin=origin, config=preset("turbo"))


def opened(model: Model) -> LiveStream:
    stream = new_stream(model)
    stream.open()
    return stream


def worker_of(stream: LiveStream, painted: int = 0) -> Any:
    """As much of a worker as a keeper asks for."""
    stream.painted = painted
    return SimpleNamespace(stream=lambda name: stream)


def frames(stream: LiveStream, count: int) -> np.ndarray:
    return np.concatenate([stream.make().frames for _ in range(count)])


def expected(model: Model, count: int, *switches: strobe.Switch) -> np.ndarray:
    with strobe.Session(CIRCLE, preset="turbo", model=model, seed=3, device="cpu") as session:
        return np.concatenate([block.frames.numpy() for block in session.stream(count, switches=switches)])


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
    stream, keeper = opened(model), Keeper(store, 1, Metrics(), print)
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
    assert head.state_before(32) is None and head.state_before(50).frame == 45  # type: ignore[union-attr]
    assert [(each.text, each.frame_block) for each in head.log] == [(CIRCLE, 0), (SQUARE, at)]
    assert head.log[1].text_sha256 == text_hash(model.text, SQUARE) != head.log[0].text_sha256
    whole = expected(model, 8, strobe.Switch(frame_block=at, prompt=SQUARE))
    state = head.state_before(50)
    assert state is not None
    other = new_stream(model)
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
    stream = new_stream(model)
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
    stream, keeper, handed_out = opened(model), Keeper(store, 1, Metrics(), failed.append), []
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
