"""The scenarios of the tree-attention profiling guide, one after the other, each as a command that can be run by itself.

    python -m strobe.compat.profile_examples
    python -m strobe.compat.profile_examples --only lengths ranks --seq-lens 512 1024 --world-sizes 1 2 --out scenarios

Every scenario has a folder with its records and report; what is finished there is not measured again.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterable


def scenarios(lengths: list[str], ranks: list[str], out: str, more: list[str]) -> dict[str, tuple[str, list[str]]]:
    """By name: the question, and the arguments of `strobe` that answer it."""
    most, longest, ends = ranks[-1], lengths[-1], dict.fromkeys(("1", ranks[-1]))
    late = "--delay", str(int(most) - 1), "20"
    asked: dict[str, tuple[str, str, Iterable[str], list[str], tuple[str, ...], tuple[str, ...]]] = {
        "lengths": ("More keys: from where on does it pay to spread them?", "scaling", ends, lengths, (), ()),
        "ranks": ("More ranks, the same keys: does another rank pay?", "scaling", ranks, [longest], (), ()),
        "straggler": ("One rank is 20 ms late: who waits, and is it named?", "tree", [most], [longest], ("--profile",), late),
        "dtypes": (
            "Half the bytes: what do 16 bits save?", "scaling", [most], [longest], ("--dtype", "float32", "bfloat16"), ()
        ),
    }  # fmt: skip
    return {
        name: (question, ["bench", verb, "--world-size", *sizes, "--seq-len", *keys, *own, *more, *last, "-o", f"{out}/{name}"])
        for name, (question, verb, sizes, keys, own, last) in asked.items()
    }


def main() -> int:
    """Run the chosen scenarios; the largest exit code of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("lengths", "ranks", "straggler", "dtypes"), help="these scenarios")
    parser.add_argument("--seq-lens", nargs="+", default=["512", "1024", "2048", "4096"], help="keys of all ranks together")
    parser.add_argument(
        "--world-sizes", nargs="+", default=["1", "2", "4"], help="ranks; 8 and 16 where there are cores for them"
    )
    parser.add_argument("--iterations", default="20", help="timed calls of each strategy")
    parser.add_argument(
        "--strategies", nargs="+", default=["allgather", "allreduce3"], help="one collective, and the paper's three"
    )
    parser.add_argument("--out", default="profile-examples", help="folder")
    chosen = parser.parse_args()
    worst, more = 0, ["--iterations", chosen.iterations, "--strategies", *chosen.strategies]
    for name, (question, argv) in scenarios(chosen.seq_lens, chosen.world_sizes, chosen.out, more).items():
        if chosen.only is None or name in chosen.only:
            sys.stdout.write(f"\n{question}\n$ {shlex.join(['strobe', *argv])}\n\n")
            sys.stdout.flush()
            worst = max(worst, subprocess.run([sys.executable, "-m", "strobe", *argv], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
