"""The first process of a cell, on the machine where it runs: `python -m strobe.bench.tree.launch DEVICE TORCHRUN_ARGUMENTS...`.

It writes into its folder what else the machine does and how it is built, and becomes torchrun.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from strobe.bench.tree.machine import busy_cores, topology
from strobe.bench.tree.request import BUSY, TOPOLOGY

if __name__ == "__main__":
    device, *arguments = sys.argv[1:]
    Path(TOPOLOGY).write_text(topology(device), encoding="utf-8")
    Path(BUSY).write_text(repr(busy_cores(0.25)), encoding="ascii")
    os.execv(sys.executable, (sys.executable, "-m", "torch.distributed.run", *arguments))
