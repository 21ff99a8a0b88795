"""`strobe doctor`."""

from __future__ import annotations

import sys

import pytest
import torch

from strobe.core.errors import WeightsError
from strobe.engine import load
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
    for words in ("torch", "runs: ", "cudnn", "missing", "ring_cache", "compile is off", "lpips: "):
        assert words in out


def test_missing_weights_are_told_with_a_fix(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise WeightsError("no weights in the package")

    monkeypatch.setattr(load, "load", fail)
    result = strobe("doctor", "--device", "cpu")
    assert result.code == 3
    assert "missing  weights: no weights in the package" in result.out and "train-shapes" in result.out


def test_a_machine_without_torch_is_told_so(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = strobe("doctor", "--json")
    assert result.code == 3
    (check,) = result.document["checks"]
    assert check["name"] == "torch" and not check["ok"] and "README" in check["fix"]
