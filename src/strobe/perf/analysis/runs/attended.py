"""Cost of a region in the traced frame blocks: early blocks of a stream attend to a window that is not full yet."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strobe.perf.records.record import SpanCost, Variant


def cost_in_blocks(cost: SpanCost, settings: Variant, blocks: Sequence[int]) -> SpanCost:
    """Compute the mean cost of one call of a region over frame blocks, each with the keys that it attends to.

    ``flops - attended_flops * (1 - mean(keys) / keys of a full window)``, and so for the bytes read. Frame blocks differ in
    nothing else; a recache is no call of a region that has a cost.

    Args:
        cost: once the cache is full.
        settings: say how many keys each frame block attends to; if they do not, all count as full.
        blocks: numbers of frame blocks with equally many calls.
    """
    keys = settings.attended_keys
    if not keys or not blocks or not cost.attended_flops:
        return cost
    missing = sum(keys[-1] - keys[min(index, len(keys) - 1)] for index in blocks)
    whole = keys[-1] * len(blocks)
    return msgspec.structs.replace(
        cost,
        flops=cost.flops - round(cost.attended_flops * missing / whole),
        read_bytes=cost.read_bytes - round(cost.attended_read_bytes * missing / whole),
    )
