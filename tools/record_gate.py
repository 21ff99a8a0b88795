"""Run the gates of the attention implementations on this GPU into the record that ships: `python tools/record_gate.py`.

What is named is run, such as `sparse:triton`; without a name, every gate. `strobe doctor --gate` is the same for a user's record.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import strobe
from strobe.attention.gates.run import record, run_gates
from strobe.attention.impls import FILE
from strobe.core.device import resolve_device
from strobe.perf.measure.machine import describe_machine

RECORD = Path(strobe.__file__).parent / "attention" / FILE


def main(names: list[str]) -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: nothing to record\n")
        return 3
    device, failed = resolve_device("cuda"), False
    for outcome in run_gates(device, describe_machine(device).driver, lambda *_: None, only=names):
        what = outcome.refused if outcome.gate is None else f"{outcome.gate}; {outcome.refused}"
        sys.stdout.write(f"gate: {outcome.operator}:{outcome.impl}: {what}\n")
        sys.stdout.flush()
        if outcome.gate is not None:
            record([outcome.gate], RECORD)
            failed = failed or bool(outcome.gate.failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
