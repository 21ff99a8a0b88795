"""Units: what is labelled, what is proven, and what is asked."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError, UnitError
from strobe.perf.logs import Constraint, Series, Unit, load_patterns, parse_duration, parse_unit, read_log, resolve_units
from strobe.perf.logs.series import short

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


def test_without_evidence_the_label_stands_unproven(tmp_path: Path) -> None:
    (choice,) = (resolved := resolve_units(series(tmp_path, "0.0095 ms"))).choices
    assert (choice.unit, choice.source, choice.proven) == ("ms", "label", False)
    assert "unproven" in choice.text and not resolved.prominent
    assert list(resolved.values_ns) == [9_500]


def test_a_label_that_fits_stands_and_says_what_would_fit_as_well(tmp_path: Path) -> None:
    (choice,) = resolve_units(series(tmp_path, "9.5 ms"), [KERNEL]).choices
    assert (choice.unit, choice.source, choice.proven) == ("ms", "label", False) and "s would fit" in choice.text
    (choice,) = resolve_units(series(tmp_path, "9.5 ms"), [KERNEL, STAGE]).choices
    assert (choice.unit, choice.source, choice.proven) == ("ms", "label", True) and "every other unit" in choice.text


def test_a_missing_label_is_inferred_or_asked_for(tmp_path: Path) -> None:
    (choice,) = resolve_units(series(tmp_path, "9.5"), [KERNEL, STAGE]).choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("ms", "inferred", True, False)
    assert (
        choice.text.startswith("without a unit, but only ms fits (9.50 ms): ns: ")
        and "9.50 s would be longer than the 5.75 s stage" in choice.text
    )
    with pytest.raises(UnitError, match=r"nothing bounds them; say --unit ns, us, ms or s"):
        resolve_units(series(tmp_path, "9.5"))
    with pytest.raises(UnitError, match=r"ms and s would all fit.*\[ns: 9.50 ns would be shorter.*say --unit"):
        resolve_units(series(tmp_path, "9.5"), [KERNEL])


def test_no_unit_left_is_an_error_that_lists_what_each_violates(tmp_path: Path) -> None:
    trace = Constraint(rule="at_most", bound_ns=10**9, what="the trace", calls=16)
    with pytest.raises(UnitError, match="no unit fits; if the values are right, the timer did not wait") as caught:
        resolve_units(series(tmp_path, "0.22 ms", "0.22 ms"), [KERNEL, trace])
    message = str(caught.value)
    for words in ("[ns: 0.220 ns", "[µs: 220 ns", "[ms: 220 µs would be shorter than", "[s: 16 calls of 220 ms would be longer"):
        assert words in message
    assert "\n" not in message


def test_an_override_is_used_whatever_it_contradicts(tmp_path: Path) -> None:
    resolved = resolve_units(series(tmp_path, "0.22 ms"), [KERNEL], "ms")
    (choice,) = resolved.choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("ms", "override", False, False)
    assert resolved.prominent and "against what is known: 220 µs would be shorter" in choice.text
    (choice,) = resolve_units(series(tmp_path, "0.0095 ms"), (), "s").choices
    assert choice.differs and list(resolve_units(series(tmp_path, "0.0095 ms"), (), "s").values_ns) == [9_500_000]


def test_a_declared_unit_beats_the_label_and_never_gives_way(tmp_path: Path) -> None:
    (choice,) = resolve_units(series(tmp_path, "0.0095 ms", unit="s"), [KERNEL]).choices
    assert (choice.unit, choice.source, choice.differs) == ("s", "declared", False)
    with pytest.raises(UnitError, match="declared ms"):
        resolve_units(series(tmp_path, "0.0095 s", unit="ms"), [KERNEL])


def test_each_label_of_a_mixed_file_is_proven_for_itself() -> None:
    (vsa,) = read_log(DATA / "mixed_units.log").of("attention")
    resolved = resolve_units(vsa, [KERNEL])
    assert list(resolved.values_ns) == [9_500_000, 9_510_000, 9_500_000, 9_520_000, 9_530_000, 9_540_000, 9_560_000]
    assert [(choice.label, choice.unit) for choice in resolved.choices] == [
        ("ms", "ms"), ("us", "µs"), ("s", "s"), ("ns", "ns"), ("milliseconds", "ms"),
    ]  # fmt: skip


def test_outliers_prove_nothing(tmp_path: Path) -> None:
    values = ["1250 ms", *["9.5 ms"] * 8, "0.001 ms"]
    bounds = [KERNEL, Constraint(rule="at_most", bound_ns=10**9, what="the stage")]
    assert resolve_units(series(tmp_path, *values), bounds).choices[0].unit == "ms"


def test_calls_must_fit_into_the_stage(tmp_path: Path) -> None:
    def bound(ns: int, calls: int) -> Constraint:
        return Constraint(rule="at_most", bound_ns=ns, what="the stage", calls=calls)

    found = series(tmp_path, "10 ms")
    assert resolve_units(found, [bound(500_000_000, 100)]).choices[0].source == "label"  # the upper half may be all there is
    with pytest.raises(UnitError, match="100 calls of 10.0 ms would be longer than the stage"):
        resolve_units(found, [bound(499_999_999, 100)])


def test_a_value_that_is_no_time_in_its_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnitError, match="is no time"):
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
        with pytest.raises(UnitError):
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
    with pytest.raises(UnitError, match="did you mean 'msec'"):
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
