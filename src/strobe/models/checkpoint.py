"""Reading weight files strictly: tensors and nothing else, and every one of them accounted for."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from strobe.core.errors import ConfigError, WeightsError

SHOWN = 4
"""Names of each kind that an error lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyTable:
    """How a checkpoint differs from a model, in the checkpoint's own spelling.

    Args:
        missing: tensors of the model that the file does not hold.
        unexpected: tensors of the file that the model does not have.
        reshaped: name, shape in the file and shape in the model, where they differ.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return bool(self.missing or self.unexpected or self.reshaped)

    def __str__(self) -> str:
        shapes = tuple(f"{name} {given} for {expected}" for name, given, expected in self.reshaped)
        kinds = (("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", shapes))
        return "; ".join(_row(what, names) for what, names in kinds if names)


def _row(what: str, names: tuple[str, ...]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"


def read_file(path: Path, *, mapped: bool = False) -> dict[Any, Any]:
    """Read what a `.safetensors`, `.pth` or `.pt` file holds by name to the CPU: tensors, and in a pickle maybe more. No code
    in it is run.

    Args:
        path: the file.
        mapped: leave the tensors of a `.pth` on the disk until they are used, as those of a `.safetensors` always are; one in
            the format before torch 1.6 is read at once all the same.

    Raises:
        WeightsError: no such file, damaged, or it would have to run code to be read.
    """
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give the weight file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} would have to run code to be read, or is damaged; only tensors are read. Fetch it again from where it was "
            "published, or convert it to safetensors where you trust it"
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{path} is damaged or no weight file ({reason}); copy it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}, not tensors by name")
    return found


def read_tensors(path: Path, *, mapped: bool = False) -> dict[str, Tensor]:
    """Read a file of named tensors and nothing else; see `read_file`.

    Raises:
        WeightsError: no such file, damaged, or with anything but named tensors in it.
    """
    found = read_file(path, mapped=mapped)
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()):
        raise WeightsError(f"{path} does not hold named tensors alone; give the file as it was released")
    return found


def compare_keys(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> KeyTable:
    """Tabulate how a checkpoint differs from what a model expects; both in the same spelling."""
    both = sorted(expected.keys() & given.keys())
    shapes = ((name, tuple(given[name].shape), tuple(expected[name].shape)) for name in both)
    return KeyTable(
        missing=tuple(sorted(expected.keys() - given.keys())),
        unexpected=tuple(sorted(given.keys() - expected.keys())),
        reshaped=tuple(row for row in shapes if row[1] != row[2]),
    )


def match(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], names: Mapping[str, str], source: Path
) -> dict[str, Tensor]:
    """Rename a checkpoint's tensors to a model's own names.

    Args:
        expected: the model's tensors under its own names, or tensors of their shapes.
        tensors: as the file spells them.
        names: the model's name of a tensor to the file's.
        source: named in the error.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape; says which.
    """
    table = compare_keys({names[own]: tensor for own, tensor in expected.items()}, tensors)
    if table:
        raise WeightsError(f"{source} does not fit the model: {table}; give the checkpoint of this very model")
    return {own: tensors[names[own]] for own in expected}


def fill(model: nn.Module, tensors: Mapping[str, Tensor], names: Mapping[str, str], source: Path) -> None:
    """Give a model on the meta device a checkpoint's weights, float32 on the CPU and frozen, for inference.

    Args, Raises: see `match`.
    """
    found = match(model.state_dict(), tensors, names, source)
    model.load_state_dict({own: tensor.float() for own, tensor in found.items()}, assign=True)
    model.requires_grad_(False).eval()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights on the CPU from a seed, and leave the global generator as it was.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed {seed} is not valid; give 0 or more")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
