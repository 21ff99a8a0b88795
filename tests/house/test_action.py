"""The GitHub action as a script: its steps run in bash with inputs as environment variables and a summary that is a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from source import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")


def act(
    step: dict[str, Any], folder: Path, python: str = f'exec {sys.executable} "$@"', **inputs: str
) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does: inputs filled in where `env` names them, and nowhere else."""
    given = {name: str(one["default"]) for name, one in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    env = {name: _INPUT.sub(lambda found: given[found[1]], text) for name, text in step["env"].items()}
    (folder / "python").write_text(f"#!/bin/sh\n{python}\n")
    (folder / "python").chmod(0o755)
    env |= {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "GITHUB_ACTION_PATH": f"{folder}/action"}
    env |= dict.fromkeys(("HOME", "RUNNER_TEMP"), str(folder))
    env |= {name: str(folder / name.lower()) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def ran(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    (step,) = (step for step in STEPS if step.get("id") == "run")
    return act(step, folder, **inputs)


def summary(folder: Path) -> str:
    path = folder / "github_step_summary"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_no_input_is_put_into_the_text_of_a_script() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for step in STEPS:
        assert "run" in step or step["uses"].startswith("actions/setup-python@")
        assert "${{" not in step.get("run", ""), "inputs reach a script by its environment alone"
        assert step.get("shell", "bash") == "bash"
    used = set(_INPUT.findall((ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])


def test_the_manual_lists_every_input() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.M)) == set(ACTION["inputs"])
    example = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.S)[1])  # type: ignore[index]
    given = [step["with"] for step in example["jobs"]["speed"]["steps"] if step["uses"].startswith("OWNER/")]
    assert given and set(given[0]) <= set(ACTION["inputs"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "benchmarks" / "presets-h200", tmp_path / "a run", ignore=shutil.ignore_patterns("*.mp4", "traces"))
    return tmp_path


def test_a_run_folder_is_reported_gated_and_summed_up(folder: Path) -> None:
    done = ran(folder, run_folder="a run", require="e2e>=0.1\n\n  turbo:e2e<=0.5  \n")
    assert done.returncode == 1, done.stderr
    assert "not met: turbo: e2e is" in done.stdout and "<=0.5 required" in done.stdout
    assert summary(folder) == (folder / "a run" / "report.md").read_text(encoding="utf-8")
    outputs = dict(line.split("=", 1) for line in (folder / "github_output").read_text().splitlines())
    assert Path(outputs["json"]).is_file() and outputs["report"] == "a run/report.md"


def test_requirements_are_of_the_verb_and_not_of_the_programs_that_it_compares(folder: Path) -> None:
    command = "compare --rounds 2 --names old new -o programs -- 'sleep 0.02' -- 'sleep 0.01'"
    done = ran(folder, command=command, require="new:e2e>=1000")
    assert done.returncode == 1, done.stderr
    assert "not met: new: e2e is" in done.stdout and ">=1000 required" in done.stdout and summary(folder)


def test_a_speedup_of_traces_has_its_summary(folder: Path) -> None:
    traces = ROOT / "tests" / "data" / "h200"
    sides = " ".join(
        f"--{side}-trace {traces}/{name}.json.gz --focal-{side} _forward_kernel"
        for side, name in (("baseline", "eager"), ("candidate", "graph"))
    )
    command = f"speedup {sides} -o page"
    done = ran(folder, command=command, require="step>=1")
    assert done.returncode == 1 and "not met" in done.stdout, done.stderr  # they are not comparable
    assert summary(folder) == (folder / "page" / "report.md").read_text(encoding="utf-8")


def test_words_of_a_command_are_words_and_nothing_else(folder: Path) -> None:
    done = ran(folder, command="report 'a run' -o \"it's a $(touch hacked) `touch hacked` page\"")
    assert done.returncode == 0, done.stderr
    assert (folder / "it's a $(touch hacked) `touch hacked` page" / "report.md").is_file()
    assert not (folder / "hacked").exists()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "inputs",
    [
        {"run_folder": '"; touch hacked; "'},
        {"run_folder": "$(touch hacked)"},
        {"run_folder": "a run", "require": "e2e>=1 --out hacked"},
        {"run_folder": "a run", "require": "$(touch hacked)"},
        {"command": "report 'a run'; touch hacked"},
        {"command": "report 'a run"},
        {"run_folder": "--out=hacked"},
        {"run_folder": "a run", "require": '"; touch hacked; "'},
        {"command": "report 'a run' && touch hacked"},
        {"command": "report \n touch hacked"},
    ],
)
def test_what_is_hostile_is_text_and_an_error(folder: Path, inputs: dict[str, str]) -> None:
    done = ran(folder, **inputs)
    assert done.returncode != 0 and summary(folder) == ""
    assert not (folder / "hacked").exists()


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({}, 2, "::error::give either a command or a run-folder"),
        ({"command": "report x", "run_folder": "x"}, 2, "::error::give either a command or a run-folder"),
        ({"command": "report no-such-run"}, 2, "no-such-run"),  # the exit code is its own
        ({"run_folder": "a run"}, 0, ""),  # without a requirement
    ],
)
def test_what_is_given_is_run_or_refused(folder: Path, inputs: dict[str, str], code: int, said: str) -> None:
    done = ran(folder, **inputs)
    assert done.returncode == code and said in done.stdout + done.stderr and bool(summary(folder)) == (code == 0)


def test_packages_reach_pip_as_a_file_of_requirements(folder: Path) -> None:
    """Without a package the action installs itself."""
    (step,) = (step for step in STEPS if step.get("id") == "install")
    done = act(step, folder, 'cat "$5"', package="")
    assert done.returncode == 0 and done.stdout == f"{folder}/action\n"
    done = act(step, folder, 'printf "%s|" "$@"; cat "$5"', package="one>=1; touch hacked\n--two $(touch hacked)")
    assert done.returncode == 0 and not (folder / "hacked").exists()
    said, _, file = done.stdout.rpartition("|")
    assert said == f"-m|pip|install|--requirement|{folder}/strobe-requirements.txt"
    assert file == "one>=1; touch hacked\n--two $(touch hacked)\n"


def test_a_summary_has_room_for_a_megabyte(folder: Path) -> None:
    program = folder / "strobe"
    program.mkdir()
    (program / "__main__.py").write_text(
        'import json\nopen("long.md", "w").write("x" * 3_000_000)\nprint(json.dumps({"report": {"md": "long.md"}}))\n'
    )
    (program / "__init__.py").touch()
    done = ran(folder, command="report x")  # the folder that it runs in comes before all others
    assert done.returncode == 0, done.stderr
    assert 1_000_000 < len(summary(folder)) < 1_000_200 and "The rest stands in report.md" in summary(folder)
