"""Video diffusion made fast, and the proof of it: a streaming engine and an instrument whose numbers add up.

```python
import strobe

with strobe.Session("a red circle moving left", preset="balanced") as session:
    for block in session.stream(seconds=10):
        show(block.frames)  # uint8 [F, Y, X, 3]
```

Names resolve when they are first used: importing this package loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from strobe.attention.dense.api import dense_attention
    from strobe.attention.dense.eight.api import attend_rounded, eightbit_attention, round_keys, store_rounded
    from strobe.attention.explain import explain
    from strobe.attention.sparse.api import block_sparse_attention
    from strobe.attention.sparse.coarse import Estimator, Forced
    from strobe.attention.sparse.history import History, history_attention
    from strobe.attention.sparse.layout import TileLayout, tile_layout
    from strobe.attention.sparse.packed import PackedLayout, block_sparse_attention_varlen, video_sparse_attention_varlen
    from strobe.attention.sparse.selection import BlockSelection
    from strobe.attention.sparse.video import video_sparse_attention
    from strobe.attention.state import merge
    from strobe.attention.tree.api import tree_attention
    from strobe.attention.tree.comm import CollectiveError
    from strobe.attention.tree.placement import KVShards
    from strobe.attention.types import AttentionOutput
    from strobe.bench.probe import probe
    from strobe.comparing import compare
    from strobe.core.errors import (
        ConfigError,
        DataError,
        ImplUnavailableError,
        SessionError,
        ShapeError,
        StrobeError,
        WeightsError,
    )
    from strobe.core.spans import recording, span, spanned
    from strobe.eightbit.rounded import RoundedKeys
    from strobe.engine.config import EngineConfig, Knobs
    from strobe.engine.parallel.group import DeviceGroup
    from strobe.engine.presets import preset
    from strobe.engine.prompts import Switch
    from strobe.engine.session import Session
    from strobe.engine.video import VideoFile
    from strobe.integrations.diffusers.capture import capture
    from strobe.perf.measure.machine import describe_run
    from strobe.perf.measure.timing import TimingRecorder, span_records
    from strobe.perf.records.store import RunWriter, create_run, read_run
    from strobe.perf.report.documents.api import ComparedCalls, compare_runs, compare_traces, read_trace

__version__ = "0.1.0"

__all__ = [
    "AttentionOutput",
    "BlockSelection",
    "CollectiveError",
    "ComparedCalls",
    "ConfigError",
    "DataError",
    "DeviceGroup",
    "EngineConfig",
    "Estimator",
    "Forced",
    "History",
    "ImplUnavailableError",
    "KVShards",
    "Knobs",
    "PackedLayout",
    "RoundedKeys",
    "RunWriter",
    "Session",
    "SessionError",
    "ShapeError",
    "StrobeError",
    "Switch",
    "TileLayout",
    "TimingRecorder",
    "VideoFile",
    "WeightsError",
    "__version__",
    "attend_rounded",
    "block_sparse_attention",
    "block_sparse_attention_varlen",
    "capture",
    "compare",
    "compare_runs",
    "compare_traces",
    "create_run",
    "dense_attention",
    "describe_run",
    "eightbit_attention",
    "explain",
    "history_attention",
    "merge",
    "preset",
    "probe",
    "read_run",
    "read_trace",
    "recording",
    "round_keys",
    "span",
    "span_records",
    "spanned",
    "store_rounded",
    "tile_layout",
    "tree_attention",
    "video_sparse_attention",
    "video_sparse_attention_varlen",
]

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "strobe.attention.dense.api": ("dense_attention",),
    "strobe.attention.dense.eight.api": ("attend_rounded", "eightbit_attention", "round_keys", "store_rounded"),
    "strobe.eightbit.rounded": ("RoundedKeys",),
    "strobe.attention.explain": ("explain",),
    "strobe.attention.sparse.api": ("block_sparse_attention",),
    "strobe.attention.sparse.video": ("video_sparse_attention",),
    "strobe.attention.sparse.coarse": ("Estimator", "Forced"),
    "strobe.attention.sparse.history": ("History", "history_attention"),
    "strobe.attention.sparse.layout": ("TileLayout", "tile_layout"),
    "strobe.attention.sparse.packed": ("PackedLayout", "block_sparse_attention_varlen", "video_sparse_attention_varlen"),
    "strobe.attention.sparse.selection": ("BlockSelection",),
    "strobe.attention.state": ("merge",),
    "strobe.attention.tree.api": ("tree_attention",),
    "strobe.attention.tree.comm": ("CollectiveError",),
    "strobe.attention.tree.placement": ("KVShards",),
    "strobe.attention.types": ("AttentionOutput",),
    "strobe.core.errors": (
        "ConfigError",
        "DataError",
        "ImplUnavailableError",
        "SessionError",
        "ShapeError",
        "StrobeError",
        "WeightsError",
    ),
    "strobe.bench.probe": ("probe",),
    "strobe.comparing": ("compare",),
    "strobe.core.spans": ("recording", "span", "spanned"),
    "strobe.engine.config": ("EngineConfig", "Knobs"),
    "strobe.engine.presets": ("preset",),
    "strobe.engine.prompts": ("Switch",),
    "strobe.engine.parallel.group": ("DeviceGroup",),
    "strobe.engine.session": ("Session",),
    "strobe.engine.video": ("VideoFile",),
    "strobe.integrations.diffusers.capture": ("capture",),
    "strobe.perf.measure.machine": ("describe_run",),
    "strobe.perf.measure.timing": ("TimingRecorder", "span_records"),
    "strobe.perf.records.store": ("RunWriter", "create_run", "read_run"),
    "strobe.perf.report.documents.api": ("ComparedCalls", "compare_runs", "compare_traces", "read_trace"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    if name not in _HOME_OF:
        from strobe.core.errors import nearest

        raise AttributeError(f"module 'strobe' has no attribute {name!r}{nearest(name, _HOME_OF)}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
