"""Tables of the fields of structs for pages, generated from the structs that write and read them; and the page of the records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import inspect

from strobe.perf.records.record import LINES, SCHEMA_VERSION

_PLAIN: Final = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "true/false",
    inspect.NoneType: "null",
    inspect.AnyType: "any",
}

_SAID_BY_A_KEY: Final = frozenset(("a", "all", "an", "each", "in", "it", "its", "name", "number", "of", "on", "text", "the"))
"""Words that add nothing to a key."""

_RECORDS: Final = f"""# Records

Generated from `strobe.records` by `make docs`; do not edit. Each section is a class there: `from strobe.records import Clip`.

A run folder holds its measurements in `records.jsonl`: UTF-8, one JSON object per line. The key `record` of a line names its
kind; each section below describes one kind of line, or an object inside lines. To load a run into pandas:
`pandas.DataFrame(strobe.read_run("RUN_DIR").rows("spans"))` has one row per `span` line; [python.md](python.md) shows more.

* **Units** stand in the key: `_ns` is nanoseconds (integers where a clock measured them), `_bytes` bytes, `_mhz` megahertz.
* **Keys.** `key` (type): meaning. Without a type it is a text or a number, as name and meaning say: an integer
  if it ends with `_ns` or `_bytes`, or counts something. A key with `?` may be null, or missing: it is then null where null says
  what is not known, else empty (`""`, `0`, `false`, `[]` or `{{}}`). Keys that differ in one word share a line, with that word of
  each, such as `low/high`. A line of keys alone: their names say what they mean, or an earlier section does.
* **null** stands for what is not known, not measured or not defined.
* **Prose.** A text of type `prose` is for a reader. Its words may change at any time, so do not parse it.
* **Versions.** The key `v` is the schema version, now {SCHEMA_VERSION}, the only one that is read.
  A new optional key, or one that is no longer written, keeps the version; another key that is removed, renamed or redefined
  raises it.
* **Checksums.** Every line ends in its number, from 1, and the CRC-32 of all bytes before `,"crc"`:
  `...,"line":12,"crc":"89abcdef"}}`. A reader skips a line that does not match, and leaves out the clip that it belongs to.
  A packed file may lack both keys. After a crash the last line may be cut short; a reader keeps the lines before it.
* **Compression.** A published run may hold `records.jsonl.gz` (gzip) instead, never both; `read_run` and every verb read
  either.
"""


def schema_markdown() -> str:
    """Return `docs/records.md`: one section per kind of line, then the structs inside lines."""
    parts = dict.fromkeys(part for line in LINES for part in parts_of(line))
    titles = {kind: f"`{kind.__struct_config__.tag}`" for kind in LINES} | {kind: kind.__name__ for kind in parts}
    return "\n".join((_RECORDS, *struct_sections(titles)))


def struct_sections(titles: Mapping[type[msgspec.Struct], str]) -> Iterator[str]:
    """Yield a section for each struct, by its title, with lines as the head of the records' page says: what is
    said once on the page is not said again.

    A unit that the key has, and a row whose own section says what it is, are not described beside the key either.
    """
    told: set[object] = set()
    used = Counter(part for kind in titles for field in _fields(kind) for part in _structs_in(field.type))
    for kind, title in titles.items():
        own, known = [], []
        for field in (each for each in _fields(kind) if each.encode_name != "v"):  # the head of the page has it
            key, shown, meaning = f"`{field.encode_name}`", _type_and_default(field), _meaning(field, used)
            if (key, meaning) in told:
                known.append(key + _mark(field))
            elif not meaning:
                known.append(key + _mark(field) + (f" ({shown})" if shown else ""))
            else:
                own.append((key + _mark(field), shown, meaning))
            told.add((key, meaning))
        listed = [f"* {', '.join(known)}"] if known else []
        said = [part for part in (kind.__doc__ or "").strip().removesuffix(".").split("; ") if part not in told]
        told.update(said)
        yield "\n".join((f"## {title}", "", "; ".join(said) + ".", "", *_lines(own), *listed)) + "\n"


def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _lines(keys: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield lines of keys, each with its type and its meaning; those that differ in one word share one."""
    left = list(keys)
    while left:
        _, shown, meaning = first = left.pop(0)
        words, place, alike = meaning.split(), None, [first]
        for each in [each for each in left if each[1] == shown and len(words) > 1]:
            differ = _differing(words, each[2].split())
            if differ is not None and place in (None, differ):
                place = differ
                alike.append(each)
                left.remove(each)
        if place is not None:
            words[place] = "/".join(each[2].split()[place].rstrip(",") for each in alike) + "," * (words[place][-1] == ",")
        names, told = ", ".join(each[0] for each in alike), " ".join(words)
        yield f"* {names}" + (f" ({shown})" if shown else "") + (f": {told}" if told else "")


def _differing(words: Sequence[str], others: Sequence[str]) -> int | None:
    """Return the place of the one word in which two sentences differ; None: they differ in more, or not at all."""
    places = [place for place, pair in enumerate(zip(words, others, strict=False)) if pair[0] != pair[1]]
    apart = len(words) == len(others) and len(places) == 1 and others[places[0]][0] not in "-/"
    return places[0] if apart and words[places[0]][0] not in "-/" else None


def _meaning(field: inspect.Field, used: Mapping[type[msgspec.Struct], int]) -> str:
    """Return the first part of a description, without what key, type or the section of its rows says; the class has all of it."""
    kind = field.type
    schema = (kind.extra_json_schema or {}) if isinstance(kind, inspect.Metadata) else {}
    text = schema.get("description")
    assert isinstance(text, str), "every record field is described where it is declared"
    first, *rest = re.sub("^names? of (the|an?|its) |, one row per .*", "", text).split("; ")
    while first.count("(") > first.count(")"):
        first = f"{first}; {rest.pop(0)}"
    rows = [*_structs_in(kind)]
    if rows and used[rows[0]] == 1 and not re.search("[,:]", first):
        return ""
    unit = first.rpartition(", ")[2]
    if field.encode_name.endswith(f"_{unit.lower()}"):
        first = first.removesuffix(f", {unit}")
    of_type = {"true/false": "true: ", "integer": "number of "}.get(_type_name(kind).removesuffix("/null"), "")
    first = first if re.match("number of (the|its) ", first) else first.removeprefix(of_type)
    named = {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", first.lower()) if word not in _SAID_BY_A_KEY}
    return "" if named <= {word.rstrip("s") for word in field.encode_name.split("_")} else first


def _mark(field: inspect.Field) -> str:
    """Return `?` behind a key that may be null or missing."""
    return "?" if not field.required or _type_name(field.type).endswith("/null") else ""


def _type_and_default(field: inspect.Field) -> str:
    """Return what stands in parentheses behind a key: a type that is no text and no number, and a default that is not empty."""
    kind = _type_name(field.type).removesuffix("/null")
    shown = "" if kind in ("string", "integer", "number", "integer/number") else kind
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    default = f"`{msgspec.json.encode(value).decode()}`" if value and value is not msgspec.NODEFAULT else ""
    return "; ".join(filter(None, (shown, default)))


def _type_name(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return "prose" if (kind.extra or {}).get("prose") else _type_name(kind.type)
    if isinstance(kind, inspect.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, inspect.LiteralType):
        return "/".join(map(str, kind.values))
    if isinstance(kind, inspect.TupleType):
        return f"list[{','.join(map(_type_name, kind.item_types))}]"
    if isinstance(kind, inspect.VarTupleType):
        return f"list[{_type_name(kind.item_type)}]"
    if isinstance(kind, inspect.DictType):
        return f"object[{_type_name(kind.value_type)}]"
    if isinstance(kind, inspect.UnionType):
        return "/".join(map(_type_name, kind.types))
    return _PLAIN[type(kind)]


def parts_of(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs inside a struct, outermost first; one that is in several places more than once."""
    for field in _fields(kind):
        for part in _structs_in(field.type):
            yield part
            yield from parts_of(part)


def _structs_in(kind: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, inspect.Metadata):
        yield from _structs_in(kind.type)
    elif isinstance(kind, inspect.StructType):
        yield kind.cls
    elif isinstance(kind, inspect.VarTupleType):
        yield from _structs_in(kind.item_type)
    elif isinstance(kind, inspect.DictType):
        yield from _structs_in(kind.value_type)
    elif isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _structs_in(member)
