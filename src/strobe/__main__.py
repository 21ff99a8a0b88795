"""`python -m strobe`, and `torchrun -m strobe`: the command line."""

from __future__ import annotations

import sys

from strobe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
