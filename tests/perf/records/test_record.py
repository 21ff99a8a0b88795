"""The schema of the records: what a line says, and what the manual and `strobe.records` have of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import strobe.records
from strobe.perf.records.record import LINES, Header, Prediction, Record, RecordPart, Span
from structs import schema_markdown

NEEDED = {
    "date", "git.commit", "git.dirty", "argv", "model.weights_sha256", "machine.device", "machine.driver", "machine.cuda",
    "machine.torch", "machine.cores", "machine.threads", "machine.clocks", "machine.gpu_count", "sp_degree", "tp_degree",
    "world_size", "logs", "workload.frames", "workload.height", "workload.width", "workload.batch",
}  # fmt: skip


def test_integers_beyond_a_float_survive(span: Span) -> None:
    assert msgspec.json.decode(msgspec.json.encode(span), type=Record) == span
    assert b"9007199254740993" in msgspec.json.encode(span)


def test_every_line_tells_its_kind_and_version(header: Header, span: Span) -> None:
    for record in (header, span):
        line = msgspec.json.decode(msgspec.json.encode(record))
        assert (line["record"], line["v"]) == (type(record).__name__.lower(), 2)


def test_a_line_without_an_optional_field_is_read_as_it_was_meant() -> None:
    """Fields came one by one: a run that did not know them had one GPU, whole clips and frame blocks, and nothing else to say."""
    meant = {
        ("Header", "kind"): "stream", ("Header", "world_size"): 1, ("Header", "sp_degree"): 1, ("Header", "tp_degree"): 1,
        ("Workload", "batch"): 1, ("Workload", "unit"): "frame block", ("Clip", "calls"): 1, ("Excluded", "kind"): "other",
    }  # fmt: skip
    found, kinds = {}, [*LINES, *RecordPart.__subclasses__()]
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if default is not msgspec.NODEFAULT and field.name != "v" and default not in (None, False, 0, "", (), {}):
                found[kind.__name__, field.name] = default
    assert found == meant and len(kinds) > 30


def test_the_header_has_every_field_a_reader_needs_to_repeat_the_run() -> None:
    schema = msgspec.json.schema(Header)["$defs"]

    def keys(name: str, prefix: str = "") -> set[str]:
        found = set()
        for key, field in schema[name]["properties"].items():
            found.add(prefix + key)
            options = [field, *field.get("anyOf", []), *field.get("allOf", [])]
            for part in (option["$ref"].rsplit("/", 1)[1] for option in options if "$ref" in option):
                found |= keys(part, f"{prefix}{key}.")
        return found

    assert keys("Header") >= NEEDED


def test_the_manual_lists_every_field_of_every_line() -> None:
    text = schema_markdown()
    for kind in LINES:
        section = text.split(f"## `{kind.__struct_config__.tag}`")[1].split("\n## ")[0]
        for field in (each for each in msgspec.structs.fields(kind) if each.name != "v"):
            assert f"`{field.name}`" in section


@pytest.mark.parametrize("kind", [kind for kind in LINES if kind is not Prediction])
def test_times_that_a_clock_measured_are_whole_nanoseconds(kind: type[msgspec.Struct]) -> None:
    for field in msgspec.inspect.type_info(kind).fields:
        if field.name.endswith(("_ns", "_bytes")):
            found = field.type.type
            while isinstance(found, msgspec.inspect.VarTupleType | msgspec.inspect.DictType):
                found = found.value_type if isinstance(found, msgspec.inspect.DictType) else found.item_type
            assert isinstance(found, msgspec.inspect.IntType | msgspec.inspect.UnionType), field.name


PAGE = Path(__file__).parents[3] / "docs" / "records.md"


def test_every_table_of_the_manual_is_a_public_class() -> None:
    heads = set(re.findall(r"^## `?(\w+)`?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    public = {name.lower(): getattr(strobe.records, name) for name in strobe.records.__all__}
    assert len(heads) > len(LINES)
    assert {head.lower() for head in heads} == public.keys() - {"runrecords"}
    assert set(LINES) <= set(public.values())
