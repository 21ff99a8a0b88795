"""The manual's tables of fields, generated from the structs that write and read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import inspect

from strobe.perf.records.base import SCHEMA_VERSION
from strobe.perf.records.history import HISTORY_LINES
from strobe.perf.records.record import LINES

_PLAIN: Final = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "true/false",
    inspect.NoneType: "null",
    inspect.AnyType: "any",
}

_HEAD: Final = f"""# Records

Generated from `strobe.records` by `make docs`; do not edit. Each section is a class there: `from strobe.records import Clip`.

A run folder holds its measurements in `records.jsonl`: UTF-8, one JSON object per line. The key `record` of a line names its
kind; each section below describes one kind of line, or an object inside lines. To load a run into pandas:
`pandas.DataFrame(strobe.read_run("RUN_DIR").rows("spans"))` has one row per `span` line; [python.md](python.md) shows more.

* **Units** stand in the key: `_ns` is nanoseconds (integers where a clock measured them), `_bytes` bytes, `_mhz` megahertz.
* **Defaults.** A key with a value after its type may be missing from a line; it then has that value.
* **null** stands for what is not known or does not apply.
* **Prose.** A text of type `prose` is for a reader. Its words may change at any time, so do not parse it.
* **Versions.** The key `v` is the schema version, now {SCHEMA_VERSION}, the only one that is read.
  A new optional key keeps the version; a removed, renamed or redefined key raises it.
* **Checksums.** Every line ends in its number, from 1, and the CRC-32 of all bytes before `,"crc"`:
  `...,"line":12,"crc":"89abcdef"}}`. A reader skips a line that does not match, and leaves out the clip that it belongs to.
  A packed file may lack both keys. After a crash the last line may be cut short; a reader keeps the lines before it.
* **Compression.** A published run may hold `records.jsonl.gz` (gzip) instead, never both; `read_run` and every verb read
  either.
"""


_HISTORY: Final = """# Records of a history

Generated from `strobe.perf.records.history` by `make docs`; do not edit.

`strobe track` keeps one folder per session, `sessions/NAME/measurements.jsonl`: one JSON object per line, of the kinds below,
versioned and sealed like [the lines of a run](records.md).
"""


def schema_markdown() -> str:
    """Return `docs/records.md`: one section per kind of line, then the structs inside lines."""
    return _page(_HEAD, LINES)


def history_markdown() -> str:
    """Return `docs/histories.md`: the same of the lines of a history."""
    return _page(_HISTORY, HISTORY_LINES)


def _page(head: str, lines: Sequence[type[msgspec.Struct]]) -> str:
    parts = dict.fromkeys(part for line in lines for part in parts_of(line))
    titles = {kind: f"`{kind.__struct_config__.tag}`" for kind in lines} | {kind: kind.__name__ for kind in parts}
    return "\n".join((head, *struct_sections(titles)))


def struct_sections(titles: Mapping[type[msgspec.Struct], str]) -> Iterator[str]:
    """Yield a section for each struct, by its title: a line for each key, `key` (type; default): meaning.

    A key that has the same meaning in an earlier section is named alone, with a link to that section.
    """
    told: dict[tuple[str, str], str] = {}
    for kind, title in titles.items():
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        own, again = [], defaultdict[str, list[str]](list)
        for field in (each for each in info.fields if each.encode_name != "v"):  # the head of the page has it
            key, meaning = f"`{field.encode_name}`", _meaning(field.type)
            where = told.setdefault((key, meaning), title)
            if where == title:
                own.append(f"* {key} ({_type_name(field.type)}{_default(field)}): {meaning}")
            else:
                again[where].append(key)
        links = [f"* as in [{where.strip('`')}](#{where.strip('`').lower()}): {', '.join(keys)}" for where, keys in again.items()]
        yield "\n".join((f"## {title}", "", (kind.__doc__ or "").strip(), "", *own, *links)) + "\n"


def _meaning(kind: inspect.Type) -> str:
    """Return the first part of a description; the class has all of it."""
    schema = (kind.extra_json_schema or {}) if isinstance(kind, inspect.Metadata) else {}
    text = schema.get("description")
    assert isinstance(text, str), "every record field is described where it is declared"
    first, *rest = text.split("; ")
    while first.count("(") > first.count(")"):
        first = f"{first}; {rest.pop(0)}"
    return first


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "; may be absent"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"; `{msgspec.json.encode(value).decode()}`"


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
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
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
