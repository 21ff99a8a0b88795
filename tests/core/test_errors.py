"""The error tree, and messages that name what was given, what is allowed and the nearest choice."""

from __future__ import annotations

import pytest

from strobe.core import errors
from strobe.core.errors import ImplUnavailableError, StrobeError, nearest


def test_the_tree() -> None:
    for parent, names in ((ValueError, "ShapeError ConfigError DataError"), (RuntimeError, "WeightsError SessionError")):
        assert all(getattr(errors, name).__bases__ == (StrobeError, parent) for name in names.split())
    assert ImplUnavailableError.__bases__ == (StrobeError, RuntimeError) and errors.TraceFormatError.__bases__ == (
        errors.DataError,
    )


def test_an_unavailable_implementation_says_why_and_what_would_run() -> None:
    error = ImplUnavailableError("fa4", "needs a Hopper GPU", (name for name in ("sdpa", "reference")))
    assert str(error) == "impl 'fa4' cannot run: needs a Hopper GPU; would run here: sdpa, reference"
    assert (error.name, error.reason, error.alternatives) == ("fa4", "needs a Hopper GPU", ("sdpa", "reference"))
    assert str(ImplUnavailableError("fa4", "needs a Hopper GPU")) == "impl 'fa4' cannot run: needs a Hopper GPU"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("turob", " (did you mean 'turbo'?)"), ("TURBO", " (did you mean 'turbo'?)"), ("ultr", " (did you mean 'ultra'?)"),
        ("xyz", ""), ("ultimate", ""), ("fa5", " (did you mean 'FA3'?)"), ("nope", ""), ("", ""),
    ],
)  # fmt: skip
def test_nearest(given: str, hint: str) -> None:
    assert nearest(given, ["baseline", "turbo", "ultra", "FA3", "over", "compile"]) == hint
