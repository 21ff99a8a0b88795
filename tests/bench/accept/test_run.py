"""The acceptance of a model as a run: its columns, its page, the line for a table, and what a damaged model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from strobe.bench.accept import delivered, run
from strobe.bench.accept.delivered import COLUMNS, Decoders, decoders
from strobe.bench.accept.run import Subject, not_judged, run_accept
from strobe.core.errors import ConfigError
from strobe.engine.load import Model
from strobe.engine.presets import preset
from strobe.models.vae.taew import Taew
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae
from strobe.perf.analysis.runs.acceptance import Acceptance, Rate, acceptance_of
from strobe.perf.records.checks import Check
from strobe.perf.records.store import read_run
from strobe.perf.report.accept_page import accept_report, markdown_line, order_notes
from strobe.perf.report.build import build_report
from strobe.perf.report.markdown import render_markdown

CPU = torch.device("cpu")


def quiet(*step: object) -> None:
    pass


def subject(model: Model, **change: object) -> Subject:
    fields: dict[str, object] = {
        "model": model,
        "config": preset("balanced"),
        "presets": (preset("balanced"),),
        "prompts": ("red circle", "blue square moving"),
        "device": CPU,
        "seed": 0,
        "blocks": 6,
        "decoders": decoders(model, None, None),
    }
    return Subject(**(fields | change))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "BLOCKS", 2)


@pytest.fixture
def words(tiny: Model) -> Model:
    from strobe.models.text.words import WordEncoder

    return replace(tiny, text=WordEncoder(["red", "blue", "circle", "square", "moving"], dim=16, length=6))


def test_every_column_and_check_is_written_and_shown(words: Model, tmp_path: Path) -> None:
    folder = run_accept(subject(words), root=tmp_path, progress=quiet)
    records = read_run(folder)
    found = acceptance_of(records)
    assert found.complete and [rate.name for rate in found.rates] == list(COLUMNS)
    denoise, commit, tiny_vae, full, encode = found.rates
    assert [len(each.blocks_ns) for each in found.rates] == [2, 2, 2, 0, 2]
    assert full.median_fps is None and full.note == "this model has one autoencoder, the tiny one"
    assert all(one < two for one, two in zip(denoise.blocks_ns, commit.blocks_ns, strict=True))
    assert tiny_vae.median_fps is not None and tiny_vae.slowest_fps is not None and tiny_vae.slowest_fps <= tiny_vae.median_fps
    assert encode.note.startswith("the model's own autoencoder")
    names = {check.name: check for check in found.checks}
    assert len(names) == len(found.checks)
    assert names["streaming_against_one_pass"].passed and names["preset_balanced"].passed and names["prompt_sensitivity"].passed
    assert (folder / records.videos[0].path).stat().st_size > 0 and records.videos[0].frames > 60
    page = render_markdown(build_report([folder]))
    assert page == render_markdown(accept_report(folder))
    for told in ("Line for a table of results", "Delivered frames per second", "source of the bound", "reported, not judged"):
        assert told in page
    head, rule, row = markdown_line(records, found).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|") == 14 and row.startswith("| tiny | 000000000000 | balanced |")
    assert f"{found.num_judged - len(found.failed)} of {found.num_judged}" in row


def test_a_damaged_model_is_not_accepted_and_the_page_says_why(words: Model, tmp_path: Path) -> None:
    import copy

    dit = copy.deepcopy(words.dit)
    with torch.no_grad():
        dit.layers[1].ffn[0].weight[0, 0] = float("nan")
    folder = run_accept(subject(replace(words, dit=dit), presets=()), root=tmp_path, progress=quiet)
    found = acceptance_of(read_run(folder))
    assert found.complete and not found.accepted
    assert {"tensors_not_finite", "latents_not_finite", "latent_std", "prompt_sensitivity"} <= {
        each.name for each in found.failed
    }
    report = accept_report(folder)
    assert report.subtitle.startswith("Not accepted: ") and report.banners[0].title == "Checks failed"
    assert any("transformer blocks.1.ffn.0.weight" in item for item in report.banners[0].items)


def test_random_weights_are_not_judged_by_their_clips() -> None:
    for name, group, kept in (
        ("motion", "frames", False),
        ("latent_std", "latents", False),
        ("latents_not_finite", "latents", True),
    ):
        check = not_judged(Check(group=group, name=name, value=1.0, passed=False, basis="fact"))  # type: ignore[arg-type]
        assert (check.passed is False) == kept and check.basis.startswith("fact" if kept else "random weights")
    check = Check(group="stream", name="x", value=1.0, passed=False)
    assert not_judged(check) == check


def test_the_other_autoencoder_is_drawn_where_there_is_none(tiny: Model, tmp_path: Path) -> None:
    assert decoders(tiny, tmp_path, None) == Decoders(
        tiny=tiny, full=None, tiny_note="its own", full_note="this model has one autoencoder, the tiny one"
    )
    wan = replace(tiny, vae=random_wan_vae(WanVAEConfig(), 0))
    found = decoders(wan, tmp_path, None)
    assert found.full is wan and found.tiny is not None and isinstance(found.tiny.vae, Taew)
    assert found.tiny_note == delivered.DRAWN and found.full_note == "its own"
    back = decoders(found.tiny, tmp_path, None)
    assert back.tiny is found.tiny and back.full is not None and isinstance(back.full.vae, WanVAE)
    assert back.full_note == delivered.DRAWN


def test_what_cannot_be_accepted_is_told_before_anything_runs(words: Model) -> None:
    with pytest.raises(ConfigError, match="3 frame blocks are too few to see drift; give 4 or more"):
        subject(words, blocks=3)
    with pytest.raises(ConfigError, match="the other prompt is the same as the first"):
        subject(words, prompts=("red circle", "red circle"))
    with pytest.raises(ConfigError, match="purple"):
        subject(words, prompts=("red circle", "purple circle"))
    assert run.LEAST_BLOCKS == 4


def columns(**blocks_ms: tuple[float, ...]) -> Acceptance:
    """Columns with these times of their frame blocks, which have 12 frames; those left out cannot be had."""
    names = dict(zip(("denoise", "commit", "tiny", "full", "encode"), COLUMNS, strict=True))
    rates = []
    for short, name in names.items():
        times = tuple(int(1e6 * ms) for ms in blocks_ms.get(short, ()))
        fps = 12e9 / median(times) if times else None
        slowest = 12e9 / max(times) if times else None
        rates.append(Rate(name=name, blocks_ns=times, median_fps=fps, slowest_fps=slowest, note=""))
    return Acceptance(checks=(), rates=tuple(rates), complete=True)


def test_a_column_faster_than_what_it_contains_is_told_with_the_spread() -> None:
    """Clips of their own on a busy machine: the reader hears that it is no gain, and whether chance explains it."""
    busy = columns(denoise=(90, 100), commit=(110, 120, 130), tiny=(90, 100, 140), full=(200, 210), encode=(99, 100, 101))
    notes = order_notes(busy)
    assert [note.partition(":")[0] for note in notes] == [
        "+ tiny VAE came out 20.0 % faster than denoise + commit, which it contains",
        "+ encode came out 20.0 % faster than denoise + commit, which it contains",
    ]
    assert "differ by up to 50.0 % among themselves, so chance explains it. Run it again when nothing else runs." in notes[0]
    assert "differ by up to 16.7 % among themselves, so the machine was slower in one of them. Run" in notes[1]
    (note,) = order_notes(columns(denoise=(50,), commit=(60,), tiny=(100, 110), encode=(90, 100)))
    assert note.startswith("+ encode came out 10.5 % faster than + tiny VAE, which it contains: ")


def test_the_full_autoencoder_does_not_contain_the_tiny_one() -> None:
    assert not order_notes(columns(denoise=(50,), commit=(60,), tiny=(100,), full=(90,), encode=(95,)))
    assert not order_notes(columns(denoise=(50,), commit=(60,)))


def test_the_page_tells_columns_out_of_order(words: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_accept(subject(words, presets=()), root=tmp_path, progress=quiet)
    monkeypatch.setattr("strobe.perf.report.accept_page.order_notes", lambda found: ("+ encode came out faster.",))
    assert "+ encode came out faster." in render_markdown(accept_report(folder))
