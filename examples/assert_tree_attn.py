"""The script of the tree-attention profiling guide, by its name and with its flags: it is `strobe bench tree`.

    python examples/assert_tree_attn.py --world-size 4 --seq-len 1024 --enable-profiling

Code of the guide that says `from assert_tree_attn import Timer, profiled_tree_attn_decode` finds both beside it.
"""

from __future__ import annotations

import sys

from strobe.cli.main import main
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode

__all__ = ["Timer", "profiled_tree_attn_decode"]

if __name__ == "__main__":
    sys.exit(main(["bench", "tree", *sys.argv[1:]]))
