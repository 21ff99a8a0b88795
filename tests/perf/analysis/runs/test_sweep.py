"""The sweep against asking every single moment who owns it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.runs.sweep import Span, sweep

_EVENTS = st.lists(st.tuples(st.integers(-5, 45), st.integers(0, 20), st.integers(0, 3)), max_size=12)


@given(events=_EVENTS, start=st.integers(0, 20), length=st.integers(0, 25), cuts=st.lists(st.integers(-5, 50), max_size=5))
def test_every_moment_goes_to_the_lowest_rank(
    events: list[tuple[int, int, int]], start: int, length: int, cuts: list[int]
) -> None:
    spans = [Span(begin, begin + size, (rank, -i), i) for i, (begin, size, rank) in enumerate(events)]
    slices = list(sweep(spans, start, start + length, cuts))
    moments = list(itertools.chain.from_iterable(range(left, right) for left, right, _ in slices))
    assert moments == list(range(start, start + length))  # tiled, in order, nothing twice
    for left, right, owner in slices:
        assert not any(left < cut < right for cut in cuts)
        for moment in range(left, right):
            open_spans = [span for span in spans if span.start <= moment < span.end]
            assert owner == (min(open_spans, key=lambda span: span.rank).event if open_spans else None)
