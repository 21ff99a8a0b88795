"""Ranks that the lines of a log name, in the prefixes of launchers and servers."""

from __future__ import annotations

import re
from typing import Final

_RANK: Final = re.compile(r"\brank\s*[:=#]?\s*(\d{1,6})\b|^\[default(\d{1,6})\]", re.IGNORECASE)
_PARTS: Final = r"(?:(?:DP|PP|TP|SP|CP|EP)\d{1,6}[_ ]?)+"
_WORKER: Final = re.compile(
    rf"\((?P<role>[A-Za-z]\w*?)(?:[-_ ]?(?P<number>{_PARTS}|\d{{1,6}}))? pid=(?P<pid>\d{{1,9}})[^)]{{0,80}}\)"
)
_SERVER: Final = re.compile(rf"^(?:\[[^\]]{{0,40}}?)?\b(?P<number>{_PARTS})\]")
_PART: Final = re.compile(r"(DP|PP|TP|SP|CP|EP)(\d{1,6})")


class Ranks:
    """Finder of ranks in the lines of one log.

    `[rank 1]`, `RANK1` and `[default1]:` name a rank, and so do the prefixes of workers: `(Worker_TP1 pid=990)`,
    `(Worker-1 pid=990)` and `TP1]`. Where a prefix has several coordinates, or a process number alone, ranks are counted as they
    come.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], int] = {}

    def of(self, text: str, before: int) -> int | None:
        """Return the last rank that the text names before a position; None if there is none."""
        if "ank" in text or "ANK" in text or text.startswith("[default"):
            found = list(_RANK.finditer(text, 0, before))
            if found:
                return int(found[-1][1] or found[-1][2])
        if "pid=" in text and (worker := _WORKER.search(text, 0, before)):
            return self._number(worker["role"], worker["number"], worker["pid"])
        server = _SERVER.match(text, 0, before) if "P" in text[:60] else None
        return self._number("", server["number"], "") if server else None

    def _number(self, role: str, number: str | None, pid: str) -> int:
        parts = _PART.findall(number or "")
        places = [part for part in parts if part[0] != "EP"] or parts  # experts lie on the processes of the other coordinates
        if len(places) == 1:
            return int(places[0][1])
        if number and not places:
            return int(number)
        key = (role, *(axis + place for axis, place in places)) if places else (role, pid)
        return self._seen.setdefault(key, sum(known[0] == role for known in self._seen))
