"""Guard around code of other libraries: an error of a kernel becomes an entry of the records, and the run goes on."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from strobe.core.errors import ImplUnavailableError, StrobeError

_MAX: Final = 400


class Attempt:
    """Run the body and keep an error as text instead of raising it. Ctrl-C and SystemExit are raised.

    Attributes:
        refused: it cannot run here, and said so.
        reason: error message on one line; empty without an error.
        error: the raised error; None without one.
    """

    def __init__(self) -> None:
        self.refused = False
        self.reason = ""
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        self.refused = isinstance(error, ImplUnavailableError | NotImplementedError)
        words = " ".join(str(error).split()) or "no reason given"
        text = words if isinstance(error, StrobeError) else f"{type(error).__name__}: {words}"
        self.reason = text if len(text) <= _MAX else f"{text[: _MAX - 3]}..."
        return True
