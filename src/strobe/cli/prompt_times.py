"""Prompts of flags and files, and the frame blocks at which they take effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strobe.engine.prompts import Mode, Switch, TimedPrompt
    from strobe.engine.session import Session


def first_of(prompt: str | None, timed: Sequence[TimedPrompt], file: Path | None) -> str:
    """Return the first prompt: the one given, else the one of a file of prompts.

    Raises:
        ConfigError: there is none.
    """
    found = prompt or next((each.prompt for each in timed if each.first), None)
    if found is None:
        where = f"{file} has no prompt at 0s; " if file is not None else ""
        raise ConfigError(f"{where}say what to show: strobe generate PROMPT, --prompts FILE, or --replay FILE")
    return found


def switches_for(
    session: Session, said: Sequence[str], timed: Sequence[TimedPrompt], file: Path | None, mode: Mode
) -> list[Switch]:
    """Return the prompt switches of flags and file for a session.

    Raises:
        ConfigError: one does not read like one, or two take effect at one frame block.
    """
    from strobe.engine.prompts import check_switches, parse_switch, switches_of

    defaults, first = session.model.defaults, session.config.first_block
    found = [parse_switch(text, defaults, mode=mode, first_block=first) for text in said]
    return list(check_switches([*found, *switches_of(timed, str(file), defaults, first)]))


def prompts_of(path: Path, mode: Mode) -> tuple[TimedPrompt, ...]:
    """Read a file of prompts.

    Raises:
        DataError: there is no such file, or it is no text.
        ConfigError: a line does not read like one.
    """
    from strobe.engine.prompts import read_prompts

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise DataError(f"cannot read the prompts {path}: {why}; give a text file with a line such as '4.5s: TEXT'") from error
    return read_prompts(text, str(path), mode=mode)
