"""Who owns which keys: every key has one owner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strobe.attention.tree import KVShards, Segment


def test_the_last_run_is_as_long_as_what_is_left() -> None:
    shards = KVShards.interleaved(10, 2, run=4)
    assert shards.ranks == ((Segment(start=0, length=4), Segment(start=8, length=2)), (Segment(start=4, length=4),))
    assert (shards.num_keys, shards.end, shards.lengths) == (10, 10, (6, 4))


@given(
    number=st.integers(0, 40), num_ranks=st.integers(1, 5), run=st.integers(1, 9), sink=st.sampled_from([0, 3]), data=st.data()
)
def test_interleaved_keys_have_one_owner_each(number: int, num_ranks: int, run: int, sink: int, data: st.DataObject) -> None:
    owner = data.draw(st.integers(0, num_ranks - 1))
    shards = KVShards.interleaved(number, num_ranks, run=run, replicated=sink, owner=owner)
    owned = [
        (position, rank)
        for rank, segments in enumerate(shards.ranks)
        for each in segments
        if each.owned
        for position in range(each.start, each.start + each.length)
    ]
    dealt = [(sink + key, key // run % num_ranks) for key in range(number)]
    assert sorted(owned) == sorted([(position, owner) for position in range(sink)] + dealt)
    assert shards.num_keys == shards.end == sink + number
