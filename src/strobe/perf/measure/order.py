"""The order in which clips run, so that drift affects every variant equally."""

from __future__ import annotations

from collections.abc import Sequence

from strobe.core.errors import ConfigError


def palindrome(baseline: str, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return the variants of one palindrome: `B C1 C2 C3 C3 C2 C1 B`; for one candidate it is ABBA.

    Every variant runs twice, and the two runs of each lie mirrored about the same middle. A cost that grows linearly in time
    therefore adds the same to the sum of each variant's two runs, and the ratio of those sums is free of it.

    Raises:
        ConfigError: no candidate, or a name twice.
    """
    names = (baseline, *candidates)
    if not candidates:
        raise ConfigError(f"a comparison needs a candidate beside the baseline {baseline!r}; name at least one")
    if len(set(names)) < len(names):
        raise ConfigError(f"variants must differ in name, got: {', '.join(names)}")
    return (*names, *reversed(names))
