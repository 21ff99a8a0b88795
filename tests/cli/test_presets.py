"""`strobe presets`."""

from __future__ import annotations

from strobe.engine.presets import PRESETS
from terminal import Strobe


def test_every_setting_of_every_preset(strobe: Strobe) -> None:
    document = strobe("presets", "--device", "cpu", "--json").document
    assert list(document["presets"]) == list(PRESETS)
    settings = document["settings"]
    for name, make in PRESETS.items():
        config = make()
        assert settings["window"][name] == ("model" if config.window is None else str(config.window))
        assert settings["ring_cache"][name] == ("on" if config.knobs.ring_cache else "off")


def test_diff_leaves_out_what_is_the_same(strobe: Strobe) -> None:
    every, some = (strobe("presets", "turbo", "ultra", *flags, "--json").document["settings"] for flags in ([], ["--diff"]))
    assert some == {setting: values for setting, values in every.items() if len(set(values.values())) > 1}
    assert "window" in some and "dtype" not in some


def test_one_preset_differs_from_nothing(strobe: Strobe) -> None:
    result = strobe("presets", "balanced", "--diff")
    assert (result.code, result.out) == (2, "") and "name another beside 'balanced'" in result.err


def test_realtime_is_named_only_where_it_is_taken(strobe: Strobe) -> None:
    result = strobe("presets", "balancd")
    assert result.code == 2 and "did you mean 'balanced'" in result.err and "realtime" not in result.err


def test_a_knob_that_does_nothing_here_is_said_to_be_off(strobe: Strobe) -> None:
    document = strobe("presets", "balanced", "--device", "cpu", "--json").document
    assert "CUDA" in document["off_here"]["balanced"]["compile"]
    table = strobe("presets", "balanced", "--device", "cpu").out
    assert "on*" in table and "compile* is off on cpu" in table
