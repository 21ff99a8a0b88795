"""Settings from the environment; the only module that reads `os.environ`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Values of the environment variables that strobe reads.

    Args:
        config: `STROBE_CONFIG`: file of defaults of flags; empty if not set: it is looked for.
        check: `STROBE_CHECK` is on: what tensors of indices hold is checked on every device, and each call waits for it.
        cublaslt_workspace: `CUBLASLT_WORKSPACE_SIZE`, KiB; None if not set, or no number: torch chooses.
        launch_blocking: `CUDA_LAUNCH_BLOCKING` is on; timings are then serialised and labelled so.
        local_rank: `LOCAL_RANK`: number of this process among those of this machine; 0 without torchrun.
        local_world_size: `LOCAL_WORLD_SIZE`: processes that torchrun has started on this machine; 1 without it.
        nccl_blocking_wait: `TORCH_NCCL_BLOCKING_WAIT` is on: waiting for NCCL stops the CPU, and so can have a timeout.
        columns: `COLUMNS` is set: lines keep to that width where stdout is no terminal too.
        triton_interpret: `TRITON_INTERPRET` is on: Triton kernels run on the CPU, slowly, for tests.
        rank: `RANK`: number of this process among those that torchrun has started; 0 without it.
        torchrun: `TORCHELASTIC_RUN_ID` is set: torchrun has started this process.
        profile_dir: `STROBE_PROFILE_DIR`: where `strobe profile` writes unless it is told; empty if not set.
        profile_regions: `STROBE_PROFILE_REGIONS`: regions that `strobe profile` marks unless it is told, separated by commas.
    """

    config: str
    check: bool
    cublaslt_workspace: int | None
    launch_blocking: bool
    local_rank: int
    local_world_size: int
    nccl_blocking_wait: bool
    columns: bool
    triton_interpret: bool
    rank: int
    torchrun: bool
    profile_dir: str
    profile_regions: tuple[str, ...]


def read_settings() -> Settings:
    """Read the environment once, now."""
    workspace = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return Settings(
        config=os.environ.get("STROBE_CONFIG", ""),
        check=os.environ.get("STROBE_CHECK", "0") not in ("", "0"),
        cublaslt_workspace=int(workspace) if workspace.isdecimal() else None,
        launch_blocking=os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        nccl_blocking_wait=os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") not in ("", "0"),
        columns="COLUMNS" in os.environ,
        triton_interpret=os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"),
        rank=int(os.environ.get("RANK", "0")),
        torchrun="TORCHELASTIC_RUN_ID" in os.environ,
        profile_dir=os.environ.get("STROBE_PROFILE_DIR", ""),
        profile_regions=tuple(filter(None, map(str.strip, os.environ.get("STROBE_PROFILE_REGIONS", "").split(",")))),
    )


def forgo_cublaslt_workspace() -> None:
    """Let cuBLASLt choose among kernels that need no workspace: `CUBLASLT_WORKSPACE_SIZE=0`, unless the user has set it.

    Torch reads it once, at the first matrix product of the process. With a workspace cuBLASLt picks kernels that deal out tiles
    by a counter in it, which a memset clears before every product: slower, or no faster, for the layers of a 1.3B video
    transformer with 4,680 and with 1,170 rows (benchmarks/engine-h200). What it is for are products of few rows and a long sum.
    """
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")


def keep_fa4_kernels() -> None:
    """Let flash-attn-4 keep the kernels that it compiles in the user's cache folder, for the next process.

    It reads `FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED` and `FLASH_ATTENTION_CUTE_DSL_CACHE_DIR` when it is imported, and keeps
    nothing by default. A kernel takes seconds to compile. What is kept is found by a hash of its sources and the versions of its
    libraries. What the user has set stays. Nothing is set without a folder of the user's that can be written: FA4's own is in
    `/tmp`, where others can write, and its import fails if the folder cannot be made.
    """
    cache = cache_folder()
    if cache is None or "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED" in os.environ:
        return
    folder = cache / "strobe" / "fa4"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] = "1"
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder))


def silence_downloads() -> None:
    """Keep the hub's library from showing progress: `HF_HUB_DISABLE_PROGRESS_BARS=1`, unless the user has set it."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def heed_columns() -> None:
    """Drop `COLUMNS` if it is no positive number, and so no width: with 0, pages of `--help` would have no end."""
    if not os.environ.get("COLUMNS", "").strip("0").isdecimal():
        os.environ.pop("COLUMNS", None)


def environment(prefix: str) -> dict[str, str]:
    """Variables whose name begins with a prefix."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefix)}


def config_folder() -> Path | None:
    """Return the folder of a user's settings: `XDG_CONFIG_HOME`, or `~/.config`; None without a home."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def data_folder() -> Path | None:
    """Return the user's data folder: `XDG_DATA_HOME`, or `~/.local/share`; None without a home."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path | None:
    """Return the user's cache folder: `XDG_CACHE_HOME`, or `~/.cache`; None without a home."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def _user_folder(variable: str, usual: str) -> Path | None:
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # the specification ignores any other
        return Path(given)
    home = os.path.expanduser("~")
    return Path(home) / usual if os.path.isabs(home) else None


def inherited_environment() -> dict[str, str]:
    """Return all variables of this process, for a program that it starts."""
    return dict(os.environ)
