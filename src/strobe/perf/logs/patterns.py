"""Patterns of timings in log lines, with exact numbers and units."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

from strobe.core.errors import ConfigError, DataError, UnitError, nearest, unknown_choice

# Exact numbers from logs: grouped thousands, exponents, without floats.

Reason = Literal["nan", "infinite", "negative", "ambiguous", "unreadable", "unknown unit"]
"""Reason why a value is left out of every statistic."""

_GROUPING: Final = "_'’\u00a0\u202f"
NUMBER: Final = rf"[+-]?(?i:nan|inf(?:inity)?|(?:\d(?:[\d.,{_GROUPING}]*\d)?|\.\d+)(?:e[+-]?\d+)?)"
"""Regular expression for every number that `read` parses or rejects with a reason."""

_GROUPS: Final = rf"[1-9]\d{{0,2}}([,{_GROUPING}])\d{{3}}(?:\3\d{{3}})*"
_PARTS: Final = re.compile(rf"([+-]?)(\d*|{_GROUPS})(?:\.(\d+))?(?:e([+-]?\d{{1,9}}))?", re.ASCII | re.IGNORECASE)
_LARGEST: Final = 40
"""Largest power of ten that a time in any unit can have."""


def read(text: str) -> Decimal | Reason:
    """Parse what `NUMBER` matches, or return the reason why it is no time; `7,200` is ambiguous, as it may be 7200 or 7.2."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        word = text.lower()
        return "nan" if "nan" in word else "infinite" if "inf" in word else "unreadable"
    sign, whole, _, fraction, exponent = parts.groups("")
    if whole.count(",") == 1 and not fraction:
        return "ambiguous"
    digits, power = re.sub(r"\D", "", whole) + fraction, int(exponent or 0) - len(fraction)
    if abs(power) > _LARGEST or len(whole) > _LARGEST:
        return "unreadable"
    number = Decimal(f"{digits}e{power}")
    return "negative" if sign == "-" and number else number


# Units of time and their spellings in logs.

Unit = Literal["ns", "µs", "ms", "s"]

UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
POWER: Final[dict[Unit, int]] = {"ns": 0, "µs": 3, "ms": 6, "s": 9}
"""Power of ten of each unit, in nanoseconds."""
_SPELLINGS: Final[dict[Unit, tuple[str, ...]]] = {
    "ns": ("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"),
    "µs": ("µs", "μs", "us", "usec", "usecs", "microsecond", "microseconds"),  # micro sign, Greek mu
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_UNIT_OF: Final = {word: unit for unit, words in _SPELLINGS.items() for word in words}
UNIT: Final = rf"(?i:{'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})(?![^\W\d_])"
"""Regular expression for any spelling of a unit, not followed by a letter."""


def is_unit(text: str) -> bool:
    """Return whether the text spells a unit."""
    return text.lower() in _UNIT_OF


def parse_unit(text: str) -> Unit:
    """Return the unit that a spelling means: `us`, `msec`, `Seconds`.

    Raises:
        UnitError: no unit of time.
    """
    unit = _UNIT_OF.get(text.strip().lower())
    if unit is None:
        raise UnitError(f"unknown unit {text!r}{nearest(text, _UNIT_OF)}; allowed: ns, us, ms, s")
    return unit


def parse_duration(text: str) -> int:
    """Return a duration such as `5ms`, `0.05 s` or `250us` in nanoseconds.

    Raises:
        ConfigError: no number with a unit, negative, or not a whole number of nanoseconds.
    """
    found = re.fullmatch(rf"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d{{1,2}})?)\s*({UNIT})\s*", text, re.ASCII)
    try:
        value = Decimal(found[1]).scaleb(POWER[parse_unit(found[2])]) if found else None
    except InvalidOperation:
        value = None
    if value is None or value != value.to_integral_value():
        raise ConfigError(f"{text!r} is not a duration; write a number and its unit, such as 5ms or 0.05s, whole in nanoseconds")
    return int(value)


# Pattern files: regular expressions of timings in log lines, with groups for number, unit and place.

Kind = Literal["stage", "step", "attention", "kernel", "section", "frame_block", "e2e", "region"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
GROUPS: Final = ("value", "rate", "unit", "name", "rank", "step", "block", "round")
_KEYS: Final = ("kind", "regex", "similar", "contains", "unit", "name")
_WORDS: Final = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """One way in which logs write a timing.

    Args:
        kind: what is timed.
        regex: searched in a line as often as it is found. Named groups: `value`, or `rate` (of things per second, read as the
            seconds of one), and if the line says them `unit`, `name`, `rank`, `step`, `block`, `round`.
        similar: a line in which this is found looks like a timing of this pattern.
        contains: what a line must have in it, any case, for the two to be tried at all: a quick look that spares the slow ones.
        unit: declared: of every value, whatever the line says.
        label: name of the series where the regex has no group `name`.
    """

    name: str
    kind: Kind
    regex: re.Pattern[str]
    similar: re.Pattern[str]
    contains: str
    unit: Unit | None
    label: str


Patterns = tuple[Pattern, ...]
"""Patterns in the order they are tried."""


def load_patterns(path: Path | None = None) -> Patterns:
    """Return the shipped patterns; a file's own come first and replace shipped ones of the same name.

    Args:
        path: a TOML file: a table per pattern, and at the top `defaults = false` to leave the shipped ones out.

    Raises:
        DataError: the file cannot be read.
        ConfigError: it is not TOML, or a key, kind, unit or regular expression in it is not valid.
    """
    if path is None:
        return _shipped()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read patterns file {path}: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"patterns file {path} is not TOML: {error}") from error
    defaults = tables.pop("defaults", True)
    if not isinstance(defaults, bool):
        raise ConfigError(f"{path}: defaults = {defaults!r}; allowed: true, false")
    own = tuple(_pattern(name, table, str(path)) for name, table in tables.items())
    if not own:
        raise ConfigError(f"{path} has no pattern; write a table such as [attention] with kind and regex")
    names = {pattern.name for pattern in own}
    return own + tuple(pattern for pattern in _shipped() if defaults and pattern.name not in names)


@functools.cache
def _shipped() -> Patterns:
    text = resources.files(__package__).joinpath("patterns.toml").read_text(encoding="utf-8")
    return tuple(_pattern(name, table, "patterns.toml") for name, table in tomllib.loads(text).items())


def _pattern(name: str, table: Any, file: str) -> Pattern:
    where = f"{file}: [{name}]"
    if not isinstance(table, dict):
        raise ConfigError(
            f"{file}: unknown key {name!r}{nearest(name, ['defaults'])}; allowed at the top: defaults, and a table per pattern"
        )
    for key, value in table.items():
        if key not in _KEYS:
            raise _within(where, unknown_choice("key", key, _KEYS))
        if not isinstance(value, str):
            raise ConfigError(f"{where} {key} = {value!r} is not text; write it in quotes")
    if "regex" not in table or "kind" not in table:
        raise ConfigError(f"{where} needs kind and regex; kinds: {', '.join(KINDS)}")
    if table["kind"] not in KINDS:
        raise _within(where, unknown_choice("kind", table["kind"], KINDS))
    regex = _compiled(where, "regex", table["regex"])
    for group in regex.groupindex:
        if group not in GROUPS:
            raise _within(where, unknown_choice("group", group, GROUPS))
    if not {"value", "rate"} & regex.groupindex.keys():
        raise ConfigError(f"{where} regex has no group value; write {{value}} or (?P<value>...) where the number stands")
    similar = table.get("similar") or _similar(table["regex"])
    try:
        unit = parse_unit(table["unit"]) if "unit" in table else None
    except DataError as error:
        raise ConfigError(f"{where} {error}") from error
    return Pattern(
        name=name,
        kind=table["kind"],
        regex=regex,
        similar=_compiled(where, "similar", similar),
        contains=table.get("contains", "").lower(),
        unit=unit,
        label=table.get("name", name),
    )


def _within(where: str, error: ConfigError) -> ConfigError:
    return ConfigError(f"{where}: {error}")


def _compiled(where: str, key: str, text: str) -> re.Pattern[str]:
    try:
        for group, written in (("value", NUMBER), ("rate", NUMBER), ("unit", UNIT)):
            text = text.replace(f"{{{group}}}", f"(?P<{group}>{written})")
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{where} {key} is not a regular expression: {error}") from error


def _similar(regex: str) -> str:
    """Return a regex for lines that resemble this pattern: the words its regex spells out, in order, in any case.

    Groups, classes and escapes are taken out first. Without words, or with alternatives outside groups, no line looks similar.
    """
    text = re.sub(r"\\.|\[[^\]]*\]|\{[^}]*\}", " ", regex)
    while (inner := re.sub(r"\([^()]*\)[*+?]*", " ", text)) != text:
        text = inner
    words = [] if "|" in text else _WORDS.findall(re.sub(r".[*?]", " ", text))
    return "(?i)" + ".*".join(words) if words else "(?!)"
