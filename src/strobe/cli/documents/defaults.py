"""The JSON schema of `strobe.toml`, generated from the flags, with which editors complete and check it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from cyclopts import App, Argument

from strobe.cli.defaults import ANY, every_verb, flags_of


def defaults_schema() -> str:
    """Return `docs/strobe.schema.json`: a table for every verb, and one whose keys are the flags of all."""
    root: dict[str, Any] = {"properties": {ANY: _table("Flags of every verb that has them.", {})}}
    for commands, verb in every_verb():
        found = root
        for name in commands:
            found = found["properties"].setdefault(name, _table(f"strobe {' '.join(commands)}", {}))
        for name, flag in _flags(verb).items():
            first = root["properties"][ANY]["properties"].setdefault(name, flag)
            found["properties"][name] = {"$ref": f"#/properties/{ANY}/properties/{name}"} if first == flag else flag
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "strobe.toml", "type": "object"}
    return json.dumps(head | {"additionalProperties": False} | root, separators=(",", ":"), ensure_ascii=False) + "\n"


def _table(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "type": "object", "additionalProperties": False, "properties": properties}


def _flags(verb: App) -> dict[str, Any]:
    flags = flags_of(verb.assemble_argument_collection(parse_docstring=True))
    return {name.removeprefix("--"): _schema(flag) for name, flag in flags.items()}


def _schema(flag: Argument) -> dict[str, Any]:
    """A flag's type and what `--help` says of it. There is no null in TOML: what may be left out is left out."""
    (schema,), _ = msgspec.json.schema_components([flag.hint], schema_hook=lambda kind: {"type": "string"})
    some = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    found = some[0] if len(some) == 1 else {"anyOf": some} if some else schema
    return found | ({"description": " ".join(flag.parameter.help.split())} if flag.parameter.help else {})
