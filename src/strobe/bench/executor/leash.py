"""Replaces itself by the given command, which is ended when the process that started it ends, for whatever reason.

Run as a file, by an interpreter that imports nothing else: `python -I -S leash.py PARENT_PID COMMAND...`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # it ended before the leash was on
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])
