"""Verdicts on the limit of each strategy, with evidence and one remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strobe.core.printable import bytes_in
from strobe.perf.analysis.runs.rank_calls import Collective, Parts
from strobe.perf.records.grids import Links
from strobe.perf.report.tree_bench.cells import CellRun, TreeContestant

Label = Literal["flop-bound", "memory-bound", "launch-bound", "skew-bound", "latency-bound", "bandwidth-bound"]
HIGH_SPREAD = 0.5
"""Spread `(p90 - p10) / median` from which a warning is given."""
NAMED = 0.6
"""Share of the calls in which a straggler must have been last; with two ranks chance alone gives 0.5."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Verdict on one strategy of one cell, with evidence and remedy."""

    label: Label
    evidence: str
    remedy: str


def bound(cell: CellRun, entry: TreeContestant) -> Bound | None:
    """Return the verdict from the largest of attention, wait, transfer and host time; None if calls were not split."""
    found = entry.parts()
    if found is None:
        return None
    ranks = cell.run.header.world_size
    wait = found.wait * ranks / max(1, ranks - 1)  # in every call one rank waits for nobody: its lateness is the others' wait
    largest = max((found.local + found.merge, "work"), (wait, "wait"), (found.transfer, "transfer"), (found.host, "host"))[1]
    match largest:
        case "work":
            return _work(cell, entry, found)
        case "wait":
            return _wait(entry, found)
        case "transfer":
            return _transfer(cell, entry, found)
        case _:
            return Bound(
                label="launch-bound",
                evidence=f"{_share(found.host, found)} is neither attention nor communication: checks, packing, launching",
                remedy="give each call more to do (more queries or keys a rank, fewer ranks); on a GPU capture a CUDA graph",
            )


def _share(value: float, whole: Parts) -> str:
    return f"{100 * value / whole.total:.0f} % ({value / 1e6:.3g} of {whole.total / 1e6:.3g} ms)"


def _work(cell: CellRun, entry: TreeContestant, found: Parts) -> Bound:
    is_flop = entry.prediction is not None and entry.prediction.bound == "flop"
    evidence = f"{_share(found.local + found.merge, found)} is attention and merge"
    ranks = cell.sizes.get("world_size", 1)
    cost = entry.variant.costs[0] if entry.variant else None
    links = cell.links or Links()
    if is_flop:
        roof, amount, unit = links.flops_per_s, cost.flops / ranks if cost else 0, "GFLOP/s"
    else:
        share = 1 if entry.name == "ring" else ranks
        roof, amount, unit = links.memory_bytes_per_s, cost.read_bytes / share if cost else 0, "GB/s"
    if roof and found.local:
        rate = amount / found.local * 1e9
        evidence += f"; a rank reached {rate / 1e9:.3g} {unit} of {roof / 1e9:.3g} measured on these ranks"
    if is_flop:
        remedy = "fewer pairs (a window, block-sparse attention), or more ranks while each keeps enough to do"
        return Bound(label="flop-bound", evidence=evidence, remedy=remedy)
    remedy = "fewer bytes of keys a rank: more ranks, grouped heads, or a 16-bit cache"
    return Bound(label="memory-bound", evidence=evidence, remedy=remedy)


def straggler(found: Sequence[Collective]) -> tuple[int, float] | None:
    """Return the rank that the others waited for most and the share of calls in which it was last; None if no rank stands out."""
    weights: Counter[int] = Counter()
    for each in found:
        weights[each.last] += round(sum(each.waits_ns))
    if not weights:
        return None
    rank = weights.most_common(1)[0][0]
    share = max(each.last_share for each in found if each.last == rank)
    return (rank, share) if share >= NAMED else None


def _wait(entry: TreeContestant, found: Parts) -> Bound:
    who = straggler(entry.collectives())
    evidence = f"{_share(found.wait, found)} is waiting for other ranks"
    if who is None:
        return Bound(
            label="skew-bound",
            evidence=f"{evidence}; no rank was last in {100 * NAMED:.0f} % of the calls: they take turns",
            remedy="give every rank cores of its own (fewer ranks, or fewer threads each): they are being scheduled in turns",
        )
    rank, share = who
    return Bound(
        label="skew-bound",
        evidence=f"{evidence}; rank {rank} was last in {100 * share:.0f} % of the calls",
        remedy=f"look at rank {rank}: more keys than the others, a slower device, or another process on its cores",
    )


def _transfer(cell: CellRun, entry: TreeContestant, found: Parts) -> Bound:
    alpha, beta = sum(each.alpha_ns for each in entry.sent), sum(each.beta_ns for each in entry.sent)
    sent = bytes_in(sum(each.sent_bytes for each in entry.sent), "MB")
    evidence = f"{_share(found.transfer, found)} is exposed transfer: {len(entry.sent)} collectives of {sent:.3g} MB"
    evidence += f"; predicted {alpha / 1e6:.3g} ms of latency and {beta / 1e6:.3g} ms of bandwidth"
    if alpha >= beta:
        fewest = min((each for each in cell.measured if each.sent), key=lambda each: len(each.sent))
        other = f"{fewest.name} has {len(fewest.sent)}" if len(fewest.sent) < len(entry.sent) else "several layers in one call"
        return Bound(label="latency-bound", evidence=evidence, remedy=f"fewer collectives: {other}")
    least = min((each for each in cell.measured if each.sent), key=lambda each: sum(one.sent_bytes for one in each.sent))
    fewer = least.name if least is not entry else "16-bit tensors, or a result that stays spread"
    return Bound(label="bandwidth-bound", evidence=evidence, remedy=f"fewer bytes: {fewer}")


def warnings(cell: CellRun) -> tuple[str, ...]:
    """Return warnings on what makes the times of a cell doubtful."""
    found = []
    header, ranks = cell.run.header, cell.run.header.world_size
    if header.machine.device == "cpu" and ranks * header.machine.threads > header.machine.cores:
        found.append(f"{ranks} ranks share {header.machine.cores} cores: read ratios, not times; they wait for each other's turn")
    wide = [entry for entry in cell.measured if entry.spread > HIGH_SPREAD]
    if wide:
        which = ", ".join(f"{entry.name} {100 * entry.spread:.0f} %" for entry in wide)
        found.append(f"high variance, (p90 - p10) / median: {which}; run more --profile-iterations and look for other load")
    busy, lost = cell.surroundings.busy_cores, cell.surroundings.lost_machines
    if busy is not None and busy > 0.2:
        found.append(f"other processes kept {busy:.1f} of {header.machine.cores} cores busy before the ranks began")
    if lost:
        found.append(f"{lost} machines were lost while it ran there; what is shown was measured on another, from the start")
    return tuple(found)
