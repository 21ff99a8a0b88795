"""Two clocks of one call: the host starts one thing after the other, the device does each when it is started and its turn comes.

With few queries a call ends when the host has started all of it; with many the device is behind, and the host's time is hidden.
A clock whose host takes no time is that of a CPU, where everything adds up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Clock:
    """When the host, and when the device will be done, in seconds from the call's start.

    Args:
        host_s, device_s: now.
        idle_s: how long the device has waited for its host.
    """

    host_s: float = 0.0
    device_s: float = 0.0
    idle_s: float = 0.0

    def run(self, started_s: float, took_s: float) -> None:
        """The host starts something in `started_s`, and the device does it in `took_s`."""
        self.host_s += started_s
        self.idle_s += max(0.0, self.host_s - self.device_s)
        self.device_s = max(self.device_s, self.host_s) + took_s

    def send(self, started_s: float, took_s: float) -> float:
        """The host starts a message that goes beside what the device does next; returns when it is there."""
        self.host_s += started_s
        return max(self.device_s, self.host_s) + took_s

    def wait(self, until_s: float) -> float:
        """The device waits for a message; returns for how long."""
        waited = max(0.0, until_s - self.device_s)
        self.device_s += waited
        return waited
