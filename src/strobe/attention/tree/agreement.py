"""The agreement of ranks: all are in the same call with the same arguments, or each raises an error that names the odd ones.

On a CPU every call sends a token of a few numbers to every rank while the local attention runs. On a GPU, where reading an
answer would stop the stream, the ranks meet once for each kind of call, in the group's store. So a rank that makes a new kind of
call waits there alone while the others repeat one that they know and wait for it on the GPU: at the timeout each leaves a note of
the call it is in, and finds those of the others.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from strobe.attention.tree.comm import CollectiveCall, Exchange
from strobe.attention.tree.comm.group import Token
from strobe.attention.tree.faults import CollectiveError, disagreement, machine_id, start_of

UNKNOWN = -1
"""Stands for the shape of the keys on a rank without keys."""
NOTES_S: Final = 0.7
"""A rank that is in a kind of call that it knows does not come to the store: NCCL tells it, half a second after the timeout."""


_MUST_AGREE = (
    ("digest", "arguments"),
    ("number", "calls before this one"),
    ("num_kv_heads", "key heads"),
    ("head_dim_v", "head_dim_v"),
    ("queries", "queries, which are replicated: the same values on every rank"),
)


@lru_cache(maxsize=1)
def _process(pid: int) -> tuple[int, int, int]:
    return machine_id(), pid, start_of(pid)


class Agreement:
    """An exchange of tokens between the ranks of a call, which shows that all are in the same call.

    Args:
        call: on one group.
        digest: of the arguments that must be equal.
        q: the queries, where every rank must have the same; else None.
        keys: `(num_kv_heads, head_dim_v)` of this rank; UNKNOWN without keys.
        device: of the tensors.
    """

    def __init__(self, call: CollectiveCall, digest: int, q: Tensor | None, keys: tuple[int, int], device: torch.device) -> None:
        self._call = call
        self._kind = (digest, *keys)
        self._keys = keys
        self._tokens: Exchange | None = None
        if call.size > 1 and (device.type == "cpu" or self._kind not in call.comm.agreed):
            queries = UNKNOWN if q is None else fingerprint(q)
            self._token = Token(call.number, digest, queries, *keys, *_process(os.getpid()))
            self._tokens = call.tokens(self._token) if device.type == "cpu" else None

    def wait(self) -> tuple[int, int]:
        """Wait for the tokens; return `(num_kv_heads, head_dim_v)` of the ranks that have keys, UNKNOWN if none has.

        Raises:
            CollectiveError: a rank did not come, or is in another call.
        """
        comm = self._call.comm
        if comm.size == 1:
            return self._keys
        if self._tokens is None and self._kind in comm.agreed:
            return comm.agreed[self._kind]
        tokens = self._collected()
        comm.peers = dict(enumerate(tokens))
        for field, what in _MUST_AGREE:
            values = [getattr(token, field) for token in tokens]
            known = [value for value in values if value != UNKNOWN]
            if len(set(known)) > 1:
                usual = Counter(known).most_common(1)[0][0]
                odd = [rank for rank, value in enumerate(values) if value not in (usual, UNKNOWN)]
                raise self._refusal(odd, what, values if field not in ("digest", "queries") else None)
        shapes = [(token.num_kv_heads, token.head_dim_v) for token in tokens if token.num_kv_heads != UNKNOWN]
        if self._tokens is None:
            comm.agreed[self._kind] = shapes[0] if shapes else (UNKNOWN, UNKNOWN)
        return shapes[0] if shapes else (UNKNOWN, UNKNOWN)

    def _collected(self) -> list[Token]:
        if self._tokens is not None:
            arrived = self._tokens.wait()
            return [Token(*each.tolist()) for each in arrived]
        comm, token = self._call.comm, self._token
        values = comm.board.share(f"agree/{self._call.number}", json.dumps(token), comm.size, self._call.timeout_s)
        missing = [rank for rank in range(comm.size) if rank not in values]
        if missing:
            raise self._call.failure(missing, True, "no answer in the store", NOTES_S)
        return [Token(*json.loads(values[rank])) for rank in range(comm.size)]

    def _refusal(self, odd: Sequence[int], what: str, values: Sequence[int] | None) -> CollectiveError:
        """Build the error for ranks that disagree, with each rank's call; all ranks raise it, because all saw the same tokens."""
        call, mine = self._call, f"call {self._call.number}: {self._call.text}"
        if self._tokens is not None:
            texts = call.texts(mine)
        else:
            said = call.comm.board.share(f"text/{call.number}", mine, call.size, min(call.timeout_s, 1.0))
            texts = [said.get(rank, "(no answer)") for rank in range(call.size)]
        given = "" if values is None else f" ({', '.join(map(str, values))} by rank)"
        found = disagreement(odd, what + given, dict(enumerate(texts)))
        call.post(found.partition(": ")[0], odd)
        return CollectiveError(f"tree attention: {found}", odd)


def fingerprint(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's bits, row by row: other values, or another order, give another number.

    On a GPU the tensor is copied to the host, once for each kind of call. A CRC takes less time than a sum of the bits.
    """
    values = tensor.detach().cpu().contiguous().view(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data)
