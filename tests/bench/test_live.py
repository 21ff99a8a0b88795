"""Viewers that load a server: as planned, as they saw it, and as the page says it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live_server import serving
from strobe.bench.cases.live import _Seen, run_load
from strobe.bench.cases.visits import Load, plan
from strobe.core.errors import ConfigError, SessionError
from strobe.perf.analysis.runs.compare import figures_of
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.serve_page import load_table
from strobe.perf.table.model import Table
from strobe.serve import protocol
from strobe.serve.client import Playback

EXAMPLES = ("a red circle moving left", "a blue square moving up")


def quiet(done: int, total: int, what: str) -> None:
    assert 0 <= done <= total


@given(st.floats(0.5, 8), st.integers(0, 5), st.sampled_from(["poisson", "together"]), st.just(0.0) | st.floats(0.5, 20))
@settings(max_examples=60)
def test_a_plan_is_the_same_again_and_stays_inside_its_level(level: float, seed: int, arrivals: Any, every: float) -> None:
    level = float(round(level)) or 1.0 if arrivals == "together" else level
    load = Load(levels=(level,), seconds=40, arrivals=arrivals, stay_s=10, prompt_every_s=every, seed=seed)
    visits = plan(load, level, EXAMPLES)
    assert visits == plan(load, level, EXAMPLES)
    for visit in visits:
        assert 0 <= visit.at_s <= 40 and visit.at_s + visit.stay_s <= 40 + 1e-9
        moments = [at for at, _ in visit.prompts]
        assert moments == sorted(moments) and moments[0] == 0 and all(at < max(visit.stay_s, 1e-9) or at == 0 for at in moments)
        assert {text for _, text in visit.prompts} <= set(EXAMPLES)
    if arrivals == "together":
        assert [(visit.at_s, visit.stay_s) for visit in visits] == [(0, 40)] * int(level)


def test_a_poisson_load_is_as_many_viewers_at_once_as_asked_for() -> None:
    """Little's law, away from the ends of a level: 200 seeds, 4 viewers at once; the mean of as many has a spread of 0.14."""
    at_once = []
    for seed in range(200):
        visits = plan(Load(levels=(4.0,), seconds=100, stay_s=10, prompt_every_s=0, seed=seed), 4.0, EXAMPLES)
        at_once.append(sum(visit.at_s <= 70 < visit.at_s + visit.stay_s for visit in visits))
    assert 3.4 < fmean(at_once) < 4.6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"levels": ()}, "--sessions none"), ({"levels": (0.0,)}, "above 0"), ({"seconds": 0.0}, "seconds 0"),
        ({"levels": (1.5,), "arrivals": "together"}, "whole numbers"),
        ({"prompt_every_s": -1.0}, "0 for no prompts"), ({"prompt_every_s": 1e-9}, "0 for no prompts"),
    ],
)  # fmt: skip
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Load(**{"levels": (1.0,), "seconds": 1.0} | wrong)


def test_viewers_see_what_the_page_says(tmp_path: Path) -> None:
    load = Load(levels=(1.0, 2.0), seconds=5, arrivals="together", prompt_every_s=1.5, preset="turbo", codec="jpeg", seed=3)
    with serving() as here:
        folder = run_load(load, url=here.http, own=True, device="cpu", root=tmp_path, progress=quiet)
        with pytest.raises(SessionError, match="cosmic"):
            wrong = Load(levels=(1.0,), seconds=1, preset="cosmic")
            run_load(wrong, url=here.http, own=True, device="cpu", root=tmp_path, progress=quiet)
    run = read_run(folder)
    assert run.header.kind == "serve" and run.end is not None and run.end.status == "complete"
    assert run.server is not None and (run.server.model, run.server.fps) == ("shapes", 16)
    assert [(each.load, each.viewer) for each in sorted(run.viewers, key=lambda each: (each.load, each.viewer))] == [
        (1.0, 0), (2.0, 0), (2.0, 1),
    ]  # fmt: skip
    planned = [len(visit.prompts) - 1 for level in load.levels for visit in plan(load, level, EXAMPLES)]
    found = sorted(run.viewers, key=lambda each: (each.load, each.viewer))
    for each, prompts in zip(found, planned, strict=True):
        assert not each.refusal and each.painted == len(each.late_ns) > 0
        assert each.first_picture_ns is not None and 0 < each.first_picture_ns <= each.watched_ns
        assert 0 < len(each.prompt_to_pixel_ns) + each.unanswered <= prompts and all(ns > 0 for ns in each.prompt_to_pixel_ns)
        assert each.lost == 0 and {*each.prompt_parts_ns} == {"wait", "text", "block", "picture", "paint"}
        for whole, *parts in zip(each.prompt_to_pixel_ns, *each.prompt_parts_ns.values(), strict=True):
            assert 0 <= sum(parts) <= whole and min(parts) >= 0 and parts[2] > 0
    one, two = figures_of(run)
    assert (one.came, two.came, one.refused, one.failed) == (1, 2, 0, 0)
    frame_ns = 1e9 / 16
    for figures, viewers in ((one, found[:1]), (two, found[1:])):
        due = sum(each.painted + each.stall_ns / frame_ns for each in viewers)
        assert figures.on_time == pytest.approx(sum(ns <= frame_ns for each in viewers for ns in each.late_ns) / due)
        assert figures.stalls == sum(each.stalls for each in viewers)
    assert [each.load for each in run.served] == [1.0, 2.0] and [one.served, two.served] == list(run.served)
    for served, viewers in zip(run.served, (found[:1], found[1:]), strict=True):
        assert sum(each.painted for each in viewers) <= served.pictures <= 12 * (served.blocks + 2 * len(viewers))
        assert 0 < served.busy_ns <= served.wall_ns and served.encode_ns > 0 and served.stream_bytes is None
        assert (served.suspend_ns, served.wake_ns) == (None, None), "nothing was suspended"
    report = build_report([folder])
    assert [section.id for section in report.sections] == ["load", "prompts", "server", "viewers"]
    account = report.sections[1].blocks[0]
    assert isinstance(account, Table)
    in_all = [row.cells[2].ns for row in account.rows]  # type: ignore[union-attr]
    assert sum(in_all[:-1]) == in_all[-1] == sum(one.prompt_to_pixel_ns)
    assert len(load_table((one, two)).rows) == 2
    assert len(run.rows("viewers")) == 3


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="start `strobe serve`"):
        run_load(Load(levels=(1.0,), seconds=1), url="http://127.0.0.1:9/", own=False, device="", root=tmp_path, progress=quiet)
    assert not list(tmp_path.iterdir())


def picture(frame: int, epoch: int = 0, generation: int = 0) -> protocol.Picture:
    return protocol.Picture(codec="jpeg", key=True, generation=generation, frame=frame, epoch=epoch, made_us=0, data=b"")


def test_a_picture_that_never_came_is_lost_unless_a_prompt_took_its_place() -> None:
    seen = _Seen()
    for each in (picture(0), picture(1), picture(4), picture(9, epoch=1), picture(10, epoch=1), picture(0, 1, 1)):
        seen(each, 0.0)
    assert seen.lost == 2
    seen(protocol.Prompt(text="a"), 1.0)
    seen(protocol.Prompt(text="b"), 2.0)
    seen(protocol.Error(message="not understood"), 2.5)
    seen(protocol.Prompted(text="b", mode="recache", epoch=5, frame_block=9, typed_ms=0.0), 3.0)
    assert seen.asked_of == {5: 2.0} and not seen.asked


def test_a_stall_lasts_until_a_new_prompt_or_until_the_viewer_leaves() -> None:
    playback = Playback(fps=10, start_buffer_s=0.1)
    playback.arrive(picture(0), 0.0)
    assert playback.paint(0.0) is not None
    assert playback.paint(0.25) is None and playback.stalls == 1
    playback.end(3.1)
    assert playback.stall_s == pytest.approx(3.0)
    playback = Playback(fps=10, start_buffer_s=1.0)
    for frame in range(10):
        playback.arrive(picture(frame), 0.0)
    while playback.paint(5.0) is not None:
        pass
    assert playback.stalls == 1  # since 1.0, when the eleventh picture was due
    playback.arrive(picture(10, epoch=1), 6.0)
    assert playback.paint(6.0) is not None and playback.stall_s == pytest.approx(5.0)
    playback.end(30.0)
    assert playback.stall_s == pytest.approx(5.0)
