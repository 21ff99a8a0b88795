"""Prompts are cleaned as the official tokeniser does it; plain ASCII needs no extra package."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.models.text import umt5 as cleaning
from strobe.models.text.umt5 import clean_prompt

PLAIN = st.text("\t\n" + "".join(chr(code) for code in range(32, 127) if chr(code) != "&"), min_size=1)


@given(PLAIN.filter(str.strip))
def test_plain_ascii_keeps_its_words(prompt: str) -> None:
    assert clean_prompt(prompt) == " ".join(prompt.split())


@pytest.mark.parametrize("prompt", ["", " ", "\n\t "])
def test_nothing_is_no_prompt(prompt: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt .* is empty; give at least one word"):
        clean_prompt(prompt)


@pytest.mark.parametrize("prompt", ["café", "a &amp; b", "bell\x07", "line\rend"])
def test_other_text_asks_for_ftfy_where_it_is_missing(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "broken", lambda module: f"{module} is not installed")
    assert clean_prompt("a cat") == "a cat"
    with pytest.raises(ImplUnavailableError, match=r"pip install .*\[wan\].*, or write the prompt in ASCII"):
        clean_prompt(prompt)


@given(st.text(min_size=1))
def test_it_is_the_official_cleaning(prompt: str) -> None:
    ftfy = pytest.importorskip("ftfy", reason="ftfy is not installed (extra `wan`)")
    official = html.unescape(html.unescape(ftfy.fix_text(prompt))).strip()
    official = re.sub(r"\s+", " ", official).strip()
    if official:
        assert clean_prompt(prompt) == official
    else:
        with pytest.raises(ConfigError):
            clean_prompt(prompt)
