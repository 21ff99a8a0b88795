"""Files of a transformer's checkpoint, and the model taken from those in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import SAFE, read_file, read_shapes
from strobe.models.digest import sha256_of

Part = Literal["auto", "generator", "generator_ema"]
STEM: Final = "diffusion_pytorch_model"
LORA: Final = "generator_lora"
KNOWN_PARTS: Final = ("generator_ema", "generator", LORA)
"""Models in one file that have names of their own, the one to take first."""
SUFFIXES: Final = (SAFE, ".pt", ".pth")
SHARD: Final = re.compile(r".+-\d{5}-of-(?!00001)\d{5}\.safetensors")
"""One file of several."""
INDEX: Final = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """The content of a checkpoint: its files, the model taken and its tensors.

    Args:
        files: it was read from.
        part: of a file with several models, the one that was taken; empty if there was one only.
        tensors: by the names in the file; those of a `.safetensors` are shapes alone, on the meta device, until `read`.
    """

    files: tuple[Path, ...]
    part: str
    tensors: Mapping[str, Tensor]

    @property
    def where(self) -> str:
        """Path of the file, or of the folder of several, for an error."""
        path = str(self.files[0] if len(self.files) == 1 else self.files[0].parent)
        return f"{path} ({self.part})" if self.part else path

    def read(self) -> Mapping[str, Tensor]:
        """Return the tensors by the names in the file, on the CPU; they are left on the disk until they are used."""
        tensors = dict(self.tensors)
        for file in self.files:
            tensors.update(read_file(file) if file.suffix == SAFE else {})
        return tensors

    def sha256(self) -> str:
        """Hash the names and contents of all files, hexadecimal."""
        whole = hashlib.sha256()
        for file in self.files:
            whole.update(file.name.encode())
            whole.update(sha256_of(file))
        return whole.hexdigest()


def find_files(path: Path) -> tuple[Path, ...]:
    """Find the file or files of the transformer at `path`: a file, or a folder as it is published.

    Raises:
        WeightsError: there are none, or too many to choose from.
    """
    if path.is_file():
        return _shards(path) if path.name.endswith(".index.json") else (path,)
    if not path.is_dir():
        raise WeightsError(f"no file or folder {str(path)!r}; give a checkpoint file or the folder it was published in")
    for folder in (path, path / "transformer"):
        index = folder / f"{STEM}{INDEX}"
        if index.is_file():
            return _shards(index)
        if (folder / f"{STEM}.safetensors").is_file():
            return (folder / f"{STEM}.safetensors",)
    indices = sorted(path.glob(f"*{INDEX}"))
    if len(indices) == 1:
        return _shards(indices[0])
    found = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES and not _is_other_part(file)]
    if len(found) == 1 and not SHARD.fullmatch(found[0].name):
        return (found[0],)
    if not found:
        held = ", ".join(sorted(child.name for child in path.iterdir())[:5]) or "nothing"
        raise WeightsError(
            f"{path} holds no transformer (it holds: {held}); expected {STEM}.safetensors, a folder transformer, "
            "or one .safetensors or .pt file"
        )
    if all(SHARD.fullmatch(file.name) for file in found):
        raise WeightsError(f"{path} is half a checkpoint: {found[0].name} has no index; fetch the {INDEX} too")
    raise WeightsError(f"{path} holds several checkpoints: {', '.join(file.name for file in found)}; name one of the files")


def find_lora(path: Path) -> Path | None:
    """Find the LoRA in the folder of a base, as LongLive publishes the two; None if there is none, or `path` is a file."""
    return next((file for file in sorted(path.glob("lora*")) if file.suffix in SUFFIXES), None)


def read_source(files: Sequence[Path], part: Part = "auto") -> WeightSource:
    """Open a checkpoint.

    Args:
        files: of one checkpoint.
        part: which model of a Self-Forcing file; "auto" takes the averaged one, if there is one.

    Raises:
        WeightsError: a file is missing, damaged, or would have to run code to be read.
    """
    tensors: dict[str, Tensor] = {}
    taken = ""
    for file in files:
        held: dict[Any, Any] = {**read_shapes(file)} if file.suffix == SAFE else read_file(file, mapped=True)
        found, taken = _part(held, part, file)
        tensors.update({str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)})
    if not tensors:
        raise WeightsError(f"{files[0]} holds no tensors; give a file of weights")
    return WeightSource(files=tuple(files), part=taken, tensors=tensors)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        WeightsError: it is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged or not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds no JSON object; fetch it again")
    return found


def _is_other_part(file: Path) -> bool:
    """Return whether a file is a text encoder, autoencoder or LoRA in the same folder, by its name."""
    return file.name.startswith(("Wan2.", "models_t5", "models_clip", "lora"))


def _shards(index: Path) -> tuple[Path, ...]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise WeightsError(f"{index} has no weight_map; fetch it again")
    files = [index.parent / Path(name).name for name in sorted(set(table.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(
            f"{index.parent} is half a checkpoint: {len(missing)} of {len(files)} files missing; fetch: {', '.join(missing)}"
        )
    return tuple(files)


def _part(loaded: dict[Any, Any], part: Part, file: Path) -> tuple[dict[Any, Any], str]:
    """Choose the model of a file that holds several, or other things too, and return it with its name."""
    models = {} if _is_model(loaded) else _models(loaded)
    if part != "auto" and part not in models:
        raise WeightsError(f"{file} has no {part!r}; it has: {', '.join(models) or 'one model without a name'}")
    if not models:
        return loaded, ""
    known = [name for name in KNOWN_PARTS if name in models]
    if part == "auto" and not known and len(models) > 1:
        raise WeightsError(
            f"{file} holds several models: {', '.join(models)}; keep the one that should run, in a file of its own"
        )
    taken: str = next(iter((*known, *models))) if part == "auto" else part
    return models[taken], taken


def _models(loaded: dict[Any, Any], deep: int = 2) -> dict[str, dict[Any, Any]]:
    """List the models in a file by name; names of nested dictionaries are joined by a dot."""
    found: dict[str, dict[Any, Any]] = {}
    for name, value in loaded.items():
        if isinstance(value, dict) and _is_model(value):
            found[str(name)] = value
        elif isinstance(value, dict) and deep:
            found |= {f"{name}.{inner}": model for inner, model in _models(value, deep - 1).items()}
    return found


def _is_model(held: dict[Any, Any]) -> bool:
    """Return whether there are tensors named like parameters, with a dot; those of an optimiser have none."""
    return any(isinstance(tensor, Tensor) and "." in str(name) for name, tensor in held.items())
