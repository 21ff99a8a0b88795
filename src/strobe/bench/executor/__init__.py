"""Where cells of a benchmark run: each is a command in processes of its own, with a timeout, and leaves none behind."""

from strobe.bench.executor.cell import Cell, Executor, Finished, Resources
from strobe.bench.executor.local import LocalExecutor

__all__ = ["Cell", "Executor", "Finished", "LocalExecutor", "Resources"]
