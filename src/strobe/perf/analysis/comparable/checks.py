"""Checks whether two sides may be compared: known facts of each, facts that differ, facts that are not recorded.

A fact that neither the artefacts nor the user state is unknown, and is called so: unknown is never equal. A difference that
matters is an obstacle, unless the user says that it is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.printable import first_of

Verdict = Literal["same", "differs", "allowed", "unknown"]
"""`allowed`: it differs, and the user named it as meant."""
Weight = Literal["must", "should", "told"]
"""`must`: a difference makes the sides not comparable; `should`: it weakens the comparison; `told`: only shown."""

FACTS: Final[dict[str, tuple[str, Weight]]] = {
    "date": ("date and time", "told"),
    "commit": ("git commit", "should"),
    "model": ("model", "must"),
    "checkpoint": ("model checkpoint", "must"),
    "weights": ("weights of matrix products", "must"),
    "kernel": ("focal kernel", "told"),
    "backend": ("attention backend", "must"),
    "sparsity": ("sparsity", "must"),
    "tokens": ("sequence length (effective tokens)", "must"),
    "frames": ("frames", "must"),
    "resolution": ("resolution", "must"),
    "batch": ("batch size", "must"),
    "steps": ("denoising steps", "must"),
    "calls": ("focal calls in a stage", "must"),
    "calls_per_step": ("focal calls in a traced step", "should"),
    "dtype": ("dtype", "must"),
    "shapes": ("input sizes of the focal kernel", "must"),
    "seed": ("seed", "should"),
    "device": ("device", "must"),
    "devices": ("devices in the trace", "must"),
    "world": ("world size", "must"),
    "sharding": ("SP and TP degrees", "must"),
    "torch": ("torch", "should"),
    "cuda": ("CUDA or ROCm", "should"),
    "driver": ("driver", "should"),
    "clocks": ("clocks", "should"),
    "compiled": ("compiled kernels (Inductor)", "must"),
    "graphs": ("CUDA or HIP graphs", "must"),
    "launch_blocking": ("launches are serialised (CUDA_LAUNCH_BLOCKING)", "must"),
    "capture": ("what the profiler recorded", "should"),
}
"""Facts that a comparison depends on, by the name that `--allow-different` and `--fact` take, in the order of the table."""

SEVERAL: Final = ("weights", "kernel", "shapes")
"""Facts that hold several values, of which two sides may share some."""
ALLOWABLE: Final = tuple(name for name, (_, weight) in FACTS.items() if weight != "told")
"""Facts that the user may allow to differ."""
_SHOWN: Final = 4

Value: TypeAlias = str | frozenset[str]
Facts: TypeAlias = Mapping[str, Value]
"""Known facts of one side, by the names of `FACTS`; unknown ones are left out. Those of `SEVERAL` are sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact of both sides with its verdict.

    Args:
        name: a word of `FACTS`.
        title: the fact's name in words.
        baseline: `None` where it is not known.
        candidate: likewise.
        verdict: `same`, `differs`, `allowed` or `unknown`.
        weight: how much a difference matters here.
    """

    name: str
    title: str
    baseline: Value | None
    candidate: Value | None
    verdict: Verdict
    weight: Weight

    def __str__(self) -> str:
        return f"{self.title}: {shown(self.baseline)} against {shown(self.candidate)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparability:
    """All checks, in the order of `FACTS`."""

    checks: tuple[Check, ...]

    def _with(self, verdict: Verdict, weight: Weight) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if (check.verdict, check.weight) == (verdict, weight))

    @property
    def obstacles(self) -> tuple[Check, ...]:
        """Facts that differ and must not. Serialised launches on both sides are one too, since such times are not
        comparable with anything."""
        serial = (
            each
            for each in self.checks
            if each.name == "launch_blocking" and each.verdict != "allowed" and "yes" in (each.baseline, each.candidate)
        )
        return (*(each for each in self._with("differs", "must") if each.name != "launch_blocking"), *serial)

    @property
    def doubts(self) -> tuple[Check, ...]:
        """Facts that differ and weaken the comparison."""
        return self._with("differs", "should")

    @property
    def unknown(self) -> tuple[Check, ...]:
        """Facts that must agree and are not known of both sides."""
        return self._with("unknown", "must")

    @property
    def refusal(self) -> str:
        """Reason why there is no speedup, with the flag that allows it; empty if the sides are comparable."""
        names = " ".join(each.name for each in self.obstacles)
        because = "; ".join(map(str, self.obstacles))
        return f"not comparable ({because}); if that is meant, say so: --allow-different {names}" if names else ""


def check_allowed(names: Sequence[str]) -> None:
    """Raise for names that are not facts which may be allowed to differ.

    Raises:
        ConfigError: one of them does not exist, or makes no difference.
    """
    for name in names:
        if name not in ALLOWABLE:
            raise unknown_choice("fact in --allow-different", name, ALLOWABLE)


def compare_facts(baseline: Facts, candidate: Facts, allow_different: Sequence[str] = ()) -> Comparability:
    """Check every fact of two sides.

    A fact of several values differs if the sides do not have the same ones. With some in common it weakens the comparison; with
    none it is an obstacle. Input sizes are one only where both sides ran the same kernel: another kernel may take its inputs
    in another layout.

    Args:
        allow_different: the facts that are meant to differ.

    Raises:
        ConfigError: a fact of that name does not exist, or makes no difference.
    """
    check_allowed(allow_different)
    for name in (*baseline, *candidate):
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
    one_kernel = _common(baseline.get("kernel"), candidate.get("kernel"))
    checks = []
    for name, (title, weight) in FACTS.items():
        b, c = baseline.get(name), candidate.get(name)
        if _common(b, c) or (name == "shapes" and not one_kernel):
            weight = "told" if weight == "told" else "should"
        verdict: Verdict = "unknown" if b is None or c is None else "same" if b == c else "differs"
        if name in allow_different and (verdict == "differs" or name == "launch_blocking"):
            verdict = "allowed"
        checks.append(Check(name=name, title=title, baseline=b, candidate=c, verdict=verdict, weight=weight))
    return Comparability(checks=tuple(checks))


def _common(baseline: Value | None, candidate: Value | None) -> bool:
    """Return whether both facts are sets of values that share some."""
    return isinstance(baseline, frozenset) and isinstance(candidate, frozenset) and not baseline.isdisjoint(candidate)


def shown(value: Value | None) -> str:
    """Format a fact on one line: the first of several values and the number of others."""
    if value is None or isinstance(value, str):
        return value or "not recorded"
    return first_of(sorted(value), _SHOWN, between="; ")


def given_facts(texts: Iterable[str]) -> dict[str, Value]:
    """Parse facts that a user states: `frames=121`; several values have `;` between them.

    Raises:
        ConfigError: not `NAME=VALUE`, a name that does not exist, or one given twice.
    """
    facts: dict[str, Value] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and value):
            raise ConfigError(f"fact {text!r}: write NAME=VALUE, such as frames=121; names: {', '.join(FACTS)}")
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
        read: Value = frozenset(part.strip() for part in value.split(";")) if name in SEVERAL else value
        if facts.get(name, read) != read:
            raise ConfigError(f"fact {name!r} is given as {shown(facts[name])!r} and as {value!r}; give it once")
        facts[name] = read
    return facts
