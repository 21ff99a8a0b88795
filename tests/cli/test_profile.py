"""`strobe profile stream | attention | kernels | dit` and `strobe bench attention | tree` from the command to the page."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reports import decode_report
from strobe.core.spans import PIECES
from strobe.models.captured import CapturedCall, write_calls
from strobe.perf.measure import timing
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.run_page import paired, per_step
from strobe.perf.report.study import load_study
from strobe.perf.table.model import Number, Ratio, Report, Share, Table, Text
from terminal import Strobe, alone

STREAM = ("turbo", "--model", "tiny", "--blocks", "4", "--active", "1", "--rounds", "1", "--device", "cpu")
CALL = ("--seq-q", "40", "--heads", "2", "--head-dim", "16", "--iterations", "3", "--active", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One stream, timed, traced and attributed, and the JSON that the command printed."""
    folder = tmp_path_factory.mktemp("profile") / "out"
    options = ("--regions", "dit_forward", "attention", "--with-stack", "--record-shapes", "--top", "5")
    done = alone("profile", "stream", *STREAM, *options, "-o", folder, "--json", "--quiet")
    assert done.code == 0, done.err
    return folder, done.document


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()).decode(errors="replace"))["traceEvents"]
    return found


def test_timed_and_traced_runs_go_into_one_report_and_what_calls_what_is_a_trace_of_its_own(streamed: tuple[Path, Any]) -> None:
    folder, document = streamed
    run = read_run(folder)
    assert [clip.phase for clip in run.clips] == ["warmup", "timed", "traced", "traced"]
    assert {path.name for path in folder.iterdir()} == {
        "records.jsonl", "traces", "attribution", "attribution.md", "report.html", "report.md", "report.json"
    }  # fmt: skip
    assert document["runs"] == [str(folder)] and document["kept"] == [] and document["red"] == {}
    page = (folder / "report.md").read_text()
    assert "run\\_02" in page and "dit\\_forward" in page and "Against the device's peaks" in page
    found = events(folder / "traces" / "turbo.json.gz")
    marked = {event["name"].split("#")[0] for event in found if event["name"].startswith("strobe::")}
    assert marked == {"strobe::frame_block", "strobe::dit_forward", "strobe::attention"}
    assert not any(event.get("cat") == "python_function" for event in found), "it would distort the times"
    assert any(event.get("cat") == "python_function" for event in events(folder / "attribution" / "turbo.json.gz"))
    page = (folder / "attribution.md").read_text()
    assert document["attribution"] == [str(folder / "attribution.md")]
    assert "no measurement" in page and "Operators by self" in page and "Modules by self" in page


def test_a_folder_in_use_is_kept(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the folder and the regions; the preset's own compile knob is overruled, and its name says so."""
    monkeypatch.setenv("STROBE_PROFILE_DIR", str(tmp_path / "env"))
    monkeypatch.setenv("STROBE_PROFILE_REGIONS", "commit")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.txt").write_text("mine")
    result = strobe("profile", "stream", *STREAM, "--wait", "1", "--no-compile", "--json")
    assert result.code == 0, result.err
    assert result.document["kept"] == [str(tmp_path / "env.1")] and "kept as" in result.err
    assert (tmp_path / "env.1" / "mine.txt").read_text() == "mine"
    run = read_run(tmp_path / "env")
    assert run.header.order == ("turbo-eager",)
    assert not next(knob for knob in run.variants[0].knobs if knob.name == "compile").on
    assert [(trace.first_block, trace.num_blocks, trace.regions) for trace in run.traces] == [(2, 1, ("commit",))]


def test_fewer_recorded_frame_blocks_than_asked_for_are_told(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strobe.bench.runner.run_case", stop)
    clip = ("turbo", "--blocks", "4", "--device", "cpu", "-o", tmp_path / "out")
    few, some = (strobe("profile", "stream", *clip, "--active", count) for count in (50, 2))
    assert "--active 50: the clip has 2 frame blocks to record" in few.err
    assert some.err == "error: interrupted\n"


# ------------------------------------------------------------------------------------------------------------ attention


def test_an_attention_call_is_gated_timed_traced_and_reported(strobe: Strobe, tmp_path: Path) -> None:
    impls = ("--impls", "sdpa", "reference", "sparse:cpu", "--grid", "2", "4", "5")
    result = strobe("profile", "attention", *CALL, *impls, "--rounds", "2", "-o", tmp_path / "out", "--json")
    assert result.code == 0, result.err
    found = result.document
    assert {(each["candidate"], each["level"]) for each in found["speedups"]} == {
        (name, level) for name in ("reference", "sparse:cpu") for level in ("kernel", "section")
    }
    page = Path(found["report"]["md"]).read_text()
    for words in ("Gates.", "Times of one call by itself.", "Speedups.", "effective TFLOP/s", "aten::"):
        assert words in page
    assert sorted(path.name for path in (tmp_path / "out" / "traces").iterdir()) == [
        "reference.json.gz", "sdpa.json.gz", "sparse-cpu.json.gz"
    ]  # fmt: skip


def test_a_gate_for_scripts_asks_for_the_whole_interval(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves by 1 ms whenever it is read: every call takes as long, whatever else this machine does."""
    clock = itertools.count(step=1_000_000)
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: next(clock))
    quick = ("profile", "attention", *CALL, "--no-trace", "-o", tmp_path / "out")
    assert strobe(*quick, "--rounds", "2", "--require", "kernel>0.0001").code == 0
    result = strobe(*quick, "--rounds", "2", "--require", "reference:kernel>1000", "--json")
    assert result.code == 1 and "reference: kernel is 1 [1, 1], >1000 required" in result.document["not_met"][0]
    one = strobe(*quick, "--rounds", "1", "--require", "kernel>0.0001", "--json")
    assert one.code == 1 and "without an interval" in one.document["not_met"][0]
    assert (tmp_path / "out.2").is_dir()


# -------------------------------------------------------------------------------------------------------------- kernels


def test_the_kernel_profile_is_a_page_whose_budget_adds_up(strobe: Strobe, tmp_path: Path) -> None:
    page = tmp_path / "deep" / "kernel_profile.md"
    result = strobe(
        "profile", "kernels", "--model", "tiny", "--iterations", "6", "--preset", "turbo", "--device", "cpu", "-o", page, "--json"
    )
    assert result.code == 0, result.err
    step = result.document["step"]
    assert step["n"] == 6
    assert sum(step["parts_ns"].values()) + step["difference_ns"] == pytest.approx(step["mean_ns"])
    assert {"attention_kernel", "kv_write", "kv_sink_read", "recache", "ffn_up", "vae_leave", "head"} <= step["operations"].keys()
    text = page.read_text()
    assert "one denoise step" in text and "max of 6" in text and "p99" not in text.replace("p99 from 459", "")
    assert [Path(path).suffix for path in result.document["written"]] == [".md", ".json"]
    assert json.loads(page.with_suffix(".json").read_text())["title"] == "Kernel profile"


def test_a_breakdown_of_a_stream(strobe: Strobe, tmp_path: Path) -> None:
    quick = ("turbo", "--no-compile", "--blocks", "4", "--active", "1", "--rounds", "1", "--device", "cpu")
    result = strobe("profile", "stream", *quick, "--breakdown", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    for words in ("Shares of turbo", "Passes and stages", "A layer of", "Launch gaps of", "attention / attention_kernel"):
        assert words in result.out
    run = read_run(tmp_path / "out")
    (trace,) = run.traces
    assert set(PIECES) <= set(trace.regions)
    assert not {span.name for span in run.spans} & set(PIECES)
    assert "Breakdown" in (tmp_path / "out" / "report.md").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run of Wan, dense against two sparsities, for all tests of this file."""
    folder = tmp_path_factory.mktemp("dit") / "traces"
    arguments = ("--model", "wan-1.3b", "--tiny", "--sparsity", "0.5", "0.8", "--rounds", "2", "--steps", "3")
    done = alone("profile", "dit", *arguments, "-o", folder, "--json")
    assert done.code == 0 and done.document["red"] == {} and done.document["kept"] == []
    return folder


def tables(report: Report, section: str) -> list[Table]:
    return [block for each in report.sections if each.id == section for block in each.blocks if isinstance(block, Table)]


def test_the_page_has_the_seven_sections_and_bounds_follow_from_the_columns_beside_them(run: Path) -> None:
    report = decode_report((run / "report.json").read_bytes())
    assert [section.id for section in report.sections] == [
        "settings", "stages", "attention", "kernels", "sections", "answer", "notes",
    ]  # fmt: skip
    stage = tables(report, "stages")[0]
    names = [row.cells[0].text for row in stage.rows if isinstance(row.cells[0], Text)]
    assert names[0] == "run_01" and names[-2:] == ["avg_all_rounds", "avg_excl_warmup"]
    assert build_report([run]) == report, "`strobe report` gives the same page"
    assert "128x96 pixels, 17 frames" in report.subtitle
    study = load_study([run])
    steps = {subject.label: per_step(subject) for subject in study.subjects}
    dense = steps["dense"]
    assert not isinstance(dense, str) and dense.section is not None
    assert 0 < dense.kernel <= dense.operator < dense.section and dense.step > 0
    rows = {row.cells[0].text: row for row in tables(report, "answer")[0].rows if isinstance(row.cells[0], Text)}
    assert list(rows) == ["vsa-50", "vsa-80"]
    for name, row in rows.items():
        own = steps[name]
        assert not isinstance(own, str) and own.section is not None
        saved = dense.kernel - own.operator
        bound = dense.step / (dense.step - saved)
        e2e = row.cells[5]
        assert isinstance(e2e, Ratio)
        assert row.cells[2] == Ratio(dense.kernel / own.kernel)
        assert row.cells[4] == Ratio(dense.section / own.section)
        assert row.cells[7] == Ratio(bound) and row.cells[8] == Share(e2e.value / bound)
        assert row.cells[9] == Number(100 * (own.section / (dense.section - saved) - 1), 1, "%")


def test_accounts_add_up_and_records_say_what_ran(run: Path) -> None:
    study = load_study([run])
    for finding, *_ in paired(study, ()):
        ledger = finding.ledger
        assert not isinstance(ledger, str) and sum(line.saved_ns for line in ledger.lines) == ledger.saved_ns
        assert finding.answer is not None and finding.answer.unit == "denoise step"
    records = read_run(run)
    assert records.header.workload is not None and records.header.workload.unit == "denoise step"
    assert records.header.model is not None and records.header.model.name == "wan-1.3b, tiny, random weights"
    assert {variant.name: variant.sparsity for variant in records.variants} == {"dense": 0, "vsa-50": 0.5, "vsa-80": 0.8}
    assert all(quality.n == 0 and quality.note == "random weights" for quality in records.quality)
    assert records.variant("vsa-50").tokens_per_block == 5 * 6 * 8


def test_a_former_run_is_kept_and_compared_runs_are_refused(run: Path, strobe: Strobe, tmp_path: Path) -> None:
    two = strobe("report", run, run)
    assert two.code == 2 and "holds forward passes over a whole clip: report it without other runs" in two.err
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.txt").write_text("mine")
    again = strobe(
        "profile", "dit", "--model", "ltx-2", "--tiny", "--sparsity", "0.5", "--rounds", "1", "--steps", "3", "-o",
        tmp_path / "t", "--no-trace", "--require", "e2e~>0.001", "--json",
    )  # fmt: skip
    assert again.code == 0 and again.document["kept"] == [str(tmp_path / "t.1")]
    assert (tmp_path / "t.1" / "mine.txt").read_text() == "mine"


PIPE = """
import torch
from diffusers import WanTransformer3DModel

def make():
    torch.manual_seed(0)
    model = WanTransformer3DModel(num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
                                  freq_dim=16, ffn_dim=32, num_layers=1)
    return model, {"hidden_states": torch.randn(1, 4, 5, 12, 14), "timestep": torch.full((1,), 500),
                   "encoder_hidden_states": torch.randn(1, 7, 16)}

def nothing():
    return torch.nn.Linear(2, 2), {}
"""


def test_a_users_own_function_runs_and_it_says_so(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pipe_for_dit.py").write_text(PIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("--rounds", "1", "--steps", "3", "--sparsity", "0.5", "--no-trace", "-o", tmp_path / "t")
    done = strobe("profile", "dit", "--pipe", "own_pipe_for_dit:make", *arguments)
    assert done.code == 0 and "runs your code: own_pipe_for_dit:make" in done.err
    records = read_run(tmp_path / "t")
    assert records.header.model is not None and records.header.model.name == "WanTransformer3DModel of own_pipe_for_dit:make"
    assert {quality.metric for quality in records.quality} == {"forward_error"}
    for wrong, said in (("nothing", "returned no transformer"), ("none", "has no attribute 'none'")):
        assert said in strobe("profile", "dit", "--pipe", f"own_pipe_for_dit:{wrong}", *arguments).err
    assert "write module:function" in strobe("profile", "dit", "--pipe", "own", *arguments).err


FAST = ("--seconds-per-cell", "0.01", "--quiet")
TINY = ("--grid", 2, 4, 9, "--heads", 1, "--head-dim", 32, "--blocks", 64, "--sparsity", 0.5, *FAST)


def test_a_grid_of_ones_own_is_measured_reported_and_kept(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    line = ("bench", "attention", *TINY, "--impls", "dense:sdpa", "cpu", "--out", out, "--json", "--backward")
    first = strobe(*line)
    assert first.code == 0, first.err
    names = ["2x4x9_s0.5_b64_forward", "2x4x9_s0.5_b64_backward"]
    assert first.document["measured"] == names and first.document["failed"] == []
    (forward, backward) = first.document["cells"]
    assert (forward["reference"], forward["serialised"]) == ("dense:sdpa", False)
    rows = {each["name"]: each for each in forward["contestants"]}
    assert set(rows) == {"dense:sdpa", "dense:cpu", "fine:cpu", "tiled:cpu", "raster:cpu"}
    assert rows["dense:sdpa"]["flops"] == 4 * 32 * 72**2
    assert {each["name"] for each in backward["contestants"]} == set(rows)
    for file in ("report.html", "report.md", "report.json"):
        assert (out / file).stat().st_size > 500
    again = strobe(*line)
    assert again.document["measured"] == [] and again.document["kept"] == names
    assert again.document["cells"] == first.document["cells"]
    rendered = strobe("bench", "attention", "--out", out, "--render")
    assert rendered.code == 0 and "2x4x9, forward: speed." in rendered.out
    other = strobe(*line, "--seed", 1)
    assert other.code == 2 and "differ in seed" in other.err


def test_captured_calls_are_measured_by_several_methods_and_the_answer_comes_first(strobe: Strobe, tmp_path: Path) -> None:
    file, out = tmp_path / "qkv.safetensors", tmp_path / "bench"
    call = CapturedCall(model="M", layer="blocks.3.attn1", step=2, grid=(2, 4, 9))

    def write(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 72, 1, 32, generator=generator) for _ in range(3))
        write_calls(file, [(call, (q, k, v))])

    write(0)
    line = ("bench", "attention", "--captured", file, "--sparsity", 0, 0.5, "--impls", "dense:sdpa", "vsa", *FAST, "--out", out)
    found = strobe(*line)
    assert found.code == 0, found.err
    title = found.out.splitlines()[0]
    assert title.startswith(("At an error of at most", "No method is faster")) and title.endswith(", on a CPU")
    assert (out / "report.md").read_text().startswith(f"# {title}\n")
    assert "VSA by sub-block at 50 %" in found.out and "M-2x4x9, blocks of 64: methods." in found.out
    (cell,) = strobe(*line, "--json").document["cells"]
    assert [each["name"] for each in cell["contestants"]] == [
        "dense:sdpa", "vsa:count@0", "vsa:count@0.5", "vsa:sub-block@0", "vsa:sub-block@0.5",
        "vsa:corrected@0", "vsa:corrected@0.5", "vsa:share@0.3", "vsa:share@0.5", "vsa:share@0.7", "vsa:share@0.9",
    ]  # fmt: skip
    assert strobe("bench", "attention", "--out", out, "--render").out.splitlines()[0] == title
    write(1)
    other = strobe(*line)
    assert other.code == 2 and "differ in captured" in other.err


def test_the_quick_grid_has_a_size_where_sparsity_pays_and_takes_less_time_per_cell(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, float]] = []

    def stop(cells: tuple[Any, ...], request: Any, *_: object) -> None:
        asked.append((len(cells), max(cell.shape.num_tokens for cell in cells), request.seconds))
        raise KeyboardInterrupt

    monkeypatch.setattr("strobe.bench.attention.run.run_grid", stop)
    for flags in (("--grid", "quick"), (), ("--grid", "quick", "--seconds-per-cell", 7)):
        assert strobe("bench", "attention", *flags, "--device", "cpu", "--out", tmp_path).code == 130
    (few, most, fast), (_, _, usual), (_, _, told) = asked
    assert few <= 4 and most >= 4096 and (fast, usual, told) == (0.5, 4.0, 7.0)


def test_profile_prints_what_was_called(strobe: Strobe, tmp_path: Path) -> None:
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "--out", tmp_path / "b", "--profile")
    assert found.code == 0 and "aten::scaled_dot_product_attention" in found.out


def test_a_serialised_run_says_so(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "fine:cpu", "--out", tmp_path / "b", "--json")
    (cell,) = found.document["cells"]
    assert cell["serialised"] and [each["speedup"] for each in cell["contestants"]] == [None, None]


def test_a_red_gate_is_exit_code_1(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.bench.attention import run as cell

    monkeypatch.setattr(cell, "tolerance", lambda measure, dtype: 0.0)
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "--out", tmp_path / "b", "--json")
    assert found.code == 1
    assert found.document["cells"][0]["contestants"][0]["reason"].startswith("red gate: ")
    assert json.loads((tmp_path / "b" / "request.json").read_text())["tile"] == "auto"


RANKED = ("--heads", 1, "--head-dim", 8, "--iterations", 1, "--strategies", "allgather", "--quiet")


def test_one_cell_is_measured_kept_and_rendered_as_either_page(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    line = ("bench", "tree", "--world-size", 1, "--seq-len", 16, *RANKED, "--profile", "--out", out, "--json")
    first = strobe(*line)
    assert first.code == 0, first.err
    (cell,) = first.document["cells"]
    assert first.document["measured"] == [cell["cell"]] == ["ws1_n16_q1_h1x8_b1_float32_cpu"]
    (row,) = cell["strategies"]
    assert (row["name"], row["calls"], row["straggler"]) == ("allgather", 6, None)
    assert row["verdict"] in ("launch-bound", "memory-bound", "flop-bound") and row["exposed_ns"] == 0
    again = strobe(*line)
    assert again.document["kept"] == [cell["cell"]] and again.document["cells"] == first.document["cells"]
    page = strobe("bench", "tree", "--out", out, "--render")
    assert page.code == 0
    assert "strategies." in page.out and "comp_local_attention" in page.out and "not summed" in page.out and "Remedy:" in page.out
    for file in ("report.html", "report.md", "report.json"):
        assert (out / file).stat().st_size > 500


@pytest.mark.parametrize("there", [0, 2])
def test_ranks_without_a_gpu_are_not_started(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    found = strobe("bench", "tree", "--device", "cuda", "--world-size", 4, "--out", tmp_path / "b")
    sees = "2 CUDA devices" if there else "no CUDA device"
    assert found.code == 3 and f"each rank takes a GPU, 4 in all, and torch sees {sees} here" in found.err
    assert found.err.count("\n") == 1 and ("--world-size 2" in found.err) == (there == 2)
    assert not (tmp_path / "b").exists()
