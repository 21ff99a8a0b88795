"""Names that a shell completes, by the script that `strobe --install-completion` writes.

They stand here because a shell waits for them: importing presets and models takes seconds. A test holds them to the
originals.
"""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

PRESETS: Final = (
    "baseline", "quality", "balanced", "balanced_int8", "low_memory", "sparse", "turbo", "turbo_fp8", "turbo_int8", "ultra",
)  # fmt: skip
MODELS: Final = ("shapes", "wan-1.3b", "wan-14b", "wan-5b")
RECIPES: Final = (
    "self-forcing", "longlive", "causal-rcm", "causvid", "causal-wan", "krea", "rolling-forcing", "longlive-2", "wan",
)  # fmt: skip
DEVICES: Final = ("auto", "cpu", "cuda")

PresetName = Annotated[str, Parameter(completer=lambda context: PRESETS)]
ModelName = Annotated[str, Parameter(completer=lambda context: (*MODELS, *RECIPES[:4], *RECIPES[5:8]))]
RecipeName = Annotated[str, Parameter(completer=lambda context: RECIPES)]
DeviceName = Annotated[str, Parameter(completer=lambda context: DEVICES)]
