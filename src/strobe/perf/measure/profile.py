"""A traced run: torch.profiler over chosen frame blocks of a clip, kept apart from every timed run."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.measure.timing import recording

if TYPE_CHECKING:
    import torch

PREFIX: Final = "strobe::"
"""Regions stand in a trace as `strobe::<name>` or `strobe::<name>#<index>`."""

_SILENT: Final = "99"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFile:
    """A Chrome trace on the disk."""

    path: Path
    sha256: str
    size_bytes: int


class _Regions:
    """Span recorder of a traced run: every region becomes a profiler annotation."""

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        from torch.profiler import record_function

        return record_function(PREFIX + name if index is None else f"{PREFIX}{name}#{index}")


def trace_blocks(blocks: Iterable[object], *, device: torch.device, first_block: int, num_blocks: int, path: Path) -> TraceFile:
    """Run frame blocks `0 .. first_block + num_blocks - 1` and profile the last `num_blocks` of them.

    Args:
        blocks: makes one frame block per item; no more of it is consumed than needed.
        device: the device to profile besides the CPU.
        first_block: at least 1: the block before it warms the profiler up.
        num_blocks: at least 1.
        path: the trace to write, `*.json.gz`; its folder is made.

    Raises:
        ConfigError: the range is not possible, or the clip ends before it.
        StrobeError: the trace cannot be written.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile, schedule

    if first_block < 1 or num_blocks < 1:
        raise ConfigError(f"cannot trace {num_blocks} frame blocks from block {first_block}; both must be at least 1")
    os.putenv("KINETO_LOG_LEVEL", _SILENT)  # the profiler's library would report each start and stop on stderr
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    plan = schedule(wait=first_block - 1, warmup=1, active=num_blocks, repeat=1)
    threads = _ExperimentalConfig(profile_all_threads=True)  # a decoder's worker thread too
    done = 0
    with recording(_Regions()), profile(activities=activities, schedule=plan, experimental_config=threads) as profiler:
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
    plain, packed = path.with_name(path.name + ".plain"), path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, packed.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        os.replace(packed, path)
        return TraceFile(path=path, sha256=file_sha256(path), size_bytes=path.stat().st_size)
    except OSError as error:
        raise StrobeError(f"cannot write the trace {path}: {error.strerror or error}") from error
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
