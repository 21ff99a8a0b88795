"""Every operator with what it was given, what autograd says of it, and which device events it launched."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strobe.perf.trace.columns import GrowingColumn, Ids, blank, blocks, taken, view
from strobe.perf.trace.events import HostEvents, OperatorFacts
from strobe.perf.trace.join import Calls, places_of
from strobe.perf.trace.schema import OpArgs
from strobe.perf.trace.tables import NOTHING, HostTable, InputTable, Threads, Times, integer, integers, operator_of

_WAITS: Final = re.compile(r"(?=\w++\Z)(?:cuda|cu|hip|ze|ur)\w*Synchronize\w*")
_NO_ARGS: Final = OpArgs()
PRICED: Final = frozenset(
    {
        *(
            f"aten::{name}"
            for name in (
                "_scaled_mm", "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                "_efficient_attention_backward", "_cudnn_attention_forward", "_cudnn_attention_backward",
                "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward", "cudnn_convolution",
                "cudnn_convolution_transpose", "miopen_convolution", "miopen_convolution_transpose", "convolution_backward",
                "_conv_depthwise2d", "conv_depthwise3d",
            )
        ),
        "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward",
        "strobe::block_sparse_forward", "strobe::block_sparse_backward",
    }
)  # fmt: skip
"""Operators whose cost depends on numbers and flags among their inputs, besides sizes and types."""


class OperatorTable(HostTable):
    """Operators: 32 bytes each; each distinct input is stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = InputTable(PRICED, typed=True)
        self.number, self.given, self.sequence, self.backward = GrowingColumn(), GrowingColumn(), GrowingColumn(), GrowingColumn()

    def add(self, times: Times) -> None:
        """Keep operators."""
        super().add(times)
        args = [event.args or _NO_ARGS for event in times.events]
        self.number.extend([operator_of(one) for one in args])
        self.given.extend([self.inputs.number_of(event) for event in times.events])
        self.sequence.extend(integers([one.sequence_number for one in args]))
        self.backward.extend([int(integer(one.forward_thread) > 0) for one in args])


def waiting(events: Sequence[Any]) -> list[Any]:
    """Return the calls of the host that wait for a device."""
    return [event for event in events if _WAITS.fullmatch(event.name)]


def freeze_operators(
    table: OperatorTable, threads: Threads, of_event: array[int], *, once: bool = False
) -> tuple[HostEvents, OperatorFacts]:
    """Freeze operators in order of start; the table is empty then.

    Args:
        of_event: number of the operator of each device event.
        once: what is written twice counts once.
    """
    calls = Calls(table, threads)
    order = calls.sort(once=once)
    number, given = taken(table.number.release(), order), taken(table.given.release(), order)
    sequence, backward = taken(table.sequence.release(), order), taken(table.backward.release(), order)
    facts = OperatorFacts(
        inputs=table.inputs.distinct.values(), given=given, sequence=sequence,
        backward=array("b", view(backward).astype(np.int8).tobytes()), of_event=_positions(number, of_event),
    )  # fmt: skip
    return calls.freeze(), facts


def _positions(number: array[int], of_event: array[int]) -> array[int]:
    """The operator of each device event, or -1; of several with one number the first."""
    order: Ids = np.argsort(view(number), kind="stable").astype(np.int32)
    known = view(taken(number, order))
    found = blank("i", len(of_event))
    for block in blocks(len(of_event)):
        wanted = view(of_event)[block]
        places = places_of(known, wanted)
        view(found)[block] = np.where((places >= 0) & (wanted >= 0), order[places] if len(order) else NOTHING, NOTHING)
    return found
