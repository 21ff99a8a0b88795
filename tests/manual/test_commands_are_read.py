"""The real command line understands every command of the README, the docs and `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from manual_text import PAGES, ROOT, commands, inline_commands
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
