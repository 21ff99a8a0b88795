"""`strobe speedup` on sides that must not be compared: the page is made, it has no speedup, and no requirement holds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from model_traces import write_model_trace
from terminal import Result, Strobe

PRESETS = Path(__file__).parents[2] / "benchmarks" / "presets-h200"


def against(strobe: Strobe, sides: tuple[Path, Path], *more: object) -> Result:
    focal = ("--focal-baseline", "flash", "--focal-candidate", "flash")
    return strobe("speedup", "--baseline-trace", sides[0], "--candidate-trace", sides[1], *focal, *more, "--details")


@pytest.fixture
def unlike(tmp_path: Path) -> tuple[Path, Path]:
    """Two models on one GPU."""
    vit = write_model_trace(tmp_path / "vit.json", "ViT", size=(96, 20), faster=2)
    return write_model_trace(tmp_path / "bert.json", "Bert"), vit


def test_two_models_on_one_gpu_are_not_comparable(strobe: Strobe, unlike: tuple[Path, Path], tmp_path: Path) -> None:
    result = against(strobe, unlike, "--require", "kernel~>=0.1", "--require", "step~<9", "-o", tmp_path / "page", "--json")
    found = result.document
    assert result.code == 1 and found["comparable"] is False
    assert found["obstacles"] == ["model", "weights", "shapes"]
    assert found["not_comparable_because"] == [
        "model: Bert against ViT", "weights of matrix products: 64x64 against 96x96",
        "input sizes of the focal kernel: 1x12x4x16, 1x12x4x16, 1x12x4x16 against 1x20x4x24, 1x20x4x24, 1x20x4x24",
    ]  # fmt: skip
    assert [line.split(" does not count")[0] for line in found["not_met"]] == ["candidate: kernel", "candidate: step"]
    assert all("--allow-different model weights shapes" in line for line in found["not_met"])
    for level in ("kernel", "step"):
        figure = found["levels"][level]
        assert (figure["ratio"], figure["verdict"], figure["realised"]) == (None, None, None)
        assert figure["baseline"]["mean_ns"] and figure["candidate"]["mean_ns"], "the times themselves are shown"
    page = (tmp_path / "page" / "report.md").read_text()
    assert page.startswith("# Not comparable: candidate against baseline") and "Ideal by Amdahl" not in page
    assert json.loads((tmp_path / "page" / "report.json").read_text())["speedups"] == []
    for text in (page, against(strobe, unlike).out):
        assert "faster" not in text.replace("faster calls", "") and "not comparable" in text


def test_what_is_meant_is_named(strobe: Strobe, unlike: tuple[Path, Path]) -> None:
    some = against(strobe, unlike, "--allow-different", "model", "shapes", "--require", "kernel~>=1.5", "--json")
    assert some.code == 1 and some.document["obstacles"] == ["weights"]
    named = ("--allow-different", "model", "shapes", "weights")
    every = against(strobe, unlike, *named, "--require", "kernel~>=1.5", "--json")
    assert every.code == 0, every.err
    assert every.document["comparable"] and every.document["levels"]["kernel"]["ratio"] == pytest.approx(2.0)
    assert every.document["allowed_different"] == ["model", "weights", "shapes"]


def test_a_name_that_is_no_fact_is_told_with_those_that_are(strobe: Strobe, unlike: tuple[Path, Path]) -> None:
    result = against(strobe, unlike, "--allow-different", "model", "devise")
    assert result.code == 2 and result.err.count("\n") == 1
    assert "'devise'" in result.err and "did you mean 'device'" in result.err and "shapes, seed, device, devices" in result.err


def test_two_devices(strobe: Strobe, tmp_path: Path) -> None:
    sides = tuple(write_model_trace(tmp_path / f"{name}.json", device=name, faster=n) for n, name in ((1, "V100"), (2, "A100")))
    result = against(strobe, (sides[0], sides[1]), "--require", "kernel~>=1.5", "--json")
    assert (result.code, result.document["obstacles"]) == (1, ["device"])
    assert against(strobe, (sides[0], sides[1]), "--require", "kernel~>=1.5", "--allow-different", "device").code == 0


def test_without_stacks_the_weights_tell_the_models_apart(strobe: Strobe, tmp_path: Path) -> None:
    bert = write_model_trace(tmp_path / "a.json", stacks=False)
    vit = write_model_trace(tmp_path / "b.json", "ViT", size=(96, 20), stacks=False, kernels=("flash_fwd", "conv"))
    found = against(strobe, (bert, vit), "--json").document
    assert not found["comparable"] and "weights" in found["obstacles"] and "model" not in found["obstacles"]
    assert found["common_kernels"] == {"baseline_share": 2 / 3, "candidate_share": 2 / 3, "names": ["flash_fwd"]}
    said = "Kernels that both sides ran take 66.7 % of the kernel time of the baseline and 66.7 % of the candidate's."
    assert said in against(strobe, (bert, vit)).out


def test_the_same_model_is_comparable(strobe: Strobe, tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json"), write_model_trace(tmp_path / "b.json", faster=3)
    result = against(strobe, sides, "--require", "kernel~>=2.9", "--json")
    assert result.code == 0, result.err
    known = {fact["name"]: (fact["baseline"], fact["verdict"]) for fact in result.document["facts"]}
    assert {name: known[name] for name in ("model", "dtype", "world", "weights", "graphs", "capture")} == {
        "model": ("Bert", "same"), "dtype": ("bfloat16", "same"), "world": ("1", "same"), "weights": (["64x64"], "same"),
        "graphs": ("none seen", "same"), "capture": ("record_shapes with_stack", "same"),
    }  # fmt: skip


def test_a_stated_fact_does_not_replace_evidence(strobe: Strobe, unlike: tuple[Path, Path]) -> None:
    result = against(strobe, unlike, "--fact", "model=Bert", "--allow-different", "weights", "shapes", "--json")
    assert result.document["obstacles"] == ["model"]
    said = "model of the candidate is stated as Bert, and ViT was found: that counts"
    assert said in against(strobe, unlike, "--fact", "model=Bert").out


def run_with_longer_blocks(folder: Path) -> Path:
    """Our captured run, as if one of its variants had made longer frame blocks than the reference."""
    folder.mkdir()
    lines = [json.loads(line) for line in gzip.decompress((PRESETS / "records.jsonl.gz").read_bytes()).splitlines()]
    for line in lines:
        if line["record"] == "variant" and line["name"] == "turbo":
            line["tokens_per_block"] += 64
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "traces").symlink_to(PRESETS / "traces")
    return folder


def test_variants_of_a_run_that_differ_in_work_have_no_speedup(strobe: Strobe, tmp_path: Path) -> None:
    run = run_with_longer_blocks(tmp_path / "run")
    result = strobe(
        "report", run, "--out", tmp_path / "page", "--require", "turbo:e2e>=0.1", "--require", "turbo:psnr>1", "--json"
    )
    assert result.code == 1
    found = result.document
    assert found["comparable"] == {"balanced": True, "quality": True, "turbo": False, "ultra": True}
    assert {each["candidate"] for each in found["speedups"]} == {"balanced", "quality", "ultra"}
    assert all("not comparable (sequence length" in line and "--allow-different tokens" in line for line in found["not_met"])
    assert len(found["not_met"]) == 2
    meant = strobe(
        "report", run, "--out", tmp_path / "page", "--allow-different", "tokens", "--require", "turbo:e2e>=0.1", "--json"
    )
    assert meant.code == 0 and all(meant.document["comparable"].values())
    assert strobe("report", run, "--out", tmp_path / "page", "--allow-different", "tokns").code == 2


def test_compare_refuses_a_wrong_name_before_it_measures(strobe: Strobe, tmp_path: Path) -> None:
    result = strobe("compare", "baseline", "balanced", "--out", tmp_path / "runs", "--allow-different", "tokns")
    assert result.code == 2 and "did you mean 'tokens'" in result.err and not (tmp_path / "runs").exists()


def test_one_file_on_both_sides_is_said(strobe: Strobe, unlike: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(unlike[0].read_bytes())
    said = "bert.json is the same file on both sides"
    assert said in against(strobe, (unlike[0], copy), "-o", tmp_path / "page").out
    assert said not in against(strobe, unlike, "-o", tmp_path / "page").out


def test_no_line_has_a_share_of_what_is_no_saving(strobe: Strobe, unlike: tuple[Path, Path], tmp_path: Path) -> None:
    meant = against(strobe, unlike, "--allow-different", "model", "weights", "shapes", "-o", tmp_path / "page").out
    assert "  share  " in meant.partition("Ledger for")[2].splitlines()[1]
    assert "share" not in against(strobe, unlike, "-o", tmp_path / "page").out.partition("Ledger for")[2].splitlines()[1]
