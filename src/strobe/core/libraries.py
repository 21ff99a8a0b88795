"""Optional libraries: whether what is used of one can be imported, and how the extra that brings it is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from strobe.core.plugins import tried

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
    return f"pip install '{DISTRIBUTION}[{extra}]'"
