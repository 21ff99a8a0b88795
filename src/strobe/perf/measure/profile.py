"""A traced run: torch.profiler over chosen frame blocks of a clip, kept apart from every timed run."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.core.errors import ConfigError
from strobe.core.files import not_written, writing_whole
from strobe.core.spans import FRAME_BLOCK, PIECES, check_regions
from strobe.perf.measure.timing import recording

if TYPE_CHECKING:
    import torch

PREFIX: Final = "strobe::"
"""Regions stand in a trace as `strobe::<name>` or `strobe::<name>#<index>`."""

_SILENT: Final = "99"
_LITTLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFile:
    """A Chrome trace on the disk."""

    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What a traced run records.

    Stacks, memory and shapes slow the host down, each event by another amount: a trace with one of them says what calls what, not
    how long it takes. `options` names those that are on.

    Args:
        warmup: frame blocks that run under the profiler and are thrown away, right before those that are kept; at least 1.
        regions: regions to mark, names of `strobe.core.spans.TRACEABLE`; empty: all but `PIECES`.
            Frame blocks are always marked. All work of the kept frame blocks is in the trace, whatever is marked.
        with_stack: Python frames and module calls.
        profile_memory: every allocation; then only the thread that makes the frame blocks is recorded.
        record_shapes: input sizes of every operator.

    Raises:
        ConfigError: no warm-up, or an unknown region.
    """

    warmup: int = 1
    regions: tuple[str, ...] = ()
    with_stack: bool = False
    profile_memory: bool = False
    record_shapes: bool = False

    def __post_init__(self) -> None:
        check_regions(self.regions)
        if self.warmup < 1:
            raise ConfigError(f"the profiler cannot warm up over {self.warmup} frame blocks; smallest: 1")

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that distort times."""
        chosen = {"with_stack": self.with_stack, "profile_memory": self.profile_memory, "record_shapes": self.record_shapes}
        return tuple(name for name, on in chosen.items() if on)


class _Regions:
    """Span recorder of a traced run: every chosen region becomes a profiler annotation."""

    def __init__(self, chosen: tuple[str, ...]) -> None:
        self._chosen = frozenset((*chosen, FRAME_BLOCK)) if chosen else None

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        from torch.profiler import record_function

        if name in PIECES if self._chosen is None else name not in self._chosen:
            return nullcontext()
        return record_function(PREFIX + name if index is None else f"{PREFIX}{name}#{index}")


def trace_blocks(
    blocks: Iterable[object],
    *,
    device: torch.device,
    first_block: int,
    num_blocks: int,
    path: Path,
    capture: Capture = Capture(),
) -> TraceFile:
    """Run frame blocks `0 .. first_block + num_blocks - 1` and profile the last `num_blocks` of them.

    Args:
        blocks: makes one frame block per item; no more of it is consumed than needed.
        device: the device to profile besides the CPU.
        first_block: at least `capture.warmup`: the blocks before it warm the profiler up.
        num_blocks: at least 1.
        path: the trace to write, `*.json.gz`; its folder is made.
        capture: what is recorded.

    Raises:
        ConfigError: the range is not possible, or the clip ends before it.
        StrobeError: the trace cannot be written.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile, schedule

    if first_block < capture.warmup or num_blocks < 1:
        raise ConfigError(
            f"cannot trace {num_blocks} frame blocks from block {first_block}: at least 1, after {capture.warmup} of warm-up"
        )
    os.putenv("KINETO_LOG_LEVEL", _SILENT)  # else its library tells stderr of each start; read at its first use in a process
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    profiling = profile(
        activities=activities,
        schedule=schedule(wait=first_block - capture.warmup, warmup=capture.warmup, active=num_blocks, repeat=1),
        with_stack=capture.with_stack,
        profile_memory=capture.profile_memory,
        record_shapes=capture.record_shapes,
        # a decoder's worker thread too; but with it torch 2.13 records no allocation
        experimental_config=_ExperimentalConfig(profile_all_threads=not capture.profile_memory),
    )
    done = 0
    with recording(_Regions(capture.regions)), profiling as profiler:
        for _ in blocks:
            done += 1
            if done == first_block + num_blocks:
                break
            profiler.step()
    if done < first_block + num_blocks:
        raise ConfigError(f"the clip has {done} frame blocks, too few to trace {num_blocks} from block {first_block}")
    return _export(profiler, path)


def _export(profiler: torch.profiler.profile, path: Path) -> TraceFile:
    """Write the trace under another name, compress it and rename it, so that `path` is whole or absent."""
    plain = path.with_name(path.name + ".plain")
    begun = plain.with_name(plain.name + ".tmp")  # as the profiler names what it has not finished
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(plain))
        if not _is_whole(plain):  # the profiler does not say why, nor that it failed
            full = shutil.disk_usage(path.parent).free < _LITTLE_BYTES
            raise OSError(errno.ENOSPC if full else errno.EIO, "the profiler did not come to the end of it")
        with plain.open("rb") as source, writing_whole(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        return TraceFile(path=path, sha256=file_sha256(path), size_bytes=path.stat().st_size)
    except OSError as error:
        raise not_written(path, error, _removed(plain, begun)) from error
    finally:
        _removed(plain, begun)


def _removed(*files: Path) -> int:
    """Remove files and return the bytes they had; the profiler may hold one open, so they are emptied first."""
    there = [file for file in files if file.exists()]
    size_bytes = sum(file.stat().st_size for file in there)
    for file in there:
        os.truncate(file, 0)
        file.unlink()
    return size_bytes


def _is_whole(plain: Path) -> bool:
    """Whether the profiler wrote the trace to its end."""
    if not plain.exists():
        return False
    with plain.open("rb") as file:
        file.seek(max(0, plain.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
