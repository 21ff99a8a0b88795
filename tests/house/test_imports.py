"""Who may import whom, and what a cheap import stays free of."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import pytest

import strobe
from source import PACKAGE, ROOT, parse


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
