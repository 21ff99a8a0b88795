"""What the manual of the records has is what `strobe.records` gives."""

from __future__ import annotations

import re
from pathlib import Path

import strobe.records
from strobe.perf.records.record import LINES

PAGE = Path(__file__).parents[3] / "docs" / "records.md"


def test_every_table_of_the_manual_is_a_public_class() -> None:
    heads = set(re.findall(r"^## `?(\w+)`?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    public = {name.lower(): getattr(strobe.records, name) for name in strobe.records.__all__}
    assert len(heads) > len(LINES)
    assert {head.lower() for head in heads} == public.keys() - {"runrecords"}
    assert set(LINES) <= set(public.values())
