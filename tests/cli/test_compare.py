"""`strobe compare` of presets, settings and programs, and `strobe report`, from the command to the page and the gate."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from source import ROOT
from strobe.bench import runner
from strobe.bench.case import ComparePlan
from strobe.bench.cases import ablate
from strobe.bench.cases.stream import StreamCase
from strobe.cli.compare import ClipFlags
from strobe.cli.main import main
from strobe.engine.load import shapes_defaults
from strobe.perf.measure.stats import Verdict
from strobe.perf.records.store import read_run, seal
from terminal import Strobe, alone

CLIP = ("--model", "tiny", "--blocks", "5", "--switch", "block=1:a blue square moving up", "--device", "cpu")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small comparison, its quality judged on one clip each, and the JSON that the command printed."""
    root = tmp_path_factory.mktemp("compare") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(StreamCase.__init__.__kwdefaults__, "review_samples", 1)
        done = alone("compare", "quality", "turbo", "--rounds", "2", "--out", root, *CLIP, "--json", "--quiet")
    assert done.code == 0, done.err
    (folder,) = root.iterdir()
    return folder, done.document


@pytest.fixture
def run(compared: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the run to do things to."""
    return Path(shutil.copytree(compared[0], tmp_path / "run"))


def test_the_document_says_what_the_records_say(compared: tuple[Path, Any]) -> None:
    folder, document = compared
    assert document["runs"] == [str(folder)]
    assert {Path(path).name for path in document["report"].values()} == {"report.html", "report.md", "report.json"}
    assert all(Path(path).stat().st_size > 0 for path in document["report"].values())
    assert {(each["candidate"], each["reference"]) for each in document["speedups"]} == {("turbo", "quality")}
    for each in document["speedups"]:
        assert each["low"] <= each["ratio"] <= each["high"]
        assert document["figures"][each["candidate"]][each["level"]] == each["ratio"]
    assert read_run(folder).header.workload.frame_blocks == 5


def test_the_same_records_give_the_same_page_where_it_is_told_to_go(
    strobe: Strobe, run: Path, compared: tuple[Path, Any], tmp_path: Path
) -> None:
    assert strobe("report", run).code == 0
    for name in ("report.html", "report.md", "report.json"):
        assert (run / name).read_bytes() == (compared[0] / name).read_bytes()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = strobe("report", run, "--out", tmp_path / "pages", "--json")
    assert {Path(path).parent for path in result.document["report"].values()} == {tmp_path / "pages"}
    assert "../run/clips/turbo.mp4" in (tmp_path / "pages" / "report.html").read_text()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_truncated_run_is_read_and_told(strobe: Strobe, run: Path) -> None:
    records = run / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-20])
    result = strobe("report", run)
    assert result.code == 0
    assert "cut short" in result.err and "left out: 1" in result.err


def test_an_interruption_keeps_the_finished_clips(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(
        case: Any, *, root: Path, plan: ComparePlan, progress: Callable[[int, int, str], None], open_run: Any
    ) -> None:
        def stop_in_round_1(done: int, total: int, what: str) -> None:
            if what.startswith("timing turbo"):
                raise KeyboardInterrupt

        run_case(case, root=root, plan=plan, progress=stop_in_round_1, open_run=open_run)

    run_case = runner.run_case
    monkeypatch.setattr(runner, "run_case", interrupted)
    result = strobe("compare", "quality", "turbo", "--out", tmp_path, *CLIP)
    (folder,) = tmp_path.iterdir()
    assert result.code == 130 and f"strobe report {folder}" in result.err
    kept = read_run(folder)
    assert kept.end.status == "interrupted" and [clip.variant for clip in kept.clips] == ["quality", "turbo", "quality"]
    unmet = strobe("report", folder, "--require", "e2e>=0.01", "--json")  # a gate is not met by what was never measured
    assert unmet.code == 1 and unmet.document["not_met"] == ["turbo: e2e was not measured, >=0.01 required"]
    unmet = strobe("report", folder, "--require", "psnr>=1", "--json")
    assert unmet.code == 1 and unmet.document["not_met"] == ["turbo: psnr was not measured, >=1 required"]


@pytest.mark.parametrize(("blocks", "number"), [(5, 0), (8, 1), (14, 2)])
def test_a_short_clip_leaves_default_switches_out(blocks: int, number: int) -> None:
    assert len(ClipFlags(blocks=blocks).script(shapes_defaults()).switches) == number


FAST = (*CLIP, "--rounds", "1")


def test_what_cannot_run_here_is_left_out_and_said_and_a_condition_on_it_does_not_hold(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(StreamCase.__init__.__kwdefaults__, "review_samples", 1)
    done = strobe("compare", "quality", "turbo", "ultra", "--out", tmp_path, *FAST, "--require", "psnr>0", "--json")
    assert done.code == 0, done.err
    (folder,), document, said = tmp_path.iterdir(), done.document, done.err
    run = read_run(folder)
    assert run.header.order == ("quality", "turbo", "turbo", "quality")
    assert [line.variant for line in run.header.absent] == ["ultra"]
    (line,) = (line for line in said.splitlines() if "ultra" in line)
    assert line.startswith("ultra: not on this machine: it runs linear layers in FP8, and cpu has no FP8 matrix units")
    assert document["absent"] == {"ultra": run.header.absent[0].reason}
    assert line in (folder / "report.md").read_text()
    result = strobe("report", folder, "--require", "ultra:psnr>0", "--require", "psnr>0", "--json")
    assert result.code == 1
    (line,) = result.document["not_met"]
    assert line.startswith("ultra: psnr does not count: not on this machine: it runs linear layers in FP8")


def test_a_preset_against_itself_shows_what_the_instrument_makes_of_no_difference(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(StreamCase.__init__.__kwdefaults__, "review_samples", 1)
    result = strobe("compare", "turbo", "turbo", "--out", tmp_path, *FAST, "--json")
    assert result.code == 0, result.err
    assert "turbo-2 is turbo again (A/A): what differs between them is the instrument's error" in result.err
    (folder,) = tmp_path.iterdir()
    assert [(variant.name, variant.preset) for variant in read_run(folder).variants] == [("turbo", "turbo"), ("turbo-2", "turbo")]
    assert "turbo-2 is turbo again (A/A)" in (folder / "report.md").read_text()
    assert {each["candidate"] for each in result.document["speedups"]} == {"turbo-2"}


EIGHT = ("--model", "tiny", "--device", "cpu", "--blocks", "8", "--switch", "block=2:a blue square moving up")
SMALL = ("turbo", "--vary", "steps=1", "--rounds", "1", *EIGHT)


@pytest.fixture(scope="module")
def ablated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One cell of the bundled model, and the JSON that the command printed."""
    folder = tmp_path_factory.mktemp("ablate") / "ablation"
    done = alone("compare", *SMALL, "--out", folder, "--json", "--quiet")
    assert done.code == 0, done.err
    return folder, done.document


def test_the_pages_pass_the_linter(strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path) -> None:
    folder, document = ablated
    assert (document["measured"], document["failed"]) == (["steps-1"], [])
    assert {Path(path).name for path in document["report"].values()} == {"report.html", "report.md", "report.json"}
    assert strobe("report", folder, "--log", "--out", tmp_path / "log").code == 0
    for page in (folder, tmp_path / "log"):
        found = strobe("lint", page / "report.md", "--json")
        assert (found.code, found.document["findings"]) == (0, [])


def test_finished_cells_are_kept_and_the_page_is_made_again_from_them(strobe: Strobe, ablated: tuple[Path, Any]) -> None:
    folder, document = ablated
    before = (folder / "report.md").read_bytes()
    result = strobe("report", folder, "--json")
    assert result.code == 0 and result.document["speedups"] == document["speedups"]
    assert (folder / "report.md").read_bytes() == before
    result = strobe("compare", *SMALL, "--out", folder, "--json")
    assert (result.document["measured"], result.document["kept"]) == ([], ["steps-1"])
    other = strobe("compare", *SMALL, "--out", folder, "--seed", "7")
    assert other.code == 2 and "differ in seed" in other.err


def test_an_interruption_names_what_is_kept_and_what_goes_on(
    strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ablate, "run_cells", stop)
    some, nothing = (strobe("compare", *SMALL, "--out", folder) for folder in (ablated[0], tmp_path / "new"))
    assert some.code == nothing.code == 130
    assert some.err.startswith("the 1 finished cells are kept: the same command goes on from there, ")
    assert f"strobe report {ablated[0]}" in some.err
    assert nothing.err == "error: interrupted\n"


@pytest.mark.parametrize("folder", ["engine-h200/compare", "presets-h200"])
def test_many_candidates_are_answered_on_a_screen(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reported = strobe("report", ROOT / "benchmarks" / folder, "--out", tmp_path)
    assert reported.code == 0 and 20 < reported.out.count("\n") <= 40
    assert "ultra against baseline" in reported.out and "quality against baseline" not in reported.out


TITLE = "Damaged records: the figures are those of what is left."


@pytest.fixture(params=["sealed", "older"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A run, one line of which is garbage: a denoise step of the candidate's third clip; and the line's number as it is told."""
    lines = gzip.decompress((ROOT / "benchmarks/engine-h200/320x576" / "records.jsonl.gz").read_bytes()).splitlines()
    if request.param == "sealed":
        lines = [seal(line, at) for at, line in enumerate(lines, start=1)]
    wanted = {"record": "span", "variant": "balanced", "clip": 2, "name": "denoise_step"}
    at = next(at for at, line in enumerate(lines) if wanted.items() <= json.loads(line).items())
    lines[at] = b'{"record":"span","v":2,"variant":"bal'
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder, f"line {at + 1} is damaged in records.jsonl and not read"


def test_a_damaged_line_is_named_wherever_figures_are(strobe: Strobe, damaged: tuple[Path, str]) -> None:
    folder, told = damaged
    shown = strobe("report", folder)
    assert shown.code == 0 and TITLE in shown.out and told in shown.out
    assert "clip 2 of balanced is left out: damaged records, " in shown.out
    document = strobe("report", folder, "--json").document
    assert document["damaged"][str(folder)][0] == told and len(document["damaged"][str(folder)]) == 2
    for page in ("report.html", "report.md", "report.json"):
        assert TITLE in (folder / page).read_text() and "clip 2 of balanced is left out" in (folder / page).read_text()
    sound = strobe("report", ROOT / "benchmarks/engine-h200/320x576", "--out", folder.parent / "sound", "--json").document
    assert sound["damaged"] == {} and sound["figures"] != document["figures"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_programs_give_a_run_a_page_and_a_document(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rounds", "2", "--warmup", "0", "--names", "one", "two", "--json", "-o", "kept")
    code = main(["compare", *flags, "--", "sleep", "0.01", "--", "echo $((1 + 1)) | cat"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    (folder,) = (place / "kept").iterdir()
    assert document["runs"] == [f"kept/{folder.name}"]
    one, two = document["calls"]
    assert (one["name"], one["command"], one["reference"], one["samples"]) == ("one", "sleep 0.01", "one", 4)
    assert two["command"] == "echo $((1 + 1)) | cat" and two["verdict"] in get_args(Verdict)
    assert one["min_ns"] >= 10_000_000 and one["ratio"] is None and two["ratio"] > 0
    assert document["figures"] == {"two": {**dict.fromkeys(document["figures"]["two"]), "e2e": two["ratio"]}}
    for path in document["report"].values():
        assert "echo $((1 + 1)) | cat" in Path(path).read_text().replace("\\", "")
    assert read_run(folder).header.kind == "programs"


def test_a_run_is_rendered_again_and_held_to_a_requirement(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-q", "--rounds", "2", "--", "true", "--", "echo"]) == 0
    assert "Time and memory of one run, against true." in capsys.readouterr().out
    (folder,) = (place / "runs").iterdir()
    first = (folder / "report.json").read_text()
    assert main(["report", str(folder), "--require", "e2e~<=1000"]) == 0
    assert (folder / "report.json").read_text() == first
    assert main(["report", str(folder), "--require", "e2e~>=1000"]) == 1
    assert main(["report", str(folder), str(folder)]) == 2
    assert "report it without other runs" in capsys.readouterr().err


def test_one_command_is_measured_at_two_commits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    for words in (["init", "--quiet"], *(["commit", "--quiet", "--allow-empty", "-m", each] for each in "12")):
        subprocess.run(["git", *quiet, *words], check=True, timeout=60)
    more = ("--rounds", "2", "--require", "HEAD:e2e~>=1000", "--json", "--", "true")
    assert main(["compare", "--commits", "HEAD~1", "HEAD", *more]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["calls"]] == ["HEAD~1", "HEAD"]
    (line,) = document["not_met"]
    assert line.startswith("HEAD: e2e is ") and all(each["command"].startswith("true  # at ") for each in document["calls"])


def test_traces_of_both_sides_name_the_command_for_the_account(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaves = 'if [ "$STROBE_PROFILE_DIR" ]; then mkdir -p "$STROBE_PROFILE_DIR"; fi'
    assert main(["compare", "--rounds", "2", "--names", "a", "b", "--", leaves, "--", leaves]) == 0
    (folder,) = (place / "runs").iterdir()
    told = f"strobe speedup --baseline-trace runs/{folder.name}/traces/0 --candidate-trace runs/{folder.name}/traces/1"
    assert f"where the time of b went: {told} -o runs/{folder.name}/account-1" in " ".join(capsys.readouterr().err.split())


def test_a_missing_program_and_a_failing_one_are_one_line(place: Path, strobe: Strobe) -> None:
    done = strobe("compare", "--", "no-such-program", "--", "true")
    assert (done.code, done.err.count("\n")) == (3, 1) and "no program 'no-such-program'" in done.err
    done = strobe("compare", "-q", "--", "true", "--", "echo why >&2; exit 7")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "ended with exit status 7; the last it wrote to stderr: why" in done.err
