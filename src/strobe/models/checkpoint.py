"""Strict reading of weight files: tensors and nothing else, every one of them accounted for; hashes of large files are kept."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from strobe.core.errors import StrobeError, WeightsError
from strobe.core.files import write_whole
from strobe.core.libraries import tried
from strobe.core.settings import cache_folder

SHOWN = 4
"""Names of each kind that an error lists."""

SAFE: Final = ".safetensors"
HEADER_BYTES: Final = 100_000_000
"""Longest list of tensors that the format allows."""
LFS_POINTER: Final = b"version https://git-lfs"
DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""What a `.safetensors` calls a type of numbers."""
PICKLE: Final = b"\x80"
"""What every pickle of torch begins with."""
_DRAWS: Final = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_)


class _Undrawn(TorchFunctionMode):
    """Weights are left as they are allocated."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        return (*args, *named.values())[0] if func in _DRAWS else func(*args, **named)


@contextmanager
def on_meta() -> Iterator[None]:
    """Within it modules are built on the meta device and draw no weights: drawing takes most of the time, there too."""
    with torch.device("meta"), _Undrawn():
        yield


_DAMAGED: Final = (
    SafetensorError, OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError,
    AssertionError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What the readers of torch and safetensors raise on damaged files: whatever the bytes happen to ask of them."""


class _Entry(msgspec.Struct):
    """One tensor in the header of a `.safetensors`."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def read_file(path: Path) -> dict[Any, Any]:
    """Read a `.safetensors`, `.pth` or `.pt` file to the CPU by name, without running code in it.

    Tensors are left on the disk until they are used, but for those of a pickle in the format before torch 1.6. A pickle may hold
    more than tensors.

    Raises:
        WeightsError: no such file, damaged, or it would have to run code to be read.
    """
    check_whole(path)
    try:
        if path.suffix == SAFE:
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:
            first = file.read(12)
        if not first.startswith((PICKLE, b"PK")):
            raise WeightsError(f"{path} is no weight file: it begins with {first!r}; fetch it again") from error
        raise WeightsError(
            f"{path} would have to run code to be read, or is damaged; only tensors are read. Fetch it again from where it was "
            "published, or convert it to safetensors where you trust it"
        ) from error
    except MemoryError as error:
        size = path.stat().st_size
        raise WeightsError(
            f"{path} of {size:,} bytes asks for more main memory than there is; fetch it again, or free some"
        ) from error
    except _DAMAGED as error:
        reason = textwrap.shorten(str(error).strip().partition("\n")[0], 120, placeholder=" ...")
        if "Cannot allocate memory" in str(error):
            size = path.stat().st_size
            raise WeightsError(f"{path} of {size:,} bytes cannot be mapped into main memory; free some, or take more") from error
        raise WeightsError(f"{path} is damaged or no weight file ({reason}); fetch it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}, not tensors by name")
    return found


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read names, shapes and dtypes of a `.safetensors` as tensors on the meta device, without reading its data.

    Raises:
        WeightsError: no such file, damaged, shorter than it says, or with numbers of a type that is not known.
    """
    check_whole(path)
    entries, _ = _header(path)
    strange = sorted({entry.dtype for entry in entries.values()} - DTYPES.keys())
    if strange:
        raise WeightsError(f"{path} holds numbers of a type that is not known here: {', '.join(strange)}; fetch it in bfloat16")
    try:
        return {name: torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device="meta") for name, entry in entries.items()}
    except (RuntimeError, TypeError, OverflowError) as error:
        raise WeightsError(f"{path} is damaged: it has a tensor of a shape that cannot be; fetch it again") from error


def check_whole(path: Path) -> None:
    """Check that a file exists and is whole, without reading its tensors.

    Raises:
        WeightsError: no such file, an empty or half one, or what Git LFS left in its place.
    """
    if not path.is_file():
        raise WeightsError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give the weight file")
    with path.open("rb") as file:
        first = file.read(len(LFS_POINTER))
    if not first:
        raise WeightsError(f"{path} is empty; fetch it again")
    if first == LFS_POINTER:
        raise WeightsError(f"{path} is a pointer that Git LFS left in its place; run git lfs pull in its folder")
    if path.suffix == SAFE:
        _header(path)
    elif first.startswith(b"PK") and not _is_zip(path):
        size = path.stat().st_size
        raise WeightsError(f"{path} is half a file: it ends after {size:,} bytes without the list of its tensors; fetch it again")


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # of several disks, as damaged bytes may say
        return False


def read_metadata(path: Path) -> dict[str, str]:
    """Read the words that the header of a `.safetensors` holds beside its tensors.

    Raises:
        WeightsError: no such file, or damaged.
    """
    check_whole(path)
    return _header(path)[1]


def _header(path: Path) -> tuple[dict[str, _Entry], dict[str, str]]:
    """Read the header of a `.safetensors`: its length in 8 bytes, then JSON; raises WeightsError if it is none or the file
    ends before its last tensor. Source: the format's description."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = file.read(start - 8) if start <= HEADER_BYTES else b""
    try:
        found: Any = msgspec.json.decode(header) if start <= min(size_bytes, HEADER_BYTES) else None
        listed = msgspec.convert(found, dict[str, Any])
        words = msgspec.convert(listed.pop("__metadata__", None) or {}, dict[str, str])
        entries = msgspec.convert(listed, dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        half = "its list of tensors is not all there" if size_bytes < start <= HEADER_BYTES else "it has no list of tensors"
        raise WeightsError(f"{path} is damaged or no safetensors file ({half}); fetch it again") from error
    end = start + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size_bytes < end:
        raise WeightsError(f"{path} is half a file: {size_bytes:,} of {end:,} bytes are there; fetch it again")
    return entries, words


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of named tensors and nothing else; see `read_file`.

    Raises:
        WeightsError: no such file, damaged, or with anything but named tensors in it.
    """
    found = read_file(path)
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()):
        raise WeightsError(f"{path} does not hold named tensors alone; give the file as it was released")
    return found


def key_differences(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """List the differences between a checkpoint and what a model expects, both in the same names; empty if there are none.

    Of each kind the first few: `12 missing: a, b, c, d, and 8 more; 1 of another shape: e (3,) for (4,)`.
    """
    both = sorted(expected.keys() & given.keys())
    shapes = ((name, tuple(given[name].shape), tuple(expected[name].shape)) for name in both)
    kinds = {
        "missing": sorted(expected.keys() - given.keys()),
        "unexpected": sorted(given.keys() - expected.keys()),
        "of another shape": [f"{name} {found} for {wanted}" for name, found, wanted in shapes if found != wanted],
    }
    return "; ".join(
        f"{len(names)} {kind}: {', '.join(names[:SHOWN])}" + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for kind, names in kinds.items()
        if names
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
    differs = key_differences({names[own]: tensor for own, tensor in expected.items()}, tensors)
    if differs:
        raise WeightsError(f"{source} does not fit the model: {differs}; give the checkpoint of this very model")
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
    """Draw weights on the CPU from a seed, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


SMALL_BYTES: Final = 1 << 26
"""Files below this are hashed each time."""
KEPT: Final = 1000
"""Files that are remembered, the last ones."""
NAME: Final = "weights.json"


class _Known(msgspec.Struct):
    """Size, times, place and hash of a file that was hashed; `changed_ns` is its ctime, which programs cannot set."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int
    sha256: str


def hashing(files: Sequence[Path]) -> Callable[[], str]:
    """Begin to hash names and contents of files in a thread that ends with the process; return what waits for the hash.

    Hashing gigabytes takes seconds, and the hash is wanted only once something is recorded. The files are opened here: those that
    are replaced or removed afterwards are hashed as they were.

    Returns:
        sha256, hexadecimal; the call raises a `WeightsError` if a file was written to meanwhile or cannot be read.
    """
    opened = [(path.resolve(), path.open("rb")) for path in files]
    found: list[tuple[str, str]] = []

    def work() -> str:
        whole = hashlib.sha256()
        for named, (path, file) in zip(files, opened, strict=True):
            with file:
                whole.update(named.name.encode() + _sha256(path, file))
        return whole.hexdigest()

    thread = Thread(target=lambda: found.append(tried(work)), name="strobe-hash", daemon=True)
    thread.start()

    def result() -> str:
        thread.join()
        if not found:  # a process that was forked meanwhile has no such thread
            found.append(tried(work))
        digest, error = found[0]
        if error:
            raise WeightsError(f"the weights cannot be hashed, so nothing can name them: {error}")
        return digest

    return result


def sha256_of(path: Path) -> bytes:
    """Return the sha256 of a file's content.

    A file that has not changed since it was hashed, by its size, times and place on the disk, is not read again. Hashes are kept
    in `strobe/weights.json` of the user's cache folder.
    """
    with path.open("rb") as file:
        return _sha256(path.resolve(), file)


def _sha256(path: Path, file: BinaryIO) -> bytes:
    folder, now = cache_folder(), _known(file)
    if now.size_bytes < SMALL_BYTES or folder is None:
        return _read(file)
    list_path, key = folder / "strobe" / NAME, str(path)
    known = _load(list_path)
    before = known.pop(key, None)
    if before is not None and msgspec.structs.replace(before, sha256="") == now:
        return bytes.fromhex(before.sha256)
    digest = _read(file)
    if _known(file).modified_ns != now.modified_ns:
        raise WeightsError(f"{path} was written to while it was read; load it again")
    known[key] = msgspec.structs.replace(now, sha256=digest.hex())
    _keep(list_path, dict([*known.items()][-KEPT:]))
    return digest


def _known(file: BinaryIO) -> _Known:
    stat = os.fstat(file.fileno())
    return _Known(
        size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, changed_ns=stat.st_ctime_ns, inode=stat.st_ino, sha256=""
    )


def _read(file: BinaryIO) -> bytes:
    digest, at = hashlib.sha256(), 0
    while part := os.pread(file.fileno(), 1 << 20, at):  # a forked process has the same place in the file
        digest.update(part)
        at += len(part)
    return digest.digest()


def _load(path: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # none, or damaged: files are hashed again
        return {}


def _keep(path: Path, known: dict[str, _Known]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(known))
    except (OSError, StrobeError):  # a cache that cannot be written costs time alone
        return
