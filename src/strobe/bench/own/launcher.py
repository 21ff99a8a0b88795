"""Runs one program and says what it took: `python -I -S launcher.py`, what to run on stdin, the answer on stdout, both JSON.

A process of its own and a small one: a program's peak memory as the system counts it is never less than that of the process it
was started from. It imports nothing of this package.
"""

import json
import os
import sys
import time


def main() -> None:
    """Start the program, wait for it, tell what it took."""
    asked = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, nothing, 1)]
    os.chdir(asked["folder"])
    start = time.perf_counter_ns()
    try:
        child = os.posix_spawnp(asked["argv"][0], asked["argv"], asked["environment"], file_actions=actions)
    except OSError as error:
        json.dump({"not_started": error.strerror}, sys.stdout)
        return
    _, status, usage = os.wait4(child, 0)
    wall_ns = time.perf_counter_ns() - start
    with open("/proc/self/status") as lines:  # whose peak counts from when it became this program; resource usage does not
        floor = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    found = {
        "wall_ns": wall_ns,
        "user_ns": round(usage.ru_utime * 1e9),
        "system_ns": round(usage.ru_stime * 1e9),
        "peak_bytes": usage.ru_maxrss * 1024 if usage.ru_maxrss * 1024 > floor else None,
        "exit_status": os.waitstatus_to_exitcode(status),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
