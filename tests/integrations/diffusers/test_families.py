"""Every family, and whole pipelines with gates: all tiles selected is dense, fewer are what a mask of pairs gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from safetensors.torch import load_file, save_file
from torch import Tensor

import strobe
from strobe.core.errors import ConfigError, ShapeError, StrobeError, WeightsError
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.fastwan import FastWanPipeline, FastWanScheduler
from strobe.integrations.diffusers.processors import SparseProcessor
from tiny_pipelines import (
    CASES,
    GRID,
    NUM_TOKENS,
    WIDTH,
    Case,
    clip,
    gates,
    hunyuan,
    is_sparse,
    ltx2,
    masked_attention,
    wan,
    wan_pipeline,
)

ALL_TILES = 1e-12
"""A sparsity that skips no tile, and still goes through tiles."""


@pytest.mark.parametrize("name", CASES)
def test_all_tiles_selected_is_dense(name: str) -> None:
    case = CASES[name]()
    dense = case.run()
    for sparsity, tile in ((ALL_TILES, (4, 4, 4)), (ALL_TILES, "auto"), (0.0, "auto")):
        with sparsify(case.model, sparsity=sparsity, tile=tile) as handle:
            assert (case.run() - dense).abs().max() <= 1e-5
            rows = handle.report().layers
            assert len(rows) == case.layers and all(row.share == 1 for row in rows)
    assert torch.equal(case.run(), dense)


def in_video(name: str, queries: int, keys: int) -> bool:
    """Whether a call of so many queries and keys is one of a layer that becomes sparse."""
    whole = range(NUM_TOKENS, NUM_TOKENS + 20) if name.startswith("hunyuan") else (NUM_TOKENS,)
    return queries in whole and keys in whole


FRAMES: list[tuple[Any, tuple[int, ...]]] = [(2, (0, 1)), ((0, -1), (0, 4)), ((3, 1, -4), (1, 3))]
"""Dense frames as they are given, and which ones they are."""


@pytest.mark.parametrize(
    ("name", "given", "frames"),
    [
        *((name, 0, ()) for name in CASES),
        *((name, *each) for name in ("wan", "ltx-2.3", "hunyuan", "hunyuan one length", "cosmos") for each in FRAMES),
    ],
)
def test_sparse_is_attention_with_a_mask_of_pairs(name: str, given: Any, frames: tuple[int, ...]) -> None:
    """In which queries of dense frames see every token."""
    case, tile, sparsity = CASES[name](), (3, 2, 4), 0.7
    with sparsify(case.model, sparsity=sparsity if frames else 0.0, tile=tile):
        without = case.run()
    with masked_attention(tile, sparsity, partial(in_video, name), frames):
        wanted = case.run()
    with sparsify(case.model, sparsity=sparsity, tile=tile, dense_frames=given) as handle:
        found = case.run()
        assert {row.selected for row in handle.report().layers} == {4}, "of 12 tiles 0.3 * 12 = 3.6"
        assert ("queries of frames " in str(handle.report())) == bool(frames)
    assert (found - wanted).abs().max() <= 1e-5
    assert (found - without).abs().max() > 1e-3, "the mask and the frames matter"


@pytest.mark.parametrize("name", ["wan", "hunyuan", "cosmos from video"])
def test_gradients_of_dense_frames_are_those_of_a_mask_of_pairs(name: str) -> None:
    case, tile, sparsity = CASES[name](), (3, 2, 4), 0.7
    case = case.to(torch.float64)
    model = case.model.requires_grad_(True)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(**case.arguments, return_dict=False)[0].square().mean().backward()
        return {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}

    with masked_attention(tile, sparsity, partial(in_video, name), (0, 4)):
        wanted = gradients()
    with sparsify(model, sparsity=sparsity, tile=tile, dense_frames=(0, -1)):
        found = gradients()
    with sparsify(model, sparsity=sparsity, tile=tile):
        without = gradients()
    largest = max(each.norm() for each in wanted.values())
    assert found.keys() == wanted.keys()
    assert max((found[key] - each).norm() for key, each in wanted.items()) <= 1e-8 * largest, "an lse is float32"
    assert max((without[key] - each).norm() for key, each in wanted.items()) > 1e-4 * largest, "the frames matter"


def processors_of(model: Any) -> dict[str, Any]:
    """Processors by module; Cosmos has no `attn_processors`."""
    return {name: each.processor for name, each in model.named_modules() if hasattr(each, "processor")}


def hooks_of(model: Any) -> dict[str, int]:
    """How many hooks of each kind a model has."""
    return {key: len(value) for key, value in vars(model).items() if "_hooks" in key and isinstance(value, dict)}


@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan 1.5", "cosmos"])
def test_restore_leaves_the_model_as_it_was(name: str) -> None:
    case = CASES[name]()
    model, before = case.model, case.run()
    processors, state = processors_of(model), {key: value.clone() for key, value in model.state_dict().items()}
    hooks = hooks_of(model)
    handle = sparsify(model, sparsity=0.5)
    case.run()
    ours = [name for name, each in processors_of(model).items() if isinstance(each, SparseProcessor)]
    assert len(ours) == case.layers
    handle.restore()
    handle.restore()
    assert processors_of(model) == processors
    assert hooks_of(model) == hooks
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(case.run(), before)


@pytest.mark.parametrize("perturbed", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_perturbation_means_what_it_means_in_diffusers(perturbed: tuple[float, float]) -> None:
    case = ltx2(gated_attn=True, perturbed_attn=True)
    changes: dict[str, Any] = {"spatio_temporal_guidance_blocks": [1], "perturbation_mask": torch.tensor(perturbed)}
    dense = case.run(**changes)
    assert (dense - case.run()).abs().max() > 1e-4 or perturbed == (1.0, 1.0)
    with sparsify(case.model, sparsity=ALL_TILES):
        assert (case.run(**changes) - dense).abs().max() <= 1e-5


def test_padding_of_the_text_is_left_out() -> None:
    case = hunyuan(5, 2)
    other = torch.where(case.arguments["encoder_attention_mask"].bool()[:, :, None], case.arguments["encoder_hidden_states"], 9.0)
    with sparsify(case.model, sparsity=0.5):
        assert (case.run(encoder_hidden_states=other) - case.run()).abs().max() <= 1e-6


def test_a_mask_that_is_written_to_is_counted_again() -> None:
    case = hunyuan(5, 5)
    with sparsify(case.model, sparsity=ALL_TILES):
        case.run()
        case.arguments["encoder_attention_mask"][:, 4:] = 0
        case.run()
        case.arguments["encoder_attention_mask"].numpy()[:, 3:] = 0
        found = case.run()
    assert (found - case.run()).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["wan", "ltx-2", "hunyuan", "hunyuan 1.5", "cosmos"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]().to(dtype)
    dense = case.run().float()
    with sparsify(case.model, sparsity=ALL_TILES):
        found = case.run()
    assert found.dtype == dtype
    assert (found.float() - dense).norm() / dense.norm() < (0.03 if dtype == torch.bfloat16 else 0.004)
    if name == "wan":
        with sparsify(case.model, sparsity=0.5, gates=gates()):
            assert case.run().dtype == case.model.blocks[0].to_gate_compress.weight.dtype == dtype


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # what autocast makes of RMSNorm
@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan", "hunyuan 1.5", "cosmos"])
def test_autocast(name: str) -> None:
    """It leaves some norms in float32, so that queries and values come in two dtypes."""
    case = CASES[name]()
    with torch.autocast("cpu", torch.bfloat16):
        dense = case.run().float()
        with sparsify(case.model, sparsity=ALL_TILES):
            assert (case.run().float() - dense).norm() / dense.norm() < 0.01


def test_fused_projections() -> None:
    case = wan()
    dense = case.run()
    case.model.fuse_qkv_projections()
    with sparsify(case.model, sparsity=ALL_TILES):
        assert (case.run() - dense).abs().max() <= 1e-5


@pytest.mark.parametrize("scheduler", [FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler])
def test_steps_are_counted_across_both_experts(scheduler: Any) -> None:
    """With classifier-free guidance the transformer is called twice in a step; the scheduler counts."""
    given = {"prediction_type": "flow_prediction", "use_flow_sigmas": True} if scheduler is UniPCMultistepScheduler else {}
    pipe = wan_pipeline(experts=2, scheduler=scheduler(**given))
    dense = clip(pipe)
    with sparsify(pipe, sparsity=0.6, dense_steps=4):
        assert (clip(pipe) - dense).abs().max() <= 1e-5
    with sparsify(pipe, sparsity=0.6, dense_steps=[0, 2], dense_layers=[1]) as handle:
        seen: list[tuple[int, float]] = []
        watch = []
        for number, expert in enumerate((pipe.transformer, pipe.transformer_2)):
            for layer in (0, 1):
                attn = expert.blocks[layer].attn1
                note = lambda a, args, number=number: seen.append((number, a.processor.sparsity_in(args[3])))  # noqa: E731
                watch.append(attn.register_forward_pre_hook(note))
        for _ in range(2):  # a second video begins at step 0 again
            seen.clear()
            clip(pipe)
            assert [sparsity for _, sparsity in seen] == [0, 0] * 2 + [0.6, 0] * 2 + [0, 0] * 2 + [0.6, 0] * 2
        assert {number for number, _ in seen} == {0, 1}
        report = handle.report()
        assert [row.component for row in report.layers] == ["transformer"] * 3 + ["transformer_2"] * 3
        assert "dense in steps 0, 2" in str(report) and report.grid == (5, 6, 7)
        assert [row.runs for row in report.layers] == ["sparse", "dense", "sparse"] * 2
        assert len(report.rows()) == 6 and "<table>" in report._repr_html_()
        experts = ("transformer", "transformer_2")
        assert set(strobe.explain(pipe)) == {f"{expert}.blocks.{n}.attn1" for expert in experts for n in range(3)}
        assert {row.impl for row in report.layers if row.runs == "sparse"} == {"cpu"}
        with pytest.raises(ConfigError, match="transformer is sparse already"):
            sparsify(pipe)
        for each in watch:
            each.remove()
    assert torch.equal(clip(pipe), dense)


def test_gates_of_two_experts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = wan_pipeline(experts=2)
    with pytest.raises(ConfigError, match="several transformers; give a mapping with the gates of each"):
        sparsify(pipe, sparsity=0.5, gates=gates())
    with pytest.raises(ConfigError, match="got some for 'transformer_3', expected tensors by name, or a mapping with the keys"):
        sparsify(pipe, sparsity=0.5, gates={"transformer_3": gates()})
    pipe.transformer_2.blocks[2].to_gate_compress = torch.nn.Linear(24, 24)
    both = {"transformer": gates(), "transformer_2": gates()}
    with pytest.raises(ConfigError, match="has a to_gate_compress already"):
        sparsify(pipe, sparsity=0.5, gates=both)
    assert not hasattr(pipe.transformer.blocks[0], "to_gate_compress"), "neither expert is sparse"
    assert not any(isinstance(each, SparseProcessor) for each in pipe.transformer.attn_processors.values())
    del pipe.transformer_2.blocks[2].to_gate_compress
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(pipe.transformer_2, "register_forward_pre_hook", mock.Mock(side_effect=MemoryError))
        sparsify(pipe, sparsity=0.5)
    assert not is_sparse(pipe.transformer), "nor after an error that is not ours"
    with sparsify(pipe, sparsity=0.5, gates={"transformer": gates()}) as handle:
        assert [row.gated for row in handle.report().layers] == [True] * 3 + [False] * 3


def test_the_quality_is_said_once() -> None:
    pipe = wan_pipeline(experts=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sparsify(pipe, sparsity=0.5) as handle:
            clip(pipe)
            assert "not measured" in handle.report().quality
        with sparsify(pipe, sparsity=0.5, gates={"transformer": gates(), "transformer_2": gates()}) as handle:
            assert "trained gates" in handle.report().quality
        with sparsify(pipe, sparsity=0.0) as handle:
            assert "dense attention" in handle.report().quality
    assert [str(each.message) for each in caught if "quality" in str(each.message)] == [
        "quality not measured: sparse attention without trained gates; compare with the dense pipeline before you rely on it"
    ]


def test_fastwan_samples_as_documented() -> None:
    """By hand, from the same draws: noise for the start, then for the second and third step."""
    pipe = FastWanPipeline.of(wan_pipeline())
    assert pipe.scheduler.timesteps.tolist() == [1000, 757, 522]
    with sparsify(pipe, sparsity=0.6, gates=gates()):
        found = clip(pipe, None, negative_prompt_embeds=None)
        generator = torch.Generator().manual_seed(6)
        prompt = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(5))
        x = torch.randn(1, 4, 5, 12, 14, generator=generator)
        second, third = 8 * 0.28 / 2.96, 8 * 0.12 / 1.84  # s -> 8 s / (1 + 7 s), nearest to 0.757 and 0.522
        with torch.no_grad():
            for timestep, sigma, following in ((1000, 1.0, second), (757, second, third), (522, third, 0.0)):
                assert abs(sigma - timestep / 1000) < 5e-4
                clean = x - sigma * pipe.transformer(x, torch.tensor([timestep]), prompt).sample
                x = (1 - following) * clean + (following * torch.randn(x.shape, generator=generator) if following else 0)
    assert (found - x).abs().max() <= 1e-5


def test_fastwan_tells_a_callback_the_clean_latents() -> None:
    pipe, told = FastWanPipeline.of(wan_pipeline()), []

    def callback(_: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        told.append((index, int(timestep), tensors["latents"]))
        return {"latents": tensors["latents"] * 0} if index == 2 else {}

    found = clip(pipe, None, callback_on_step_end=callback)
    assert [each[:2] for each in told] == [(0, 1000), (1, 757), (2, 522)]
    assert not found.any(), "what the last step's callback returned"


def test_fastwan_refuses_other_steps() -> None:
    pipe = FastWanPipeline.of(wan_pipeline())
    with pytest.raises(ConfigError, match="num_inference_steps: got 4, FastWan was distilled for 3"):
        clip(pipe)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler()
    with pytest.raises(ConfigError, match="expected its own; make the pipeline by FastWanPipeline.of"):
        clip(pipe)
    assert FastWanScheduler.from_config(FastWanScheduler(steps=(1000, 500)).config).timesteps.tolist() == [1000, 500]


@pytest.mark.parametrize("tile", [None, (4, 4, 4)])
def test_the_coarse_output_is_weighed_and_added(tile: tuple[int, int, int] | None) -> None:
    """Of the first layer alone, by hand: out = dense + (W x + b) * softmax(mean q . mean k) mean v, tile over tile."""
    case, given = wan(1), gates()
    block, caught = case.model.blocks[0], []
    hook = block.attn1.register_forward_hook(lambda _, args, out: caught.append((args[0], args[3], out)))
    with sparsify(case.model, sparsity=0.0, gates=given, tile=tile) as handle:
        case.run()
        assert {row.tile for row in handle.report().layers} == {(4, 4, 4)} and all(row.gated for row in handle.report().layers)
    hook.remove()
    hidden, (cos, sin), found = caught[0]

    attn, layout = block.attn1, strobe.tile_layout(GRID, (4, 4, 4))
    q, k, v = (layer(hidden) for layer in (attn.to_q, attn.to_k, attn.to_v))
    q, k = attn.norm_q(q), attn.norm_k(k)
    q, k, v = (each.unflatten(2, (2, 12)) for each in (q, k, v))

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos[..., 0::2], sin[..., 1::2])).flatten(-2)

    q, k = turned(q), turned(k)
    dense = torch.nn.functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
    tile_of = layout.rows() // layout.block
    means = [torch.stack([each[:, tile_of == n].mean(1) for n in range(layout.num_tiles)], dim=2) for each in (q, k, v)]
    coarse = torch.softmax(means[0] @ means[1].transpose(-1, -2) * 12**-0.5, dim=-1) @ means[2]  # [B, H, N, D]
    weight, bias = given["blocks.0.to_gate_compress.weight"], given["blocks.0.to_gate_compress.bias"]
    gate = (hidden @ weight.T + bias).unflatten(2, (2, 12))
    wanted = attn.to_out[0]((dense + gate * coarse.transpose(1, 2)[:, tile_of]).flatten(2))
    assert (found - wanted).abs().max() <= 1e-5
    assert (found - attn.to_out[0](dense.flatten(2))).abs().max() > 1e-2, "the gate matters"


@pytest.mark.parametrize("place", ["tensors", "file", "folder", "pipeline folder", "auto"])
def test_gates_are_found(place: str, tmp_path: Path) -> None:
    case, given = wan(1), gates()
    with sparsify(case.model, sparsity=0.5, gates=given):
        wanted = case.run()
    folder = tmp_path / "transformer"
    case.model.save_pretrained(folder)
    file = folder / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | given, file)
    source = {"tensors": given, "file": file, "folder": str(folder), "pipeline folder": tmp_path, "auto": "auto"}[place]
    model = type(case.model).from_pretrained(folder) if place == "auto" else case.model
    dense = model(**case.arguments).sample
    with sparsify(model, sparsity=0.5, gates=source) as handle:
        assert torch.equal(model(**case.arguments).sample, wanted)
        assert "trained gate" in str(handle.report())
        assert {name for name in model.state_dict() if "gate" in name} == set(given), "saved, it is a checkpoint of FastWan again"
    assert torch.equal(model(**case.arguments).sample, dense)
    assert not [name for name in model.state_dict() if "gate" in name]


def test_the_sparsity_is_the_one_they_were_trained_with() -> None:
    with torch.device("meta"):
        case = wan(1, heads=12, head_dim=128)
    given = {f"blocks.{number}.to_gate_compress.weight": torch.zeros(()).expand(1536, 1536) for number in range(3)}
    with sparsify(case.model, gates=given) as handle:
        row = handle.report(grid=(20, 48, 80)).layers[0]
    assert (row.selected, row.tiles) == (240, 1200), "1 - 0.8"


def test_a_dense_layer_keeps_its_gate() -> None:
    case, given = wan(1), gates()
    with sparsify(case.model, sparsity=0.0, gates=given):
        wanted = case.run()
    with sparsify(case.model, sparsity=0.5, gates=given, dense_layers=3) as handle:
        assert torch.equal(case.run(), wanted)
        assert {(row.runs, row.gated) for row in handle.report().layers} == {("dense", True)}


def test_gates_that_an_inference_put_in_can_be_trained_with() -> None:
    case = wan(1)
    states = case.arguments["hidden_states"].requires_grad_()
    with torch.inference_mode():
        sparsify(case.model, sparsity=0.5, gates=gates())
    case.model(**case.arguments, return_dict=False)[0].sum().backward()
    assert states.grad.abs().max() > 0


PER_HEAD = {
    f"transformer_blocks.{number}.attn1.to_gate_compress.{kind}": torch.zeros(shape)
    for number in range(2)
    for kind, shape in (("weight", (2, WIDTH)), ("bias", (2,)))
}


def test_gates_per_head_are_another_thing(tmp_path: Path) -> None:
    """LTX-2.3 has weights of the same name, a row per head, which diffusers loads as to_gate_logits."""
    case = ltx2(gated_attn=True)
    case.model.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | PER_HEAD, file)
    model = type(case.model).from_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="quality not measured"), sparsify(model, sparsity=0.5) as handle:
        assert not any(row.gated for row in handle.report().layers), "no gate of the coarse attention is there"


def test_gates_of_ltx2_are_used() -> None:
    case = ltx2()
    dense = case.run()
    with sparsify(case.model, sparsity=0.5, gates=gates(2, blocks="transformer_blocks")):
        assert (case.run() - dense).abs().max() > 1e-3


GATES = gates()
LACKING = {name: tensor for name, tensor in GATES.items() if not name.startswith("blocks.2")}
STRAY = {"head.to_gate_compress.weight": torch.zeros(1)}
REFUSED: dict[type[StrobeError], list[tuple[Callable[[], Any], dict[str, Any], str]]] = {
    ConfigError: [
        (wan, {"sparsity": 1.0}, "sparsity: got 1.0, expected 0"),
        (wan, {"sparsity": "most"}, "sparsity: got 'most', expected 0"),
        (wan, {"dense_layers": [3]}, "dense_layers: got 3, expected numbers below 3"),
        (wan, {"dense_layers": -1}, "dense_layers: got -1, expected a number of them"),
        (wan, {"dense_layers": "all"}, "dense_layers: got 'all', expected a number of them"),
        *(
            (wan, {"dense_frames": kind}, "dense_frames: got .*, expected a number of them.*, or backward from -1")
            for kind in (-1, "first", True, (0.5,))
        ),
        (wan, {"forced": True}, "forced: got True, expected a strobe.Forced"),
        (wan, {"gates": 3}, "gates: got a int, expected 'auto'"),
        (wan, {"gates": GATES, "sparsity": "auto"}, "not known for a model of width 24; give sparsity="),
        (wan, {"gates": GATES, "dense_frames": 1}, "gates: dense_frames has no place for those of"),
        (wan, {"gates": GATES, "pool_skipped": True}, "gates: pool_skipped has no place for those of .* given; give gates=None"),
        (hunyuan, {"gates": gates(4, blocks="transformer_blocks")}, "HunyuanVideo.*Model has no place for those of the tensors"),
        (partial(Case, torch.nn.Linear(2, 2), {}, 0), {}, "no transformer it knows among Linear; it knows Wan.*, LTX2"),
    ],
    ShapeError: [(wan, {"tile": "cube"}, "tile: got 'cube'")],
    WeightsError: [
        (wan, {"gates": gates(width=36)}, r"the weight of layer 0 .* has shape \(36, 36\), this model takes \(24, 24\)"),
        (wan, {"gates": gates(layers=4)}, "have one for layer 3; the model has 3 layers"),
        (wan, {"gates": LACKING}, r"lack one for 1 layers \(first 2\)"),
        (wan, {"gates": GATES | STRAY}, "'head.to_gate_compress.weight' in the tensors given belongs to no layer"),
        (wan, {"gates": Path(__file__).parent}, "holds no to_gate_compress"),
        (wan, {"gates": Path("nowhere")}, "does not exist"),
        (ltx2, {"gates": PER_HEAD}, "a gate on the result of attention"),
        (partial(ltx2, gated_attn=True), {"gates": PER_HEAD}, "holds no to_gate_compress"),
    ],
}
"""What is given, and what is said of it."""


@pytest.mark.parametrize(("error", "make", "options", "words"), [(error, *row) for error in REFUSED for row in REFUSED[error]])
def test_wrong_uses_say_what_to_do(error: type[StrobeError], make: Callable[[], Any], options: Any, words: str) -> None:
    model = make().model
    with pytest.raises(error, match=words) as caught:
        sparsify(model, **{"sparsity": 0.5} | options)
    assert "\n" not in str(caught.value)
    assert not is_sparse(model) and not [name for name in model.state_dict() if "compress" in name], "nothing was left behind"


CALLS: list[tuple[Callable[[], Case], dict[str, Any], dict[str, Any], type[StrobeError], str]] = [
    *(
        (wan, {"dense_frames": wrong}, {}, ConfigError, f"dense_frames: got {named}, and the video has 5 frames .*, 0 to 4")
        for wrong, named in ((6, "5"), ((0, 5), "5"), ((-6,), "-6"), (99, "5, 6, 7 and 91 more"))
    ),
    (wan, {"tile": (8, 4, 2)}, {}, ShapeError, r"tile: \(8, 4, 2\) is larger than the video's grid of \(5, 6, 7\) tokens"),
    (ltx2, {}, {"num_frames": 4}, ShapeError, r"got 210 video tokens for a grid of \(4, 6, 7\), which has 168"),
    (ltx2, {}, {"video_self_attention_mask": torch.ones(2, 210, 210)}, ConfigError, "video_self_attention_mask is given"),
    (hunyuan, {"impl": "cudnn"}, {}, strobe.ImplUnavailableError, "cudnn"),
]


@pytest.mark.parametrize(("make", "options", "changes", "error", "words"), CALLS)
def test_wrong_calls_say_what_to_do(
    make: Callable[[], Case], options: Any, changes: Any, error: type[StrobeError], words: str
) -> None:
    case = make()
    with sparsify(case.model, **{"sparsity": 0.5} | options), pytest.raises(error, match=words):
        case.run(**changes)


def test_calls_that_tell_no_grid_say_what_to_do() -> None:
    one, two = wan(1).model, ltx2()
    places = two.model.rope.prepare_video_coords(2, 5, 6, 7, torch.device("cpu"))
    with sparsify(one, sparsity=0.5), pytest.raises(ConfigError, match="attn1.processor: no grid of tokens is known; call"):
        one.blocks[0].attn1(torch.zeros(1, 210, 24))
    with sparsify(two.model, sparsity=0.5), pytest.raises(ConfigError, match="num_frames, height and width were not given"):
        two.run(num_frames=None, video_coords=places)


def test_a_gate_of_the_model_is_not_passed_over() -> None:
    model = wan(1).model
    model.blocks[1].to_gate_compress = torch.nn.Linear(WIDTH, WIDTH)
    with pytest.raises(ConfigError, match="the transformer holds a to_gate_compress that would not be used"):
        sparsify(model, sparsity=0.5)
    with pytest.raises(ConfigError, match="the block of blocks.1.attn1.processor has a to_gate_compress already"):
        sparsify(model, sparsity=0.5, gates=gates())
    assert not hasattr(model.blocks[0], "to_gate_compress"), "nothing was left behind"


def test_a_repository_is_looked_up_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    """A transformer that was loaded by name says its name; what was fetched of it lies in the cache, and nothing is fetched."""
    case, folder = wan(1), tmp_path / "transformer"
    case.model.save_pretrained(folder)
    file = folder / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | gates(), file)
    case.model.register_to_config(_name_or_path="somebody/something")
    cache = mock.patch("strobe.integrations.diffusers.gates.snapshot_download", return_value=str(tmp_path))
    with cache as looked_up, sparsify(case.model, sparsity=0.5) as handle:
        assert all(row.gated for row in handle.report().layers)
    looked_up.assert_called_once_with("somebody/something", local_files_only=True)
    with pytest.warns(UserWarning, match="quality not measured"), sparsify(case.model, sparsity=0.5) as handle:
        assert not any(row.gated for row in handle.report().layers), "it is not in the cache"


def test_a_gate_on_another_device_is_an_error() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.5, gates=gates()):
        case.model.blocks[1].to_gate_compress.to("meta")
        with pytest.raises(strobe.ShapeError, match=r"blocks.1.attn1.processor: the gate is on meta, the tokens are on"):
            case.run()
