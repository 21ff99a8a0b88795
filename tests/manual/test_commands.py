"""Commands of the README, the docs and `--help`: all are read, those without a mark run, and results add up over runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cyclopts import App

from check_all import Item, Result, items, page, read, text_key, write
from manual_text import PAGES, ROOT, commands, inline_commands
from sandbox import furnish
from strobe.cli.app import app

IDS = [str(page.relative_to(ROOT)) for page in PAGES]
TARGETS = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_of_a_page_is_read(page: Path) -> None:
    for command in commands(page):
        where = f"{command.page}:{command.line}: {command.text}"
        if command.words[0] == "make":
            targets = [word for word in command.words[1:] if "=" not in word]
            assert TARGETS.issuperset(targets), where
        elif command.arguments is not None:
            try:
                app.parse_args(command.arguments, exit_on_error=False, print_error=False)
            except Exception as error:  # noqa: BLE001
                pytest.fail(f"{where}\n{error}")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_within_prose_names_verbs_and_flags(page: Path) -> None:
    for text in inline_commands(page):
        verb, words = app, text.split()[1:]
        while words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and words[0] in list(verb):
            verb = verb[words.pop(0)]
        assert verb is not app or not words or words[0].startswith("-"), f"{page.name}: `{text}`: no such verb"
        given = {found[0] for found in re.findall(r"(?<!\S)(--?[a-z][\w-]*)(=\S*)?", " ".join(words))}
        assert given <= flags(verb), f"{page.name}: `{text}`: {sorted(given - flags(verb))}"


def test_flags_are_found() -> None:
    assert {"--out", "--require", "--device", "--no-switch", "--json", "-q"} <= flags(app["compare"])
    assert "--nonsense" not in flags(app["compare"])


def flags(verb: App) -> set[str]:
    """The flags of a verb."""
    found = {"--help", "-h", "--version"}
    if any(not name.startswith("-") for name in verb):
        return found
    for argument in verb.assemble_argument_collection():
        found |= {*argument.names, *argument.negatives}
    return found


def test_one_thing_has_one_spelling() -> None:
    """What verbs write goes to --out, devices are --device, frame sizes --size, and a list is words after its flag."""
    for path, verb in verbs(app):
        found = flags(verb)
        assert not found & {"--into", "--runs", "--use-cuda", "--height", "--width", "--folder"}, path
        assert ("--out" in found) == ("-o" in found) == ("--output" in found), path
        for argument in verb.assemble_argument_collection(default_parameter=app.default_parameter):
            several = str(argument.hint).startswith("tuple[") and str(argument.hint).endswith(", ...]")
            assert not several or argument.parameter.consume_multiple, f"{path}: {argument.name} takes one word at a time"


def verbs(parent: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every verb that does something, and where it is."""
    for name in (name for name in parent if not name.startswith("-")):
        inside = [each for each in parent[name] if not each.startswith("-")]
        if inside:
            yield from verbs(parent[name], (*path, name))
        else:
            yield (*path, name), parent[name]


ITEMS = [item for item in items() if not item.marks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they run, one after another: a later one may use what an earlier one wrote."""
    made = tmp_path_factory.mktemp("manual")
    furnish(made)
    return made


@pytest.mark.rest
@pytest.mark.parametrize("item", ITEMS, ids=[item.what[:90] for item in ITEMS])
def test_a_command_or_snippet_runs(item: Item, folder: Path) -> None:
    assert not item.run(folder), item.what


def test_there_are_commands_and_snippets() -> None:
    snippets = [item for item in ITEMS if item.key.startswith("python ")]
    assert len(ITEMS) - len(snippets) > 40 and len(snippets) > 8
    assert any(item.what.startswith("README.md: ") for item in ITEMS)


SLOW, GPU, PLAIN = "strobe demo", "strobe doctor --gate", "strobe lint README.md"
GIVEN = Result(key=SLOW, date="2026-01-02", passed=False, reason="exit 1: a | b", seconds=12.3, device="no GPU", torch="2.13.0")
ROWS = [
    Item(what=f"README.md: {key}", key=key, marks=frozenset(marks), run=lambda folder: None)
    for key, marks in ((SLOW, {"slow"}), (GPU, {"gpu"}), (PLAIN, ()))
]


def test_the_last_result_of_each_command_is_kept_and_those_of_no_command_go(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == {}
    for result in (GIVEN, replace(GIVEN, key=GPU), replace(GIVEN, key="strobe gone"), replace(GIVEN, passed=True, reason="")):
        write(path, result, keep={SLOW, GPU, "strobe gone"})
    write(path, replace(GIVEN, key=PLAIN, passed=True), keep={SLOW, GPU, PLAIN})
    found = read(path)
    assert list(found) == sorted((SLOW, GPU, PLAIN)) and found[SLOW].passed and not found[GPU].passed
    assert [each.name for each in tmp_path.iterdir()] == ["results.jsonl"]


def test_the_page_counts_by_mark_and_names_what_failed() -> None:
    text = page(ROWS, {SLOW: GIVEN, PLAIN: replace(GIVEN, key=PLAIN, date="2026-01-05", passed=True, reason="")})
    assert "Run between 2026-01-02 and 2026-01-05, on no GPU, torch 2.13.0." in text
    assert f"* `README.md: {SLOW}`: failed on 2026-01-02, exit 1: a | b" in text
    assert "| not marked | 1 | 0 | 0 |" in text and "| slow | 0 | 1 | 0 |" in text and "| gpu | 0 | 0 | 1 |" in text
    assert f"* `README.md: {PLAIN}`: failed" in page(ROWS, {PLAIN: replace(GIVEN, key=PLAIN)})


def test_a_snippet_is_named_by_its_text() -> None:
    assert text_key("x = 1\n") == text_key("x = 1\n") != text_key("x = 2\n")
