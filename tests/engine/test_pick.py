"""Which configuration `realtime` is: the order, the margin, what is passed over, what is let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from strobe.core.errors import ConfigError, StrobeError
from strobe.engine import pick as module
from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.pick import BLOCKS, LADDER, MARGIN, Pick, needed_fps, pick
from strobe.engine.presets import PRESETS, preset
from strobe.engine.session import Session

FRAMES = 12
CANDIDATES = tuple(EngineConfig(name=name, window=window) for name, window in (("best", 9), ("good", 8), ("least", 7)))
Choose = Callable[..., Pick]


class Clock:
    """Time passes only between two readings: as much as FRAMES take at the rate of what is measured now.

    Args:
        rates: pixel frames per second by name.
        late: how many times as long one of the timed frame blocks takes.
    """

    def __init__(self, rates: dict[str, float], late: float = 1.0) -> None:
        self._rates, self._late = rates, late
        self._now_ns, self._readings, self.measured = 0.0, 0, list[str]()
        self.told = 0

    def progress(self, done: int, total: int, what: str) -> None:
        assert self.told <= done <= total, "frame blocks are counted over all candidates"
        self.told = done
        name = what.removeprefix("measuring ")
        if name not in self.measured:
            self.measured.append(name)
            self._readings = 0

    def __call__(self) -> int:
        self._readings += 1
        slow = self._late if self._readings == 7 else 1.0  # after the frame blocks that are not timed
        self._now_ns += slow * FRAMES * 1e9 / self._rates[self.measured[-1]]
        return round(self._now_ns)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """All that were opened."""
    opened: list[Session] = []

    class Kept(Session):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            opened.append(self)

    monkeypatch.setattr(module, "Session", Kept)
    return opened


@pytest.fixture
def choose(tiny: Model) -> Choose:
    def run(rates: dict[str, float], late: float = 1.0, **options: object) -> Pick:
        clock = Clock(rates, late)
        options = {"device": "cpu", "candidates": CANDIDATES, "clock": clock, "progress": clock.progress} | options
        return pick(tiny, "red circle", **options)  # type: ignore[arg-type]

    return run


def test_the_first_that_holds_is_taken_and_no_other_measured(choose: Choose, sessions: list[Session]) -> None:
    found = choose({"best": 16.0, "good": 24.0, "least": 1000.0})
    assert (found.config, found.holds, found.fps) == (CANDIDATES[1], True, 16)
    assert [trial.config for trial in found.trials] == list(CANDIDATES)
    first, taken, rest = found.trials
    assert "came at 16.0 FPS, below 20.8" in first.reason and taken.reason == "" and taken is found.taken
    assert not rest.blocks_ns and rest.reason == "not measured: good is of better quality and holds"
    assert "good has the best quality that holds 16 FPS with 30% to spare here" in found.why
    assert [session.config.name for session in sessions] == ["best", "good"]


def test_what_is_timed_are_steady_frame_blocks(choose: Choose, sessions: list[Session]) -> None:
    found = choose({"best": 24.0}).taken
    assert found.frames == FRAMES and found.blocks_ns == pytest.approx([FRAMES * 1e9 / 24] * BLOCKS)
    # a window of 9 is full after 3 frame blocks; the first that finds it so is left out too
    assert sessions[0].next_block == 3 + 1 + BLOCKS


def test_the_slowest_frame_block_decides_and_needs_the_margin(choose: Choose) -> None:
    enough = 16 * (1 + MARGIN)
    assert needed_fps(16) == enough
    rates = {"best": enough * 1.001, "good": 1000.0}
    assert choose(rates).config.name == "best"
    assert choose(rates | {"best": enough * 0.999}).config.name == "good"
    slower = choose(rates, late=1.01)
    assert slower.config.name == "good"
    late = slower.trials[0]
    assert late.slowest_fps < enough and max(late.blocks_ns) == pytest.approx(1.01 * min(late.blocks_ns))
    assert [choose({"best": 20.0, "good": 40.0}, fps=fps).config.name for fps in (12, 24)] == ["best", "good"]


def test_if_none_holds_it_is_the_fastest_and_said(choose: Choose) -> None:
    found = choose({"best": 3.0, "good": 9.0, "least": 5.0})
    assert (found.config.name, found.holds) == ("good", False)
    assert "no preset holds 16 FPS" in found.why and "good, the fastest" in found.why and "9.0 FPS, below 20.8" in found.why
    assert [bool(trial.reason) for trial in found.trials] == [True, False, True]


def test_what_a_device_lacks_or_a_model_is_too_small_for_is_passed_over(choose: Choose) -> None:
    eight = EngineConfig(name="eight", linear_format="fp8")
    found = choose({"best": 24.0}, candidates=(eight, CANDIDATES[0]))
    assert found.config.name == "best" and "cpu has no FP8 matrix units" in found.trials[0].reason
    simulated = choose({"eight": 24.0}, candidates=(replace(eight, simulate=True), CANDIDATES[0]))
    assert simulated.config.name == "eight"
    small = choose({"sparse": 1.0, "best": 24.0}, candidates=(preset("sparse"), CANDIDATES[0]))
    assert small.config.name == "best" and "half of a tile" in small.trials[0].reason


def test_what_runs_the_same_here_is_measured_once(choose: Choose, sessions: list[Session]) -> None:
    pooled, plain = (
        EngineConfig(name=name, knobs=replace(EngineConfig().knobs, merge_lora=on)) for name, on in (("a", 1), ("b", 0))
    )
    found = choose({"a": 1.0, "b": 1.0, "best": 24.0}, candidates=(pooled, plain, CANDIDATES[0]))
    assert found.trials[1].reason == "runs as a does here" and len(sessions) == 2


def test_no_candidate_is_told(choose: Choose) -> None:
    with pytest.raises(StrobeError, match="no preset can run"):
        choose({}, candidates=[])


def test_nothing_holds_a_session_when_memory_is_freed(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Session]] = []
    alive: list[bool] = []
    enter, collect = Session.__enter__, gc.collect

    def entered(self: Session) -> Session:
        opened.append(weakref.ref(self))
        return enter(self)

    def collected() -> int:
        found = collect()
        alive.append(opened[-1]() is not None)
        return found

    monkeypatch.setattr(Session, "__enter__", entered)
    monkeypatch.setattr(module.gc, "collect", collected)
    choose({"best": 24.0})
    assert alive == [False]


def test_too_little_memory_is_passed_over(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Session.__init__
    for error in (StrobeError("a stream would take about 9.0 GiB"), torch.OutOfMemoryError("9.0 GiB\nmore")):

        def crowded(self: Session, *arguments: object, error: Exception = error, **options: EngineConfig) -> None:
            if options["preset"].name == "best":
                raise error
            opened(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Session, "__init__", crowded)
        found = choose({"best": 1.0, "good": 24.0})
        assert found.config.name == "good" and found.trials[0].reason == " ".join(str(error).split())
        with pytest.raises(StrobeError, match="no preset can run: best: .*9.0 GiB"):
            choose({"best": 1.0}, candidates=CANDIDATES[:1])


@pytest.mark.parametrize("error", [StrobeError("lost"), ValueError("a bug"), KeyboardInterrupt()])
def test_sessions_are_closed_whatever_happens(
    choose: Choose, sessions: list[Session], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    closed: list[Session] = []
    close = Session.close

    def told(self: Session) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Session, "close", told)
    choose({"best": 1.0, "good": 24.0})
    assert closed == sessions and len(closed) == 2

    readings = [0]  # the session is open when the clock breaks

    def broken() -> int:
        if not readings:
            raise error
        return readings.pop()

    with pytest.raises(type(error)):
        choose({}, clock=broken, candidates=CANDIDATES[:1])
    assert closed == sessions and len(closed) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fps": 0}, "fps 0 is not valid: give more than 0, such as 16"),
        ({"fps": float("nan")}, "fps nan"),
        ({"fps": float("inf")}, "fps inf"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"candidates": [EngineConfig(window=5, sink=3)]}, "largest sink with window 5: 2"),
    ],
)
def test_wrong_inputs_are_told_before_anything_streams(
    choose: Choose, sessions: list[Session], options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        choose({}, **options)
    assert not sessions


def test_a_word_the_model_does_not_know_is_told(tiny: Model, sessions: list[Session]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'circle'"):
        pick(tiny, "red cirle", device="cpu")
    assert not sessions


def test_the_ladder_has_each_preset_once_and_not_those_that_cost_time_or_were_judged_on_no_weights() -> None:
    assert {*LADDER} == {*PRESETS} - {"baseline", "quality", "balanced_int8"} and len({*LADDER}) == len(LADDER)
    assert LADDER[0] == "balanced"


def test_realtime_is_no_fixed_preset() -> None:
    with pytest.raises(ConfigError, match="and name the preset that it takes"):
        preset("realtime")
    with pytest.raises(ConfigError, match="unknown preset 'turbbo'.*did you mean 'turbo'") as refused:
        preset("turbbo")
    assert "realtime" not in str(refused.value)
