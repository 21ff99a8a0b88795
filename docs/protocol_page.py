"""The documentation page of the protocol, generated from its message types."""

from __future__ import annotations

import inspect as python_inspect
import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect

from strobe.serve import protocol
from strobe.serve.protocol import FromServer, FromViewer, Picture

_COUNT: Final = 2**48 - 1
_HEAD = f"""# The protocol of `strobe serve`

Generated from `strobe.serve.protocol` by `make docs`; do not edit. This is version {protocol.VERSION}.

{python_inspect.getdoc(protocol)}

The socket is `/v1/stream`. Every message is a JSON object with a `type`. What cannot be obeyed is answered with `error`,
and the stream goes on. Unknown keys and values also end the connection.

Behind a key stand its type and, if it may be left out, its default. `count` is an integer from 0 to {_COUNT},
`int[1..64]` one from 1 to 64, and `str[..64]` a text of at most 64 characters.
"""


def protocol_markdown() -> str:
    """Return `docs/protocol.md`."""
    parts = [_HEAD, "## From the viewer", *map(_section, get_args(FromViewer)), "## From the server"]
    parts += [*map(_section, get_args(FromServer)), "## Pictures", python_inspect.getdoc(Picture) or "", "## Inside messages"]
    inside = {part.__name__: part for kind in get_args(FromServer) for part in _parts(kind)}
    return "\n\n".join([*parts, *map(_section, inside.values())]).strip() + "\n"


def _section(kind: type[msgspec.Struct]) -> str:
    config = kind.__struct_config__
    title = f"### `{config.tag}`" if config.tag else f"### {kind.__name__}"
    told = python_inspect.getdoc(kind) or ""
    fields = _fields(kind)
    if not fields:
        return f"{title}\n\n{told}"
    keys = ", ".join(f"`{field.encode_name}` ({_type(field.type)}{_default(field)})" for field in fields)
    return "\n".join([title, "", told, "", keys])


def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _parts(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for field in _fields(kind):
        found: Any = field.type
        found = getattr(found, "item_type", found)
        if isinstance(found, inspect.StructType):
            yield found.cls


def _default(field: inspect.Field) -> str:
    return "" if field.required else f"=`{msgspec.json.encode(field.default).decode()}`"


def _type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return _type(kind.type)
    if isinstance(kind, inspect.UnionType):
        return "/".join(map(_type, kind.types))
    if isinstance(kind, inspect.ListType):
        return f"list[{_type(kind.item_type)}]"
    if isinstance(kind, inspect.DictType):
        return f"object[{_type(kind.value_type)}]"
    if isinstance(kind, inspect.StructType):
        return kind.cls.__name__
    if isinstance(kind, inspect.LiteralType):
        return "/".join(map(str, kind.values))
    if isinstance(kind, inspect.NoneType):
        return "null"
    plain = re.sub(r"Type$", "", type(kind).__name__).lower()
    if isinstance(kind, inspect.IntType) and kind.ge is not None:
        last = kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1
        return "count" if (kind.ge, last) == (0, _COUNT) else f"{plain}[{kind.ge}..{'' if last is None else last}]"
    most = getattr(kind, "max_length", None)
    return plain if most is None else f"{plain}[..{most}]"
