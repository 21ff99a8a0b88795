"""Units: what is labelled, what is proven, and what is asked."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError, DataError
from strobe.perf.logs import load_patterns, read_log, resolve_units
from strobe.perf.logs.patterns import Unit, decides, parse_duration, parse_unit, read
from strobe.perf.logs.series import Constraint, Series, short

DATA = Path(__file__).parents[2] / "data" / "logs"


KERNEL = Constraint(rule="at_least", bound_ns=2_762_085, what="the 2.76 ms kernel inside it")


STAGE = Constraint(rule="at_most", bound_ns=5_754_608_690, what="the 5.75 s stage around it")


def series(folder: Path, *values: str, unit: str = "") -> Series:
    """A series of values; with `unit`, declared by the patterns file."""
    declared = f"unit = '{unit}'\n" if unit else ""
    patterns = folder / "patterns.toml"
    patterns.write_text(f"[t]\nkind = 'attention'\nregex = 'took {{value}}(?: ?{{unit}})?$'\n{declared}")
    log = folder / "a.log"
    log.write_text("".join(f"took {value}\n" for value in values))
    (found,) = read_log(log, load_patterns(patterns)).series
    return found


def test_a_label_that_the_kernel_refutes_gives_way_to_the_only_unit_left(tmp_path: Path) -> None:
    resolved = resolve_units(series(tmp_path, "0.009534198 ms", "0.0095 ms", "0.0096 ms"), [KERNEL, STAGE])
    (choice,) = resolved.choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("s", "inferred", True, True)
    assert choice.text == ("labelled ms, but only s fits (9.53 ms): 9.53 µs would be shorter than the 2.76 ms kernel inside it")
    assert list(resolved.values_ns) == [9_534_198, 9_500_000, 9_600_000]
    assert resolved.prominent and resolved.notes == (f"t: {choice.text}",)


TRACE = Constraint(rule="at_most", bound_ns=10**9, what="the trace", calls=16)


@pytest.mark.parametrize(
    ("values", "declared", "bounds", "found", "words"),
    [
        (["0.0095 ms"], "", [], ("ms", "label", False, False), ("unproven, nothing was given that bounds it",)),
        (["9.5 ms"], "", [KERNEL], ("ms", "label", False, False), ("s would fit",)),
        (["9.5 ms"], "", [KERNEL, STAGE], ("ms", "label", True, False), ("every other unit",)),
        (["9.5"], "", [KERNEL, STAGE], ("ms", "inferred", True, False),
         ("without a unit, but only ms fits (9.50 ms): ns: ", "9.50 s would be longer than the 5.75 s stage")),
        (["0.0095 ms"], "s", [KERNEL], ("s", "declared", True, False), ("declared s",)),
        (["1250 ms", *["9.5 ms"] * 8, "0.001 ms"], "", [KERNEL, TRACE], ("ms", "label", True, False), ()),
        (["9.5"], "", [], None, ("nothing bounds them; say --unit ns, us, ms or s",)),
        (["9.5"], "", [KERNEL], None, ("ms and s would all fit", "[ns: 9.50 ns would be shorter", "say --unit")),
        (["0.0095 s"], "ms", [KERNEL], None, ("declared ms",)),
        (["0.22 ms", "0.22 ms"], "", [KERNEL, TRACE], None,
         ("no unit fits; if the values are right, the timer did not wait", "[ns: 0.220 ns", "[µs: 220 ns",
          "[ms: 220 µs would be shorter than", "[s: 16 calls of 220 ms would be longer")),
    ],
)  # fmt: skip
def test_a_unit_stands_is_inferred_or_asked_for(
    tmp_path: Path,
    values: list[str],
    declared: str,
    bounds: list[Constraint],
    found: tuple[str, str, bool, bool] | None,
    words: tuple[str, ...],
) -> None:
    own = series(tmp_path, *values, unit=declared)
    if found is None:
        with pytest.raises(DataError) as caught:
            resolve_units(own, bounds)
        said = str(caught.value)
    else:
        (choice,) = (resolved := resolve_units(own, bounds)).choices
        assert (choice.unit, choice.source, choice.proven, choice.differs) == found and not resolved.prominent
        said = choice.text
    assert all(each in said for each in words) and "\n" not in said


def test_an_override_is_used_whatever_it_contradicts(tmp_path: Path) -> None:
    resolved = resolve_units(series(tmp_path, "0.22 ms"), [KERNEL], "ms")
    (choice,) = resolved.choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("ms", "override", False, False)
    assert resolved.prominent and "against what is known: 220 µs would be shorter" in choice.text
    (choice,) = resolve_units(series(tmp_path, "0.0095 ms"), (), "s").choices
    assert choice.differs and list(resolve_units(series(tmp_path, "0.0095 ms"), (), "s").values_ns) == [9_500_000]


def test_each_label_of_a_mixed_file_is_proven_for_itself() -> None:
    (vsa,) = read_log(DATA / "mixed_units.log").of("attention")
    resolved = resolve_units(vsa, [KERNEL])
    assert list(resolved.values_ns) == [9_500_000, 9_510_000, 9_500_000, 9_520_000, 9_530_000, 9_540_000, 9_560_000]
    assert [(choice.label, choice.unit) for choice in resolved.choices] == [
        ("ms", "ms"), ("us", "µs"), ("s", "s"), ("ns", "ns"), ("milliseconds", "ms"),
    ]  # fmt: skip


def test_calls_must_fit_into_the_stage(tmp_path: Path) -> None:
    def bound(ns: int, calls: int) -> Constraint:
        return Constraint(rule="at_most", bound_ns=ns, what="the stage", calls=calls)

    found = series(tmp_path, "10 ms")
    assert resolve_units(found, [bound(500_000_000, 100)]).choices[0].source == "label"  # the upper half may be all there is
    with pytest.raises(DataError, match="100 calls of 10.0 ms would be longer than the stage"):
        resolve_units(found, [bound(499_999_999, 100)])


def test_a_value_that_is_no_time_in_its_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no time"):
        resolve_units(series(tmp_path, "1 s", "1 s", "99999999999 s"))


@given(
    st.integers(1, 10**9),
    st.integers(0, 9),
    st.sampled_from(["ns", "µs", "ms", "s"]),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_the_choice_follows_from_exact_comparison(
    tmp_path_factory: pytest.TempPathFactory, digits: int, places: int, label: Unit, least: int, most: int
) -> None:
    value = Fraction(digits, 10**places)
    found = series(tmp_path_factory.getbasetemp(), f"{Decimal(digits).scaleb(-places):f} {label}")
    bounds = [Constraint(rule="at_least", bound_ns=least, what="a"), Constraint(rule="at_most", bound_ns=most, what="b")]
    units = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}
    left = [unit for unit, ns in units.items() if least <= value * ns <= most]
    if label in left or len(left) == 1:
        (choice,) = resolve_units(found, bounds).choices
        assert choice.unit == (label if label in left else left[0])
        assert choice.proven == (len(left) == 1)
    else:
        with pytest.raises(DataError):
            resolve_units(found, bounds)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("5ms", 5_000_000), ("0.05 s", 50_000_000), ("250us", 250_000), ("1.5µs", 1500), ("7 nanoseconds", 7), ("1e-3s", 10**6)],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["5", "ms", "-5ms", "5 minutes", "0.5ns", "1e-12s", "5ms or so", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 5ms"):
        parse_duration(text)


def test_units_have_many_spellings() -> None:
    assert [parse_unit(text) for text in ("ns", "usec", "μs", "Milliseconds", "SEC")] == ["ns", "µs", "µs", "ms", "s"]
    with pytest.raises(DataError, match="did you mean 'msec'"):
        parse_unit("msek")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (9_534, "9.53 µs"),
        (12_000_000, "12.0 ms"),
        (123_456_789_000, "123 s"),
        (Fraction(1, 2), "0.500 ns"),
    ],
)
def test_short_durations(ns: int | Fraction, text: str) -> None:
    assert short(ns) == text


# Numbers as logs print them.


def exactly(text: str, mark: str | None = None) -> Fraction:
    number = read(text, mark)
    assert isinstance(number, Decimal), number
    return Fraction(number)


@pytest.mark.parametrize(
    ("text", "mark", "value"),
    [
        ("9,53", None, "9.53"),
        ("7,200.81", None, "7200.81"),
        ("7.200,81", None, "7200.81"),
        ("1.234.567,8", None, "1234567.8"),
        ("1'234.5", None, "1234.5"),
        ("7,200", ".", "7200"),
        ("7,200", ",", "7.2"),
        ("7.200", None, "7.2"),
        ("7.200", ",", "7200"),
        ("1e-03", None, "0.001"),
        ("9,5e-3", None, "0.0095"),
        ("+5", None, "5"),
        ("-0.0", None, "0"),
        ("12345678901234567890.5", None, "12345678901234567890.5"),
    ],
)
def test_a_number_is_read_exactly(text: str, mark: str | None, value: str) -> None:
    assert exactly(text, mark) == Fraction(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nan", "nan"),
        ("-NaN", "nan"),
        ("inf", "infinite"),
        ("-Infinity", "infinite"),
        ("-0.5", "negative"),
        ("-7,200.5", "negative"),
        ("7,200", "ambiguous"),
        ("1.2.3", "unreadable"),
        ("1,23.4", "unreadable"),
        ("1e999999999", "unreadable"),
        ("1e" + "9" * 30, "unreadable"),
        ("0." + "1" * 5000, "unreadable"),
    ],
)
def test_what_is_no_time_is_named(text: str, reason: str) -> None:
    assert read(text, None) == reason


@pytest.mark.parametrize(
    ("text", "mark"),
    [("7", None), ("7,200", None), ("7.200", None), ("9,53", ","), ("9.53", "."), ("1,234,567", "."), ("nan", None)],
)
def test_a_number_shows_its_mark_or_not(text: str, mark: str | None) -> None:
    assert decides(text) == mark


@given(st.integers(0, 10**16), st.integers(0, 12), st.sampled_from([(",", "."), (".", ","), ("_", "."), ("\u202f", ",")]))
def test_grouped_numbers_come_back(digits: int, places: int, marks: tuple[str, str]) -> None:
    group, mark = marks
    text = f"{Decimal(digits).scaleb(-places):,.{places}f}".translate({ord(","): group, ord("."): mark})
    assert exactly(text, mark) == Fraction(digits, 10**places)


@given(st.floats(0, 1e12, allow_subnormal=False).filter(lambda value: value == 0 or value > 1e-15))
def test_what_python_prints_comes_back(value: float) -> None:
    assert exactly(repr(value), ".") == Fraction(Decimal(repr(value)))


# Patterns files: what is allowed in them and what an error says.


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
