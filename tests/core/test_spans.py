"""Spans cost nothing without a recorder, and tell it name and index with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from strobe.core import spans
from strobe.core.errors import ConfigError
from strobe.core.spans import NAMES, TRACEABLE, check_regions, set_recorder, span


class Listener:
    """Writes down what is entered and left."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int | None]] = []

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        return self._region(name, index)

    @contextmanager
    def _region(self, name: str, index: int | None) -> Iterator[None]:
        self.heard.append(("enter", name, index))
        try:
            yield
        finally:
            self.heard.append(("leave", name, index))


@pytest.fixture
def listener() -> Iterator[Listener]:
    mine = Listener()
    previous = set_recorder(mine)
    yield mine
    assert set_recorder(previous) is mine


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


def test_a_region_ends_when_its_body_fails(listener: Listener) -> None:
    with pytest.raises(KeyError), span("e2e"):
        raise KeyError
    assert listener.heard[-1] == ("leave", "e2e", None)


def test_setting_a_recorder_returns_the_one_before(listener: Listener) -> None:
    assert set_recorder(None) is listener
    with span("e2e"):
        pass
    assert listener.heard == []
    assert set_recorder(listener) is None


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
