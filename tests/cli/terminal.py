"""The command line run in the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON on stdout, which must be all there is."""
        return json.loads(self.out)


Strobe = Callable[..., Result]
"""Runs `strobe ARGUMENTS...`."""
