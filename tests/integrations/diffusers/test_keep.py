"""A share of attention weight to keep: measured dense, written beside the checkpoint, read back, and refused elsewhere."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler, WanPipeline
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.sparse.coarse import Forced, forced_blocks, share_held
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.video import explain_video, video_sparse_attention
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.integrations.diffusers import Calibration, calibrate, processors, sparsify
from strobe.integrations.diffusers.forward import Pass
from strobe.integrations.diffusers.keep import read_calibration, tiles_that_keep, write_calibration
from strobe.integrations.diffusers.processors import SparseProcessor
from tiny_pipelines import Case, OwnLoop, clip, cosmos, gates, hunyuan, hunyuan15, ltx2, wan, wan_pipeline

TILE = (2, 2, 3)
KEEP = 0.6


def calibrated(pipe: Any, file: Path | None, *, steps: int = 3, **options: Any) -> Calibration:
    options = {"keep": KEEP, "tile": TILE, "file": file} | options
    return calibrate(pipe, lambda: [clip(pipe, steps, seed=seed) for seed in (1, 2)], **options)


@pytest.mark.parametrize(
    ("grids", "tile", "forced"),
    [
        (((3, 5, 6), (3, 5, 6)), TILE, Forced()),
        (((3, 5, 6), (3, 5, 6)), TILE, Forced(own=True, first_frames=1)),
        (((2, 5, 6), (4, 5, 6)), (1, 2, 3), None),  # as a frame block attends to its past
    ],
    ids=["free", "forced", "of a past"],
)
def test_the_share_of_the_first_tiles_is_a_plain_sum_over_tokens(
    grids: tuple[Any, Any], tile: tuple[int, int, int], forced: Forced | None, request: pytest.FixtureRequest
) -> None:
    own, past = layouts = [tile_layout(grid, tile) for grid in grids]
    generator = torch.Generator().manual_seed(0)
    q, k = (2 * torch.randn(2, each.num_tokens, 3, 8, generator=generator) for each in layouts)
    must = None if forced is None else forced_blocks(forced, own, past, (own.num_tiles,))
    found = share_held(q, k, own, must, queries=own.num_tokens, kv_layout=past)
    asking, keys = ([row[row < each.num_tokens].tolist() for row in each.tokens().view(each.num_tiles, -1)] for each in layouts)
    expected = torch.zeros(3, past.num_tiles, dtype=torch.float64)
    for b, h in ((b, h) for b in range(2) for h in range(3)):
        one, other = q[b, :, h].double(), k[b, :, h].double()
        weights = torch.softmax(one @ other.T / math.sqrt(8), dim=-1)
        for i, rows in enumerate(asking):
            scores = [float(one[rows].mean(0) @ other[tokens].mean(0)) for tokens in keys]
            held = [False] * len(keys) if must is None else must[i].tolist()
            order = sorted(range(len(keys)), key=lambda j: (not held[j], 0 if held[j] else -scores[j], j))
            shares = torch.stack([weights[rows][:, keys[j]].sum(-1) for j in order]).cumsum(0)
            expected[h] += shares.sum(-1) / own.num_tokens
    near = tolerance("element", "float32")
    torch.testing.assert_close(found.double(), expected, atol=near, rtol=near)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(share_held(q, k, own, must, queries=own.num_tokens, kv_layout=past), found)


@hypothesis.given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**31), st.floats(0.01, 0.999), st.data())
def test_every_head_keeps_the_share_by_itself(heads: int, tiles: int, seed: int, keep: float, data: st.DataObject) -> None:
    """Against weights in float64, added up one after the other; numbers are whole steps of so many that 64 differ at most."""
    fewest = data.draw(st.integers(1, tiles))
    generator = torch.Generator().manual_seed(seed)
    sharp = torch.rand(heads, 1, generator=generator, dtype=torch.float64) * 8
    weights = torch.softmax(sharp * torch.randn(heads, tiles, generator=generator, dtype=torch.float64), dim=-1)
    numbers, shares = tiles_that_keep(3 * weights.cumsum(dim=-1), keep, fewest)
    step = math.ceil(tiles / 64)
    for of_head, number, share in zip(weights.tolist(), numbers, shares.tolist(), strict=True):
        assert number >= fewest and (number % step == 0 or number == tiles)
        assert share == pytest.approx(sum(of_head[:number]))
        assert share > keep - 1e-12
        former = (number - 1) // step * step
        assert former < fewest or sum(of_head[:former]) < keep + 1e-12, "a step fewer does not keep it"


def test_a_calibrated_pipeline_keeps_what_was_asked(tmp_path: Path) -> None:
    pipe = wan_pipeline(experts=2)
    dense = clip(pipe, 3)
    found = calibrated(pipe, tmp_path / "kept.json", forced=Forced(own=True))
    assert torch.equal(clip(pipe, 3), dense), "calibrate leaves the pipeline as it was"
    assert found.grid == (5, 6, 7) and found.tile == TILE and found.steps == 3 and found.tiles == 27
    assert {name: sorted(steps) for name, steps in found.selected.items()} == {"transformer": [0], "transformer_2": [1, 2]}
    assert KEEP <= found.worst < found.kept < 1 and 0 < found.sparsity < 1
    layers = [numbers for steps in found.selected.values() for step in steps.values() for numbers in step.values()]
    assert len(layers) == 9 and all(len(numbers) == 2 for numbers in layers) and any(len({*numbers}) > 1 for numbers in layers)
    assert found.sparsity == pytest.approx(1 - sum(map(sum, layers)) / 18 / 27, abs=0.02)
    with sparsify(pipe, keep=tmp_path / "kept.json") as handle:
        with handle.recalls(64) as recalls:
            for seed in (1, 2):
                clip(pipe, 3, seed=seed)
        mean = torch.stack([call for calls in recalls.values() for call in calls]).mean().item()
        assert KEEP - 0.05 < mean < 1, "the sparse run attends to what was measured"
        assert handle.unmeasured and str(found) in str(handle.report())
        rows = handle.report().layers
        means = [1 - each.share for each in rows if each.share is not None]
        assert sum(means) / 6 == pytest.approx(sum(row.sparsity for row in rows) / 6, abs=0.01)


def seen_shares(pipe: Any, steps: int, **options: Any) -> list[float]:
    """What the first layer skips in each pass."""
    with sparsify(pipe, **options):
        seen: list[float] = []
        attn = pipe.transformer.blocks[0].attn1
        attn.register_forward_pre_hook(lambda a, args: seen.append(a.processor.sparsity_in(args[3])))
        clip(pipe, steps, guidance_scale=1.0)
        attn._forward_pre_hooks.clear()
    return seen


def test_steps_are_told_apart_by_their_place(tmp_path: Path) -> None:
    pipe, file = wan_pipeline(), tmp_path / "kept.json"
    calibrated(pipe, file)
    with_numbers(file, lambda step, _: ((27, 27), (7, 11), (1, 5))[step])
    shares = [0, 18 / 27, 24 / 27]
    assert seen_shares(pipe, 3, keep=file) == pytest.approx(shares)
    assert seen_shares(pipe, 6, keep=file) == pytest.approx([share for share in shares for _ in range(2)])
    assert seen_shares(pipe, 3, keep=file, dense_steps=[1]) == pytest.approx([0, 0, 24 / 27])
    assert seen_shares(pipe, 3, keep=file, dense_layers=[0]) == [0, 0, 0]
    pipe.scheduler = FlowMatchHeunDiscreteScheduler(shift=3.0)
    assert seen_shares(pipe, 3, keep=file) == pytest.approx([0, 0, 18 / 27, 18 / 27, 24 / 27])


def with_numbers(file: Path, of_layer: Callable[[int, int], Sequence[int]]) -> None:
    """Write other numbers of the heads into a calibration, by step and layer."""
    document = json.loads(file.read_text())
    for step, layers in document["selected"]["transformer"].items():
        for place, layer in enumerate(layers):
            layers[layer] = of_layer(int(step), place)
    file.write_text(json.dumps(document))


def test_each_head_of_each_layer_and_step_sees_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, file = wan_pipeline(), tmp_path / "kept.json"
    calibrated(pipe, file)
    with_numbers(file, lambda step, layer: (1 + step, 27 - layer))
    seen = list[tuple[int, ...]]()

    def watched(*tensors: Tensor, **options: Any) -> Any:
        found = video_sparse_attention(*tensors, **options)
        numbers = found.selection.counts[0, :, 0].tolist()
        assert (found.selection.counts == found.selection.counts.new_tensor(numbers)[:, None]).all()
        seen.append(tuple(numbers))
        return found

    asked = list[tuple[int, ...]]()

    def explained(*tensors: Tensor, **options: Any) -> Any:
        asked.append(options["topk"])
        return explain_video(*tensors, **options)

    monkeypatch.setattr(processors, "video_sparse_attention", watched)
    with sparsify(pipe, keep=file) as handle:
        clip(pipe, 3, guidance_scale=1.0)
        rows = handle.report().layers
        monkeypatch.setattr(processors, "explain_video", explained)
        assert "key tiles" in str(handle.report()) and asked == [(2, 27), (2, 26), (2, 25)]
    assert seen == [(1 + step, 27 - layer) for step in range(3) for layer in range(3)]
    assert [row.selected for row in rows] == [14.5, 14, 13.5]
    assert [row.sparsity for row in rows] == pytest.approx([1 - (29 - layer) / 54 for layer in range(3)])


def test_what_is_written_is_read() -> None:
    numbers = {"transformer": {0: {"a": (1, 27), "b": (3, 3)}, 7: {"a": (27, 27), "b": (2, 1)}}}
    made = Calibration(
        keep=0.9, kept=0.95, worst=0.91, models={"transformer": "0" * 16}, grid=(5, 6, 7), tile=TILE,
        forced=Forced(own=True, last_frames=2), tiles=27, steps=8, selected=numbers,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        write_calibration(made, Path(folder) / "kept.json")
        assert read_calibration(Path(folder) / "kept.json", {"transformer": {"a": 2, "b": 2}}) == made
    assert made.sparsity == made.sparsity_of("transformer") == pytest.approx(1 - 91 / 8 / 27)


@pytest.mark.parametrize("case", [ltx2, hunyuan, hunyuan15])
def test_every_family_is_measured(case: Any, tmp_path: Path) -> None:
    """Called by hand, the scheduler tells the step."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(2)
    given: Case = case()
    model, told = given.model, {"attention_kwargs": {"denoise_step": scheduler}}
    found = calibrate(model, lambda: given.run(**told), keep=KEEP, tile=TILE, file=tmp_path / "kept.json")
    assert found.steps == 2 and len(found.selected[""][0]) == len(
        [each for each in model.attn_processors if each.endswith(("attn1.processor", "attn.processor")) and "audio" not in each]
    ) - sum("refiner" in each for each in model.attn_processors)
    dense = given.run()
    with sparsify(model, keep=tmp_path / "kept.json", gates=None):
        assert any(isinstance(each, SparseProcessor) for each in model.attn_processors.values())
        sparse = given.run(**told)
        with pytest.raises(ConfigError, match="keep: it is not known how many steps there are; give the scheduler: attention_kw"):
            given.run(attention_kwargs={"denoise_step": 1})
    assert sparse.isfinite().all() and not torch.equal(sparse, dense)


def test_a_loop_over_cosmos_is_measured(tmp_path: Path) -> None:
    own, file = OwnLoop(cosmos(1)), tmp_path / "kept.json"
    dense = own()
    found = calibrate(own, own, keep=KEEP, tile=TILE, file=file)
    assert found.steps == 3 and all(len(layers) == 2 for layers in found.selected["transformer"].values())
    with sparsify(own, keep=file):
        assert not torch.equal(own(), dense)
    with sparsify(own, keep=file, dense_frames=5):
        assert (own() - dense).abs().max() <= 1e-5 * dense.abs().max()


@pytest.mark.parametrize("case", [wan, ltx2, partial(ltx2, perturbed_attn=True), hunyuan, hunyuan15])
@pytest.mark.parametrize("place", ["before", "meanwhile"])
def test_calls_of_another_thread_are_not_measured(case: Any, place: str, tmp_path: Path) -> None:
    """One without a step begins before the calibration, one with a step in a measured call; both compute what they did."""
    scheduler = FlowMatchHeunDiscreteScheduler()
    scheduler.set_timesteps(2)
    given: Case = case()
    told = {"attention_kwargs": {"denoise_step": scheduler}}
    alone, beside = tmp_path / "alone.json", tmp_path / "beside.json"
    options: dict[str, Any] = {"keep": KEEP, "tile": TILE}
    calibrate(given.model, lambda: given.run(**told), file=alone, **options)
    other = {"hidden_states": given.arguments["hidden_states"] * 3} | (told if place == "meanwhile" else {})
    wanted, found = given.run(**other), list[Tensor]()
    begun, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: found.append(given.run(**other)))

    def wait(*_: Any) -> None:
        if threading.current_thread() is thread:
            begun.set()
            assert go_on.wait(10)
        elif place == "meanwhile" and not thread.ident:
            thread.start()
            go_on.set()
            thread.join()

    def call() -> None:
        go_on.set()
        if place == "before":
            thread.join()
        given.run(**told)

    attn = next(module for name, module in given.model.named_modules() if name.endswith(("blocks.0.attn1", "blocks.0.attn")))
    with attn.register_forward_pre_hook(wait):
        if place == "before":
            thread.start()
            assert begun.wait(10)
        calibrate(given.model, call, file=beside, **options)
    assert torch.equal(found[0], wanted)
    assert beside.read_text() == alone.read_text()


def test_beside_the_checkpoint_it_is_found(tmp_path: Path) -> None:
    pipe = wan_pipeline()
    with pytest.raises(ConfigError, match="keep: the model was not loaded from a folder; give the calibration a path"):
        calibrated(pipe, None)
    pipe.transformer.save_pretrained(tmp_path / "transformer")
    loaded = wan_pipeline()
    loaded.transformer = type(pipe.transformer).from_pretrained(tmp_path / "transformer")
    with pytest.raises(ConfigError, match=r"strobe_keep_0.6.json does not exist; calibrate\(pipe, call, keep=...\) makes it"):
        sparsify(loaded, keep=KEEP)
    calibrated(loaded, None)
    assert json.loads((tmp_path / "transformer/strobe_keep_0.6.json").read_text())["keep"] == KEEP
    with sparsify(loaded, keep=KEEP):
        clip(loaded, 3)


def broken(file: Path, **changes: Any) -> Path:
    other = file.with_name("other.json")
    other.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return other


def test_what_was_not_calibrated_is_refused(tmp_path: Path) -> None:
    pipe, file = wan_pipeline(), tmp_path / "kept.json"
    found = calibrated(pipe, file)
    other = wan_pipeline()
    with torch.no_grad():
        other.transformer.blocks[1].attn1.to_q.bias += 0.1
    names = found.selected["transformer"][0]
    few = {"transformer": {0: {"blocks.0.attn1.processor": (3, 3)}}}
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (other, {"keep": file}, "of another model: transformer has hash [0-9a-f]{16}, it has [0-9a-f]{16}; calibrate this one"),
        (wan_pipeline(experts=2), {"keep": file}, "not have 1 to 27 tiles for every head of transformer_2; calibrate again"),
        (pipe, {"keep": broken(file, selected=few)}, "not have 1 to 27 tiles for every head of transformer; calibrate again"),
        (pipe, {"keep": file, "sparsity": 0.5}, "keep: got .*kept.json beside sparsity=0.5; give sparsity='auto' and gates=None"),
        (pipe, {"keep": file, "gates": gates()}, "beside trained gates, which have a sparsity of their own"),
        (pipe, {"keep": file, "tile": (4, 4, 4)}, r"keep: got tile=\(4, 4, 4\).* a calibration with tile=\(2, 2, 3\)"),
        (pipe, {"keep": file, "forced": Forced(own=True)}, "leave both out or calibrate again"),
        (pipe, {"keep": 1.5}, "keep: got 1.5, expected a share of the attention weight above 0 to below 1, such as 0.95"),
        (pipe, {"keep": 1}, "keep: got 1, expected a share such as 0.95, or the file that calibrate wrote"),
    ]
    for given, options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            sparsify(given, **options)
    for numbers in ((28, 3), (3, 28), (0, 3), (3,), (3, 3, 3), ()):
        others = names | {"blocks.1.attn1.processor": numbers}
        with pytest.raises(ConfigError, match="does not have 1 to 27 tiles for every head of transformer; calibrate again"):
            sparsify(pipe, keep=broken(file, selected={"transformer": {0: names, 1: others}}))
    with pytest.raises(ConfigError, match="other.json is no calibration .Expected `array`, got `int`.*; calibrate again"):
        sparsify(pipe, keep=broken(file, selected={"transformer": {0: dict.fromkeys(names, 3)}}))
    for text in ("{", "[]", '{"keep": "much"}'):
        (tmp_path / "damaged.json").write_text(text)
        with pytest.raises(ConfigError, match="damaged.json is no calibration .*; calibrate again"):
            sparsify(pipe, keep=str(tmp_path / "damaged.json"))
    with (
        sparsify(pipe, keep=file),
        pytest.raises(ConfigError, match=r"calibrated for \(5, 6, 7\) tokens .*, this call has \(5, 6, 8\)"),
    ):
        clip(pipe, 3, width=128)
    with pytest.raises(ConfigError, match="calibrate: the call ran nothing; expected one size and number of steps"):
        calibrate(pipe, lambda: None, keep=KEEP, file=file)
    with pytest.raises(ConfigError, match="calibrate: the call ran 2 steps of .*, 3 steps of .*; expected one size"):
        calibrate(pipe, lambda: [clip(pipe, steps) for steps in (2, 3)], keep=KEEP, file=file)
    with pytest.raises(ConfigError, match="keep: got 95, expected a share of the attention weight above 0 to below 1"):
        calibrate(pipe, lambda: None, keep=95, file=file)


@pytest.mark.parametrize("how", ["layers", "module", "whole"])
def test_a_compiled_transformer_is_refused(how: str, tmp_path: Path) -> None:
    pipe, file = wan_pipeline(), tmp_path / "kept.json"
    calibrated(pipe, file, steps=1)
    with sparsify(pipe, keep=file):
        if how == "layers":
            pipe.transformer.compile_repeated_blocks(backend="eager")
        elif how == "module":
            pipe.transformer.compile(backend="eager")
        else:
            pipe.transformer = torch.compile(pipe.transformer, backend="eager")
        with pytest.raises(ConfigError, match="keep: layers and steps skip different shares, and each would compile again"):
            clip(pipe, 1)


def test_means_of_what_is_skipped_bring_a_pipeline_nearer_to_dense() -> None:
    pipe = wan_pipeline(WanPipeline)
    dense = clip(pipe, 3)
    away = []
    for pooled in (False, True):
        with sparsify(pipe, sparsity=0.8, tile=TILE, pool_skipped=pooled):
            away.append((clip(pipe, 3) - dense).norm().item())
    assert away[1] < 0.6 * away[0]


def test_tokens_of_several_processes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wan().model
    with sparsify(model, sparsity=0, tile=TILE):
        processor = model.attn_processors["blocks.0.attn1.processor"]
        monkeypatch.setattr(SparseProcessor, "split", True)
        q = torch.ones(1, 210, 2, 12)
        with pytest.raises(ConfigError, match="blocks.0.attn1.processor: calibrate measures in one process"):
            processor.measure(q, q, Pass(grid=(5, 6, 7), text_lengths=(), dense=True, queries=0, recalls={}, held={}))
