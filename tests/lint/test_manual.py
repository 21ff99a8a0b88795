"""The manual: every rule is in it as the code has it, and every example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strobe.core.errors import ConfigError
from strobe.lint.check import chosen_rules, lint_text
from strobe.lint.rules import RULES
from strobe.lint.study import Options, Rule, options_of

MANUAL = (Path(__file__).parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^### `|\Z)", MANUAL, re.MULTILINE | re.DOTALL))


def _options(section: str) -> Options:
    flags = dict(re.findall(r"--([\w-]+) ([\w.-]+)", section.partition("Wrong:")[0]))
    size = tuple(map(int, flags["size"].split("x"))) if "size" in flags else None
    window = int(flags["window"]) if "window" in flags else None
    return options_of(size=size, model=flags.get("model"), window=window, device=flags.get("device"))  # type: ignore[arg-type]


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
    ("given", "words"),
    [
        ({"model": "wan-1.3"}, "did you mean 'wan-1.3b'"),
        ({"device": "V100"}, "unknown device 'V100'"),
        ({"size": (480, 832)}, "without --model"),
        ({"window": 12}, "without --model"),
        ({"model": "wan-1.3b", "window": -1}, "positive"),
    ],
)
def test_what_was_measured_is_checked(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_of(**({"model": None, "size": None, "window": None, "device": None} | given))  # type: ignore[arg-type]


def test_a_size_is_tokens() -> None:
    found = options_of(model="wan-1.3b", size=(480, 832), window=12, device="h100")
    assert found.tokens_per_frame == 30 * 52 and found.device is not None
