"""The first process of a cell, on the machine where it runs: `python -m strobe.bench.tree.launch DEVICE TORCHRUN_ARGUMENTS...`.

It writes the load and the topology of the machine into its folder, and becomes torchrun.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from strobe.bench.tree.machine import busy_cores, topology
from strobe.bench.tree.request import BUSY, TOPOLOGY
from strobe.core.files import write_whole

if __name__ == "__main__":
    device, *arguments = sys.argv[1:]
    write_whole(Path(TOPOLOGY), topology(device))
    write_whole(Path(BUSY), repr(busy_cores(0.25)))
    os.execv(sys.executable, (sys.executable, "-m", "torch.distributed.run", *arguments))
