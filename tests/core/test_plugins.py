"""Other packages: one that is built here adds attention; a broken one stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from source import PACKAGE

CODE = """
from dataclasses import replace
from strobe.attention.dense.impl import reference
from strobe.attention.impls import Impl

RIGHT = replace(reference.IMPL, name="plugged", operator="dense", portable=True, kernel="")

def doubled(q, k, v, spec):
    found = reference.IMPL.run(q, k, v, spec)
    return replace(found, out=2 * found.out)

WRONG = Impl(name="doubled", refuses=lambda spec: None, run=doubled, operator="dense")
"""
GROUP = "strobe.attention.dense"
ENTRIES = {
    "plugged": "plugged_package:RIGHT",
    "doubled": "plugged_package:WRONG",
    "three": "plugged_package:__name__",
    "gone": "no_such_module:IMPL",
}
# What one Python says that has the package installed: commands, the gates, calls by name. One process, because each would import
# torch again, and none changes what the next finds.
DRIVER = """
import contextlib, io, json, traceback
from itertools import islice
import torch, strobe
from strobe.attention.dense.api import IMPLS
from strobe.attention.gates.run import GATED, find_cases, run_gate
from strobe.cli.main import main
from strobe.core.device import Card

def few(operator, impl, device):
    return tuple(islice(find_cases(operator, impl, device), 6))

def gates():
    ours = {impl.name: impl for impl in IMPLS}
    card = Card(vendor="nvidia", architecture="sm_90", name="H200", capability=(9, 0))
    found = {n: run_gate(ours[n], torch.device("cpu"), lambda *told: None, few) for n in ("plugged", "doubled")}
    doubts = ours["plugged"].untested(card, ())
    return {"found": found, "gated": list(GATED["dense"]), "doubts": doubts, "portable": ours["plugged"].portable}

def mean_of(impl):
    q = torch.ones(1, 3, 2, 8)
    return strobe.dense_attention(q, q, q, impl=impl).out.mean().item()

def run(work):
    out, err = io.StringIO(), io.StringIO()
    value = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            value = work()
        except Exception:
            traceback.print_exc()
    return {"value": value, "out": out.getvalue(), "err": err.getvalue()}

if __name__ == "__main__":
    told = {impl: run(lambda: mean_of(impl)) for impl in ("plugged", "doubled", "three")}
    doctor = run(lambda: main(["doctor", "--device", "cpu", "--json"]))
    print(json.dumps(told | {"doctor": doctor, "gates": run(gates)}))
"""


Said = dict[str, dict[str, Any]]
"""What became of each piece of the driver's work: the value it returned, and what it printed."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Run the driver where the package is installed: its module and its metadata are on the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "plugged_package.py").write_text(CODE)
    (site / "driver.py").write_text(DRIVER)
    info = site / "plugged_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-package\nVersion: 1.2\n")
    (info / "RECORD").write_text("plugged_package.py,,\n")
    entries = "".join(f"{name} = {place}\n" for name, place in ENTRIES.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    path = os.pathsep.join([str(PACKAGE.parent), str(site)])
    done = subprocess.run(
        [sys.executable, "driver.py"],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STROBE_CONFIG": os.devnull},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: Said = json.loads(done.stdout)
    return found


def test_doctor_lists_what_is_there_and_what_is_broken(said: Said) -> None:
    assert said["doctor"]["value"] == 0, said["doctor"]["err"]
    document = json.loads(said["doctor"]["out"])
    found = {(each["group"], each["name"]): each["broken"] for each in document["plugins"]}
    assert set(found) == {(GROUP, name) for name in ENTRIES}
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


def test_attention_of_a_package_is_held_to_the_gate_of_ours(said: Said) -> None:
    told = said["gates"]["value"]
    assert told, said["gates"]["err"]
    passed, refused, failed = told["found"]["plugged"]
    assert passed + refused == 6 and passed > 0 and failed == ""
    assert told["found"]["doubled"][0] == 0 and told["found"]["doubled"][2].startswith("output, float32-1x1")
    assert {"plugged", "doubled"} <= set(told["gated"]) and not told["portable"], "whatever the package says of itself"
    assert told["doubts"].startswith("its gate has not been run on compute capability 9.0 with these kernels; strobe doctor")


def test_attention_of_a_package_runs_by_its_name(said: Said) -> None:
    assert said["plugged"]["value"] == pytest.approx(1.0)
    assert said["doubled"]["value"] == pytest.approx(2.0)
    refused = "impl 'three' cannot run: plug-in 'three' (plugged_package:__name__ of plugged-package 1.2) is broken"
    assert refused in said["three"]["err"]
