"""A small header and a span, as a run writes them."""

from __future__ import annotations

import pytest

from made_records import header_of, span_of
from strobe.perf.records.record import Git, Header, Span


@pytest.fixture(scope="session")
def header() -> Header:
    return header_of(
        ("baseline", "turbo", "turbo", "baseline"),
        git=Git(commit="0" * 40, dirty=True),
        argv=("strobe", "compare"),
        palindromes=4,
    )


@pytest.fixture(scope="session")
def span() -> Span:
    return span_of("turbo", "frame_block", 2**53 + 1, clip=1, order=3, palindrome=0, index=2, start_ns=10)
