"""`strobe doctor` and `strobe presets`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from documents import DoctorOutput
from strobe.attention.gates import run
from strobe.attention.gates.run import Outcome
from strobe.attention.impls import GateRun, parse_gates
from strobe.cli import doctor as doctor_module
from strobe.cli.console import Output
from strobe.core import device
from strobe.core.device import total_bytes
from strobe.core.errors import WeightsError
from strobe.engine import load
from strobe.engine.presets import PRESETS
from strobe.perf.measure import machine
from terminal import Strobe


def test_it_says_what_this_machine_has(strobe: Strobe) -> None:
    result = strobe("doctor", "--device", "cpu", "--json")
    assert result.code == 0, result.out
    document = result.document
    assert [check["name"] for check in document["checks"] if check["ok"]] == ["torch", "weights", "video"]
    assert document["machine"]["torch"] == torch.__version__ and document["machine"]["device"] == "cpu"
    assert document["attention"]["runs"] not in document["attention"]["passed_over"]
    assert document["attention"]["passed_over"] and all(document["attention"]["passed_over"].values())
    states = {(impl["operator"], impl["name"]): impl for impl in document["attention"]["impls"]}
    assert states["sparse", "cpu"]["state"] == states["dense", "sdpa"]["state"] == "runs"
    assert states["sparse", "cudnn"]["state"] == "missing" and "runs on a GPU" in states["sparse", "cudnn"]["detail"]
    assert document["presets"]["baseline"]["ring_cache"] == {"on": False, "reason": ""}
    assert document["metrics"]["psnr"] == "measured" and "weights" in document["metrics"]["lpips"]


def test_the_page_for_people_has_the_same(strobe: Strobe) -> None:
    out = strobe("doctor", "--device", "cpu").out
    memory = total_bytes()
    assert memory is not None
    for words in ("torch", "no GPU, ", f" cores, {memory / 2**30:.1f} GiB, ", "runs: ", "compile: used on CUDA only", "lpips: "):
        assert words in out
    assert "needs a GPU: cudnn, fa4, triton" in out
    assert "balanced_int8, turbo_fp8, turbo_int8, ultra cannot run: each runs linear layers in FP8" in out
    assert out.count("\n") <= 40
    assert "needs a GPU  it runs on a GPU" in strobe("doctor", "--device", "cpu", "--details").out


def test_missing_weights_are_told_with_a_fix(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise WeightsError("no weights in the package")

    monkeypatch.setattr(load, "load", fail)
    result = strobe("doctor", "--device", "cpu")
    assert result.code == 3
    assert "missing  weights: no weights in the package" in result.out and "install strobe-video again" in result.out


@pytest.mark.parametrize(("library", "name", "fix"), [("torch", "torch", "torch>=2.9"), ("av", "video", "av>=14.1")])
def test_a_machine_without_a_library_is_told_so(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, library: str, name: str, fix: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    result = strobe("doctor", "--device", "cpu", "--json")
    assert result.code == 3, result.err
    (check,) = [check for check in result.document["checks"] if not check["ok"]]
    assert (check["name"], check["fix"]) == (name, f"pip install '{fix}'") and library in check["detail"]


def test_a_preset_that_does_not_run_here_says_so_beside_its_memory(strobe: Strobe) -> None:
    for preset, words in (("ultra", "does not run here: ultra runs linear layers in FP8"), ("turbo", "")):
        page = strobe("doctor", "--preset", preset, "--device", "cpu").out
        assert words in page and ("does not run here" in page) == bool(words)


def test_a_machine_without_a_gpu_has_no_gates_to_run(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the page is as it was, and nothing is written."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    document = strobe("doctor", "--gate", "--device", "cpu", "--json").document
    assert "no GPU" in document["gate"]["reason"] and document["gate"]["gates"] == []
    result = strobe("doctor", "--gate", "--device", "cpu")
    assert result.code == 3 and "not run: there is no GPU" in result.out and "runs: " in result.out
    assert not [*tmp_path.iterdir()]


def test_gates_are_run_and_recorded(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = GateRun(
        operator="sparse", impl="triton", vendor="nvidia", architecture="sm_89", device="RTX 4090",
        versions={"torch": "2.11.0"}, date="2026-01-31", tests=75,
    )  # fmt: skip
    came = [
        Outcome(operator="sparse", impl="triton", gate=gate, refused="4 cases that it does not take"),
        Outcome(operator="sparse", impl="cudnn", gate=None, refused="it runs on compute capability 9.x, cuda:0 has 8.9"),
    ]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(device, "resolve_device", lambda name: torch.device("cpu" if name == "cpu" else "cuda"))
    monkeypatch.setattr(machine, "describe_machine", lambda _: SimpleNamespace(driver="570.1"))
    monkeypatch.setattr(run, "run_gates", lambda where, driver, advance: iter(came))
    found, gates = doctor_module.run_gate("cuda", Output(quiet=True))
    assert "gate" in DoctorOutput.__struct_fields__, "the manual has its key"
    place = tmp_path / "strobe" / "gates.json"
    assert gates == (gate,) and found["record"] == str(place) and found["reason"] == ""
    assert parse_gates(place.read_bytes()) == ((gate,), ())
    page = "\n".join(str(line) for line in doctor_module._gate_lines(found))
    assert "sparse triton: 75 cases passed, 4 cases that it does not take" in page and "sparse cudnn: not run: it runs on" in page
    came[0] = replace(came[0], gate=replace(gate, failed="views: they differ"))
    found, _ = doctor_module.run_gate("cuda", Output(quiet=True))
    assert "failed at views: they differ" in "\n".join(str(line) for line in doctor_module._gate_lines(found))
    assert parse_gates(place.read_bytes())[0][0].failed == "views: they differ"


def test_a_red_gate_is_exit_code_1(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(failed: str) -> tuple[dict[str, object], tuple[()]]:
        each = {"operator": "sparse", "impl": "triton", "ran": True, "tests": 3, "failed": failed, "refused": ""}
        return {"reason": "", "record": "a file", "gates": [each]}, ()

    for failed, code in (("", 0), ("views: they differ", 1)):
        monkeypatch.setattr(doctor_module, "run_gate", lambda *_, failed=failed: found(failed))
        assert strobe("doctor", "--gate", "--device", "cpu").code == code


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strobe").write_text("a file in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(device, "resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(run, "run_gates", lambda *_: pytest.fail("it was begun"))
    result = strobe("doctor", "--gate")
    assert result.code == 2 and "in the way" in result.err and str(tmp_path) in result.err


def test_a_damaged_record_does_not_stop_anything(tmp_path: Path) -> None:
    (tmp_path / "strobe").mkdir()
    (tmp_path / "strobe" / "gates.json").write_text("[{")
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "import sys; from strobe.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    result = subprocess.run([*command, "doctor", "--device", "cpu", "--json"], env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and json.loads(result.stdout)["attention"]["runs"]
    assert result.stderr.count("gates.json is ignored: ") == 1 and len(result.stderr.splitlines()) == 1, result.stderr


def test_every_setting_of_every_preset(strobe: Strobe) -> None:
    document = strobe("presets", "--device", "cpu", "--json").document
    assert list(document["presets"]) == list(PRESETS)
    settings = document["settings"]
    for name, make in PRESETS.items():
        config = make()
        assert settings["window"][name] == ("model" if config.window is None else str(config.window))
        assert settings["ring_cache"][name] == ("on" if config.knobs.ring_cache else "off")


def test_what_is_the_same_is_left_to_details(strobe: Strobe) -> None:
    document = strobe("presets", "turbo", "ultra", "--json").document["settings"]
    some, every, one = (
        strobe("presets", *words).out for words in (["turbo", "ultra"], ["turbo", "ultra", "--details"], ["turbo"])
    )
    for setting, values in document.items():
        assert (f"\n {setting} " in some) == (values["turbo"] != values["ultra"])
        assert f"\n {setting} " in every and f"\n {setting} " in one
    assert "\n window " in some and "\n dtype " not in some


def test_a_knob_that_does_nothing_here_is_said_to_be_off(strobe: Strobe) -> None:
    document = strobe("presets", "balanced", "--device", "cpu", "--json").document
    assert "CUDA" in document["off_here"]["balanced"]["compile"]
    table = strobe("presets", "balanced", "--device", "cpu").out
    assert "on*" in table and "compile* is off on cpu" in table
