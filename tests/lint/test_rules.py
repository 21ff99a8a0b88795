"""Every rule has a line in the manual; rules are left out by id, and options checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.core.errors import ConfigError
from strobe.lint.document import options_of
from strobe.lint.rules import RULES, WARNINGS, chosen_rules

MANUAL = (Path(__file__).parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
MEASURED = options_of(model="wan-1.3b", size=(480, 832), window=12, device="h100")


def test_every_rule_has_a_line_in_the_manual() -> None:
    for rule in RULES:
        (line,) = [line for line in MANUAL.splitlines() if line.startswith(f"| `{rule}` |")]
        assert ("| warning |" in line) == (rule in WARNINGS) and ("--model" in line) == (rule in ("below-floor", "window-free"))


def test_rules_are_left_out_by_id() -> None:
    assert chosen_rules([]) == RULES
    assert set(RULES) - set(chosen_rules(["total-sum", "no-unit"])) == {"total-sum", "no-unit"}
    with pytest.raises(ConfigError, match="unknown rule 'no-unti'"):
        chosen_rules(["no-unti"])


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
    assert MEASURED.tokens_per_frame == 30 * 52 and MEASURED.device is not None
