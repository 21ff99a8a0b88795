"""Patterns of timings in log lines, with exact numbers and units."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

from strobe.core.errors import ConfigError, DataError, nearest, unknown_choice

# Exact numbers from logs: decimal point or comma, grouped thousands, exponents, without floats.

Mark = Literal[".", ","]
Reason = Literal["nan", "infinite", "negative", "ambiguous", "unreadable", "unknown unit"]
"""Reason why a value is left out of every statistic."""

_GROUPING: Final = "_'’\u00a0\u202f"
NUMBER: Final = rf"[+-]?(?i:nan|inf(?:inity)?|(?:\d(?:[\d.,{_GROUPING}]*\d)?|\.\d+)(?:e[+-]?\d+)?)"
"""Regular expression for every number that `read` parses or rejects with a reason."""

_OTHER: Final[dict[Mark, Mark]] = {".": ",", ",": "."}
_PLAIN: Final = re.compile(r"(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,9}))?", re.ASCII)
_PARTS: Final = re.compile(rf"(?P<sign>[+-]?)(?P<body>[\d.,{_GROUPING}]*\d)(?:e(?P<exponent>[+-]?\d{{1,9}}))?", re.ASCII | re.I)
_GROUPS: Final = re.compile(rf"[1-9]\d{{0,2}}(?:([.,{_GROUPING}])\d{{3}})(?:\1\d{{3}})*", re.ASCII)
_LARGEST: Final = 40
"""Largest power of ten that a time in any unit can have."""


def decides(text: str) -> Mark | None:
    """Return the decimal mark that the text itself shows, or None: `7` has none, and `7,200` may be read in two ways."""
    parts = _PARTS.fullmatch(text)
    marks = [] if parts is None else [mark for mark in parts["body"] if mark in ".,"]
    if parts is None or not marks:
        return None
    last: Mark = "." if marks[-1] == "." else ","
    if len(marks) > 1:
        return last if len(set(marks)) == 2 else _OTHER[last]
    return None if _GROUPS.fullmatch(parts["body"]) and not parts["exponent"] else last


def read(text: str, mark: Mark | None) -> Decimal | Reason:
    """Parse a number, or return the reason why it is none.

    Args:
        text: what `NUMBER` matches.
        mark: the decimal mark that the numbers beside it show; None if they show none, or both. A text that shows its own is read
            by that. Where nothing shows it, `7.200` is 7.2, because programs print points, and `7,200` is ambiguous.
    """
    plain = _PLAIN.fullmatch(text)
    if plain is not None and (mark != "," or plain[2] is None):
        return _number(*plain.groups(""))
    parts = _PARTS.fullmatch(text)
    if parts is None:
        word = text.lower()
        return "nan" if "nan" in word else "infinite" if "inf" in word else "unreadable"
    own = decides(text) or mark
    if own is None and "," in parts["body"]:
        return "ambiguous"
    whole, _, fraction = parts["body"].partition(own or ".")
    groups = _GROUPS.fullmatch(whole)
    whole = whole if groups is None else whole.replace(groups[1], "")
    if not (whole + fraction).isdecimal():
        return "unreadable"
    number = _number(whole, fraction, parts["exponent"] or "")
    return "negative" if parts["sign"] == "-" and isinstance(number, Decimal) and number else number


def _number(whole: str, fraction: str, exponent: str) -> Decimal | Reason:
    power = int(exponent or 0) - len(fraction)
    if abs(power) > _LARGEST or len(whole) > _LARGEST:
        return "unreadable"
    return Decimal(f"{whole}{fraction}e{power}")


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
    """Return the unit that a spelling means: `us`, `msec`, `Seconds`."""
    unit = _UNIT_OF.get(text.strip().lower())
    if unit is None:
        raise DataError(f"unknown unit {text!r}{nearest(text, _UNIT_OF)}; allowed: ns, us, ms, s")
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
Format = Literal["text", "record", "dump"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
GROUPS: Final = ("value", "rate", "unit", "name", "rank", "step", "block", "round")
_KEYS: Final = {
    "text": ("format", "kind", "regex", "similar", "contains", "unit", "name"),
    "record": ("format", "kinds"),
    "dump": ("format",),
}
_NEVER: Final = re.compile(r"(?!)")
_WORDS: Final = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """One way in which logs write a timing.

    Args:
        format: `text`: a regular expression; `record`: a line of our own `records.jsonl`, whose spans are taken; `dump`: a file
            that is one JSON object with the stages and steps of a request.
        regex: searched in a line as often as it is found. Named groups: `value`, or `rate` (of things per second, read as the
            seconds of one), and if the line says them `unit`, `name`, `rank`, `step`, `block`, `round`.
        similar: a line in which this is found looks like a timing of this pattern.
        contains: what a line must have in it, any case, for the two to be tried at all: a quick look that spares the slow ones.
        unit: declared: of every value, whatever the line says.
        label: name of the series where the regex has no group `name`.
        kinds: of a record's spans by name; others are regions.
    """

    name: str
    format: Format = "text"
    kind: Kind = "region"
    regex: re.Pattern[str] = field(default=_NEVER)
    similar: re.Pattern[str] = field(default=_NEVER)
    contains: str = ""
    unit: Unit | None = None
    label: str = ""
    kinds: Mapping[str, Kind] = field(default_factory=dict)


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
    own = parse_patterns(tables, str(path))
    if not own:
        raise ConfigError(f"{path} has no pattern; write a table such as [attention] with kind and regex")
    names = {pattern.name for pattern in own}
    return own + tuple(pattern for pattern in _shipped() if defaults and pattern.name not in names)


@functools.cache
def _shipped() -> Patterns:
    text = resources.files(__package__).joinpath("patterns.toml").read_text(encoding="utf-8")
    return parse_patterns(tomllib.loads(text), "patterns.toml")


def parse_patterns(tables: Mapping[str, Any], file: str) -> Patterns:
    """Return the patterns that the tables of a file describe."""
    return tuple(_pattern(name, table, file) for name, table in tables.items())


def _pattern(name: str, table: Any, file: str) -> Pattern:
    where = f"{file}: [{name}]"
    if not isinstance(table, dict):
        raise ConfigError(
            f"{file}: unknown key {name!r}{nearest(name, ['defaults'])}; allowed at the top: defaults, and a table per pattern"
        )
    form = table.get("format", "text")
    if form not in _KEYS:
        raise _within(where, unknown_choice("format", str(form), _KEYS))
    for key in table:
        if key not in _KEYS[form]:
            raise _within(where, unknown_choice("key", key, _KEYS[form]))
    for key, value in table.items():
        if key != "kinds" and not isinstance(value, str):
            raise ConfigError(f"{where} {key} = {value!r} is not text; write it in quotes")
    if form == "dump":
        return Pattern(name=name, format="dump")
    if form == "record":
        kinds = table.get("kinds", {})
        if not isinstance(kinds, dict):
            raise ConfigError(f'{where} kinds = {kinds!r}; write a table such as {{ attention = "attention" }}')
        named = {span: _kind(where, kind) for span, kind in kinds.items()}
        return Pattern(name=name, format="record", contains='"record"', kinds=named)
    if "regex" not in table or "kind" not in table:
        raise ConfigError(f"{where} needs kind and regex; kinds: {', '.join(KINDS)}")
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
        kind=_kind(where, table["kind"]),
        regex=regex,
        similar=_compiled(where, "similar", similar),
        contains=table.get("contains", "").lower(),
        unit=unit,
        label=table.get("name", name),
    )


def _within(where: str, error: ConfigError) -> ConfigError:
    return ConfigError(f"{where}: {error}")


def _kind(where: str, word: object) -> Kind:
    for kind in KINDS:
        if word == kind:
            return kind
    raise _within(where, unknown_choice("kind", str(word), KINDS))


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
