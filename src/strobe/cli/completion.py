"""Completion of words in a shell: the script that `strobe --install-completion` writes, and the names that it offers.

The names stand here because a shell waits for them: importing presets and models takes seconds. A test holds them to the
originals.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.core.errors import ConfigError

PRESETS: Final = (
    "baseline",
    "quality",
    "balanced",
    "balanced_int8",
    "low_memory",
    "sparse",
    "speed",
    "turbo",
    "turbo_fp8",
    "ultra",
)
MODELS: Final = ("shapes", "wan-1.3b", "wan-14b", "wan-5b")
RECIPES: Final = (
    "self-forcing",
    "longlive",
    "causal-rcm",
    "causvid",
    "causal-wan",
    "krea",
    "rolling-forcing",
    "longlive-2",
    "wan",
)
DEVICES: Final = ("auto", "cpu", "cuda")

PresetName = Annotated[str, Parameter(completer=lambda context: PRESETS)]
ModelName = Annotated[str, Parameter(completer=lambda context: (*MODELS, *RECIPES[:4], *RECIPES[5:8]))]
RecipeName = Annotated[str, Parameter(completer=lambda context: RECIPES)]
DeviceName = Annotated[str, Parameter(completer=lambda context: DEVICES)]


def install_completion(shell: Literal["bash", "zsh", "fish"] | None = None, /, *, output: Output = Output()) -> None:
    """Let the shell complete verbs, flags, presets, models and devices.

    ```
    strobe --install-completion  # needs-files
    strobe --install-completion zsh  # needs-files
    ```

    Writes a script into your home folder, and for bash and zsh a line that loads it into ~/.bashrc or ~/.zshrc.

    Args:
        shell: bash, zsh or fish; by default the one that runs this.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from strobe.cli.app import app

    try:
        found = shell or detect_shell()
    except ShellDetectionError as error:
        raise ConfigError(
            "which shell runs this cannot be told; name it: strobe --install-completion bash, zsh or fish"
        ) from error
    path = app.install_completion(shell=found)
    output.show(f"{path}: restart {found}, or run: exec {found}")
    output.emit({"path": str(path), "shell": found})
