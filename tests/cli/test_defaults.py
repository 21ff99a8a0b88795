"""Defaults of flags, from `strobe.toml` and the environment, and conditions on a finished comparison."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from strobe.cli import defaults
from strobe.cli.require import failures, parse_requirement
from strobe.core.errors import ConfigError
from strobe.perf.measure.machine import describe_run
from strobe.perf.table.model import Ratio, Speedup
from terminal import Strobe

ASKED = ("doctor", "--json", "--device", "cpu", "--preset", "turbo")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory two folders below one that may hold a file, no other file, no variable."""
    monkeypatch.delenv("STROBE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "argv", ["strobe"])
    (tmp_path / "project" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "inner")
    return tmp_path


def samples(strobe: Strobe, *arguments: str) -> int:
    found: int = strobe(*ASKED, *arguments).document["memory"]["samples"]
    return found


def test_the_command_line_wins_then_the_environment_then_the_verb_then_the_default(
    strobe: Strobe, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert samples(strobe) == 1
    file = place / "project" / "strobe.toml"
    file.write_text("[default]\nsamples = 2\n")
    assert samples(strobe) == 2
    file.write_text("[default]\nsamples = 2\n[doctor]\nsamples = 3\n")
    assert samples(strobe) == 3
    monkeypatch.setenv("STROBE_DEFAULT_SAMPLES", "4")
    assert samples(strobe) == 4
    monkeypatch.setenv("STROBE_DOCTOR_SAMPLES", "5")
    assert samples(strobe) == 5
    assert samples(strobe, "--samples", "6") == 6


def test_what_was_filled_in_is_said_without_its_value_and_recorded_with_it(
    strobe: Strobe, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "project" / "strobe.toml"
    file.write_text(
        '[generate]\nswitch = ["1s:a red square moving up", "2s:a blue star moving up"]\nsimulate = true\nblocks = 0\n'
    )
    monkeypatch.setenv("STROBE_GENERATE_SEED", "17")
    done = strobe("generate", "a red circle moving left")
    assert done.err == (
        f"defaults of the environment: --seed\ndefaults of {file}: --switch, --blocks, --simulate\n"
        "error: --blocks 0: give 1 or more\n"
    )
    switches = ["--switch", "1s:a red square moving up", "2s:a blue star moving up"]
    assert sys.argv == ["strobe", "--seed=17", *switches, "--blocks=0", "--simulate=true"]
    header = describe_run(place, torch.device("cpu"), ("baseline",), 1, "stream")
    assert header.argv == tuple(sys.argv)
    assert strobe("generate", "a red circle moving left", "--quiet").err == "error: --blocks 0: give 1 or more\n"


def test_the_nearest_file_is_taken_and_only_that(strobe: Strobe, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [place / "user" / "strobe" / "strobe.toml", place / "project" / "strobe.toml", place / "project/inner/strobe.toml"]
    for number, file in enumerate(files, start=2):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(f"[doctor]\nsamples = {number}\n")
        found = strobe(*ASKED).document
        assert found["memory"]["samples"] == number
        assert found["defaults"] == str(file)
    other = place / "other.toml"
    other.write_text("[doctor]\nsamples = 9\n")
    assert samples(strobe, "--config", str(files[0])) == 2
    monkeypatch.setenv("STROBE_CONFIG", str(other))
    assert samples(strobe) == 9 and samples(strobe, "--config", str(files[0])) == 2
    assert samples(strobe, "--config", os.devnull) == 1
    assert strobe("doctor", "--config", "gone.toml").err == (
        f"error: --config gone.toml: not a file; give a file such as strobe.toml, or {os.devnull} for none\n"
    )


def test_a_file_of_another_user_is_passed_over(strobe: Strobe, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = place / "project" / "strobe.toml"
    file.write_text("[doctor]\nsamples = 3\n")
    monkeypatch.setattr(defaults, "_ours", lambda path: False)
    done = strobe(*ASKED)
    assert done.document["memory"]["samples"] == 1
    assert f"{file} is passed over: it belongs to another user; --config {file} takes it\n" in done.err
    assert samples(strobe, "--config", str(file)) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[doctr]\na = 1", "{file}: doctr: no such table (did you mean 'doctor'?); a flag stands below one of speedup, trace,"),
        (
            "[doctor]\nprest = 'a'",
            "{file}: [doctor] prest: strobe doctor does not have a flag --prest (did you mean '--preset'?)",
        ),
        ("[doctor]\nsamples = 'a'", 'Invalid value for [doctor][samples] from {file}: unable to convert "a" into int.'),
        ("[doctor]\nsamples = 2.5", "--samples 2.5 from {file}: give a whole number"),
        ("[default]\ndevixe = 'cpu'", "{file}: [default] devixe: no verb has a flag --devixe (did you mean '--device'?)"),
        ("[default]\ndebug = true", "{file}: [default] debug: no verb has a flag --debug"),
        ("device = 'cpu'", "{file}: device: no such table; a flag stands below one of "),
        ("[bench]\nquick = true", "{file}: bench.quick: no such table; a flag stands below one of attention,"),
        ("[bench.atention]\nx = 1", "{file}: bench.atention: no such table (did you mean 'attention'?)"),
        ("[generate]\nmode = 'sofd'", 'Invalid value "sofd" for [generate][mode] from {file}. Choose from: '),
        ("doctor = 3", "{file}: doctor: no such table; a flag stands below one of "),
        ("[doctor\n", "{file} is not TOML: Expected ']'"),
        (b"\xff", "{file} is not TOML: 'utf-8' codec"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_file(strobe: Strobe, place: Path, text: str | bytes, said: str) -> None:
    file = place / "project" / "strobe.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    line = {"[bench": "bench attention", "[gener": "generate x"}.get(str(text[:6]), "doctor --device cpu")
    done = strobe(*line.split())
    assert done.code == 2 and done.out == ""
    assert done.err.splitlines()[-1].startswith("error: " + said.replace("{file}", str(file))), done.err


def test_a_variable_of_no_flag_is_an_error(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROBE_DOCTOR_SAMPLE", "2")
    assert strobe("doctor").err == (
        "error: STROBE_DOCTOR_SAMPLE: strobe doctor does not have a flag --sample (did you mean '--samples'?)\n"
    )
    assert strobe("presets", "--quiet", "--device", "cpu").code == 0, "it is another verb's"
    monkeypatch.delenv("STROBE_DOCTOR_SAMPLE")
    monkeypatch.setenv("STROBE_TRAIN_SHAPES_OUT", "x")
    monkeypatch.setenv("STROBE_DOCTOR_SAMPLES", "many")
    done = strobe("doctor")
    assert done.code == 2 and "--samples" in done.err and "many" in done.err


def test_a_list_of_the_environment_is_words_of_a_shell(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROBE_GENERATE_SWITCH", "'1s:a red square' 2s:blue")
    assert "switch" in strobe("generate", "a red circle moving left", "--blocks", "0").err
    assert sys.argv == ["strobe", "--switch", "1s:a red square", "2s:blue"]


def test_the_table_of_all_says_not_what_a_document_is_about(strobe: Strobe, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "project" / "strobe.toml").write_text('[default]\ndevice = "cpu"\n')  # as in docs/install.md
    monkeypatch.setenv("STROBE_DEFAULT_SIZE", "480x832")
    Path("page.md").write_text("nothing\n")
    assert strobe("lint", "page.md").code == 0


def test_a_flag_of_the_file_can_be_turned_off(strobe: Strobe, place: Path) -> None:
    (place / "project" / "strobe.toml").write_text("[doctor]\njson = true\n")
    assert strobe("doctor", "--device", "cpu", "--json=false").out.startswith("ok ")


def ratio(value: float, low: float | None = None, high: float | None = None, saved_ns: float = 1e9) -> Speedup:
    return Speedup("turbo", "baseline", "e2e", Ratio(value, low, high), saved_ns)


FIGURES = {
    "turbo": {"e2e": ratio(1.55, 1.5, 1.6), "psnr": 31.25, "ssim": None},
    "ultra": {"e2e": ratio(2.0, 1.4, 2.9), "psnr": 24.0, "ssim": None},
}


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("e2e>=1.4", []),
        ("e2e>=1.5", ["ultra"]),  # its point estimate is 2, its interval begins at 1.4
        ("e2e > 1.5", ["turbo", "ultra"]), ("turbo:e2e<=1.6", []), ("turbo:e2e<1.6", ["turbo"]), ("e2e<=1.6", ["ultra"]),
        ("e2e~>=1.5", []), ("e2e~>=1.6", ["turbo"]), ("ultra: psnr >= 30", ["ultra"]), ("psnr<30", ["turbo"]),
        ("psnr~<30", ["turbo"]), ("e2e>=1e1", ["turbo", "ultra"]), ("ssim>0", ["turbo", "ultra"]),
    ],
)  # fmt: skip
def test_a_requirement_holds_for_every_candidate_it_means(text: str, failed: list[str]) -> None:
    assert [line.split(":")[0] for line in failures(parse_requirement(text), FIGURES)] == failed


def test_a_failure_says_the_figure_and_what_was_required() -> None:
    assert failures(parse_requirement("turbo:psnr>=40"), FIGURES) == ["turbo: psnr is 31.25, >=40 required"]
    assert failures(parse_requirement(" git log a/b~1 : psnr>=40"), {"git log a/b~1": {"psnr": 41.0}}) == []
    assert failures(parse_requirement("turbo:ssim>=0.9"), FIGURES) == ["turbo: ssim was not measured, >=0.9 required"]
    assert failures(parse_requirement("turbo:e2e>=3"), FIGURES) == ["turbo: e2e is 1.55 [1.5, 1.6], >=3 required"]


def test_a_point_estimate_above_the_bound_is_not_enough() -> None:
    (line,) = failures(parse_requirement("ultra:e2e>=1.5"), FIGURES)
    assert line == ("ultra: e2e is 2 [1.4, 2.9], >=1.5 required of its low end, which is 1.4; more rounds narrow the interval")
    (line,) = failures(parse_requirement("ultra:e2e<=2.5"), FIGURES)
    assert "<=2.5 required of its high end, which is 2.9" in line


def test_a_ratio_without_an_interval_proves_nothing() -> None:
    figures = {"turbo": {"e2e": ratio(3.0)}}
    (line,) = failures(parse_requirement("e2e>=1.5"), figures)
    assert "3 without an interval" in line and "write e2e~>=1.5 for the point estimate alone" in line
    assert failures(parse_requirement("e2e~>=1.5"), figures) == []


@pytest.mark.parametrize(
    ("text", "figure", "holds"),
    [
        ("e2e>1", ratio(1.005, 1.003, 1.007), False),  # sure, but below 1 %
        ("e2e>=1", ratio(1.005, 1.003, 1.007), True),  # claims no difference
        ("e2e>=0.98", ratio(1.0, 0.99, 1.01, 0.0), True),  # no regression beyond 2 %
        ("kernel>1.2", ratio(1.5, 1.4, 1.6, 500.0), False),  # 0.5 µs is below what the clock resolves
        ("kernel>1.2", ratio(1.5, 1.4, 1.6, 1500.0), True),
        ("e2e<1", ratio(0.995, 0.993, 0.997), False),
        ("e2e<1", ratio(0.9, 0.85, 0.95), True),
    ],
)
def test_a_claimed_difference_exceeds_both_floors(text: str, figure: Speedup, holds: bool) -> None:
    failed = failures(parse_requirement(text), {"turbo": {"e2e": figure, "kernel": figure}})
    assert (failed == []) is holds
    assert holds or "a difference below 1 % or 1 µs is never one" in failed[0]


@pytest.mark.parametrize(
    "text", ["", "e2e", "e2e>=", ">=1", "e2e=1", "e2e>=fast", "e2e>=1.5 or so", "a:b:c>1", "~e2e>1", "e2e>~1"]
)
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--require"):
        parse_requirement(text)


@pytest.mark.parametrize(("text", "nearest"), [("e2>=1", "e2e"), ("trubo:e2e>=1", "turbo")])
def test_unknown_names_say_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        failures(parse_requirement(text), FIGURES)


def test_every_metric_a_clip_gets_is_known_before_it_is_made() -> None:
    """`--require` names figures before the run: the list and what the review yields are one."""
    from strobe.bench import quality
    from strobe.perf.records.record import PromptAt, Workload

    prompts = ("a red circle moving left slowly on a navy background", "a yellow star moving up slowly on a black background")
    at = (PromptAt(frame_block=0, text=prompts[0], mode="start"), PromptAt(frame_block=2, text=prompts[1], mode="recache"))
    work = Workload(
        prompts=at,
        seed=0, frame_blocks=4, latents_per_block=1, frames_first_block=4, frames_per_block=4, frames=16, height=128, width=128,
        fps=16,
    )  # fmt: skip
    frames = torch.randint(0, 255, (1, 16, 128, 128, 3), dtype=torch.uint8)
    for number in (1, 2):
        part = msgspec.structs.replace(work, prompts=work.prompts[:number])
        given = [*quality.against_reference("a", frames, frames, "r"), *quality.by_oracle("a", frames, part)]
        assert sorted(line.metric for line in given) == sorted(quality.metrics((128, 128), prompts[:number]))
    assert [line.metric for line in quality.not_measured("a", "no weights")] == list(quality.metrics((480, 832), ()))
