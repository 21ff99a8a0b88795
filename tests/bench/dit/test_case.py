"""Forward passes of tiny transformers under several kinds of attention: gates, regions, variants over shared weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from strobe.bench.case import ComparePlan
from strobe.bench.dit import MODELS, DitCase, LoadedModel, Shot, load_named, variants_of
from strobe.bench.runner import run_case
from strobe.core.spans import TRACEABLE, recording
from strobe.integrations.diffusers import processors
from strobe.perf.measure.profile import _marks
from strobe.perf.measure.timing import TimingRecorder
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.run_page import PerStep, paired, per_step
from strobe.perf.report.study import load_study

CPU = torch.device("cpu")


def tiny(name: str) -> LoadedModel:
    return load_named(name, shot=MODELS[name].tiny_shot, tiny=True, weights=None, device=CPU, dtype=torch.float32, seed=0)


def case_of(loaded: LoadedModel, *sparsity: float, compiled: tuple[bool, ...] = (False,), **options: Any) -> DitCase:
    variants = variants_of(("dense", "vsa"), sparsity or (0.5,), compiled, masked=loaded.masked)
    return DitCase(loaded, variants, steps=2, device=CPU, **options)


def regions(case: DitCase, name: str) -> Counter[str]:
    """Regions entered in one denoise step, by the innermost two names."""
    recorder = TimingRecorder(CPU, inside=True)
    recorder.start_clip()
    with recording(recorder):
        for _ in case.blocks(name):
            pass
    recorder.finish_clip()
    return Counter({"/".join(path[-2:]): number for (block, path), (number, _) in recorder.inside().items() if block == 1})


@pytest.mark.parametrize("name", MODELS)
def test_every_gate_is_green_and_every_kernel_is_marked(name: str) -> None:
    loaded = tiny(name)
    case = case_of(loaded, 0.5, 0.8)
    assert case.baseline == "dense" and case.candidates[-2:] == ("vsa-50", "vsa-80")
    assert ("dense-strobe" in case.candidates) == (name == "hunyuan-video-1.5"), "whose stock attention has a mask"
    for candidate in case.candidates:
        gate = case.gate(candidate)
        assert gate.passed and "diffusers' own attention" in gate.rule, gate
    layers = loaded.transformer.config.num_layers
    for variant in ("dense", "vsa-50"):
        found = regions(case, variant)
        assert found["dit_forward/attention"] == layers and found["attention/attention_kernel"] >= layers
        assert found["dit_forward/ffn"] >= layers
    sparse = regions(case, "vsa-50")
    assert sparse["attention/attention_select"] == sparse["dit_forward/attention"]
    settings = case.settings("vsa-50")
    assert settings.costs[0].flops < (settings.costs[0].dense_flops or 0)
    assert case.settings("dense").costs[0].flops == settings.costs[0].dense_flops


def test_marks_leave_nothing_behind() -> None:
    loaded = tiny("wan-1.3b")
    case = case_of(loaded)
    module = __import__(type(loaded.transformer).__module__, fromlist=["dispatch_attention_fn"])
    before = module.dispatch_attention_fn, processors.dense_attention
    regions(case, "dense")
    assert (module.dispatch_attention_fn, processors.dense_attention) == before
    assert not any(
        each._forward_hooks or each._forward_pre_hooks for each in case._make(case._variants["dense"]).transformer.modules()
    )
    blocks = case.blocks("dense")  # nobody listens: nothing is hooked
    next(blocks)
    assert module.dispatch_attention_fn is before[0]
    blocks.close()  # type: ignore[attr-defined]


def test_variants_share_the_weights_and_leave_the_given_transformer_alone() -> None:
    loaded = tiny("wan-1.3b")
    stock = {name: type(each) for name, each in loaded.transformer.attn_processors.items()}
    case = case_of(loaded)
    for name in ("dense", "vsa-50"):
        case.prepare(name)
    weights = [next(case._make(case._variants[name]).transformer.parameters()).data_ptr() for name in ("dense", "vsa-50")]
    assert set(weights) == {next(loaded.transformer.parameters()).data_ptr()}
    assert {name: type(each) for name, each in loaded.transformer.attn_processors.items()} == stock


def test_a_wrong_kernel_is_a_red_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    right = processors.video_sparse_attention

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        return type(found)(**{name: getattr(found, name) for name in found.__dataclass_fields__} | {"out": found.out * 1.01})

    monkeypatch.setattr(processors, "video_sparse_attention", wrong)
    gate = case_of(tiny("wan-1.3b")).gate("vsa-50")
    assert not gate.passed and float(gate.detail) > 1e-4


def test_compiled_variants_are_whole_graphs_that_tracing_does_not_recompile() -> None:
    from torch._dynamo.utils import counters

    case = case_of(tiny("wan-1.3b"), 0.5, 0.8, compiled=(False, True), compiler="eager")
    compiled = [name for name in case.candidates if name.endswith("-compile")]
    assert compiled == ["dense-compile", "vsa-50-compile", "vsa-80-compile"]
    assert all(case.gate(name).passed for name in compiled)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs >= 3

    @contextmanager
    def either(name: str) -> Iterator[None]:
        launched = case.launched(name)
        assert launched is not None
        with recording(_marks(TRACEABLE)):
            for _ in case.blocks(name):
                pass
            with launched:
                yield

    for name in compiled:
        with either(name):
            found = regions(case, name)
        assert found["attention/attention_kernel"], "launched one by one it has its regions"
        assert "attention/attention_kernel" not in regions(case, name)
    assert counters["stats"]["unique_graphs"] == graphs
    assert case.launched("dense") is None


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("name", ["wan-1.3b", "hunyuan-video-1.5"])
def test_compiled_and_eager_variants_have_accounts(name: str, tmp_path: Path) -> None:
    device = torch.device("cuda")
    shot = Shot(height=256, width=256, frames=33)
    loaded = load_named(name, shot=shot, tiny=True, weights=None, device=device, dtype=torch.bfloat16, seed=0)
    variants = variants_of(("dense", "vsa"), (0.5,), (False, True), masked=loaded.masked)
    case = DitCase(loaded, variants, steps=4, device=device, backend="native")
    folder = run_case(case, root=tmp_path, plan=ComparePlan(palindromes=2), progress=lambda *_: None)
    case.close()
    assert all(gate.passed for gate in read_run(folder).gates)
    study = load_study([folder])
    steps = {subject.name: per_step(subject) for subject in study.subjects}
    assert all(isinstance(each, PerStep) for each in steps.values()), steps
    ledgers = {finding.candidate.name: finding.ledger for finding, alike, _ in paired(study, ()) if alike}
    assert {"vsa-50", "vsa-50-compile"} <= set(ledgers) and not any(isinstance(each, str) for each in ledgers.values()), ledgers
    assert [section.id for section in build_report([folder]).sections][-2:] == ["answer", "notes"]
