"""What the environment may set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.core.settings import forgo_cublaslt_workspace, keep_fa4_kernels, read_settings

FA4 = ("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")


@pytest.mark.parametrize(("value", "on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_launch_blocking(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    if value is None:
        monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    else:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert read_settings().launch_blocking is on


@pytest.mark.parametrize("given", [(None, None), ("0", None), ("1", None), (None, "/elsewhere")])
def test_fa4_keeps_its_kernels_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str | None, str | None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in zip(FA4, given, strict=True):
        monkeypatch.setenv(name, value or "")  # so that what the call sets is taken back
        if value is None:
            monkeypatch.delenv(name)
    keep_fa4_kernels()
    enabled, folder = given
    wanted = (enabled, folder) if enabled else ("1", folder or str(tmp_path / "strobe" / "fa4"))
    assert tuple(os.environ.get(name) for name in FA4) == wanted


def test_fa4_keeps_nothing_where_the_folder_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "strobe").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in FA4:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    keep_fa4_kernels()
    assert not {*FA4} & {*os.environ}


@pytest.mark.parametrize("installed", [True, False])
def test_fa4_keeps_its_kernels_where_it_is_installed(tmp_path: Path, installed: bool) -> None:
    """FA4 reads both variables when it is imported, so they are set before anything imports it."""
    site, cache = tmp_path / "site", tmp_path / "cache"
    for module, distribution, version in (("flash_attn", "flash_attn_4", "4.0.0b36"), ("cutlass", "nvidia_cutlass_dsl", "4.8.1")):
        (site / module).mkdir(parents=True)
        (site / module / "__init__.py").touch()
        told = site / f"{distribution}-{version}.dist-info" / "METADATA"
        told.parent.mkdir()
        told.write_text(f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: {version}\n")
    code = f"import strobe.attention.impls, os; print(*(os.environ.get(name) for name in {FA4}))"
    plain = {name: value for name, value in os.environ.items() if name not in FA4} | {"XDG_CACHE_HOME": str(cache)}
    paths = [str(site)] if installed else []
    plain["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=plain)
    assert done.stdout.split() == (["1", str(cache / "strobe" / "fa4")] if installed else ["None", "None"])


def test_no_workspace_for_cublaslt_unless_the_user_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "")  # so that what the call sets is taken back
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE")
    assert read_settings().cublaslt_workspace is None
    forgo_cublaslt_workspace()
    assert read_settings().cublaslt_workspace == 0
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    forgo_cublaslt_workspace()
    assert read_settings().cublaslt_workspace == 4096
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "much")
    assert read_settings().cublaslt_workspace is None


def test_where_and_what_a_profile_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STROBE_PROFILE_DIR", "STROBE_PROFILE_REGIONS"):
        monkeypatch.delenv(name, raising=False)
    assert (read_settings().profile_dir, read_settings().profile_regions) == ("", ())
    monkeypatch.setenv("STROBE_PROFILE_DIR", "out dir")
    monkeypatch.setenv("STROBE_PROFILE_REGIONS", " dit_forward, ,attention,")
    assert (read_settings().profile_dir, read_settings().profile_regions) == ("out dir", ("dit_forward", "attention"))
