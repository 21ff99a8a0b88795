"""Other packages: one that is built here adds models, attention and a section of the report; a broken one stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from source import PACKAGE, ROOT

CODE = """
from dataclasses import replace
from strobe.attention.dense.impl import reference
from strobe.attention.impls import Impl
from strobe.engine.family import Family
from strobe.engine.load import load, model_parts
from strobe.perf.report.model import Section

FAMILY = Family(
    name="tiny", models=("tiny-1b",), holds=lambda folder: False,
    load=lambda name, given: replace(load("shapes"), name=f"plugged {name}"), parts=lambda name, size: model_parts("shapes"),
)
RIGHT = replace(reference.IMPL, name="plugged", operator="dense", portable=True, kernel="")

def doubled(q, k, v, spec):
    found = reference.IMPL.run(q, k, v, spec)
    return replace(found, out=2 * found.out)

WRONG = Impl(name="doubled", refuses=lambda spec: None, run=doubled, operator="dense")

def sections(study):
    return [Section(id="mine", title="Added by a package", lead=f"{len(study.runs)} run", blocks=())]

def fails(study):
    raise KeyError("no such table")
"""
ENTRIES = {
    "strobe.families": {"tiny": "plugged_package:FAMILY", "gone": "no_such_module:FAMILY"},
    "strobe.attention.dense": {
        "plugged": "plugged_package:RIGHT",
        "doubled": "plugged_package:WRONG",
        "three": "plugged_package:__name__",
    },
    "strobe.report": {"mine": "plugged_package:sections", "fails": "plugged_package:fails"},
}
GATES = """
import json, torch
from strobe.attention.dense.api import IMPLS
from strobe.attention.gates.run import GATED, run_gate
from strobe.core.device import Card
few = __import__("plugged_cases").few
if __name__ == "__main__":
    ours = {impl.name: impl for impl in IMPLS}
    card = Card(vendor="nvidia", architecture="sm_90", name="H200", capability=(9, 0))
    found = {n: run_gate(ours[n], torch.device("cpu"), lambda *told: None, few) for n in ("plugged", "doubled")}
    doubts = ours["plugged"].untested(card, ())
    print(json.dumps({"found": found, "gated": list(GATED["dense"]), "doubts": doubts, "portable": ours["plugged"].portable}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a Python that has the package installed: its module and its metadata are on the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "plugged_package.py").write_text(CODE)
    (site / "plugged_cases.py").write_text(
        "from itertools import islice\nfrom strobe.attention.gates.run import find_cases\n"
        "def few(operator, impl, device):\n    return tuple(islice(find_cases(operator, impl, device), 6))\n"
    )
    info = site / "plugged_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-package\nVersion: 1.2\n")
    (info / "RECORD").write_text("plugged_package.py,,\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in found.items()) for group, found in ENTRIES.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    path = os.pathsep.join([str(PACKAGE.parent), str(site)])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STROBE_CONFIG": os.devnull}


def run(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=600)


def test_doctor_lists_what_is_there_and_what_is_broken(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, tmp_path, "-m", "strobe", "doctor", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {(each["group"], each["name"]): each["broken"] for each in document["plugins"]}
    assert set(found) == {(group, name) for group, entries in ENTRIES.items() for name in entries}
    assert {each["package"] for each in document["plugins"]} == {"plugged-package 1.2"}
    assert {name: why for (_, name), why in found.items() if why} == {
        "gone": "it cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        "three": "it is a str, not a strobe.attention.impls.Impl",
    }
    states = {(each["operator"], each["name"]): each for each in document["attention"]["impls"]}
    assert states["dense", "plugged"]["state"] == "runs" and ("sparse", "plugged") not in states
    assert states["dense", "three"]["detail"] == (
        "plug-in 'three' (plugged_package:__name__ of plugged-package 1.2) is broken: it is a str, not a "
        "strobe.attention.impls.Impl; mend or uninstall plugged-package 1.2"
    )
    assert document["attention"]["runs"] == "sdpa", "auto takes ours"


def test_a_model_of_a_package_makes_frames(environment: dict[str, str], tmp_path: Path) -> None:
    command = ["-m", "strobe", "generate", "a red circle moving left", "--blocks", "1", "--device", "cpu", "--json", "--force"]
    done = run(environment, tmp_path, *command, "--model", "tiny-1b")
    assert done.returncode == 0 and json.loads(done.stdout)["model"] == "plugged tiny-1b", done.stderr
    done = run(environment, tmp_path, *command, "--model", "gone-1b")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "; family 'gone' (no_such_module:FAMILY of plugged-package 1.2) is broken: it cannot be imported" in done.stderr


def test_attention_of_a_package_is_held_to_the_gate_of_ours(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "gates.py").write_text(GATES)
    done = run(environment, tmp_path, "gates.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    passed, refused, failed = told["found"]["plugged"]
    assert passed + refused == 6 and passed > 0 and failed == ""
    assert told["found"]["doubled"][0] == 0 and told["found"]["doubled"][2].startswith("output, float32-1x1")
    assert {"plugged", "doubled"} <= set(told["gated"]) and not told["portable"], "whatever the package says of itself"
    assert (
        told["doubts"] == "its gate has not been run on compute capability 9.0 with these kernels; strobe doctor --gate runs it"
    )


def test_attention_of_a_package_runs_by_its_name(environment: dict[str, str], tmp_path: Path) -> None:
    call = "strobe.dense_attention(q, q, q, impl={!r}).out.mean().item()"
    code = f"import torch, strobe; q = torch.ones(1, 3, 2, 8); print(round({call}, 4))"
    assert run(environment, tmp_path, "-c", code.format("plugged")).stdout == "1.0\n"
    assert run(environment, tmp_path, "-c", code.format("doubled")).stdout == "2.0\n"
    done = run(environment, tmp_path, "-c", code.format("three"))
    assert "impl 'three' cannot run: plug-in 'three' (plugged_package:__name__ of plugged-package 1.2) is broken" in done.stderr


def test_a_section_of_a_package_is_on_the_page_and_a_broken_one_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    runs = ROOT / "benchmarks" / "presets-h200"
    done = run(environment, tmp_path, "-m", "strobe", "report", str(runs), "-o", str(tmp_path / "page"))
    assert done.returncode == 0, done.stderr
    assert "Added by a package" in (tmp_path / "page" / "report.md").read_text(encoding="utf-8")
    assert done.stderr.splitlines()[0].endswith(
        "plug-in 'fails' (plugged_package:fails of plugged-package 1.2) is left out: KeyError: 'no such table'; "
        "mend or uninstall plugged-package 1.2"
    )
