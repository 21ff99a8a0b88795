"""A session on several devices gives what one device gives, and nobody holds what another owns. Ranks are threads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import shared_model
from ring_frames import stored_bytes
from shared_model import SWITCHES, Told, six_heads, stream, tell
from strobe.attention.tree import CollectiveError
from strobe.bench.processes import run_swept
from strobe.core.errors import SessionError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig
from strobe.engine.graphs import Recorded, Runner
from strobe.engine.memory import predict, predict_ranks
from strobe.engine.model import Model
from strobe.engine.parallel import DeviceGroup
from strobe.engine.parallel.rank import SharedCache
from strobe.engine.presets import preset
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot
from strobe.engine.stream import FrameBlock
from tree_ranks import Runner as Ranks
from tree_ranks import threads

ELEMENT = tolerance("element", "float32")
CONFIG = EngineConfig(window=7, sink=2, positions="rebased")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with threads() as run:
        yield run


@pytest.fixture(scope="module")
def model() -> Model:
    return six_heads()


@pytest.fixture(scope="module")
def alone(model: Model) -> Told:
    return stream(model, CONFIG, "cpu")


def on_ranks(ranks: Ranks, model: Model, config: EngineConfig, ulysses: int, tree: int) -> list[Told]:
    return ranks(ulysses * tree, lambda rank: stream(model, config, DeviceGroup(ulysses=ulysses, timeout_s=300)))


def compare(found: list[Told], alone: Told) -> None:
    for told in found:
        torch.testing.assert_close(told.latents, alone.latents, atol=ELEMENT, rtol=ELEMENT)
        assert torch.equal(told.latents, found[0].latents)
        assert told.prompts == alone.prompts
    assert (found[0].frames.int() - alone.frames.int()).abs().max() <= 1
    assert found[0].frames.shape == alone.frames.shape
    assert all(told.frames.shape[:2] == (2, 0) for told in found[1:])
    assert sum(told.cached for told in found) == alone.cached


@pytest.mark.parametrize(("ulysses", "tree"), [(1, 2), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_every_rank_has_what_one_device_has(ranks: Ranks, model: Model, alone: Told, ulysses: int, tree: int) -> None:
    assert alone.latents.isfinite().all()
    compare(on_ranks(ranks, model, CONFIG, ulysses, tree), alone)


PLAIN = preset("baseline").knobs


@pytest.mark.parametrize(
    ("config", "ulysses", "tree"),
    [
        (replace(CONFIG, knobs=PLAIN, positions="absolute"), 2, 2),  # the rolling cache, modulation for each frame, no tables
        (replace(CONFIG, keep_sink=False, first_block=1, knobs=replace(CONFIG.knobs, late_frames=True)), 1, 7),  # 3 tokens, 2 ...
        (replace(CONFIG, sparsity=0.5), 3, 1),
    ],
    ids=["plain", "uneven", "sparse"],
)
def test_whatever_the_configuration(ranks: Ranks, model: Model, config: EngineConfig, ulysses: int, tree: int) -> None:
    big = replace(model, defaults=replace(model.defaults, frame_size=(64, 128))) if config.sparsity else model
    compare(on_ranks(ranks, big, config, ulysses, tree), stream(big, config, "cpu"))


@pytest.mark.parametrize(("sparsity", "ulysses", "tree"), [(0.0, 2, 2), (0.5, 3, 1)])
def test_recorded_passes_give_what_eager_ones_give(ranks: Ranks, model: Model, sparsity: float, ulysses: int, tree: int) -> None:
    """While the window fills and rolls, over a switch, and on."""
    big = replace(model, defaults=replace(model.defaults, frame_size=(64, 128))) if sparsity else model
    config = replace(CONFIG, sparsity=sparsity)

    def work(runner: Runner) -> tuple[Told, int]:
        group = DeviceGroup(ulysses=ulysses, timeout_s=300)
        with Session("red circle", preset=config, model=big, seed=3, device=group) as session:
            session._stream._dit = session._stream._dit.share(runner)
            return tell(session, 6, SWITCHES), len(runner) if isinstance(runner, Recorded) else 0

    eager = ranks(ulysses * tree, lambda rank: work(Runner()))
    for (told, known), (plain, _) in zip(ranks(ulysses * tree, lambda rank: work(Recorded())), eager, strict=True):
        assert known == 7
        assert torch.equal(told.latents, plain.latents) and torch.equal(told.frames, plain.frames)


@pytest.mark.parametrize(("number", "ulysses"), [(4, 2), (3, 3)], ids=["heads and rows", "heads alone"])
def test_a_snapshot_is_that_of_one_device(ranks: Ranks, model: Model, number: int, ulysses: int) -> None:
    def begin(device: DeviceGroup | str) -> tuple[Snapshot, Tensor]:
        with Session("red circle", preset=CONFIG, model=model, device=device) as session:
            list(session.stream(3))
            taken = session.snapshot()
            return taken, next(session.stream(1)).latents

    def go_on(device: DeviceGroup | str, snapshot: Snapshot) -> FrameBlock:
        with Session(preset=CONFIG, model=model, device=device) as session:
            session.restore(snapshot)
            return next(session.stream(1))

    whole, latents = begin("cpu")
    taken = ranks(number, lambda rank: begin(DeviceGroup(ulysses=ulysses, timeout_s=300)))
    for snapshot, after in taken:
        for name in ("keys", "values", "sink_keys"):
            torch.testing.assert_close(getattr(snapshot.cache, name), getattr(whole.cache, name), atol=ELEMENT, rtol=ELEMENT)
        torch.testing.assert_close(after, latents, atol=ELEMENT, rtol=ELEMENT)
    on_three = ranks(3, lambda rank: go_on(DeviceGroup(ulysses=1, timeout_s=300), taken[0][0]))
    on_one = go_on("cpu", taken[0][0])
    for block in (*on_three, on_one):
        torch.testing.assert_close(block.latents, latents, atol=ELEMENT, rtol=ELEMENT)
    assert (on_three[0].samples.int() - on_one.samples.int()).abs().max() <= 1
    with pytest.raises(SessionError, match="another device decoded them; take that of rank 0"):
        go_on("cpu", taken[1][0])


def test_prompts_of_rank_0_are_followed(ranks: Ranks, model: Model) -> None:
    def work(rank: int, device: DeviceGroup | str) -> tuple[list[str], Tensor]:
        blocks = []
        with Session("red circle", preset=CONFIG, model=model, device=device) as session:
            for block in session.stream(4):
                blocks.append(block)
                if block.index == 0:
                    session.prompt(("blue square", "green circle")[rank], mode="soft")
                if block.index == 1:
                    session.use_lora(None)  # the window is derived again
        return [block.prompt for block in blocks], torch.cat([block.latents for block in blocks], dim=1)

    prompts, latents = work(0, "cpu")
    assert prompts == ["red circle", *["blue square"] * 3]
    for said, made in ranks(2, lambda rank: work(rank, DeviceGroup(timeout_s=300))):
        assert said == prompts
        torch.testing.assert_close(made, latents, atol=ELEMENT, rtol=ELEMENT)


@pytest.mark.parametrize(("change", "words"), [({"seed": 1}, "seed 1"), ({"preset": "balanced"}, "balanced")])
def test_another_session_on_one_rank_is_refused(ranks: Ranks, model: Model, change: dict[str, Any], words: str) -> None:
    def work(rank: int) -> str:
        options = {"preset": CONFIG, "model": model, "device": DeviceGroup(timeout_s=300)} | (change if rank == 2 else {})
        with pytest.raises(CollectiveError) as raised:
            Session("red circle", **options)
        assert raised.value.ranks == (2,)
        return str(raised.value)

    assert all(words in error and "rank 2 disagrees" in error for error in ranks(3, work))


def test_what_a_rank_will_hold_is_predicted(ranks: Ranks, model: Model) -> None:
    def work(rank: int) -> tuple[dict[str, int], int]:
        group = DeviceGroup(ulysses=2, timeout_s=300)
        with Session("red circle", preset=CONFIG, model=model, device=group) as session:
            share, cache = session._stream.share, session._stream._cache
            assert share is not None and isinstance(cache, SharedCache)
            (parts,) = predict_ranks(model, session.config, [share.layout])
            return parts, stored_bytes(cache._cache)

    alone = predict(model, resolve(CONFIG, model.defaults, torch.device("cpu")))
    found = ranks(4, work)
    for rank, (parts, held) in enumerate(found):
        assert parts["keys and values"] == held
        assert parts["transformer weights"] == alone["transformer weights"]
        assert parts["autoencoder weights"] == (0 if rank else alone["autoencoder weights"])
        assert 0 < parts["largest pass"] < alone["largest pass"] or rank == 0
    assert sum(held for _, held in found) == alone["keys and values"]


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")


@pytest.mark.rest
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.alone, TWO_GPUS])])
def test_torchrun(tmp_path: Path, device: str) -> None:
    script = Path(__file__).parents[2] / "support" / "torchrun_work.py"
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    argv = (sys.executable, *torchrun, str(script), str(tmp_path), device)
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    (tmp_path / "room").mkdir()
    done = run_swept(argv, tmp_path / "room", env, timeout_s=900 if device == "cpu" else 90)
    assert done.returncode == 0, done.stderr
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    alone = shared_model.bundled(device)
    for told in found:
        close = tolerance("stream", "float32") if device == "cpu" else tolerance("stream of two GPUs", "float32")
        torch.testing.assert_close(told["latents"], alone.latents.cpu(), atol=close, rtol=0)
    assert torch.equal(found[0]["latents"], found[1]["latents"])
    assert (found[0]["frames"].int() - alone.frames.int()).abs().max() <= 1 and not found[1]["frames"].numel()
    assert [told["cached"] for told in found] == [alone.cached // 2] * 2  # 3 heads on 2 ranks: half of the keys of each
    assert [(tmp_path / f"codes{rank}").read_text() for rank in range(2)] == ["[0, 2, 2]"] * 2, done.stderr
    assert json.loads(done.stdout)["frames"] == 9  # one document, by rank 0
    assert (tmp_path / "clip.mp4").is_file()
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 2, done.stderr
    assert said[0].startswith("error: 2 ranks cannot share this session: sparse attention needs")
    assert said[1].startswith("error: 2 ranks cannot share this session: ulysses 3 divides not both the 3 heads and the 2 ranks")

    silent = "rank 1 did not answer within 3 s"  # all that NCCL can say of a rank that has ended
    for what, words in (("hangs", silent), ("ends", "rank 1 closed the connection (" if device == "cpu" else silent)):
        told = (tmp_path / what).read_text()
        assert told.startswith("(1,) ") and words in told, told
