"""Reports as tests read them back."""

from __future__ import annotations

import msgspec

from strobe.perf.table.model import Report


def decode_report(data: bytes) -> Report:
    """Read a report back from its JSON twin."""
    return msgspec.json.decode(data, type=Report)
