"""Cleaning of prompts as in the training of the released Wan models."""

from __future__ import annotations

import html
import re
from importlib import import_module

from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.libraries import broken, install

PLAIN = re.compile(r"[\t\n -%'-~]*")
"""Printable ASCII without an ampersand: text that ftfy never changes."""


def clean_prompt(prompt: str) -> str:
    """Mend broken Unicode (ftfy), undo HTML escapes twice, and make every run of white space one blank, none at the ends.

    Raises:
        ConfigError: nothing is left.
        ImplUnavailableError: the prompt is not plain ASCII and ftfy is not installed.

    Source: the tokeniser of the official Wan2.1, `clean="whitespace"`.
    """
    text = prompt if PLAIN.fullmatch(prompt) else _mended(prompt)
    cleaned = re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()
    if not cleaned:
        raise ConfigError(f"prompt {prompt!r} is empty; give at least one word")
    return cleaned


def _mended(prompt: str) -> str:
    if why := broken("ftfy"):
        reason = f"prompt {prompt!r} is not plain ASCII, the models' tokeniser uses ftfy on such text, and {why}"
        raise ImplUnavailableError("umt5", f"{reason}; run {install('wan')}, or write the prompt in ASCII")
    mended: str = import_module("ftfy").fix_text(prompt)
    return mended
