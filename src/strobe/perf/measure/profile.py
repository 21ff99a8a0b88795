"""Traced runs, separate from timed runs: chosen frame blocks with operators, or a whole clip with device events and regions."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from strobe.core.device import synchronize
from strobe.core.errors import ConfigError
from strobe.core.files import not_written, writing_whole
from strobe.core.spans import FRAME_BLOCK, PIECES, TRACEABLE, Recorder, check_regions, recording

if TYPE_CHECKING:
    import torch

PREFIX: Final = "strobe::"
"""Prefix of our regions in a trace: `strobe::<name>` or `strobe::<name>#<index>`."""

_SILENT: Final = "99"
_LITTLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """Settings of a traced run: which frame blocks, regions and details are recorded.

    Stacks, memory and shapes slow the host down, by a different amount for each event: a trace with one of them shows what calls
    what, not how long it takes. `options` names those that are on.

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
        """Names of the enabled options that distort times."""
        chosen = {"with_stack": self.with_stack, "profile_memory": self.profile_memory, "record_shapes": self.record_shapes}
        return tuple(name for name, on in chosen.items() if on)


def _marks(chosen: tuple[str, ...], made: Callable[[], None] | None = None) -> Recorder:
    """Return the recorder of a traced run: every chosen region becomes a profiler annotation.

    Args:
        chosen: regions to mark; frame blocks always are. Empty: all but `PIECES`.
        made: called when a frame block has been made, after its region has closed.
    """
    from torch.profiler import record_function

    def region(name: str, index: int | None) -> AbstractContextManager[object]:
        if (name in PIECES) if not chosen else name not in (*chosen, FRAME_BLOCK):
            return nullcontext()
        mark = record_function(PREFIX + name if index is None else f"{PREFIX}{name}#{index}")
        return mark if name != FRAME_BLOCK or made is None else _then(mark, made)

    return region


@contextmanager
def _then(region: AbstractContextManager[object], after: Callable[[], None]) -> Iterator[None]:
    with region:
        yield
    after()


def trace_blocks(
    blocks: Iterable[object], *, device: torch.device, first_block: int, num_blocks: int, path: Path, capture: Capture = Capture()
) -> None:
    """Run the first frame blocks of a clip and profile the last `num_blocks` of them, operators included.

    The window opens and closes where the regions of frame blocks do, so it holds the frame blocks that were made in it even if
    their frames are handed out later. Without such regions an item is a frame block.

    Args:
        blocks: makes one frame block per item; no more of it is consumed than needed.
        device: the device to profile besides the CPU.
        first_block: first frame block of the trace; at least `capture.warmup`: the blocks before it warm the profiler up.
        num_blocks: at least 1.
        path: the trace to write, `*.json.gz`; its folder is made.

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
    counts, last = {"made": 0, "handed out": 0}, first_block + num_blocks

    def count(what: str) -> None:
        before = max(counts.values())
        counts[what] += 1
        if before < max(counts.values()) <= last:
            profiling.step()

    with recording(_marks(capture.regions, partial(count, "made"))), profiling:
        for _ in blocks:
            count("handed out")
            if max(counts.values()) >= last:
                break
    if (done := max(counts.values())) < last:
        raise ConfigError(f"the clip has {done} frame blocks, too few to trace {num_blocks} from block {first_block}")
    _export(profiling.export_chrome_trace, path)


def trace_clip(clip: Callable[[], None], *, device: torch.device, path: Path, warm_up: Callable[[], None]) -> None:
    """Run a whole clip and record what the device did, the calls that launched it, and all of our regions.

    Operators and stacks are left out, because recording them slows the host down by several microseconds per operator.

    Args:
        device: the device to profile besides the CPU.
        path: the trace to write, `*.json.gz`; its folder is made.
        warm_up: some of such a clip; runs under the profiler and is thrown away.
    """
    from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
    from torch._C._profiler import ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    os.putenv("KINETO_LOG_LEVEL", _SILENT)
    activities = {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if device.type == "cuda" else set())
    config = ProfilerConfig(
        ProfilerState.KINETO,
        report_input_shapes=False,
        profile_memory=False,
        with_stack=False,
        with_flops=False,
        with_modules=False,
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    )

    with recording(_marks(TRACEABLE)):
        _prepare_profiler(config, activities)
        warm_up()
        synchronize(device)
        _enable_profiler(config, activities, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]  # its stub lacks scopes
        try:
            clip()
            synchronize(device)
        finally:
            result = _disable_profiler()
    _export(result.save, path, slim=True)


_UNREAD: Final = frozenset({"ac2g", "gpu_user_annotation"})
"""Categories left out: arrows from calls to kernels (their correlation says the same) and our marks repeated on device rows."""
_MARK: Final = "user_annotation"
_LAUNCHED: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
_ARGS: Final = frozenset({"correlation", "device", "stream", "grid", "block", "bytes"})


def _slim(path: Path) -> None:
    """Remove from a trace what no analysis needs, and sort similar events together: a sixth of the size is left.

    Left out are arrows, copies of marks, calls that launched nothing, arguments of marks, and arguments of calls and device
    events that are not in `_ARGS`. Events are sorted by kind and name; equal ones keep their order.
    """
    trace = msgspec.json.decode(path.read_bytes())
    events = [event for event in trace["traceEvents"] if event.get("cat") not in _UNREAD]
    launches = {event.get("args", {}).get("correlation") for event in events if event.get("cat") in _LAUNCHED}
    kept = []
    for event in events:
        category, args = event.get("cat"), event.get("args", {})
        if category in _CALLS and args.get("correlation") not in launches:
            continue
        if category == _MARK:
            event.pop("args", None)
        elif category in _CALLS or category in _LAUNCHED:
            event["args"] = {name: value for name, value in args.items() if name in _ARGS}
        kept.append(event)
    kept.sort(key=lambda event: (str(event.get("cat")), str(event.get("name"))))
    path.write_bytes(msgspec.json.encode({**trace, "traceEvents": kept}))


def _export(save: Callable[[str], object], path: Path, *, slim: bool = False) -> None:
    """Write the trace under another name, compress it and rename it, so that `path` is complete or absent."""
    plain = path.with_name(path.name + ".plain")
    begun = plain.with_name(plain.name + ".tmp")  # as the profiler names what it has not finished
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(str(plain))
        if not _is_whole(plain):  # the profiler does not say why, nor that it failed
            full = shutil.disk_usage(path.parent).free < _LITTLE_BYTES
            raise OSError(errno.ENOSPC if full else errno.EIO, "the profiler did not come to the end of it")
        if slim:
            _slim(plain)
        with plain.open("rb") as source, writing_whole(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except OSError as error:
        raise not_written(path, error, _removed(plain, begun)) from error
    finally:
        _removed(plain, begun)


def _removed(*files: Path) -> int:
    """Remove files and return their size, bytes; the profiler may hold one open, so they are emptied first."""
    there = [file for file in files if file.exists()]
    size_bytes = sum(file.stat().st_size for file in there)
    for file in there:
        os.truncate(file, 0)
        file.unlink()
    return size_bytes


def _is_whole(plain: Path) -> bool:
    if not plain.exists():
        return False
    with plain.open("rb") as file:
        file.seek(max(0, plain.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
