"""Snapshot files: whole or not there, and nothing that was damaged is read."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fault_snapshots import check, damage, header_of, resealed, with_header
from strobe.core.errors import DataError, SessionError
from strobe.engine.config import EngineConfig, Knobs
from strobe.engine.model import Model
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot, read_snapshot
from tiny_model import Make

CPU = torch.device("cpu")


@pytest.fixture
def late(make: Make) -> Snapshot:
    """A snapshot that has all that one can have but latents to start from."""
    session = make(preset=EngineConfig(timesteps=(1000, 500), window=6, sink=2, knobs=Knobs(late_frames=True)))
    list(session.stream(3))
    session.prompt("blue square", mode="interpolate", over=4)
    next(iter(session.stream()))
    session.prompt("green circle", mode="soft")
    snapshot = session.snapshot()
    assert snapshot.state.undelivered is not None and snapshot.pending is not None and not snapshot.state.stale
    return snapshot


class TestDamage:
    def test_it_is_refused_or_bit_equal(self, late: Snapshot, tmp_path: Path) -> None:
        path, outcomes = tmp_path / "s", Counter[str]()
        late.save(path)
        whole = path.read_bytes()
        assert check(path, late) == "bit-equal"
        for number in range(200):
            path.write_bytes(damage(whole, number))
            outcomes[check(path, late)] += 1
        assert outcomes["refused"] >= 190, outcomes  # a blank of the header's padding may be any other, and a 1 a 1

    def test_each_tensor_has_a_digest(self, late: Snapshot, tmp_path: Path) -> None:
        path = tmp_path / "s"
        late.save(path)
        whole = path.read_bytes()
        outer, start = json.loads(header_of(whole)), len(header_of(whole)) + 8
        for name in outer.keys() - {"__metadata__"}:
            first, last = outer[name]["data_offsets"]
            if first == last:
                continue
            data = bytearray(whole)
            data[start + last - 1] ^= 1
            path.write_bytes(data)
            with pytest.raises(SessionError, match=f"tensor '{re.escape(name)}' was damaged; use another copy"):
                read_snapshot(path, CPU)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda body: body.update(decoder_memories=[True] * 1000), "tensor 'decoder.* is missing"),
            (lambda body: body["identity"]["config"].update(window=10**9), "a window of 1000000000 frames, and 24 rows"),
            (lambda body: body["identity"].update(samples=list(range(10**5))), "100000 samples"),
            (lambda body: body.update(blend=None), "tensor 'text.start' is missing, or was added"),
            (lambda body: body.update(blend=[5, 4]), "moves further than to its end"),
            (lambda body: body.update(blend=[-1, 4]), ">= 0"),
            (lambda body: body.update(next_block=10**30), "no snapshot, or was damaged"),
            (lambda body: body.update(next_block=3), "a cache that ends before frame 15"),
            (lambda body: body.update(next_block=0, cache=[0, 0]), "1 prompts at frame block 0"),
            (lambda body: body.update(cache=[0, 14]), "a cache that ends before frame 14"),
            (lambda body: body.update(cache=[1, 15]), "a sink from frame 1 on"),
            (lambda body: body.update(prompts=["red circle"] * 2), "2 prompts at frame block 5"),
            (lambda body: body["pending"].update(prompts=[]), "0 prompts over 4 frame blocks wait in a session of 1 samples"),
            (lambda body: body.update(decoder_started=False), "memories are not its own"),
            (lambda body: body["digests"].update(more=""), "tensor 'more' is missing, or was added"),
            (lambda body: body.pop("stale"), "missing required field"),
        ],
    )
    def test_numbers_are_bounded_by_the_tensors(
        self, late: Snapshot, tiny: Model, tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
    ) -> None:
        """Even if whoever wrote them made a digest."""
        path = tmp_path / "s"
        late.save(path)
        path.write_bytes(resealed(path.read_bytes(), change))
        with pytest.raises(SessionError, match=words):
            Session.resume(path, model=tiny, device="cpu")

    def test_a_snapshot_that_contradicts_itself_changes_nothing(self, make: Make, late: Snapshot) -> None:
        wide = torch.zeros(1, 6, 4, 4, 5)
        state, cache = late.state, late.cache
        assert state.blend is not None and state.undelivered is not None
        started, memories = state.decoder
        wrong = [
            replace(late, state=replace(state, history=wide)),
            replace(late, state=replace(state, history=state.history.double())),
            replace(late, state=replace(state, history=state.history[:, 1:])),
            replace(late, state=replace(state, start=wide)),
            replace(late, state=replace(state, blend=None)),
            replace(late, state=replace(state, blend=replace(state.blend, target=state.blend.target[..., 1:]))),
            replace(late, state=replace(state, blend=replace(state.blend, start=state.blend.start[:, 1:]))),
            replace(late, state=replace(state, undelivered=state.undelivered.float())),
            replace(late, state=replace(state, decoder=(started, memories[1:]))),
            replace(late, state=replace(state, decoder=(started, (torch.zeros(3, 8, 2, 2), *memories[1:])))),
            replace(late, cache=replace(cache, keys=cache.keys[:, :, 1:])),
            replace(late, cache=replace(cache, values=cache.values.to(torch.int8))),
            replace(late, cache=replace(cache, origin=2)),
        ]
        expected, session = (make(preset=late.identity.config) for _ in range(2))
        for each in (expected, session):
            list(each.stream(3))
            each.prompt("blue square")
        for each in wrong:
            with pytest.raises(SessionError, match="this snapshot (contradicts itself|has no memory)"):
                session.restore(each)
        for mine, other in zip(session.stream(2), expected.stream(2), strict=True):
            assert torch.equal(mine.latents, other.latents) and torch.equal(mine.samples, other.samples)

    @pytest.mark.parametrize("version", [1, 2, 4])
    def test_another_version_is_refused_in_a_clear_line(self, late: Snapshot, tmp_path: Path, version: int) -> None:
        path = tmp_path / "s"
        late.save(path)
        outer = json.loads(header_of(path.read_bytes()))
        text = json.dumps({"version": version, "prompts": []})  # the first had no digest
        outer["__metadata__"]["strobe"] = text if version == 1 else f"{text}\n{sha256(text.encode()).hexdigest()}"
        path.write_bytes(with_header(path.read_bytes(), json.dumps(outer).encode()))
        with pytest.raises(SessionError, match=f"has version {version}, and this strobe reads version 3; stream again"):
            read_snapshot(path, CPU)

    def test_what_is_no_snapshot_is_told_from_what_is_no_file(self, tmp_path: Path) -> None:
        other = tmp_path / "notes"
        other.write_text("a red circle")
        with pytest.raises(SessionError, match="no snapshot, or was damaged"):
            read_snapshot(other, CPU)
        for path, words in ((tmp_path / "missing", "no such file"), (tmp_path, "not a file"), (Path("/dev/zero"), "not a file")):
            with pytest.raises(DataError, match=words):
                read_snapshot(path, CPU)

    def test_what_was_read_does_not_follow_the_file(self, late: Snapshot, tmp_path: Path) -> None:
        path = tmp_path / "s"
        late.save(path)
        found = read_snapshot(path, CPU)
        with path.open("r+b") as file:
            file.write(b"\0" * path.stat().st_size)
        assert torch.equal(found.cache.keys, late.cache.keys) and torch.equal(found.state.history, late.state.history)


class TestSaving:
    def test_the_bytes_are_on_the_disk_before_the_name(
        self, late: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And then the name: a power cut leaves the file of before, or this one."""
        path, events, fsync, rename = tmp_path / "s", [], os.fsync, Path.replace

        def noted(handle: int) -> None:
            where = Path(os.readlink(f"/proc/self/fd/{handle}"))
            events.append("folder" if where == tmp_path else f"file of {where.stat().st_size} bytes")
            fsync(handle)

        def renamed(self: Path, target: Path) -> Path:
            events.append("name")
            return rename(self, target)

        monkeypatch.setattr(os, "fsync", noted)
        monkeypatch.setattr(Path, "replace", renamed)
        late.save(path)
        assert events == [f"file of {path.stat().st_size} bytes", "name", "folder"]

    def test_what_fails_leaves_the_file_of_before(self, late: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "s"
        late.save(path)
        before = path.read_bytes()

        def full(tensors: object, target: Path, metadata: object) -> None:
            Path(target).write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("strobe.engine.snapshot.save_file", full)
        with pytest.raises(DataError, match="cannot write the snapshot .*No space left on device"):
            replace(late, pending=None).save(path)
        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["s"]

    def test_a_link_that_waits_beside_it_is_not_followed(
        self, late: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = tmp_path / "other"
        other.write_text("not mine")
        monkeypatch.setattr("strobe.engine.snapshot.secrets.token_hex", lambda size: "0" * 2 * size)
        (tmp_path / ".s.00000000.partial").symlink_to(other)
        with pytest.raises(DataError, match="File exists"):
            late.save(tmp_path / "s")
        assert other.read_text() == "not mine" and (tmp_path / ".s.00000000.partial").is_symlink()


def test_what_is_copied_in_the_background_is_waited_for(late: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of a GPU, as far as a move to the CPU asks."""
    waited, device = list[torch.device](), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    keys: Any = SimpleNamespace(device=device, to=lambda to, *, non_blocking: late.cache.keys if non_blocking else None)
    moved = replace(late, cache=replace(late.cache, keys=keys)).to("cpu")
    assert waited == [device] and moved.cache.keys is late.cache.keys
    assert late.to("cpu").cache.keys is late.cache.keys and len(waited) == 1
