"""Patterns files: what is allowed in them and what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.core.errors import ConfigError, DataError
from strobe.perf.logs import load_patterns, read_log

DATA = Path(__file__).parents[2] / "data" / "logs"
GOOD = "[mine]\nkind = 'attention'\nregex = 'took {value} {unit}'\n"


def test_a_users_patterns_come_first_and_replace_those_of_the_same_name(tmp_path: Path) -> None:
    file = tmp_path / "patterns.toml"
    file.write_text(GOOD + "[attention]\nkind = 'attention'\nregex = 'attn {value} {unit}'\n")
    shipped, loaded = load_patterns(), load_patterns(file)
    assert [pattern.name for pattern in loaded[:2]] == ["mine", "attention"]
    assert sorted(pattern.name for pattern in loaded) == sorted(["mine", *(pattern.name for pattern in shipped)])
    file.write_text("defaults = false\n" + GOOD)
    assert [pattern.name for pattern in load_patterns(file)] == ["mine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mine]\nkind = 'attention'\nregexp = '{value}'\n", "did you mean 'regex'"),
        ("default = false\n" + GOOD, "did you mean 'defaults'"),
        ("[mine]\nkind = 'atention'\nregex = '{value}'\n", "did you mean 'attention'"),
        ("[mine]\nkind = 'attention'\nregex = '(?P<value>1)(?P<rnk>2)'\n", "did you mean 'rank'"),
        ("[mine]\nkind = 'attention'\nregex = 'took'\n", "no group value"),
        ("[mine]\nkind = 'attention'\nregex = '({value}'\n", "not a regular expression"),
        ("[mine]\nkind = 'attention'\nregex = '{value}'\nunit = 'msc'\n", "unknown unit 'msc'"),
        ("[mine]\nkind = 'attention'\nregex = '{value}'\nunit = 3\n", "is not text"),
        ("[mine]\nregex = '{value}'\n", "needs kind and regex"),
        ("[mine]\nformat = 'records'\n", "did you mean 'record'"),
        ("[mine]\nformat = 'record'\nregex = '{value}'\n", "unknown key 'regex'"),
        ("[mine]\nformat = 'record'\nkinds = { e2e = 'all' }\n", "unknown kind 'all'"),
        ("[mine]\nformat = 'record'\nkinds = 'e2e'\n", "write a table"),
        ("defaults = 1\n" + GOOD, "allowed: true, false"),
        ("", "has no pattern"),
        ("[mine\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_error_that_says_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "patterns.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_patterns(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read patterns file"):
        load_patterns(tmp_path / "no.toml")


def test_a_framework_of_ones_own() -> None:
    log = read_log(DATA / "own_framework.log", load_patterns(DATA / "patterns.toml"))
    found = {(series.kind, series.title): [(each.text, each.step, each.round) for each in series] for series in log.series}
    assert found == {
        ("attention", "self, rank 0"): [("0.0095", 0, None), ("0.0096", 1, None)],
        ("attention", "self, rank 1"): [("0.0097", 0, None)],
        ("attention", "cross, rank 0"): [("0.0005", 0, None)],
        ("stage", "sampling"): [("7.25", None, 3), ("7.15", None, 4)],
    }
    assert {series.declared for series in log.series if series.kind == "attention"} == {"s"}
    (similar,) = log.similar
    assert (similar.line, similar.pattern) == (5, "self-attention")


@pytest.mark.parametrize(
    ("regex", "similar", "other"),
    [
        ("step {value} done", "a step that is done", "done with this step"),
        (r"\[foo\] (?:bar|baz) latency=(?P<value>\d+)", "Foo: LATENCY is high", "foo bar"),
        ("{value}", None, "anything 12"),
        ("one {value}|two {value2}".replace("{value2}", "x"), None, "one two"),
    ],
)
def test_lines_look_similar_by_the_words_of_the_regex(tmp_path: Path, regex: str, similar: str | None, other: str) -> None:
    file = tmp_path / "patterns.toml"
    file.write_text(f"defaults = false\n[mine]\nkind = 'step'\nregex = '{regex}'\n")
    (pattern,) = load_patterns(file)
    assert similar is None or pattern.similar.search(similar)
    assert not pattern.similar.search(other)
