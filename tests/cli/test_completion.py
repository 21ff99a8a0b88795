"""Completion of words in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from source import PACKAGE
from strobe.cli import completion
from strobe.cli.app import app
from strobe.engine.load import SHAPES
from strobe.engine.presets import PRESETS
from strobe.models.wan.config import SIZES
from strobe.models.wan.recipes import RECIPES
from terminal import Strobe


def test_the_names_are_the_originals() -> None:
    assert tuple(PRESETS) == completion.PRESETS and (*SHAPES.models, *SIZES) == completion.MODELS
    assert sorted(completion.RECIPES) == sorted(RECIPES)


@pytest.mark.parametrize(
    ("shell", "file", "loader"),
    [
        ("bash", ".local/share/bash-completion/completions/strobe", ".bashrc"),
        ("zsh", ".zsh/completions/_cyclopts_strobe", ".zshrc"),
        ("fish", ".config/fish/completions/strobe.fish", ""),
    ],
)
def test_the_script_of_a_shell_knows_verbs_flags_and_choices(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, loader: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZSH", raising=False)
    monkeypatch.delenv("ZSH_CUSTOM", raising=False)
    done = strobe("--install-completion", "--shell", shell)
    assert done.code == 0 and str(tmp_path / file) in done.out
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert all(word in text for word in ("presets", "random-weights", "interpolate", "--config" if shell != "fish" else "config"))
    assert not loader or str((tmp_path / file).parent) in (tmp_path / loader).read_text(encoding="utf-8")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ser"], {"serve"}),
        (["generate", "--random-w"], {"--random-weights"}),
        (["generate", "--preset", "tur"], {"turbo", "turbo_fp8"}),
        (["serve", "--model", "wan"], {"wan-1.3b", "wan-5b", "wan-14b"}),
        (["compare", "base"], {"baseline"}),
        (["generate", "--mode", "so"], {"soft"}),
    ],
)
def test_bash_completes(tmp_path: Path, typed: list[str], offered: set[str]) -> None:
    program, script, loaded = tmp_path / "strobe", tmp_path / "complete.bash", tmp_path / "loaded"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from strobe.cli.main import main\ncode = main()\n"
        f"open({str(loaded)!r}, 'w').write(' '.join(sys.modules))\nsys.exit(code)\n"
    )
    program.chmod(0o755)
    script.write_text(app.generate_completion(shell="bash"))
    words = " ".join(("strobe", *typed))
    code = f'source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _strobe; printf "%s\\n" "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert {word.strip() for word in done.stdout.split("\n") if word.strip()} == offered, done.stderr
    assert not loaded.exists() or "torch" not in loaded.read_text().split(), "a shell waits for this"
