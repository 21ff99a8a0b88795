"""A pattern proposed for a line with a time or a rate that no pattern reads, tried before it is shown."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from strobe.perf.logs.numbers import NUMBER
from strobe.perf.logs.patterns import parse_patterns
from strobe.perf.logs.vocabulary import UNIT

_SHOWN: Final = 120
_TIME: Final = re.compile(rf"(?P<before>[^\n]*?[A-Za-z][^\n]{{0,80}}?[\s:=(\[]){NUMBER}(?P<gap>\s*){UNIT}")
_RATE: Final = re.compile(rf"(?P<before>[^\n]*?[A-Za-z][^\n]{{0,80}}?[\s:=(\[]){NUMBER}(?P<gap>\s*)(?P<what>[a-z]{{2,12}})/s\b")
_KEYED: Final = re.compile(rf"(?P<before>[^\n]*?\b[A-Za-z]\w{{0,60}}_(?P<unit>ns|us|ms|s|sec|seconds)\b[\"']?\s*[:=]\s*){NUMBER}")
_KINDS: Final = {"step": "step", "attention": "attention", "kernel": "kernel"}


def proposed(text: str) -> str:
    """Return a line of a patterns file that reads the first time or rate in a line of a log; empty if there is none."""
    for found, value, more in (
        (_KEYED.match(text), "{value}", 'unit = "{unit}", '),
        (_RATE.match(text), r"{rate}\s*WHAT/s", ""),
        (_TIME.match(text), r"{value}\s*{unit}", ""),
    ):
        if not found:
            continue
        groups = found.groupdict()
        before = groups["before"][-40:]
        words = re.search(r"[A-Za-z].*", before)
        before = words[0] if words else before
        regex = re.sub(r"\d+", r"\\d+", re.escape(before).replace(r"\ ", " ")).replace("'", ".")
        kind = next((kind for word, kind in _KINDS.items() if word in before.lower()), "stage")
        value = value.replace("WHAT", groups.get("what") or "")
        line = f"timing = {{ kind = \"{kind}\", {more.format(unit=groups.get('unit'))}regex = '{regex}{value}' }}"
        if _reads(line, text):
            return line
    return ""


def quoted(text: str) -> str:
    """Return a line of a log as it is quoted."""
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _reads(line: str, text: str) -> bool:
    (pattern,) = parse_patterns(tomllib.loads(line), "proposal")
    match = pattern.regex.search(text)
    return match is not None and any(match[group] for group in ("value", "rate") if group in pattern.regex.groupindex)
