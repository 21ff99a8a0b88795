"""Defaults of flags: `strobe.toml` and the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from strobe.cli import defaults
from strobe.perf.measure.machine import describe_run
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
        f"error: --config gone.toml: no such file; give a file such as strobe.toml, or {os.devnull} for none\n"
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


def test_a_flag_of_the_file_can_be_turned_off(strobe: Strobe, place: Path) -> None:
    (place / "project" / "strobe.toml").write_text("[doctor]\njson = true\n")
    assert strobe("doctor", "--device", "cpu", "--json=false").out.startswith("ok ")
