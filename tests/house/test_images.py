"""The images and the GitHub action: what is copied is there, who runs in them, and steps that run as scripts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from source import ROOT

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction of a file and what stands behind it, lines that go on put together."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_image_is_pinned_locked_and_not_run_by_root(path: Path) -> None:
    found = instructions(path)
    images = [rest.split()[0] for name, rest in found if name == "FROM"]
    images += [word.partition("=")[2] for name, rest in found for word in rest.split() if word.startswith("--from=")]
    assert all(re.search(r":[\w.-]*\d", image) for image in images if image != "build"), images
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    users = [rest for name, rest in found[last:] if name == "USER"]
    assert users == ["strobe"] and any("useradd" in rest and " strobe" in rest for _, rest in found[last:])
    installs = [rest for name, rest in found if name == "RUN" and "pip install" in rest]
    locked = [rest for rest in installs if "--require-hashes" in rest]
    assert len(locked) == 1 and all("torch==" in rest or rest.endswith("--no-deps .") for rest in installs if rest not in locked)
    assert not any("--system" in rest and "useradd" in rest for _, rest in found), "an id above 999 is not a system user's"
    assert any(name == "HEALTHCHECK" and "/readyz" in rest for name, rest in found)
    assert ("ENTRYPOINT", '["strobe"]') in found
    # its user cannot write bytecode
    first = next(number for number, (name, rest) in enumerate(found) if name == "RUN" and "pip install" in rest)
    assert any(name == "ENV" and "UV_COMPILE_BYTECODE=1" in rest.split() for name, rest in found[:first])


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_what_an_image_copies_is_there_and_not_ignored(path: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = [
        word for name, rest in instructions(path) if name == "COPY" and "--from" not in rest for word in shlex.split(rest)[:-1]
    ]
    assert "*" in ignore and len(copied) > 4
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatchcase(name, each) for each in kept), f"{name} is ignored"


def test_a_container_that_writes_into_a_folder_of_the_host_runs_as_its_owner() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    shared = [line for line in page.splitlines() if line.startswith("docker run") and "$PWD" in line]
    assert shared and all('--user "$(id -u):$(id -g)"' in line for line in shared)


def test_only_the_proxy_of_the_compose_file_is_reached_from_outside() -> None:
    assert [path.stem.partition(".")[0] for path in FILES] == ["cpu", "cuda"]
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert [name for name, each in services.items() if "ports" in each] == ["caddy"]
    assert re.search(r":\d", services["caddy"]["image"]) and services["strobe"]["build"]["dockerfile"].endswith(
        "cuda.Dockerfile}"
    )
    command = services["strobe"]["command"]
    assert command[0] == "serve" and {"--keep", "--allow-host", "--insecure-http"} <= set(command)
    assert "STROBE_SERVE_TOKEN" in services["strobe"]["environment"] and "--token" not in command


SCRIPT = ROOT / ".ci" / "programs"
HERE = {"nginx": "exit 0", "openssl": "exit 0"}


def answered(programs: dict[str, str], folder: Path) -> str:
    """What the script says on a machine that has bash and these programs alone."""
    for name in ("bash", "timeout"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, body in programs.items():
        (folder / name).write_text(f"#!{folder}/bash\n{body}\n")
        (folder / name).chmod(0o755)
    told = subprocess.run([folder / "bash", SCRIPT], env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60)
    return told.stdout + told.stderr


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"chromium": "exit 0", **HERE}, ""),
        ({"chromium": "exit 0", "nginx": "exit 0"}, "no openssl, so tests that need them are skipped: this is no Debian"),
        ({}, "this is no Debian"),
        ({"apt-get": "exit 0", "id": "echo 1000"}, "not root"),
        ({"apt-get": "exit 100", "id": "echo 0"}, "failed"),
    ],
)
def test_programs_are_installed_or_one_line_says_why_not(programs: dict[str, str], said: str, tmp_path: Path) -> None:
    told = answered(programs, tmp_path)
    assert told.count("\n") == bool(said) and said in told


def test_programs_are_installed_where_it_can_be(tmp_path: Path) -> None:
    install = (
        f'printf "#!{tmp_path}/bash\\necho Chromium 1\\n" > {tmp_path}/chromium; {shutil.which("chmod")} +x {tmp_path}/chromium'
    )
    told = answered({"apt-get": f'case "$*" in *install*) {install};; esac', "id": "echo 0"} | HERE, tmp_path)
    assert told == ".ci/programs: installed chromium\n"


def test_continuous_integration_runs_it_before_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines.index("bash .ci/programs") < lines.index("make test test-all")


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
