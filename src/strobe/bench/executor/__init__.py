"""Executors of benchmark cells: each cell is a command in its own processes, with a timeout, and leaves none behind."""

from strobe.bench.executor.local import Cell, Executor, Finished, Handle, LocalExecutor, Resources
from strobe.core.errors import ConfigError, unknown_choice

__all__ = ["Cell", "Executor", "Finished", "Handle", "LocalExecutor", "Resources", "open_executor"]


def open_executor(name: str = "local", address: str | None = None) -> Executor:
    """Return an executor by name: `local`, or `ray`, over the cluster at `address` (None: the one of this machine).

    Raises:
        ConfigError: another name, or an address for this machine.
        ImplUnavailableError: ray is not installed.
        StrobeError: there is no cluster.
    """
    if name == "ray":
        from strobe.bench.executor.ray import RayExecutor

        return RayExecutor(address)
    if name != "local":
        raise unknown_choice("executor", name, ("local", "ray"))
    if address is not None:
        raise ConfigError(f"address: got {address} for the executor local, which is this machine; use ray")
    return LocalExecutor()
