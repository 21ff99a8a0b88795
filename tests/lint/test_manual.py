"""The manual: every rule is in it as the code has it, and every example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strobe.core.errors import ConfigError
from strobe.lint.check import chosen_rules, lint_text
from strobe.lint.rules import RULES
from strobe.lint.study import Options, Rule, Shape, options_of

MANUAL = (Path(__file__).parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^### `|\Z)", MANUAL, re.MULTILINE | re.DOTALL))


def _options(section: str) -> Options:
    flags = dict(re.findall(r"--([\w-]+) ([\w.-]+)", section.partition("Wrong:")[0]))
    height, width = map(int, flags["size"].split("x")) if "size" in flags else (None, None)
    window = int(flags["window"]) if "window" in flags else None
    return options_of(Shape(height=height, width=width), model=flags.get("model"), window=window, device=flags.get("device"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_examples_of_a_rule(rule: Rule) -> None:
    section = SECTIONS[rule.id]
    assert rule.meaning in section and rule.severity.capitalize() in section and rule.needs in section
    wrong, right = re.findall(r"^(?:Wrong|Right):\n\n````markdown\n(.*?)^````", section, re.MULTILINE | re.DOTALL)
    options = _options(section)
    assert [finding.rule for finding in lint_text(wrong, "wrong.md", options)] == [rule.id]
    assert lint_text(right, "right.md", options) == ()
    if options.model is not None:
        assert lint_text(wrong, "wrong.md") == ()


def test_every_rule_is_in_the_manual_once() -> None:
    assert list(SECTIONS) == [rule.id for rule in RULES]
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_rules_are_chosen_by_id() -> None:
    ids = [rule.id for rule in RULES]
    assert [rule.id for rule in chosen_rules([], [])] == ids
    assert [rule.id for rule in chosen_rules(["formula"], [])] == [name for name in ids if name != "formula"]
    assert [rule.id for rule in chosen_rules(["formula"], ["formula", "arrow"])] == ["arrow"]
    with pytest.raises(ConfigError, match="unknown rule 'arow'"):
        chosen_rules([], ["arow"])


@pytest.mark.parametrize(
    ("shape", "given", "words"),
    [
        (Shape(), {"model": "wan-1.3"}, "did you mean 'wan-1.3b'"),
        (Shape(), {"device": "V100"}, "unknown device 'V100'"),
        (Shape(height=480), {"model": "wan-1.3b"}, "give height and width"),
        (Shape(height=480, width=832), {}, "without --model"),
        (Shape(), {"window": 12}, "without --model"),
        (Shape(grid="3,30"), {"model": "wan-1.3b"}, "such as 3,30,52"),
        (Shape(grid="3,30,52", height=480, width=832), {"model": "wan-1.3b"}, "give one of them"),
        (Shape(grid="3,30,52", frames_per_block=4), {"model": "wan-1.3b"}, "give one of them"),
        (Shape(frames_per_block=0), {}, "positive"),
        (Shape(), {"model": "wan-1.3b", "window": -1}, "positive"),
    ],
)
def test_what_was_measured_is_checked(shape: Shape, given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_of(shape, **({"model": None, "window": None, "device": None} | given))


def test_a_grid_is_a_size() -> None:
    by_grid, by_size = (
        options_of(shape, model="wan-1.3b", window=12, device="h100")
        for shape in (Shape(grid="3,30,52"), Shape(height=480, width=832))
    )
    assert by_grid.tokens_per_frame == by_size.tokens_per_frame == 30 * 52
    assert by_grid.frames_per_block == 3 and by_size.frames_per_block is None and by_grid.device is by_size.device is not None
