"""The schema of the records, what the manual and `strobe.records` have of it, and the facts of a machine for the header."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

import strobe.records
from strobe.perf.records import record
from strobe.perf.records.record import LINES, Header, Prediction, Record, Span
from strobe.perf.records.store import RunRecords
from structs import parts_of, schema_markdown

NEEDED = {
    "date", "git.commit", "git.dirty", "argv", "model.weights_sha256", "machine.device", "machine.driver", "machine.cuda",
    "machine.torch", "machine.cores", "machine.threads", "machine.clocks", "machine.gpu_count", "sp_degree", "tp_degree",
    "world_size", "logs", "workload.frames", "workload.height", "workload.width", "workload.batch",
}  # fmt: skip


def test_integers_beyond_a_float_survive(span: Span) -> None:
    assert msgspec.json.decode(msgspec.json.encode(span), type=Record) == span
    assert b"9007199254740993" in msgspec.json.encode(span)


def test_every_line_tells_its_kind_and_version(header: Header, span: Span) -> None:
    for one in (header, span):
        line = msgspec.json.decode(msgspec.json.encode(one))
        assert (line["record"], line["v"]) == (type(one).__name__.lower(), 2)


def test_a_line_without_an_optional_field_is_read_as_it_was_meant() -> None:
    """Fields came one by one: a run that did not know them had one GPU, whole clips and frame blocks, and nothing else to say."""
    meant = {
        ("Header", "kind"): "stream", ("Header", "world_size"): 1, ("Header", "sp_degree"): 1, ("Header", "tp_degree"): 1,
        ("Workload", "batch"): 1, ("Workload", "unit"): "frame block", ("Clip", "calls"): 1, ("Excluded", "kind"): "other",
    }  # fmt: skip
    found, kinds = {}, {part for line in LINES for part in (line, *parts_of(line))}
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
    public = {getattr(strobe.records, name) for name in strobe.records.__all__} - {RunRecords}
    assert heads == {kind.__struct_config__.tag if kind in LINES else kind.__name__ for kind in public}
    assert set(LINES) < public


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_git_state_is_that_of_the_checkout_that_tracks_the_file(tmp_path: Path) -> None:
    tracked, stray = tmp_path / "a.py", tmp_path / "b.py"
    assert record.git_state(tracked).commit is None
    git(tmp_path, "init", "-q")
    tracked.write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    stray.write_text("2")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=False)
    assert record.git_state(stray).commit is None
    tracked.write_text("3")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=True)


def test_a_machine_that_tells_nothing_gives_nulls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(record, "_text", lambda path: "")
    assert record.git_state(Path(__file__)) == record.Git(commit=None, dirty=None)
    assert record.cpu_governor() is None
    assert record.cpu_mhz() is None
    assert record.cpu_cores() >= 1


def test_the_clock_of_the_cores_is_their_mean_in_mhz(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"a": "2000000", "b": "3001000", "c": "", "/proc/cpuinfo": "cpu MHz\t: 1000.5\nflags: x\ncpu MHz\t: 2000\n"}
    monkeypatch.setattr(record, "_text", lambda path: told[str(path)])
    for cores, expected in (("abc", 2500), ("", 1500)):
        monkeypatch.setattr(Path, "glob", lambda folder, pattern, cores=cores: map(Path, cores))
        assert record.cpu_mhz() == expected
