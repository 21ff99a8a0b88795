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
