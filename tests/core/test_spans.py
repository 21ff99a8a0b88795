"""Spans cost nothing without a recorder, and tell it name and index with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from strobe.core import spans
from strobe.core.errors import ConfigError
from strobe.core.spans import NAMES, TRACEABLE, Recorder, check_regions, recording, span


class Listener(Recorder):
    """Writes down what is entered and left."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int | None]] = []

    def __call__(self, name: str, index: int | None) -> AbstractContextManager[object]:
        return self._region(name, index)

    @contextmanager
    def _region(self, name: str, index: int | None) -> Iterator[None]:
        self.heard.append(("enter", name, index))
        yield
        self.heard.append(("leave", name, index))


@pytest.fixture
def listener() -> Iterator[Listener]:
    mine = Listener()
    with recording(mine):
        yield mine


def test_without_a_recorder_all_spans_are_one_shared_object() -> None:
    assert span("e2e") is span("frame_block", 3)
    with span("e2e") as outer, span("e2e") as inner:
        assert outer is None and inner is None


def test_a_recorder_hears_every_region_in_order(listener: Listener) -> None:
    with span(spans.FRAME_BLOCK, 0), span(spans.DENOISE_STEP, 2):
        pass
    with span("my own region"):
        pass
    entered = [
        ("enter", "frame_block", 0),
        ("enter", "denoise_step", 2),
        ("leave", "denoise_step", 2),
        ("leave", "frame_block", 0),
    ]
    assert listener.heard == [*entered, ("enter", "my own region", None), ("leave", "my own region", None)]


def test_the_recorder_of_the_inner_block_hears_and_the_outer_one_hears_again(listener: Listener) -> None:
    inner = Listener()
    with recording(inner), span("ffn"), spans.silenced(), span("attention"):
        pass
    with span("e2e"):
        pass
    assert [name for _, name, _ in inner.heard] == ["ffn", "ffn"]
    assert [name for _, name, _ in listener.heard] == ["e2e", "e2e"]


def test_recorders_that_are_taken_away_in_the_order_they_came_leave_none() -> None:
    """Two threads of one process, such as those of two servers, do so."""
    first, second = Listener(), Listener()
    one, other = recording(first), recording(second)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    with span("ffn"):
        pass
    other.__exit__(None, None, None)
    with span("attention"):
        pass
    assert first.heard == []
    assert second.heard == [("enter", "ffn", None), ("leave", "ffn", None)]


def test_every_name_is_explained_once() -> None:
    constants = {name: value for name, value in vars(spans).items() if name.isupper() and isinstance(value, str)}
    assert {name.lower() for name in constants} == set(constants.values()) == set(NAMES)
    assert len(set(NAMES.values())) == len(NAMES)


def test_regions_to_mark_are_known_and_told_once() -> None:
    assert check_regions(["attention", "dit_forward", "attention"]) == ("attention", "dit_forward")
    assert check_regions([]) == () and check_regions(TRACEABLE) == TRACEABLE
    with pytest.raises(ConfigError, match="unknown region 'dit_foward' .did you mean 'dit_forward'.*allowed: .*attention_kernel"):
        check_regions(["attention", "dit_foward"])
    with pytest.raises(ConfigError, match="unknown region 'e2e'"):
        check_regions(["e2e"])


def test_compiled_code_marks_nothing_and_is_compiled_once(listener: Listener) -> None:
    import torch
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        with span("attention"):
            return x * 2

    spans.set_compiling(torch.compiler.is_dynamo_compiling)
    with span("dit_forward"):
        assert doubled(torch.ones(2)).tolist() == [2, 2]
    with spans.silenced():
        doubled(torch.ones(2))
    assert listener.heard == [("enter", "dit_forward", None), ("leave", "dit_forward", None)]
    assert counter.frame_count == 1
