"""A stream of the server is the session it stands for, bit by bit, whatever happens to it in between."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strobe
from fake_gpu import FakeGpu
from live_server import CIRCLE, SQUARE, Running, expected, frames, in_shots, live_stream, until
from simulate import Arrival, simulate
from strobe.core.errors import ConfigError, SessionError, StrobeError
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.engine.resolve import resolve
from strobe.serve import protocol
from strobe.serve.client import LoadViewer, watch
from strobe.serve.hub import Channel, Hub, WaitingFrame, waited
from strobe.serve.keeper import Keeper
from strobe.serve.metrics import Metrics
from strobe.serve.protocol import MARKS, PaintedFrame, Picture, Received
from strobe.serve.scheduler import ENOUGH, FULL, Demand, StreamCost, choose, learn, refusal
from strobe.serve.streams import Block, GpuClock, LiveStream, Origin, SpareSessions
from strobe.serve.worker import StreamGoneError, Worker
from tiny_model import well_read_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=[0, 2])
def spares(model: Model, request: pytest.FixtureRequest) -> SpareSessions:
    """None, or two: those that streams of tests before have used, in the middle of other videos."""
    return SpareSessions(model, CPU, most=request.param)


def test_suspended_and_woken_between_all_blocks_it_is_the_same(model: Model, spares: SpareSessions) -> None:
    stream, found = live_stream(model, spares=spares), []
    for number in range(5):
        if number == 2:
            _, at = stream.prompt(SQUARE, "recache", 4)
        found.append(stream.make().frames)
        began = time.perf_counter()
        took_ms = stream.suspend()
        assert stream.asleep and 0 < took_ms <= 1e3 * (time.perf_counter() - began)
    assert np.array_equal(np.concatenate(found), expected(model, 5, strobe.Switch(frame_block=at, prompt=SQUARE)))
    stream.wake()
    stream.close()


def test_a_session_that_another_stream_used_makes_what_a_new_one_does(model: Model) -> None:
    spares = SpareSessions(model, CPU, most=1)
    before = live_stream(model, seed=8, spares=spares)
    frames(before, 2)
    before.prompt(SQUARE, "recache", 4)
    frames(before, 2)
    used, broken = before._session, live_stream(model, seed=9, spares=spares)
    before.close()
    assert spares.count(preset("turbo")) == 1 and spares.count(preset("balanced")) == 0
    stream = live_stream(model, spares=spares)
    assert stream._session is used and spares.count(preset("turbo")) == 0
    assert np.array_equal(frames(stream, 4), expected(model, 4))
    broken.close(failed=True)
    assert spares.count(preset("turbo")) == 0
    with pytest.raises(ConfigError, match="purpel"):
        LiveStream(
            name="t", sessions=spares, origin=Origin(prompt="a purpel circle", seed=1, preset="turbo"), config=preset("turbo")
        ).open()
    stream.close()
    assert spares.clear() and not spares.clear() and spares.count(preset("turbo")) == 0


def test_a_prompt_or_a_reset_that_is_refused_changes_nothing(model: Model) -> None:
    stream = live_stream(model)
    made, log = frames(stream, 1), stream.log
    with pytest.raises(ConfigError):
        stream.prompt("a purple elephant", "recache", 4)
    with pytest.raises(ConfigError, match="empty"):
        stream.prompt("   ", "recache", 4)
    with pytest.raises(ConfigError):
        stream.reset(Origin(prompt="an elephant", seed=0, preset="turbo"), preset("turbo"))
    assert stream.log == log and stream.generation == 0
    assert np.array_equal(np.concatenate([made, frames(stream, 2)]), expected(model, 3))


def test_after_a_reset_a_block_is_given_up_and_made_anew(model: Model) -> None:
    stream = live_stream(model)
    stream.reset(Origin(prompt="a red circle moving left", seed=3, preset="turbo"), preset("turbo"))
    first, given_up, second = stream.make(), stream.make(lambda: True), stream.make()
    assert given_up is None and first is not None and second is not None
    assert np.array_equal(np.concatenate([first.frames, second.frames]), expected(model, 2))


def test_branches_are_bounded_and_numbered(model: Model) -> None:
    stream = live_stream(model)
    frames(stream, 1)
    for _ in range(MARKS):
        stream.mark("")
    with pytest.raises(SessionError, match=str(MARKS)):
        stream.mark("one more")
    with pytest.raises(ConfigError, match="no branch 99"):
        stream.go(99)


@pytest.mark.parametrize("late", [False, True])
def test_a_gpu_s_time_for_a_block_is_its_own_whatever_the_host_waits_for(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Two streams take turns: with late frames, no call waits for the work that it launches."""
    gpu, lengths = FakeGpu(monkeypatch), (90, 30)
    clocks, found = [GpuClock(torch.device("cuda"), late=late) for _ in lengths], []

    def work(number: int, turn: int) -> None:
        gpu.kernel(10**6 * (lengths[number] + (20 if turn == 3 and number == 0 else 0)))
        if not late:
            gpu.synchronize()

    for turn in range(6):
        found.append([round(clock.timed(partial(work, number, turn))[1]()) for number, clock in enumerate(clocks)])
    longer = 4 if late else 3  # that of turn 3 is handed out one turn later
    assert found == [[110 if turn == longer else 90, 30] for turn in range(6)]


def test_the_layout_of_shots_is_what_the_cache_keeps() -> None:
    """While a frame block is made, the pins are those of the shot before; a branch has those of its own past."""
    stream = live_stream(in_shots(), name="balanced")
    cuts, seen = {3: SQUARE, 4: "a green circle moving left", 9: "a red square moving left"}, []
    for index in range(12):
        if index in cuts:
            stream.prompt(cuts[index], "shot", 1)
        if index == 8:
            branch = stream.mark("before the last shot")
        found = stream.make().cache
        cache = stream.session._stream._cache
        first, count = cache._before.pinned  # type: ignore[union-attr]
        assert (found["pinned_first"], found["pinned"]) == (first, count)
        assert (found["shots"], found["begins"]) == (sum(cut <= index for cut in cuts), int(index in cuts))
        seen.append((first, count))
    assert seen[3:6] == [(0, 0), (9, 3), (12, 3)] and seen[9:11] == [(12, 3), (27, 3)]
    stream.go(branch.number)
    assert stream.make().cache["pinned_first"] == 12


def test_a_preset_costs_what_its_full_frame_blocks_take() -> None:
    worker = Worker(well_read_model(), torch.device("cpu"), default="turbo", made=print, failed=print)
    predicted = StreamCost(block_s=0.25, longest_s=0.5, content_s=worker.content_s, stream_bytes=1)
    worker._predicted = dict.fromkeys(worker.configs, predicted)
    worker.costs = dict(worker._predicted)
    defaults = worker.model.defaults
    full = -(-resolve(worker.configs["turbo"], defaults, torch.device("cpu")).policy.window // defaults.frame_block)

    def made(index: int, ms: float, entered: object | None = None) -> Any:
        return SimpleNamespace(index=index, block_ms=lambda: ms, entered=entered)

    for index in range(full):
        worker._learn("turbo", made(index, 900.0, object()))  # its window fills
    for index in range(full, full + ENOUGH - 1):
        worker._learn("turbo", made(index, 750.0))
    assert worker.costs["turbo"] == predicted
    worker._learn("turbo", made(full + ENOUGH, 750.0))
    assert (worker.costs["turbo"].block_s, worker.costs["turbo"].longest_s) == (0.75, 1.5)
    worker._learn("turbo", made(full + ENOUGH + 1, 1250.0, object()))
    assert (worker.costs["turbo"].block_s, worker.costs["turbo"].longest_s) == (0.75, 1.25)
    assert all(cost == predicted for name, cost in worker.costs.items() if name != "turbo")


class Steered:
    """A worker with streams that play without end, of which "a" is prompted amid chosen frame blocks."""

    def __init__(self, model: Model, streams: str, prompts: dict[int, str]) -> None:
        self.prompts, self.answers, self.orders = prompts, [], []  # type: ignore[var-annotated]
        self.blocks: dict[str, list[Block]] = {name: [] for name in streams}
        self.enough = threading.Event()
        self.worker = Worker(model, CPU, default="turbo", made=self._made, failed=lambda name, error: self.orders.append(error))
        self.worker._learn = lambda preset, block: None  # type: ignore[method-assign]
        self.worker.start()
        try:
            origin = Origin(prompt="a red circle moving left", seed=3, preset="turbo")
            for name in streams:
                self.worker.submit(partial(self.worker.open, name, origin)).result()
            inner = self.worker.stream("a").session._stream
            inner._dit.flow = partial(self._flow, inner, inner._dit.flow)
            for name in streams:
                self.worker.painted(name, 0, 10**6, True)
            assert self.enough.wait(60)
        finally:
            self.worker.close()

    def _flow(self, inner: Any, flow: Any, *arguments: Any) -> Any:
        text = self.prompts.pop(inner.state.next_block, None)
        if text is not None:
            self.answers.append(self.worker.prompt("a", text, "recache", 4, time.monotonic()))
            self.worker.submit(lambda: self.orders.append(self.worker._again))
        return flow(*arguments)

    def _made(self, name: str, block: Block) -> None:
        self.blocks[name].append(block)
        if len(self.blocks["a"]) >= 7:
            self.enough.set()


@pytest.mark.parametrize(("streams", "at"), [("a", 3), ("ab", 4)])
def test_a_prompt_gives_up_the_block_under_way_only_of_a_stream_that_plays_alone(model: Model, streams: str, at: int) -> None:
    found = Steered(model, streams, {3: SQUARE})
    (answer,), blocks = found.answers, found.blocks["a"]
    assert answer.result() == (1, at)
    assert found.orders == [""], "what is asked for after a prompt finds the stream between two frame blocks"
    assert np.array_equal(
        np.concatenate([block.frames for block in blocks[:7]]), expected(model, 7, strobe.Switch(frame_block=at, prompt=SQUARE))
    )
    assert [(block.index, block.first_frame, block.epoch, block.entered is not None) for block in blocks] == [
        (number, max(0, 12 * number - 3), int(number >= at), number in (0, at)) for number in range(len(blocks))
    ]
    (timed,) = [block.timed for block in blocks if block.timed is not None]
    assert blocks[at].timed is timed
    assert timed.arrived_s <= timed.asked_s <= timed.encoded_s <= timed.begun_s <= timed.made_s  # type: ignore[operator]


def test_whoever_prompts_without_end_still_gets_frames(model: Model) -> None:
    found = Steered(model, "a", {3: SQUARE, 4: "a red circle moving left"})
    assert [answer.result() for answer in found.answers] == [(1, 3), (2, 4)]
    found = Steered(model, "a", {3: SQUARE})
    again = found.worker.prompt("a", "a red circle moving left", "recache", 4, 0.0)
    with pytest.raises(StrobeError, match="shutting down"):
        again.result()


def test_a_text_that_takes_time_is_followed_once_it_is_there(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, there = model.text.encode, threading.Event()
    monkeypatch.setattr(model.text, "ready", lambda prompts: not any("blue" in prompt for prompt in prompts))

    def slowly(prompts: list[str]) -> torch.Tensor:
        if any("blue" in prompt for prompt in prompts):
            there.wait(60)
        return encode(prompts)

    monkeypatch.setattr(model.text, "encode", slowly)
    threading.Timer(0.05, there.set).start()
    found = Steered(model, "a", {2: SQUARE})
    assert found.answers[0].result() == (1, None)


GIB = 2**30
COSTS = {
    "balanced": StreamCost(block_s=0.238, longest_s=0.41, content_s=0.75, stream_bytes=7 * GIB),
    "turbo": StreamCost(block_s=0.155, longest_s=0.265, content_s=0.75, stream_bytes=6 * GIB),
    "ultra": StreamCost(block_s=0.086, longest_s=0.138, content_s=0.75, stream_bytes=4 * GIB),
}

demands = st.builds(
    Demand,
    stream=st.sampled_from("abcdef"),
    ahead_s=st.floats(0, 5),
    target_s=st.floats(0.1, 3),
    running=st.booleans(),
    steered=st.booleans(),
    opened_s=st.floats(0, 100),
)


@given(st.lists(demands, max_size=6, unique_by=lambda demand: demand.stream))
def test_whoever_was_steered_or_else_runs_dry_first_is_next_and_order_does_not_matter(asked: list[Demand]) -> None:
    chosen = choose(asked)
    steered = {demand.stream: demand for demand in asked if demand.running and demand.steered}
    wanting = steered or {demand.stream: demand for demand in asked if demand.running and demand.ahead_s < demand.target_s}
    assert (chosen is None) == (not wanting)
    if chosen is not None:
        assert wanting[chosen].ahead_s == min(demand.ahead_s for demand in wanting.values())
        assert {choose(list(order)) for order in list(permutations(asked))[:24]} == {chosen}


def test_the_one_too_many_is_told_what_would_fit_and_alone_a_stream_is_let_in_however_slow() -> None:
    three = [COSTS["balanced"]] * 3
    room = {"free_bytes": 100 * GIB, "start_buffer_s": 0.5, "most": 100}
    told = refusal("balanced", three, COSTS, **room)
    assert told is not None and told.kind == "time"
    assert told.fits == tuple(name for name in COSTS if refusal(name, three, COSTS, **room) is None)
    memory = refusal("ultra", [], COSTS, **room | {"free_bytes": 3 * GIB})
    assert memory is not None and memory.kind == "memory" and "4.0 GiB" in str(memory) and not memory.fits
    many = refusal("ultra", [COSTS["ultra"]], COSTS, **room | {"most": 1})
    assert many is not None and many.kind == "streams"
    slow = {"slow": StreamCost(block_s=2.0, longest_s=3.0, content_s=0.75, stream_bytes=1)}
    assert refusal("slow", [], slow, **room) is None
    assert refusal("slow", [slow["slow"]], slow, **room) is not None


@given(
    st.lists(st.floats(0.01, 3), max_size=3 * ENOUGH), st.lists(st.floats(0.01, 3), max_size=4), st.sampled_from(sorted(COSTS))
)
def test_a_cost_is_learned_from_streams_that_run(steady: list[float], switched: list[float], preset: str) -> None:
    predicted = COSTS[preset]
    found = learn(predicted, steady, switched)
    assert (found.content_s, found.stream_bytes) == (predicted.content_s, predicted.stream_bytes)
    expected = sorted(steady) if len(steady) >= ENOUGH else [predicted.block_s]
    middle = (expected[(len(expected) - 1) // 2] + expected[len(expected) // 2]) / 2
    assert found.block_s == pytest.approx(middle)
    if switched:
        assert found.longest_s == max(found.block_s, *switched)
    else:
        assert found.longest_s / found.block_s == pytest.approx(predicted.longest_s / predicted.block_s)


@pytest.mark.parametrize("switching", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_streams_that_were_admitted_do_not_stall(seed: int, switching: bool) -> None:
    """150 Poisson arrivals each: no frame block is late, whatever the mix; switches, which go first, make one late at most."""
    draw = random.Random(seed)
    at, arrivals = 0.0, []
    for _ in range(150):
        at += draw.expovariate(1 / 6)
        watches = draw.uniform(3, 60)
        switches = tuple(draw.uniform(0, watches) for _ in range(draw.randrange(3)))[:switching]
        arrivals.append(Arrival(at_s=at, preset=draw.choice(list(COSTS)), watches_s=watches, switches_s=switches))
    outcomes = simulate(arrivals, COSTS, memory_bytes=120 * GIB, start_buffer_s=1.0)
    admitted = [outcome for outcome in outcomes if outcome.admitted]
    assert len(admitted) > 30 and any(not outcome.admitted for outcome in outcomes)
    late = sum(outcome.late for outcome in admitted)
    assert late == 0 or (late == 1 and switching), "a frame block came after its viewer had run dry"
    assert max(outcome.most_ahead_s for outcome in admitted) <= 1.0 + 2 * 0.75


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.7), st.integers(1, 8))
def test_steady_streams_within_the_bound_make_every_deadline(block_s: float, number: int) -> None:
    """Liu and Layland's bound, with whole frame blocks: as many as are admitted play for two minutes without one late block."""
    cost = {"p": StreamCost(block_s=block_s, longest_s=block_s, content_s=0.75, stream_bytes=1)}
    arrivals = [Arrival(at_s=0.01 * index, preset="p", watches_s=120) for index in range(number)]
    outcomes = simulate(arrivals, cost, memory_bytes=100, start_buffer_s=1.0)
    admitted = [outcome for outcome in outcomes if outcome.admitted]
    assert admitted and sum(cost["p"].share for _ in admitted) <= max(FULL, cost["p"].share)
    if len(admitted) > 1 or cost["p"].share < FULL:
        assert all(outcome.late <= 1 for outcome in admitted), outcomes  # while the others fill their buffers


NOW_S = 1000.0


async def told_next(viewer: LoadViewer, kind: type) -> Any:
    """The next message of a kind; nothing is said of pictures."""
    while not isinstance(message := await viewer.receive(), kind):
        pass
    return message


async def test_the_device_is_told_at_once_whenever_a_stream_is_to_run_or_to_rest(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = running.hub
    told, right = list[tuple[bool, bool]](), hub.tell_worker

    def tell(channel: Channel) -> None:
        told.append((channel.playing, channel.send is not None))
        right(channel)

    monkeypatch.setattr(hub, "tell_worker", tell)
    async with watch(running.ws, prompt=CIRCLE) as viewer:
        channel = hub.channels[viewer.welcome.stream]
        await told_next(viewer, Picture)
        assert told == [(True, True)]
        began = time.monotonic()
        for message, answer in (
            (protocol.Pause(), protocol.State),
            (protocol.Play(), protocol.State),
            (protocol.Prompt(text=SQUARE), protocol.Prompted),
        ):
            await viewer.send(message)
            await told_next(viewer, answer)
        until("the last is not told", lambda: len(told) == 4)
        assert told[1:] == [(False, True), (True, True), (True, True)]
        assert channel.quiet_s > began
    until("that nobody watches is not told", lambda: channel.send is None and told[-1] == (True, False))
    assert channel.left_s > channel.quiet_s


def hub_of_one() -> tuple[Hub, Channel]:
    """A hub that has one stream and no device."""
    hub = Hub(asyncio.get_running_loop(), Metrics(), suspend_s=5.0, resume_s=20.0)
    channel = hub.channels["a"] = Channel(name="a", secret="s", codec="jpeg", preset="turbo")
    return hub, channel


@pytest.mark.parametrize(
    ("away", "playing", "asleep", "left_s", "quiet_s", "expected"),
    [
        (True, True, False, 20.0, 0.0, "suspend"), (True, True, False, 20.1, 0.0, "drop"),
        (True, False, True, 20.1, 0.0, "drop"), (True, True, True, 19.0, 0.0, ""), (True, True, False, 5.0, 99.0, ""),
        (True, True, False, 5.1, 0.0, "suspend"), (False, True, False, 99.0, 99.0, ""), (False, False, False, 99.0, 5.0, ""),
        (False, False, False, 0.0, 5.1, "suspend"), (False, False, True, 99.0, 99.0, ""),
    ],
)  # fmt: skip
async def test_a_stream_that_rests_is_moved_away_and_one_that_is_left_is_closed(
    away: bool, playing: bool, asleep: bool, left_s: float, quiet_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    (hub, channel), done = hub_of_one(), list[str]()
    for name in ("drop", "suspend"):
        monkeypatch.setattr(hub, name, AsyncMock(side_effect=lambda each, name=name: done.append(name)))
    channel.send = None if away else lambda message: None
    channel.playing, channel.asleep = playing, asleep
    channel.left_s, channel.quiet_s = NOW_S - left_s, NOW_S - quiet_s
    await hub._keep(channel)
    assert done == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("what", "said"),
    [("rests", ["suspended"]), ("is woken", []), ("is closed", []), ("is gone", ["suspended"]), ("has no room", [])],
)
async def test_the_device_is_told_before_a_stream_is_moved_and_the_viewer_after(
    what: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, heard = list[bool](), list[str]()
    hub, channel = hub_of_one()

    async def on_device(move: Callable[[], float]) -> float:
        assert told == [True], "it does not run any more"
        if what == "is woken":
            channel.asleep = False
        if what == "is closed":
            del hub.channels["a"]
        if what == "is gone":
            raise StreamGoneError("gone")
        if what == "has no room":
            raise SessionError("the device failed")
        return 3.0

    monkeypatch.setattr(hub, "tell_worker", lambda each: told.append(each.asleep))
    monkeypatch.setattr(hub, "on_device", on_device)
    channel.send = lambda message: heard.append(message.state)
    await hub.suspend(channel)
    assert heard == said and channel.asleep == (what not in ("is woken", "has no room"))


async def test_what_fails_on_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, failed = hub_of_one()[0], Future[None]()
    failed.set_exception(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"))
    monkeypatch.setattr(hub, "_worker", SimpleNamespace(submit=lambda work: failed))
    with pytest.raises(SessionError, match=r"the device failed \(CUDA out of memory.*ask for a preset that needs less"):
        await hub.on_device(lambda: None)


async def test_an_error_of_the_device_that_nobody_waits_for_any_more_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    work = asyncio.get_running_loop().create_future()
    viewer = asyncio.ensure_future(waited(work))
    await asyncio.sleep(0)
    viewer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await viewer
    work.set_exception(ConfigError("no such branch"))
    await asyncio.sleep(0)
    del work
    gc.collect()
    assert not caplog.records


async def test_of_a_stream_that_is_closed_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub, channel = hub_of_one()
    done = list[Any]()
    hub.keeper = create_autospec(Keeper, instance=True)
    monkeypatch.setattr(hub, "on_device", AsyncMock(side_effect=lambda drop: done.append("device")))
    monkeypatch.setattr(hub.recordings, "stop", done.append)
    hub._secrets["s"] = "a"
    assert hub.find("s") is channel and hub.find("t") is None
    channel.frames.append(WaitingFrame(number=0, epoch=0, pixels=np.zeros((2, 2, 3), np.uint8), block=None))
    channel.changed.clear()
    await hub.drop(channel)
    assert hub.find("s") is None and not hub.channels and not hub._secrets
    assert not channel.frames and channel.changed.is_set() and done == ["a", "device"]
    hub.keeper.end.assert_called_once_with("a")
    assert '"event": "stream closed", "stream": "a"' in capfd.readouterr().err


async def test_frames_that_were_painted_are_let_go_and_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    hub, channel = hub_of_one()
    told = list[int]()
    monkeypatch.setattr(hub, "tell_worker", lambda each: told.append(each.painted))
    pixels = np.zeros((2, 2, 3), np.uint8)
    channel.frames.extend(WaitingFrame(number=number, epoch=number // 2, pixels=pixels, block=None) for number in range(6))
    channel.cursor = 5
    channel.changed.clear()
    hub.seen(channel, PaintedFrame(frame=2, generation=0, epoch=1))  # it was shown at once, instead of those before
    assert [each.number for each in channel.frames] == [3, 4, 5]
    assert (channel.painted, channel.received, channel.quiet_s, told) == (3, 3, NOW_S, [3]) and channel.changed.is_set()
    hub.passed(channel, 2)  # an older report takes nothing back
    hub.passed(channel, 9)  # nobody paints what was not sent
    assert told == [3, 3, 5] and [each.number for each in channel.frames] == [5] and channel.received == 5
    assert hub.metrics.registry.get_sample_value("strobe_pictures_painted_total", {"when": "on time"}) == 1


@pytest.mark.parametrize(("playing", "watched", "awake", "serving"), list(product([True, False], repeat=4)))
async def test_a_stream_runs_while_it_plays_is_watched_and_awake(
    playing: bool, watched: bool, awake: bool, serving: bool
) -> None:
    hub, channel = hub_of_one()
    worker = create_autospec(Worker, instance=True)
    hub.begin(worker)
    channel.send = (lambda message: None) if watched else None
    channel.playing, channel.asleep, hub.draining = playing, not awake, not serving
    channel.generation, channel.painted = 3, 7
    hub.tell_worker(channel)
    worker.painted.assert_called_once_with("a", 3, 7, playing and watched and awake and serving)


async def test_what_has_arrived_lets_the_next_pictures_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.serve.hub.monotonic", lambda: NOW_S)
    hub, channel = hub_of_one()
    channel.cursor, channel.generation = 8, 2
    channel.changed.clear()
    hub.received(channel, Received(generation=1, frame=6))
    assert (channel.received, channel.quiet_s, channel.changed.is_set()) == (0, 0.0, False)
    for frame, received in ((4, 5), (2, 5), (40, 8)):
        channel.changed.clear()
        hub.received(channel, Received(generation=2, frame=frame))
        assert (channel.received, channel.quiet_s, channel.changed.is_set()) == (received, NOW_S, True)
