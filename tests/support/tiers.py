"""Which tests `make test` runs, and which `make test-all` alone.

The first tier is what a person runs before each commit. A test leaves it by its marker:

    @pytest.mark.rest            the test is in the rest
    @pytest.mark.few(2)          its first two cases are in the first tier, the others in the rest
    @pytest.mark.few("a", "b")   the cases with these ids are in the first tier

A test that needs a GPU is always in the first tier, and is no case of `few`. What Hypothesis draws is in both, in the first with
fewer examples. A test that is named by its own id (`pytest tests/x.py::test_y`) runs in every tier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pytest

TIERS = ("first", "rest", "all")
MARKERS = (
    "rest: not in the first tier: `make test-all` runs it",
    "few(...): so many of its cases, or those with these ids, are in the first tier",
)


def chosen(items: Sequence[pytest.Item], tier: str, arguments: Sequence[str]) -> list[pytest.Item]:
    """Return the tests of a tier, and those that the command line names by their ids.

    Raises:
        UsageError: `few` names a case that is not there, so that none would run.
    """
    if tier == "all":
        return list(items)
    named = tuple(argument.rpartition("/")[2] for argument in arguments if "::" in argument)
    kept = []
    for item, first in _places(items, whole=not named):
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        wanted = first if tier == "first" else not first or drawn
        if wanted or (named and item.nodeid.rpartition("/")[2].startswith(named)):
            kept.append(item)
    return kept


def _places(items: Sequence[pytest.Item], *, whole: bool) -> Iterator[tuple[pytest.Item, bool]]:
    """Yield each test and whether it is in the first tier; `whole` files are collected, so each case that is named is there."""
    seen = Counter[str]()
    missing: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        few, (function, _, case) = item.get_closest_marker("few"), item.nodeid.partition("[")
        if item.get_closest_marker("gpu") is not None:
            yield item, True
        elif item.get_closest_marker("rest") is not None:
            yield item, False
        elif few is None:
            yield item, True
        elif isinstance(few.args[0], int):
            seen[function] += 1
            yield item, seen[function] <= few.args[0]
        else:
            left = missing.setdefault(function, set(few.args))
            left.discard(case.removesuffix("]"))
            yield item, case.removesuffix("]") in few.args
    for function, left in missing.items():
        if left and whole:
            raise pytest.UsageError(f"{function}: `few` names cases that are not there: {', '.join(sorted(left))}")


def rest_while_gated(operator: str, impl: str) -> pytest.MarkDecorator:
    """Return the marker of a comparison in Triton's interpreter: in the rest while the kernels are those whose gate a GPU passed,
    in the first tier as soon as their sources change."""
    from strobe.attention.dense.eight import api as eight
    from strobe.attention.impls import GATES
    from strobe.attention.sparse import impls as sparse

    (found,) = (each for each in (*eight.IMPLS, *sparse.IMPLS) if (each.operator, each.name) == (operator, impl))
    gated = any((gate.operator, gate.impl, gate.kernel) == (operator, impl, found.kernel) for gate in GATES)
    return pytest.mark.rest if gated else pytest.mark.few(1)
