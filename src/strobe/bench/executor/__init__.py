"""Executors of benchmark cells: each cell is a command in its own processes, with a timeout, and leaves none behind."""

from strobe.bench.executor.local import Cell, Executor, Finished, LocalExecutor, Resources
from strobe.core.errors import unknown_choice

__all__ = ["Cell", "Executor", "Finished", "LocalExecutor", "Resources", "open_executor"]


def open_executor(text: str = "local") -> Executor:
    """Return an executor: `local`, `ray` for the cluster of this machine, or `ray:HOST:PORT` for the one at that address.

    Raises:
        ConfigError: another name.
        ImplUnavailableError: ray is not installed.
        StrobeError: there is no cluster.
    """
    name, _, address = text.partition(":")
    if name == "ray":
        from strobe.bench.executor.ray import RayExecutor

        return RayExecutor(address)
    if text != "local":
        raise unknown_choice("executor", text, ("local", "ray", "ray:HOST:PORT"))
    return LocalExecutor()
