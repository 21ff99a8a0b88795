"""A disk that is full: viewers are told at once, what is whole is kept, operators read it once in the log and in a counter."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest

from fault_disks import small_disk
from live_server import Running, serving
from strobe.serve import hub as hub_module
from strobe.serve import protocol
from strobe.serve.client import RefusedError, watch
from strobe.serve.hub import Hub, Recordings
from strobe.serve.metrics import Metrics
from strobe.serve.protocol import Picture

Run = Callable[[Any], Any]
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


def test_a_viewer_is_told_at_once_and_downloads_what_is_whole(
    bundled: Running, run: Run, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = bundled.server.hub
    assert isinstance(hub, Hub)
    own, hub.recordings = hub.recordings, Recordings(hub.metrics, hub.recorded)
    before = failures(hub.metrics)

    async def until_recorded(viewer: Any) -> protocol.RecordingState:
        while True:
            message = await viewer.receive()
            if isinstance(message, Picture):
                await viewer.seen(message)
            elif isinstance(message, protocol.RecordingState):
                return message

    async def stream() -> tuple[protocol.RecordingState, ...]:
        async with watch(bundled.ws, prompt="a red circle moving left") as viewer:
            await viewer.send(protocol.Record(on=True))
            assert (await until_recorded(viewer)).on
            fill(disk, 16 << 10)
            found = await until_recorded(viewer)  # nobody asked
            await viewer.send(protocol.Record(on=False))
            again = await until_recorded(viewer)
            (disk / "other").unlink()
            await viewer.send(protocol.Record(on=True))
            assert (await until_recorded(viewer)).on
            number = 0
            while number < 40:  # more than wait at the viewer
                if isinstance(message := await viewer.receive(), Picture):
                    await viewer.seen(message)
                    number += 1
            await viewer.send(protocol.Record(on=False))
            return found, again, await until_recorded(viewer)

    try:
        found, again, other = run(stream())
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


def test_a_kept_stream_plays_on_and_its_viewer_and_operator_are_told_once(
    run: Run, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until there is room again: then its log is written with the next frame block."""

    async def until_told(viewer: Any, number: int) -> list[protocol.Error]:
        """The messages of refusal among so many pictures."""
        told = []
        while number:
            message = await viewer.receive()
            told += [message] if isinstance(message, protocol.Error) else []
            if isinstance(message, Picture):
                await viewer.seen(message)
                number -= 1
        return told

    async def stream() -> tuple[list[protocol.Error], bool, bool, str]:
        async with watch(here.ws, prompt="a red circle moving left") as viewer:
            await until_told(viewer, 3)
            fill(disk, 0)
            told = []
            for text in ("a blue square moving up", "a green star moving right", "a blue square moving up"):
                await viewer.send(protocol.Prompt(text=text))
                told += await until_told(viewer, 13)
            full = keeper.up_to_date(viewer.welcome.stream)
            with pytest.raises(RefusedError) as refused:
                async with watch(here.ws, prompt="a red circle moving left"):
                    pass
            (disk / "other").unlink()
            await until_told(viewer, 30)
            return told, full, keeper.up_to_date(viewer.welcome.stream), str(refused.value)

    with serving(keep=disk / "streams", keep_every=0) as here:
        hub = here.server.hub
        assert hub is not None and hub.keeper is not None
        keeper = hub.keeper
        told, full, later, refused = run(stream())
        counted = httpx.get(f"{here.http}/metrics").text
    assert [each.message for each in told] == [
        "the server cannot keep this stream now: if the server ends, the stream comes back in an older state"
    ]
    assert not full and later and "can keep no stream now" in refused and str(disk) not in refused
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"not kept"' in line]
    assert len(events) == 2 and all(
        "the disk is full" in each["error"] for each in events
    )  # of the stream, and of the one refused
    assert float(counted.split("\nstrobe_not_kept_total ")[1].split()[0]) > 2
