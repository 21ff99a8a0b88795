"""Implementations of attention that other packages register; they come after ours: `auto` takes one where none of ours runs.

A package adds one with an entry point of the group `strobe.attention.dense` or `strobe.attention.sparse`, which names an `Impl`:
it is run with q, k, v and an `AttentionSpec`, or with q, k, v, a `BlockSelection` and a `SparseSpec`. The name of the entry point
is what `impl=` takes. The package is imported when its implementation is first asked about: it may import this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from strobe.attention.impls import Impl
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ImplUnavailableError
from strobe.core.libraries import ATTENTION, Plugin, entries, open_plugin, plugins

_OPENED: Final[dict[tuple[str, str], Plugin]] = {}
"""Those that were asked about, by operator and name."""


def plugged(operator: str, ours: Sequence[Impl[Any]]) -> tuple[Impl[Any], ...]:
    """Implementations of an operator by other packages; none is imported. One that is broken refuses every call and says why.

    Each has a gate of its own, whatever it says of itself: until that was run on a card, `auto` does not take it there. One with
    a name of ours has its package before it.
    """
    taken = {impl.name for impl in ours}
    found: list[Impl[Any]] = []
    for entry in entries(ATTENTION[operator]):
        package = entry.dist.name if entry.dist else "unknown"
        name = f"{package}:{entry.name}" if entry.name in taken else entry.name
        taken.add(name)
        refuses, run = partial(_refuses, operator, entry), partial(_run, operator, entry)
        found.append(Impl(name=name, refuses=refuses, run=run, operator=operator, kernel=_hash(entry)))
    return tuple(found)


def registered() -> tuple[Plugin, ...]:
    """Import and return what other packages register, of both operators."""
    return tuple(plugin for operator, group in ATTENTION.items() for plugin in plugins(group, partial(_fault, operator)))


def _fault(operator: str, found: object) -> str:
    if not isinstance(found, Impl):
        return f"it is a {type(found).__name__}, not a strobe.attention.impls.Impl"
    return "" if found.operator == operator else f"its operator is {found.operator!r}, not {operator!r}"


def _opened(operator: str, entry: EntryPoint) -> Plugin:
    key = (operator, entry.value)
    if key not in _OPENED:
        _OPENED[key] = open_plugin(entry, partial(_fault, operator))
    return _OPENED[key]


def _refuses(operator: str, entry: EntryPoint, spec: object) -> str | None:
    plugin = _opened(operator, entry)
    if plugin.broken:
        return f"plug-in {plugin} is broken: {plugin.broken}; mend or uninstall {plugin.package}"
    why: str | None = plugin.found.refuses(spec)
    return why


def _run(operator: str, entry: EntryPoint, *arguments: Any) -> AttentionOutput:
    plugin = _opened(operator, entry)
    if plugin.broken:
        raise ImplUnavailableError(plugin.name, plugin.broken)
    found: AttentionOutput = plugin.found.run(*arguments)
    return found


def _hash(entry: EntryPoint) -> str:
    """Hash of the name, version and Python files of a package: what its gate's record stands for."""
    whole = hashlib.sha256(
        f"{entry.value} {entry.dist.name} {entry.dist.version}".encode() if entry.dist else entry.value.encode()
    )
    for file in sorted((entry.dist and entry.dist.files) or ()):
        path = Path(str(file.locate()))
        if file.suffix == ".py" and path.is_file():
            whole.update(str(file).encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
