"""Simulation of viewers and their streams on a device: the server's scheduler against a simulated clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strobe.serve.scheduler import Demand, StreamCost, choose, refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A viewer that comes at `at_s`, asks for `preset`, watches for `watches_s` and switches the prompt at `switches_s` after."""

    at_s: float
    preset: str
    watches_s: float
    switches_s: tuple[float, ...] = ()


@dataclass(kw_only=True, slots=True)
class Watched:
    """The playback of one viewer: the frame blocks that were ready after it had run dry, and the most video made ahead of it."""

    admitted: bool
    late: int = 0
    most_ahead_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class _Stream:
    name: str
    cost: StreamCost
    outcome: Watched
    opened_s: float
    ends_s: float
    switches: list[float]
    made_s: float = 0.0
    began_s: float | None = None
    waited_s: float = 0.0

    def played_s(self, now: float) -> float:
        """Return the seconds of video painted by `now`; the viewer begins with a full buffer, and waits when it is empty."""
        if self.began_s is None:
            return 0.0
        return min(self.made_s, now - self.began_s - self.waited_s)


def simulate(
    arrivals: Sequence[Arrival], costs: Mapping[str, StreamCost], *, memory_bytes: int, start_buffer_s: float
) -> list[Watched]:
    """Simulate arrivals with the server's own `admit` and `choose`; return each viewer's playback, in their order.

    A frame block after a switch takes `longest_s`, every other `block_s`. Its frames are shown at once, in place of older ones.
    """
    outcomes = [Watched(admitted=False) for _ in arrivals]
    streams: list[_Stream] = []
    coming = deque(sorted((arrival.at_s, number) for number, arrival in enumerate(arrivals)))
    now = 0.0
    while coming or streams:
        while coming and coming[0][0] <= now:
            _, number = coming.popleft()
            arrival, outcome = arrivals[number], outcomes[number]
            refused = refusal(
                arrival.preset,
                [stream.cost for stream in streams if stream.ends_s > now],
                costs,
                free_bytes=memory_bytes - sum(stream.cost.stream_bytes for stream in streams),
                start_buffer_s=start_buffer_s,
                most=1000,
            )
            outcome.admitted = refused is None
            if refused is None:
                streams.append(
                    _Stream(
                        name=f"{number:06d}", cost=costs[arrival.preset], outcome=outcome, opened_s=now,
                        ends_s=now + arrival.watches_s, switches=sorted(now + each for each in arrival.switches_s),
                    )
                )  # fmt: skip
        streams = [stream for stream in streams if stream.ends_s > now]
        demands = [
            Demand(
                stream=stream.name,
                ahead_s=stream.made_s - stream.played_s(now),
                target_s=start_buffer_s + stream.cost.content_s,
                steered=bool(stream.switches) and stream.switches[0] <= now,
                opened_s=stream.opened_s,
            )
            for stream in streams
        ]
        name = choose(demands)
        if name is None:
            moments = [demand.ahead_s - demand.target_s + now for demand in demands]
            moments += [stream.ends_s for stream in streams] + [at for at, _ in list(coming)[:1]]
            now = max(now + 1e-6, min(moments, default=now))
            continue
        stream = next(each for each in streams if each.name == name)
        now = _make(stream, now, start_buffer_s)
    return outcomes


def _make(stream: _Stream, now: float, start_buffer_s: float) -> float:
    """Make a frame block of a stream; return when it is ready."""
    switched = bool(stream.switches) and stream.switches[0] <= now
    if switched:
        stream.switches.pop(0)
    ready = now + (stream.cost.longest_s if switched else stream.cost.block_s)
    outcome = stream.outcome
    if stream.began_s is not None:
        dry = stream.began_s + stream.waited_s + stream.made_s
        if ready > dry + 1e-9:
            outcome.late += 1
            stream.waited_s += ready - dry
    if switched and stream.began_s is not None:  # the viewer leaves out what it has of the old prompt
        stream.began_s -= stream.made_s - stream.played_s(ready)
    stream.made_s += stream.cost.content_s
    if stream.began_s is None and stream.made_s >= start_buffer_s:
        stream.began_s = ready
    outcome.most_ahead_s = max(outcome.most_ahead_s, stream.made_s - stream.played_s(ready))
    return ready
