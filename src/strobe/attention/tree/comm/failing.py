"""The analysis of a failed call: which ranks have ended, what the others' notes say, and who is in another call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from strobe.attention.tree.comm.rank_store import Note
from strobe.attention.tree.faults import disagreement, name_ranks, start_of

if TYPE_CHECKING:
    from strobe.attention.tree.comm.group import CollectiveCall, Comm


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One message in flight.

    Args:
        rank: with whom; None: with all.
        work: what to wait for.
        timed: the wait has a timeout.
        comes: the message comes; else it goes.
        begun: where it is still queued on the GPU after the wait, what says whether the GPU has come to it.
    """

    rank: int | None
    work: dist.Work
    timed: bool
    comes: bool = False
    begun: Callable[[], bool] | None = None


def silent(works: Sequence[Waiting]) -> list[int]:
    """Return the ranks whose message has still not come when the time is up."""
    found = []
    for each in works:
        if each.rank is None or not each.comes:
            continue
        try:
            each.work.wait(timedelta(milliseconds=1))
        except RuntimeError:
            found.append(each.rank)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The identity of a rank's process, which can be looked up if it runs on this machine."""

    machine: int
    pid: int
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The cause of a failure: what happened, what the blamed ranks' notes say, and who they are; empty where unknown."""

    what: str
    said: str
    blamed: tuple[int, ...]


def explain(call: CollectiveCall, suspects: Sequence[int], late: bool, reason: str, notes_s: float) -> Cause:
    """Find the cause from ended processes and from the notes; the arguments are those of `CollectiveCall.failure`."""
    comm = call.comm
    ended = dead(comm, 0.0 if late else 0.3)
    if ended:
        pids = ", ".join(str(comm.peers[rank].pid) for rank in ended)
        return Cause(what=f"{name_ranks(ended)} ended (process {pids})", said="", blamed=tuple(ended))
    call.post(reason, suspects if late else ())
    notes = comm.board.notes([rank for rank in range(comm.size) if rank != comm.rank], notes_s)
    odd = _elsewhere(call, notes)
    if odd:
        calls = {rank: f"call {note.number}: {note.call}" for rank, note in notes.items() if note.number == call.number}
        calls[call.rank] = f"call {call.number}: {call.text}"
        return Cause(what=disagreement(odd, "arguments", calls), said="", blamed=tuple(odd))
    blamed = _blamed(call, suspects, late, notes)
    what = f"{name_ranks(blamed) if blamed else 'a rank'} "
    what += f"did not answer within {call.timeout_s:g} s" if late else f"closed the connection ({reason})"
    said = "".join(f"; rank {rank} said: {note.text}" for rank, note in notes.items() if rank in blamed)
    return Cause(what=what, said=said, blamed=tuple(blamed))


def dead(comm: Comm, patience_s: float) -> list[int]:
    """Return the ranks of this machine whose process has ended; a connection closes a little before its process ends."""
    mine = comm.peers.get(comm.rank)
    near = {rank: peer for rank, peer in comm.peers.items() if mine and peer.machine == mine.machine and peer.start}
    deadline = time.monotonic() + patience_s
    while True:
        ended = sorted(rank for rank, peer in near.items() if start_of(peer.pid) != peer.start)
        if ended or time.monotonic() >= deadline:
            return ended
        time.sleep(0.02)


def _elsewhere(call: CollectiveCall, notes: Mapping[int, Note]) -> list[int]:
    """Return the ranks whose call of the same number has other arguments than most ranks' calls."""
    digests = {call.rank: call.digest} | {rank: note.digest for rank, note in notes.items() if note.number == call.number}
    usual = Counter(digests[rank] for rank in sorted(digests)).most_common(1)[0][0]
    return sorted(rank for rank, digest in digests.items() if digest != usual)


def _blamed(call: CollectiveCall, suspects: Sequence[int], late: bool, notes: Mapping[int, Note]) -> list[int]:
    """Return the ranks to blame: late ones, else those without a note, else those that the notes blame."""
    if suspects and late:
        return sorted(suspects)
    silent = [rank for rank in suspects or range(call.size) if rank not in notes and rank != call.rank]
    by_others = {rank for note in notes.values() for rank in note.blamed if rank != call.rank}
    return silent or sorted(by_others) or sorted(suspects)
