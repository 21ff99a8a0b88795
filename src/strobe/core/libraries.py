"""Optional libraries and plug-ins: whether what is used of one can be imported, and how an extra is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ATTENTION: Final = {"dense": "strobe.attention.dense", "sparse": "strobe.attention.sparse"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """One entry point.

    Args:
        group: such as `strobe.attention.dense`.
        place: module and name, such as `package.module:NAME`.
        package: name and version of the package that has it.
        found: what the place holds; None if it is broken.
        broken: why it cannot be used; empty if it can.
    """

    group: str
    name: str
    place: str
    package: str
    found: Any
    broken: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.place} of {self.package})"


def plugins(group: str, fault: Callable[[object], str]) -> tuple[Plugin, ...]:
    """Return what other packages register in a group, sorted by name; those that are broken say why.

    Args:
        fault: what is wrong with an object that an entry point names, such as that it is an int; empty if nothing is.
    """
    return tuple(open_plugin(entry, fault) for entry in entries(group))


def entries(group: str) -> list[EntryPoint]:
    """The entry points of a group, sorted by name; nothing is imported."""
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def open_plugin(entry: EntryPoint, fault: Callable[[object], str]) -> Plugin:
    """Import what an entry point names."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package of no name"
    found, broken = tried(entry.load)
    broken = f"it cannot be imported: {broken}" if broken else fault(found)
    return Plugin(
        group=entry.group, name=entry.name, place=entry.value, package=package, found=None if broken else found, broken=broken
    )


def tried(call: Callable[[], Any]) -> tuple[Any, str]:
    """Call what another package wrote.

    Returns:
        What it returned, and whatever it raised, in one line; empty if nothing.
    """
    try:
        return call(), ""
    except Exception as error:  # noqa: BLE001 - of code that is not ours
        return None, " ".join(f"{type(error).__name__}: {error}".split())


DISTRIBUTION: Final = "strobe-video"
"""Name of this package in an index; there, `strobe` is another project's."""
_CHECKOUT: Final = Path(__file__).parents[3]
_TRIED: Final[dict[str, str]] = {}


def broken(module: str) -> str:
    """Say why a module of an optional library cannot be used; empty if it can. It is imported, once in a process.

    Args:
        module: what is used of the library, such as `cutlass.cute`: a library that is half installed has a part of its modules.
    """
    if module not in _TRIED:
        library = module.partition(".")[0]
        _TRIED[module] = f"{library} is not installed"
        if find_spec(library) is not None:
            _, error = tried(lambda: import_module(module))
            _TRIED[module] = f"{module} cannot be imported ({error})" if error else ""
    return _TRIED[module]


vars(broken)["_dynamo_marked_constant"] = True  # torch.compile runs it while it traces


def install(extra: str) -> str:
    """Return the command that installs an extra of this package as the package itself was installed."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout"
    return f"pip install '.[{extra}]' in a checkout of {DISTRIBUTION}"
