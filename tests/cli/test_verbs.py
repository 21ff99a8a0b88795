"""`strobe accept | lint | quality | serve`: documents, files, exit codes, and what is refused."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from published_metrics import disturbed, waves
from reports import decode_report
from strobe.bench import accept
from strobe.cli.model import ModelFlags
from strobe.engine.load import load
from strobe.quality.available import metric
from strobe.quality.clips import read_clip
from strobe.quality.fidelity import COMPARED, border_jump, compare
from terminal import Strobe


@pytest.mark.rest
def test_broken_weights_are_not_accepted_and_the_files_say_why(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "SHORT", 3)  # no clip of another prompt or seed is longer than the first
    model = load("shapes")
    model.dit.layers[3].ffn[0].weight.data[0, 0] = math.nan
    monkeypatch.setattr(ModelFlags, "load", lambda flags: replace(model, name="broken"))
    out = tmp_path / "out"
    result = strobe("accept", "--preset", "turbo", "--blocks", 4, "--device", "cpu", "-o", out, "--json")
    assert result.code == 1, result.err
    document = result.document
    assert not document["accepted"] and {"tensors_not_finite", "latents_not_finite"} <= set(document["failed"])
    assert document["verdict"].startswith("Not accepted: ")
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["tensors_not_finite"]["detail"] == "transformer blocks.3.ffn.0.weight"
    assert checks["latent_std"]["value"] is None and checks["latent_std"]["passed"] is False and checks["latent_std"]["high"] == 4
    assert {path.name for path in out.iterdir()} == {"records.jsonl", "report.html", "report.json", "report.md"}
    again = strobe("report", out)
    assert again.code == 0 and "broken" in (out / "report.md").read_text(encoding="utf-8")


WRONG = """# Page

| Part | Time (ms) |
|---|---|
| one | 52.3 |
| two | 48.7 |
| Total | 144.5 |

Logs print ms, but the values behave as seconds.
"""
RIGHT = WRONG.replace("144.5", "101.0").replace("behave as seconds", "are right")
WINDOWS = "# Ablation: window size\n\n| Window | Mean |\n|---|---|\n| 12 frames | 575.1 ms |\n| 6 frames | 568.2 ms |\n"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    for name, text in (("wrong", WRONG), ("right", RIGHT), ("windows", WINDOWS)):
        (tmp_path / f"{name}.md").write_text(text)
    return tmp_path


def test_findings_are_said_with_place_and_correction(strobe: Strobe, pages: Path) -> None:
    result = strobe("lint", pages / "wrong.md", pages / "right.md")
    assert result.code == 1
    for place in ("7 total-sum Page, Total, Time (ms)", "9 label-admitted"):
        assert f"{pages / 'wrong.md'}:{place}" in result.out
    assert "said     Total: 144.5" in result.out and "correct  101.0 ms" in result.out and "right.md" not in result.out
    assert "2 findings in 2 files" in result.err


def test_json(strobe: Strobe, pages: Path) -> None:
    result = strobe("lint", pages / "wrong.md", "--json")
    assert result.code == 1
    assert result.document["files"] == [str(pages / "wrong.md")]
    total, label = result.document["findings"]
    assert total["place"] == {"path": str(pages / "wrong.md"), "line": 7, "table": "Page", "row": "Total", "column": "Time (ms)"}
    assert (total["rule"], total["severity"], total["corrected"]) == ("total-sum", "error", "101.0 ms")
    assert (label["rule"], label["said"]) == ("label-admitted", "labelled ms, behaving as s")
    clean = strobe("lint", pages / "right.md", "--json")
    assert clean.code == 0 and clean.document["findings"] == [] and "0 findings in 1 file" in clean.err


@pytest.mark.parametrize(("ignored", "rules"), [(("label-admitted",), ["total-sum"]), (("label-admitted", "total-sum"), [])])
def test_rules_can_be_chosen(strobe: Strobe, pages: Path, ignored: tuple[str, ...], rules: list[str]) -> None:
    result = strobe("lint", pages / "wrong.md", "--json", "--ignore", *ignored)
    assert [finding["rule"] for finding in result.document["findings"]] == rules and result.code == len(rules)


def test_a_model_makes_its_rules_speak(strobe: Strobe, pages: Path) -> None:
    assert strobe("lint", pages / "windows.md").code == 0
    facts = ("--model", "wan-1.3b", "--size", "480x832", "--window", "12", "--device", "h100")
    result = strobe("lint", pages / "windows.md", *facts, "--json")
    assert [finding["rule"] for finding in result.document["findings"]] == ["window-free"]


def pictures(folder: Path, clip: torch.Tensor) -> Path:
    """Write a clip losslessly, float `[F, 3, Y, X]`."""
    folder.mkdir(parents=True)
    for at, frame in enumerate((clip * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()):
        Image.fromarray(frame).save(folder / f"{at}.png")
    return folder


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A reference of 12 frames, a close clip, and one that drifts and jumps at frames 4 and 8."""
    place, reference = tmp_path_factory.mktemp("clips"), waves(24, 28, 12)
    jump = torch.tensor([0.0] * 4 + [0.2] * 4 + [0.4] * 4)[:, None, None, None]
    made = {"ref": reference, "close": disturbed(reference, 0.05), "far": (reference * 0.5 + jump).clamp(0, 1)}
    return {name: pictures(place / name, clip) for name, clip in made.items()}


def cells(document: Any) -> dict[tuple[str, str], Any]:
    return {(cell["clip"], cell["metric"]): cell for cell in document["cells"]}


def test_every_cell_is_what_the_metric_says(clips: dict[str, Path], strobe: Strobe, tmp_path: Path) -> None:
    page = tmp_path / "page.json"
    arguments = ("quality", clips["ref"], clips["close"], clips["far"], "--block-frames", 4)
    found = cells(strobe(*arguments, "--json", "-o", page).document)
    reference = read_clip(clips["ref"])
    for name in ("close", "far"):
        for wanted, (value, _) in compare(read_clip(clips[name]), reference).items():
            cell = found[name, wanted]
            assert (cell["value"], cell["definition"]) == (value, metric(wanted).definition)
            assert cell["reference"] == str(clips["ref"])
    for name in ("ref", "far"):
        jump = border_jump(read_clip(clips[name]).permute(0, 3, 1, 2)[None] / 255, (4, 8)).item()
        assert found[name, "border_jump"]["value"] == jump
    assert found["far", "border_jump"]["value"] > 2 * found["ref", "border_jump"]["value"]
    assert not any((("ref", metric) in found) for metric in COMPARED), "the reference is not compared with itself"
    assert "psnr" in strobe(*arguments).out and decode_report(page.read_bytes()).title == "Quality against ref"


def test_what_is_not_measured_says_what_to_put_where(clips: dict[str, Path], strobe: Strobe, tmp_path: Path) -> None:
    found = cells(strobe("quality", clips["ref"], clips["close"], "--json").document)
    shown = " ".join(strobe("quality", clips["ref"], clips["close"]).out.split())  # whole, on however many lines
    for name, said in (
        ("border_jump", "give --block-frames"),
        ("lpips", "alexnet-owt-7be5be79.pth"),
        ("clip_score", "give --prompt"),
        ("fvd", "some thousand clips"),
        ("ms_ssim", "needs frames of 176 pixels"),
    ):
        cell = found["close", name]
        assert cell["value"] is None and said in cell["note"] and f"{name}: {cell['note']}" in shown
    asked = strobe("quality", clips["ref"], clips["close"], "--metrics", "lpips", "psnr", "--weights", tmp_path)
    assert asked.code == 3 and "metric 'lpips' cannot run: not measured: " in asked.err and "is missing: put" in asked.err
    assert strobe("quality", clips["ref"], clips["close"], "--metrics", "pnsr").code == 2


def test_requirements(clips: dict[str, Path], strobe: Strobe) -> None:
    met = strobe("quality", clips["ref"], clips["ref"], clips["close"], "--require", "psnr>25", "--json")
    assert met.code == 0 and met.document["not_met"] == [], "equal pictures have an infinite PSNR"
    missed = strobe("quality", clips["ref"], clips["far"], "--require", "psnr>30", "--json")
    assert missed.code == 1 and "far: psnr is" in missed.document["not_met"][0]


def test_folders_of_clips_are_paired_by_name(clips: dict[str, Path], strobe: Strobe, tmp_path: Path) -> None:
    reference = waves(24, 28, 5)
    strengths = {"a": 0.02, "b": 0.2}
    for name, strength in strengths.items():
        pictures(tmp_path / "dense" / name, reference)
        pictures(tmp_path / "sparse" / name, disturbed(reference, strength))
    found = cells(strobe("quality", tmp_path / "dense", tmp_path / "sparse", "--json").document)
    each = [compare(read_clip(tmp_path / "sparse" / name), read_clip(tmp_path / "dense" / name), ("ssim",)) for name in "ab"]
    cell = found["sparse", "ssim"]
    assert cell["n"] == 2 and cell["value"] == pytest.approx(np.mean([one["ssim"][0] for one in each]))
    pictures(tmp_path / "sparse" / "c", reference)
    told = strobe("quality", tmp_path / "dense", tmp_path / "sparse")
    assert told.code == 2 and "do not hold clips of the same names: c on one side only" in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ref",), "nothing to compare"),
        (("ref", "none"), "none does not exist"),
        (("ref", "close", "-o", "page.pdf"), "cannot write .pdf"),
        (("ref", "close", "close"), "a clip is named twice"),
        (("ref", "close", "--block-frames", "1"), "frame blocks of 1 frames"),
        (("ref", "short"), "given 5 frames of 28x24 and 12 frames of 28x24"),
        (("ref", "broken.mp4"), "cannot read the clip"),
        (("ref", "empty"), "holds no frames"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...], said: str, clips: dict[str, Path], strobe: Strobe, tmp_path: Path
) -> None:
    pictures(tmp_path / "short", waves(24, 28, 5))
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (tmp_path / "empty").mkdir()
    there = {"short", "broken.mp4", "empty", "none", "page.pdf"}
    found = strobe("quality", *(clips.get(each, tmp_path / each if each in there else each) for each in arguments))
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


@pytest.fixture(autouse=True)
def ended_after_a_while() -> Iterator[None]:
    """Send Ctrl-C to a server that does not end by itself; it then returns 0."""
    timer = threading.Timer(20, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    yield
    timer.cancel()


def test_weights_that_cannot_be_read_end_the_server(strobe: Strobe, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"no weights")
    result = strobe("serve", "--port", "0", "--model", "wan-1.3b", "--weights", str(file))
    assert result.code == 3 and "model.safetensors" in result.err.splitlines()[-1] and "every viewer" not in result.err


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("no kernel"), 70), (KeyError("blocks.0"), 70), (MemoryError(), 3)])
def test_whatever_loading_raises_ends_the_server(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def load(flags: ModelFlags) -> None:
        raise error

    monkeypatch.setattr(ModelFlags, "load", load)
    result = strobe("serve", "--port", "0")
    assert result.code == code and '"failed to start"' in result.err
