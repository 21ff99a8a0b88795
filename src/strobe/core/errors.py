"""The tree of errors. Every message says what was given, what is allowed and what to do next."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import Final

CLOSE: Final = 0.65
"""How alike two words must be for one to be meant: a wrong letter in three is close; "nope" is neither "over" nor "compile"."""

NO_PLACE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Why a file or a folder cannot be made at a place, whatever else the machine has."""


class StrobeError(Exception):
    """Base of every error that this package raises on purpose."""


class ShapeError(StrobeError, ValueError):
    """A tensor or size does not fit: names the argument, what was given and what is allowed."""


class ConfigError(StrobeError, ValueError):
    """A setting, preset, prompt or flag is not valid."""


class ImplUnavailableError(StrobeError, RuntimeError):
    """A named implementation cannot run here.

    Args:
        name: the implementation that was asked for.
        reason: why it cannot run on this machine or for these tensors.
        alternatives: names that would run.
        what: what was named.
    """

    def __init__(self, name: str, reason: str, alternatives: Iterable[str] = (), *, what: str = "impl") -> None:
        self.name = name
        self.reason = reason
        self.alternatives = tuple(alternatives)
        hint = f"; would run here: {', '.join(self.alternatives)}" if self.alternatives else ""
        super().__init__(f"{what} {name!r} cannot run: {reason}{hint}")


class WeightsError(StrobeError, RuntimeError):
    """A checkpoint is missing, truncated or does not match the model."""


class SessionError(StrobeError, RuntimeError):
    """A streaming session was used in a way its state does not allow."""


class DataError(StrobeError, ValueError):
    """Data read from outside (records, traces, logs) is not usable."""


class TraceFormatError(DataError):
    """A profiler trace cannot be read."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; it ends in the same way as after Ctrl-C."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest allowed word, or an empty string if none is close."""
    folded = {word.lower(): word for word in allowed}
    found = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=CLOSE)
    return f" (did you mean {folded[found[0]]!r}?)" if found else ""


def unknown_choice(what: str, given: str, allowed: Iterable[str]) -> ConfigError:
    """Build the error for a word that is not among the allowed ones."""
    words = list(allowed)
    return ConfigError(f"unknown {what} {given!r}{nearest(given, words)}; allowed: {', '.join(words)}")
