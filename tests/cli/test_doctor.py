"""`strobe doctor`."""

from __future__ import annotations

import sys

import pytest
import torch

from strobe.core.errors import WeightsError
from strobe.engine import load
from strobe.engine.arena import ArenaPlan
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


def test_numbers_of_devices(strobe: Strobe) -> None:
    """Degrees and memory of each; what all devices keep is what one would."""
    asked = ("--preset", "sparse", "--device", "cpu", "--devices", "4")
    document = strobe("doctor", *asked, "--json").document
    one, two, three, four = document["devices"]
    assert [(each["tree"], each["ulysses"], len(each["ranks"])) for each in (one, two, three)] == [
        (1, 1, 1),
        (None, None, 0),
        (1, 3, 2),
    ]
    assert "the ranks must divide the 3 heads" in two["reason"] and two["reason"] == four["reason"]
    alone, leader, other = (
        {part["name"]: part["num_bytes"] for part in rank["parts"]} for rank in (*one["ranks"], *three["ranks"])
    )
    assert alone == {part["name"]: part["num_bytes"] for part in document["memory"]["parts"]}
    assert 3 * other["keys and values"] == 3 * leader["keys and values"] == alone["keys and values"]
    assert (leader["autoencoder weights"], other["autoencoder weights"]) == (alone["autoencoder weights"], 0)
    assert all(rank["total_bytes"] == sum(part["num_bytes"] for part in rank["parts"]) for rank in three["ranks"])
    page = strobe("doctor", *asked).out
    assert "1 x 3" in page and "cannot" in page


def test_a_preset_that_does_not_run_here_says_so_beside_its_memory(strobe: Strobe) -> None:
    for preset, words in (("ultra", "does not run here: ultra runs linear layers in FP8"), ("turbo", "")):
        page = strobe("doctor", "--preset", preset, "--device", "cpu").out
        assert words in page and ("does not run here" in page) == bool(words)


def test_the_pool_of_a_session(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--preset", "balanced", "--device", "cpu")
    assert strobe("doctor", *asked, "--json").document["memory"]["arena_bytes"] == 0
    assert "in one pool" not in strobe("doctor", *asked).out
    monkeypatch.setattr("strobe.engine.memory.plan_arena", lambda *_: ArenaPlan(kept_bytes=3 << 30, decoder_bytes=1 << 29))
    assert strobe("doctor", *asked, "--json").document["memory"]["arena_bytes"] == 7 << 29
    assert "3.50 of it in one pool" in strobe("doctor", *asked).out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--devices", "2"), "give --preset too"),
        (("--model", "wan-1.3b"), "give --preset too"),
        (("--preset", "balanced", "--devices", "0"), "give 1 or more"),
    ],
)
def test_what_cannot_be_predicted(strobe: Strobe, flags: tuple[str, ...], words: str) -> None:
    result = strobe("doctor", "--device", "cpu", *flags)
    assert result.code == 2 and words in result.err
