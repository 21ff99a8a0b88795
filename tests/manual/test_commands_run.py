"""Every command and snippet of the README, the docs and `--help` runs as it stands, unless it is marked there."""

from __future__ import annotations

from pathlib import Path

import pytest

from manual_text import PAGES, ROOT, Command, Snippet, commands, snippets
from sandbox import furnish, run, run_snippet

pytestmark = pytest.mark.rest

COMMANDS = list(
    {
        command.text: command
        for page in PAGES
        for command in commands(page)
        if not command.marks and command.arguments is not None
    }.values()
)
SNIPPETS = [snippet for page in PAGES for snippet in snippets(page) if not snippet.marks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they run, one after another: a later one may use what an earlier one wrote."""
    made = tmp_path_factory.mktemp("manual")
    furnish(made)
    return made


@pytest.mark.parametrize("command", COMMANDS, ids=[f"{each.page}: {each.text[:60]}" for each in COMMANDS])
def test_a_command_runs(command: Command, folder: Path) -> None:
    assert not run(command, folder), f"{command.page}:{command.line}: {command.text}"


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"{each.page}:{each.line}" for each in SNIPPETS])
def test_a_snippet_runs(snippet: Snippet, folder: Path) -> None:
    run_snippet(snippet, folder)


def test_there_are_commands_and_snippets() -> None:
    assert len(COMMANDS) > 40 and len(SNIPPETS) > 8
    assert any(command.page == str((ROOT / "README.md").relative_to(ROOT)) for command in COMMANDS)
