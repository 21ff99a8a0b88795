"""The rules of docs/architecture.md: budgets and manners, who may import whom, what a cheap import stays free of."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
import torch

import strobe
from source import (
    PACKAGE,
    ROOT,
    depth,
    functions,
    is_kernel,
    name_of,
    num_lines,
    num_parameters,
    parse,
    python_files,
    statements,
)  # fmt: skip
from strobe.core.tolerances import TOLERANCES, tolerance
from strobe.perf.records.record import LINES
from structs import parts_of

EVERYTHING = python_files("src", "tests", "tools", "docs", "benchmarks", "examples")

FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
SHAPE_LITERALS = {1560, 32760}
"""Tokens of a latent frame and of a clip of one particular model at one particular size: always derived, never written."""


def file_faults(path: Path) -> Iterator[str]:
    """What a file is too long for, or named after."""
    lines = path.read_text(encoding="utf-8").splitlines()
    most = 600 if is_kernel(path) else 1000
    if not lines and path.name != "__init__.py":
        yield "an empty placeholder file"
    if len(lines) > most:
        yield f"{len(lines)} lines, {most} allowed: split it into a package of the same name"
    if path.name in FORBIDDEN_NAMES:
        yield "name the room after what is in it"


def function_faults(path: Path, tree: ast.Module) -> Iterator[str]:
    """Functions that are too long, too deep, or take too much."""
    longest = 150 if is_kernel(path) else 80
    # a public operator names all it takes; a custom operator's schema is flat
    flat = ("api.py", "video.py", "packed.py", "custom_ops.py")
    any_parameters = is_kernel(path) or (path.name in flat and path.parent.parent.name == "attention")
    any_parameters |= path.parent.name == "compat"  # the signatures are those of others
    public = ("sparsify",) if path.parent.parent.name == "integrations" else ()
    for function in functions(tree):
        where = f"{function.lineno} {function.name}"
        if num_lines(function) > longest:
            yield f"{where}: {num_lines(function)} lines, {longest} allowed"
        if depth(function) > 4:
            yield f"{where}: nested {depth(function)} deep, 4 allowed"
        if not any_parameters and function.name not in public and num_parameters(function) > 8:
            yield f"{where}: {num_parameters(function)} parameters, 8 allowed"


def uses(tree: ast.Module, name: str) -> list[int]:
    """Lines that mention a name: a call like `print`, or an attribute like `os.environ`."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute and ast.unparse(node.value) == owner
    ]


CATCHES_ALL = ("cli/main.py", "serve/worker.py", "core/libraries.py")
"""Where whatever ends a piece of work is told to whoever waits for it: the command line, the thread that owns a device, and what
other packages wrote."""


def manner_faults(path: Path, tree: ast.Module) -> Iterator[str]:
    """What the package does in one place alone, or nowhere."""
    room, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
    if not room.startswith("cli/") and "print" in text and uses(tree, "print"):
        yield "only the command line prints; return the value"
    if room != "core/settings.py" and any(name in text and uses(tree, f"os.{name}") for name in ("environ", "getenv")):
        yield "core/settings.py alone uses the environment"
    for node in statements(tree):
        if isinstance(node, ast.ExceptHandler) and room not in CATCHES_ALL:
            caught = "" if node.type is None else ast.unparse(node.type)
            if node.type is None or re.search(r"\b(Base)?Exception\b", caught):
                yield f"line {node.lineno}: name the error"
    if any(str(literal) in text.replace("_", "") for literal in SHAPE_LITERALS):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in SHAPE_LITERALS:
                yield f"line {node.lineno}: derive {node.value} from the shapes"


def faults(path: Path) -> list[str]:
    """Everything that a file may not."""
    tree = parse(path)
    found = [*file_faults(path), *function_faults(path, tree)]
    if path.is_relative_to(PACKAGE):
        found += manner_faults(path, tree)
    return [f"{name_of(path)}: {fault}" for fault in found]


def test_every_file_keeps_its_budget_and_manners() -> None:
    found = [fault for path in EVERYTHING for fault in faults(path)]
    assert not found, "\n".join(found)


_BLOCKS = ("def f():", "for a in b:", "while c:", "with d:", "if e:", "try:", "x = 1")
DEEP = "".join("    " * level + line + "\n" for level, line in enumerate(_BLOCKS))
WRONG = {
    "core/wrong.py": ("x = 1\n" * 1001, "1001 lines, 1000 allowed"),
    "core/helpers.py": ("x = 1", "name the room after what is in it"),
    "core/empty.py": ("", "an empty placeholder file"),
    "core/long.py": ("def f():\n" + "    x = 1\n" * 80, "1 f: 81 lines, 80 allowed"),
    "core/deep.py": (DEEP + "                    finally:\n                        y = 2\n", "nested 5 deep, 4 allowed"),
    "core/many.py": ("def f(a, b, c, d, e, f, g, h, i): ...", "9 parameters, 8 allowed"),
    "core/says.py": ("print(1)", "only the command line prints"),
    "core/environment.py": ("import os\nx = os.environ", "core/settings.py alone"),
    "core/catches.py": ("try:\n    x = 1\nexcept Exception:\n    pass", "line 3: name the error"),
    "core/literal.py": ("x = 1560", "line 1: derive 1560"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_a_file_may_not_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, said = WRONG[name]
    path = tmp_path / "src" / "strobe" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for module in ("source", __name__):
        monkeypatch.setattr(sys.modules[module], "PACKAGE", tmp_path / "src" / "strobe")
    monkeypatch.setattr(sys.modules["source"], "ROOT", tmp_path)
    (found,) = faults(path)
    assert said in found


NOUNS = re.compile(r"^\| `(?P<room>[\w/]+)` \| (?P<most>\d+) \|$", re.MULTILINE)


def test_a_room_keeps_its_budget_of_nouns() -> None:
    found = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        parts, text = path.relative_to(PACKAGE).parts, path.read_text(encoding="utf-8")
        nodes = statements(ast.parse(text)) if "class " in text else ()
        names = [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        found["/".join(parts[: 2 if parts[0] == "perf" else 1])] += len(names)
    told = "can an existing class be it? if there are fewer, lower the budget in docs/architecture.md"
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    budgets = {found["room"]: int(found["most"]) for found in NOUNS.finditer(page)}
    assert {room: number for room, number in found.items() if number} == budgets, told


REPORT = sorted((PACKAGE / "perf" / "report").rglob("*.py"))


def made_by_hand(tree: ast.Module) -> Iterator[int]:
    """Lines that make a column with a head; one without is what a cell outside of a table is shown in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column":
            (first, *others) = node.args or [None]
            bare = not others and not node.keywords and isinstance(first, ast.Constant) and first.value == ""
            if not bare:
                yield node.lineno


def test_a_column_is_described_with_its_cells() -> None:
    by_hand = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in REPORT
        if path.name not in ("fields.py", "model.py")
        for line in made_by_hand(parse(path))
    }
    assert not by_hand, f"describe the column once, with perf/table/fields: {', '.join(sorted(by_hand))}"


def test_a_column_made_by_hand_is_found() -> None:
    code = 'Column("time", "ms", True)\nColumn("time")\nColumn("", numeric=True)\nColumn(name)\nColumn("")'
    assert list(made_by_hand(ast.parse(code))) == [1, 2, 3, 4]


def written(tree: ast.Module) -> bool:
    """Whether a tolerance of tensors is a number, and not 0."""
    given = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ("atol", "rtol")]
    return any(isinstance(value, ast.Constant) and value.value != 0 for value in given)


def test_tests_write_no_tolerance_beside_the_table() -> None:
    assert not [name_of(path) for path in python_files("tests", "tools") if written(parse(path))]


def test_wider_dtypes_have_tighter_tolerances() -> None:
    for measure, row in TOLERANCES.items():
        values = [row[name] for name in ("float64", "float32", "float16", "bfloat16") if name in row]
        assert values == sorted(values) and all(0 < value < 1 for value in values), measure
    assert tolerance("call", torch.float16) == tolerance("call", "float16") == 2e-3


READERS: Final = ("perf/logs", "perf/trace", "lint")
"""Rooms whose work is to read text of others."""
TAKES_APART: Final = {
    "startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "split", "rsplit",
    "partition", "rpartition", "casefold",
}  # fmt: skip
PATTERNS: Final = {"search", "match", "fullmatch", "findall", "finditer", "split"}


def prose_fields() -> set[str]:
    """Fields that the records declare as prose."""
    found = set()
    for kind in {part for line in LINES for part in (line, *parts_of(line))}:
        for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[union-attr]
            if isinstance(field.type, msgspec.inspect.Metadata) and (field.type.extra or {}).get("prose"):
                found.add(field.encode_name)
    return found


def readings(tree: ast.AST, fields: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that take the text of such a field apart, or compare it with a text."""

    def is_field(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in fields

    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            taken = node.func.attr in TAKES_APART and is_field(node.func.value)
            found = taken or (node.func.attr in PATTERNS and any(map(is_field, node.args)))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = list(zip(sides, node.ops, sides[1:], strict=False))
            found = any(isinstance(op, ast.In | ast.NotIn) and is_field(right) for _, op, right in pairs)
            found |= any(is_field(one) and _is_text(other) for a, _, b in pairs for one, other in ((a, b), (b, a)))
        elif isinstance(node, ast.Match):
            found = is_field(node.subject)
        if found:
            yield node.lineno, ast.unparse(node)[:100]  # type: ignore[attr-defined]


def _is_text(node: ast.expr) -> bool:
    """A text that is not empty, or several; whether there is a text at all may be asked."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value != ""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Tuple | ast.Set | ast.List) and any(map(_is_text, node.elts)))


def test_no_decision_hangs_on_prose() -> None:
    fields = prose_fields()
    files = [path for path in PACKAGE.rglob("*.py") if not path.relative_to(PACKAGE).as_posix().startswith(READERS)]
    found = [f"{name_of(path)}:{at}: {text}" for path in sorted(files) for at, text in readings(parse(path), fields)]
    assert not found, "\n".join(found)


def test_records_say_what_is_prose() -> None:
    assert prose_fields() >= {"cause", "rule", "detail", "message", "definition", "note", "reason", "caption", "reference"}


def test_a_reading_is_found() -> None:
    code = """entry.reason.startswith("red")
line.definition.endswith("flop")
EXACT in gate.rule
line.cause == "warm-up"
re.search("no memory", end.message)
line.note in ("a", "b")
line.reference.partition(", ")"""
    assert {line for line, _ in readings(ast.parse(code), prose_fields())} == {*range(1, 8)}


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds this checkout's package."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def loaded(code: str, *arguments: str) -> set[str]:
    """Top-level modules that are loaded after running code; the last line of stderr carries them."""
    report = "\nimport json; sys.stderr.write('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    result = run(code + report, *arguments)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stderr.splitlines()[-1]))


def test_the_import_contracts_hold() -> None:
    linter = pytest.importorskip("importlinter.cli")
    assert linter is not None
    result = run(
        f"import os; os.chdir({str(ROOT)!r}); from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_test_module_imports_no_other() -> None:
    """Each runs alone: of the folders of tests, `support` is the one that is importable."""
    folders = ROOT / "tests"
    tests = {file.stem: file for file in folders.rglob("*.py") if file.parent != folders / "support"}
    found = [
        f"{file.relative_to(ROOT)} imports {name}; move what they share to tests/support"
        for file in tests.values()
        if {*IMPORT.findall(file.read_text(encoding="utf-8"))} & {*tests, "tests"}  # what a regular expression sees, or prose
        for node in ast.walk(parse(file))
        for name in _imported(node)
        if name.partition(".")[0] in {*tests, "tests"}
    ]
    assert not found, "\n".join(found)


IMPORT = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


WRONG_COUNTS = (
    "compare baseline turbo --rounds 0", "demo --blocks 0", "compare turbo --vary steps=1 --rounds 0",
    "doctor --preset turbo --samples 0",
    "profile stream --active 0", "generate dog --blocks 0", "generate dog -o dog.mp5", "generate dog --seed 1.5",
)  # fmt: skip
MAIN = "from strobe.cli.main import main"


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import strobe; strobe.__version__; dir(strobe)", "torch numpy av rich cyclopts msgspec safetensors"),
        (f"{MAIN}\nfor line in sys.argv[1:]: assert main(line.split()) == 2, line", "torch"),
        (f"{MAIN}; main(['generate', '--help'])", "msgspec hashlib base64"),
    ],
    ids=["import strobe", "a wrong count", "help of generate"],
)
def test_what_is_cheap_loads_no_other(code: str, others: str) -> None:
    assert not loaded(code, *WRONG_COUNTS) & {*others.split()}


def test_operators_and_engine_load_no_compiler() -> None:
    """It takes over a second in every process, and most compile nothing. Names, predicted memory and a stream, in turn."""
    listing = "print(*(name for name in sys.modules if name.partition('.')[0] == 'sympy' or name == 'torch._dynamo'))"
    steps = (
        "import strobe; strobe.dense_attention, strobe.video_sparse_attention, strobe.tree_attention, strobe.Session",
        "import strobe.engine.load; strobe.engine.load.model_parts('shapes')",
        "next(strobe.Session('a red circle moving left', preset='turbo', device='cpu').stream())",
    )
    result = run("".join(f"{step}\n{listing}\n" for step in steps))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "\n" * len(steps)


def test_help_of_no_verb_loads_torch() -> None:
    """Modules stay loaded, so of several verbs that fail the first is to blame."""
    code = """
import contextlib, io
from strobe.cli.defaults import every_verb
from strobe.cli.main import main

verbs = [(), *(words for words, _ in every_verb())]
for words in verbs:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, "--help"]) == 0, words
    assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "av"}, words
print(len(verbs))
"""
    result = run(code)
    assert result.returncode == 0 and int(result.stdout) > 20, result.stderr


@pytest.mark.parametrize(
    ("verb", "others"),
    [
        ("report", {"bench", "doctor", "generate", "profile", "trace"}),
        ("profile dit", {"compare", "bench"}),
        ("bench serve", {"compare", "profile"}),
        ("accept", {"compare", "profile"}),
    ],
)
def test_a_verb_loads_no_other(verb: str, others: set[str]) -> None:
    listing = "print(*(name for name in sys.modules if 'strobe.cli' in name))"
    code = f"from strobe.cli.main import main\nmain([*sys.argv[1:], '--help'])\n{listing}"
    verbs = {name.partition("strobe.cli.")[2] for name in run(code, *verb.split()).stdout.splitlines()[-1].split()}
    assert verb.split()[0] in verbs and not verbs & others


@pytest.mark.parametrize("name", [name for name in strobe.__all__ if name != "__version__"])
def test_public_names_resolve_and_are_documented(name: str) -> None:
    value = getattr(strobe, name)
    assert value.__doc__, f"strobe.{name} has no docstring"
    assert name in dir(strobe)


def test_a_wrong_public_name_says_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"Sesion.*did you mean 'Session'"):
        _ = strobe.Sesion
