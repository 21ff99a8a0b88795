"""Attention on random layouts over real gloo processes, against one device: `python tools/random_layouts.py`.

Two, three and four ranks. Tree attention, against float64: every strategy, multi-head and grouped heads, every dtype, placement,
mask and order of memory, with gradients in float32 and float64. With `--kind sparse` video-sparse attention, against one device:
uneven and empty shards, grids, tiles, gates, rotary embeddings, raster and tile order, forced tiles, with gradients.
The processes stay from one layout to the next: 2,000 layouts take some minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from random import Random
from typing import Any

import tree_work as work
from ring_cases import RingCase, attend, check_ring, draw_ring_case
from tree_cases import Case, check, check_alike, check_gradients
from tree_draws import draw_case
from tree_ranks import Processes


def compare(groups: dict[int, Processes], case: Case | RingCase) -> tuple[float, float]:
    """Run a case on the group of its number of ranks; return the largest error of an output, as `check` does."""
    ranks = groups[case.num_ranks]
    if isinstance(case, RingCase):
        return check_ring(case, ranks.run(attend, case))
    found = ranks.run(work.attend, case)
    worst = check(case, found)
    check_alike(case, found)
    if case.dtype.itemsize >= 4:
        check_gradients(case, ranks.run(work.differentiate, case))
    return worst


def say(line: str) -> None:
    """Write a line to stdout."""
    sys.stdout.write(line + "\n")


def main() -> int:
    """Check random layouts; print how many were right, and the largest error of each dtype."""
    parser = argparse.ArgumentParser(description="Compare attention on random layouts over gloo processes with one device.")
    parser.add_argument("--kind", choices=("tree", "sparse"), default="tree", help="tree or video-sparse attention, default tree")
    parser.add_argument("--layouts", type=int, default=2_000, help="how many, default 2000")
    parser.add_argument("--seed", type=int, default=0, help="other numbers give other layouts, default 0")
    options = parser.parse_args()
    random, draw = Random(options.seed), draw_case if options.kind == "tree" else draw_ring_case
    drawn: list[Any] = [draw(random, range(2, 5)) for _ in range(options.layouts)]
    wrong, errors = 0, {case.dtype: (0.0, 0.0) for case in drawn}
    with Processes(2) as two, Processes(3) as three, Processes(4) as four:
        for number, case in enumerate(drawn, 1):
            try:
                share, error = compare({2: two, 3: three, 4: four}, case)
                largest = errors[case.dtype]
                errors[case.dtype] = max(share, largest[0]), max(error, largest[1])
            except AssertionError as found:
                wrong += 1
                sys.stderr.write(f"wrong: {found}\n")
            if number % 100 == 0:
                sys.stderr.write(f"{number} of {len(drawn)} layouts, {wrong} wrong\n")
    say(f"{len(drawn)} layouts ({len(set(drawn))} different), {wrong} wrong")
    for what in ("strategy", "num_ranks") if options.kind == "tree" else ("num_ranks", "layout", "gate", "rope"):
        counts = Counter(getattr(case, what) for case in drawn)
        say(f"{what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    multi_head = sum(case.heads == case.kv_heads for case in drawn)
    say(f"multi-head {multi_head}, grouped heads {len(drawn) - multi_head}")
    for dtype, (share, error) in errors.items():
        say(f"{dtype}: largest error of an output {error:.2g}; at most {share:.0%} of what a layout is allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
