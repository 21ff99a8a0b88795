"""Who comes to a server under load, when, and what they do there.

The load is how many viewers would watch at once if all were let in. With Poisson arrivals they come at `load / stay_s` a second
and stay for times that are drawn from an exponential distribution (Little's law); `together` is `load` viewers who all come at
the start and stay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Behaviour of the viewers that load a server.

    Args:
        levels: viewers at once, on average; several loads run one after another.
        arrivals: poisson: viewers come and go at random moments; together: all come at once and stay.
        seconds: length of each load; viewers that are still there leave at its end.
        stay_s: mean seconds that a viewer stays; with `--arrivals together` all stay to the end.
        prompt_every_s: mean seconds between two prompts of a viewer; 0: none.
        preset: what each viewer asks for.
        codec: h264 or jpeg; pictures are not decoded.
        seed: of arrivals, stays, prompts and noise.
        url: of a server that is there; `--model` and `--device` are its own then.
        token: of a server that asks for one.
    """

    levels: tuple[float, ...] = (1.0, 2.0)
    arrivals: Literal["poisson", "together"] = "poisson"
    seconds: float = 60.0
    stay_s: float = 30.0
    prompt_every_s: float = 10.0
    preset: str = "balanced"
    codec: Literal["h264", "jpeg"] = "h264"
    seed: int = 0
    url: str = ""
    token: str = ""

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) <= 0:
            raise ConfigError(f"--sessions {', '.join(f'{level:g}' for level in self.levels) or 'none'}: give numbers above 0")
        if self.arrivals == "together" and any(level != int(level) for level in self.levels):
            raise ConfigError("viewers who come together are whole numbers; fractions are for --arrivals poisson")
        if min(self.seconds, self.stay_s) < 0.1 or 0 != self.prompt_every_s < 0.1:
            raise ConfigError(
                f"seconds {self.seconds:g}, stay {self.stay_s:g}, prompt every {self.prompt_every_s:g}: "
                "give 0.1 or more, and 0 for no prompts"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One viewer as planned: seconds are from the start of its level; those of its prompts from its coming."""

    at_s: float
    stay_s: float
    prompts: tuple[tuple[float, str], ...]
    seed: int


def plan(load: Load, level: float, examples: Sequence[str]) -> tuple[Visit, ...]:
    """Return who comes at a level and what they do: the same for the same load, level and examples."""
    draw = random.Random(f"{load.seed} {level:g} {load.arrivals}")
    if load.arrivals == "together":
        moments = [(0.0, load.seconds)] * int(level)
    else:
        moments, at = [], draw.expovariate(level / load.stay_s)
        while at < load.seconds:
            moments.append((at, min(draw.expovariate(1 / load.stay_s), load.seconds - at)))
            at += draw.expovariate(level / load.stay_s)
    return tuple(
        Visit(at_s=at, stay_s=stay, prompts=tuple(_prompts(draw, load, stay, examples)), seed=draw.randrange(1 << 31))
        for at, stay in moments
    )


def _prompts(draw: random.Random, load: Load, stay_s: float, texts: Sequence[str]) -> Iterator[tuple[float, str]]:
    yield 0.0, draw.choice(texts)
    if load.prompt_every_s:
        at = draw.expovariate(1 / load.prompt_every_s)
        while at < stay_s:
            yield at, draw.choice(texts)
            at += draw.expovariate(1 / load.prompt_every_s)
