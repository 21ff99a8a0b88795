"""`strobe serve` refuses what it could not load, before it prints an address."""

from __future__ import annotations

import pytest

from terminal import Strobe


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--model", "wan-1.3b", "--weights", "nothere.pt"), 3, "--weights nothere.pt: there is no file or folder of that name"),
        (("--model", "wan-1.3b", "--random-weights", "--lora", "a.safetensors=0.5"), 3, "--lora a.safetensors: there is no file"),
        (("--model", "wan1.3b"), 2, "no model or folder 'wan1.3b' (did you mean 'wan-1.3b'?)"),
        (("--preset", "turbi"), 2, "turbi"),
    ],
)
def test_what_is_not_there_is_told_before_the_address(strobe: Strobe, flags: tuple[str, ...], code: int, words: str) -> None:
    result = strobe("serve", "--port", "0", *flags)
    assert result.code == code and words in result.err and "http://" not in result.err
