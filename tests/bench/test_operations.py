"""The operations of a step and what they cost, and the probe of a sparse pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate
from torch.utils.flop_counter import FlopCounterMode

import strobe
from strobe.bench.operations import (
    SWITCHES,
    RunnableOperation,
    StepParts,
    cache_copies,
    decoder_operations,
    decoder_stages,
    keys_of_blocks,
    profile_kernels,
    rows_of_text,
    steady_pass,
    stream_costs,
    transformer_shape,
)
from strobe.bench.probe import probe
from strobe.cache.kv import CacheShape, RingCache
from strobe.core.costs import parse_dtype, total, transformer_pass
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS, preset
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.integrations.diffusers import sparsify
from strobe.models.vae.wan import layers
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.wan import layers as layers_of_wan
from strobe.models.wan.dit import CausalWan
from strobe.perf.analysis.runs.breakdown import REGIONS, REST, KernelProfile, cost_in_blocks
from strobe.perf.records.record import Variant
from tiny_pipelines import GRID, selected_tokens, wan

CPU = torch.device("cpu")


def parts(tiny: Model, name: str) -> StepParts:
    with torch.inference_mode():
        return StepParts(tiny, resolve(replace(preset(name), simulate=True), tiny.defaults, CPU))


def operations_of(step: StepParts) -> dict[str, RunnableOperation]:
    with torch.inference_mode():
        return {each.operation.name: each for each in step.operations()}


def counted(each: RunnableOperation) -> int:
    """FLOPs of matrix products and convolutions that torch counts in one call, attention written out."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        each.run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", PRESETS)
def test_the_operations_are_those_of_a_step(tiny: Model, name: str) -> None:
    """Their matrix products are those of a whole pass, counted by torch while it runs."""
    if name == "sparse":  # which needs frames that fill tiles
        tiny = replace(tiny, defaults=replace(tiny.defaults, frame_size=(128, 128)))
    step = parts(tiny, name)
    operations = operations_of(step)
    flops = sum(each.operation.calls * counted(each) for name, each in operations.items() if name != "conditions")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        step.transformer.dit(
            step.latents,
            *step.transformer.conditions(step.latents, step.config.schedule.warped[0], step.text, step.step),
            step.step,
        )
    assert flops == counter.get_total_flops() - counted(operations["conditions"])
    assert {each.operation.inside for each in operations.values()} == {*REGIONS, REST}


def test_every_operation_costs_what_torch_counts(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    known = [each for each in operations_of(step).values() if each.operation.cost is not None]
    for each in known:
        assert each.operation.cost is not None
        if "attention_kernel" not in each.operation.name:  # on a CPU torch does not count its fused attention
            assert each.operation.cost.flops == counted(each), each.operation.name
    whole = total(transformer_pass(transformer_shape(tiny), steady_pass(tiny, step.config)))
    assert sum(each.operation.cost.flops * each.operation.calls for each in known if each.operation.cost) == whole.flops


def test_each_call_takes_the_next_layers_weights(tiny: Model) -> None:
    up = operations_of(parts(tiny, "balanced"))["ffn_up"]
    with torch.inference_mode():
        outs = [up.run() for _ in range(4)]
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3]) and not torch.equal(outs[0], outs[1])  # type: ignore[arg-type]


def test_attention_in_eight_bits_chooses_its_blocks_in_its_operation(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    best = layers_of_wan.best_blocks
    monkeypatch.setattr(layers_of_wan, "best_blocks", lambda *given: seen.append(best(*given)) or seen[-1])
    large = replace(tiny, defaults=replace(tiny.defaults, frame_size=(192, 256)))
    config = EngineConfig(window=8, sink=2, sparsity=0.8, attention_format="int8")
    with torch.inference_mode():
        operations = operations_of(StepParts(large, resolve(config, large.defaults, CPU)))
        seen.clear()
        operations["attention_kernel"].run()
    assert [each.shape[3] for each in seen] == [11]  # of twelve blocks
    assert "1408 keys" in operations["attention_kernel"].operation.what


def test_writing_again_leaves_the_cache_as_it_is(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    write = operations_of(step)["kv_write"].run
    with torch.inference_mode():
        for _ in range(2):
            write()
        before, end = step.cache.snapshot(), step.cache.end
        for _ in range(5):
            write()
    assert step.cache.end == end and torch.equal(step.cache.snapshot().keys, before.keys)
    assert end > step.config.policy.window  # frames were evicted: this is the steady state


@pytest.mark.parametrize("name", ["balanced", "baseline"])
def test_a_prompt_switch_can_be_made_again_and_again(tiny: Model, name: str) -> None:
    step = parts(tiny, name)
    with torch.inference_mode():
        step.recache()
        before = step.cache.snapshot()
        step.recache()
        after = step.cache.snapshot()
        torch.testing.assert_close(after.keys, before.keys)
        end = step.cache.end
        step.cache.at(end, 3)
    assert step.cache.end == end + 3


def test_copies_of_the_window_are_no_part_of_a_step(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    window, sink, concat = cache_copies(step)
    assert (window.operation.calls, sink.operation.calls, concat.operation.calls) == (0, 0, 0)
    shape = (1, 12 * 4, 2, 24)
    (keys, values) = concat.run()  # type: ignore[misc]
    assert keys.shape == values.shape == shape
    assert [tuple(each.shape) for each in window.run()] == [(1, 9 * 4, 2, 24)] * 2  # type: ignore[attr-defined]
    assert concat.operation.cost is not None and concat.operation.cost.moved_bytes == 2 * 2 * keys.numel() * 4


@pytest.mark.parametrize(("name", "calls"), [("balanced", 1), ("baseline", 3)])
def test_the_decoders_modules_are_run_on_what_they_get(tiny: Model, name: str, calls: int) -> None:
    """One call of each gives what the decoder itself makes of the second frame block."""
    step = parts(tiny, name)
    with torch.inference_mode():
        stages = decoder_operations(tiny, step.config, step.latents)
    assert [each.operation.name.removeprefix("vae_") for each in stages] == [
        name for name, _ in tiny.vae.decoder.named_children()
    ]
    assert {each.operation.calls for each in stages} == {calls}
    for each in stages:
        cost = each.operation.cost
        assert cost is None if calls > 1 else cost is not None and cost.flops == counted(each)


@pytest.fixture(scope="module")
def config(tiny: Model) -> ResolvedConfig:
    return resolve(EngineConfig(name="full", window=12, sink=3), tiny.defaults, CPU)


def test_every_stage_of_a_stream_has_its_cost(tiny: Model, config: ResolvedConfig) -> None:
    found = {cost.span: cost for cost in stream_costs(tiny, config)}
    assert {"denoise_step", "commit", "attention", "attention_kernel", "ffn", "ffn_up", "kv_write", "vae_decode"} <= found.keys()
    shape = transformer_shape(tiny)
    assert found["denoise_step"].flops == total(transformer_pass(shape, steady_pass(tiny, config))).flops
    assert found["commit"].flops < found["denoise_step"].flops
    whole = resolve(EngineConfig(knobs=Knobs(commit_kv_only=False)), tiny.defaults, CPU)
    assert not steady_pass(tiny, whole, commit=True).last_layer_kv_only
    assert found["attention_kernel"].flops == 4 * 12 * 48 * shape.dim
    layer = sum(found[name].flops for name in ("attention", "cross_attention", "ffn"))
    edges = found["patch_embedding"].flops + found["head"].flops
    assert found["denoise_step"].flops == shape.num_layers * layer + edges
    assert found["ffn"].flops == 2 * 2 * 12 * shape.dim * shape.ffn_dim and not any(cost.dtype for cost in found.values())


def test_frame_blocks_before_the_window_is_full_attend_to_fewer_keys(tiny: Model, config: ResolvedConfig) -> None:
    """As many as a ring says they do; what a denoise step costs then is what a pass over so many keys costs."""
    settings = Variant(name="full", preset="custom", costs=stream_costs(tiny, config), attended_keys=keys_of_blocks(tiny, config))
    assert settings.attended_keys == (12, 24, 36, 48)
    ring = RingCache(CacheShape(num_layers=1, batch=1, tokens_per_frame=4, num_heads=1, head_dim=2), config.policy, device=CPU,
                     dtype=torch.float32)  # fmt: skip
    shape = transformer_shape(tiny)
    for index in range(6):
        keys = ring.at(3 * index, 3).attended  # type: ignore[union-attr]
        for cost in settings.costs:
            found = cost_in_blocks(cost, settings, [index])
            one = replace(steady_pass(tiny, config, commit=cost.span == "commit"), kv_tokens=keys)
            expected = {name: each for name, (_, each) in transformer_pass(shape, one).items()}
            expected["commit" if one.last_layer_kv_only else "denoise_step"] = total(transformer_pass(shape, one))
            if cost.span in expected:
                own = expected[cost.span]
                assert (found.flops, found.read_bytes, found.write_bytes) == (own.flops, own.read_bytes, own.write_bytes)
    kernel = next(cost for cost in settings.costs if cost.span == "attention_kernel")
    assert cost_in_blocks(kernel, settings, [0, 3, 9]).flops == kernel.flops * 3 // 4


@pytest.mark.parametrize("first_block", [None, 1, 12])
def test_frame_blocks_that_leave_out_some_of_the_past(tiny: Model, first_block: int | None) -> None:
    """Frames of 6 x 12 tokens are two tiles; of those behind the sink a fifth is attended, and the rest whole."""
    model = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))
    config = resolve(EngineConfig(sparsity=0.8, first_block=first_block), model.defaults, CPU)
    expected = []
    for index in range(1 + (3 if first_block is None else 4 if first_block == 1 else 1)):
        frames = config.latents_of(index)
        past = [frame for frame in config.policy.frames(frames.stop) if 3 <= frame < frames.start]
        whole = config.policy.filled(frames.stop) - len(past)
        tiles = ceil(2 * len(past) / 5) if past else 0
        expected.append(whole * 72 + tiles * 36)
    assert keys_of_blocks(model, config) == tuple(expected) and expected[-1] == steady_pass(model, config).kv_tokens


def test_matrices_in_fewer_bits_read_fewer_bytes(tiny: Model, config: ResolvedConfig) -> None:
    """FP8: inputs and weights in one byte instead of four, and the FP8 peak; int8: weights alone; simulated: nothing changes."""
    rows, dim, wide = 12, 48, 64
    plain, fp8, int8, fake = (
        {cost.span: cost for cost in stream_costs(tiny, replace(config, linear_format=name, simulate=simulate))}
        for name, simulate in (("native", False), ("fp8", False), ("int8", False), ("fp8", True))
    )
    weights, inputs = dim * wide, rows * dim
    assert plain["ffn_up"].read_bytes - fp8["ffn_up"].read_bytes == 3 * (weights + inputs)
    assert plain["ffn_up"].read_bytes - int8["ffn_up"].read_bytes == 3 * weights
    assert plain["qkv_projection"].read_bytes - int8["qkv_projection"].read_bytes == 3 * 3 * dim * dim
    assert (fp8["ffn_up"].dtype, fp8["kv_write"].dtype, int8["ffn_up"].dtype) == ("float8", "", "")
    assert fp8["denoise_step"].dtype == "float8 and float32" and parse_dtype(fp8["denoise_step"].dtype) is None
    assert fake == plain and all(fp8[name].flops == plain[name].flops for name in plain)


@pytest.mark.parametrize("sizes", [WanVAEConfig(width=4), replace(WAN22, width=4, decoder_width=8)], ids=["2.1", "2.2"])
def test_wans_decoder_is_what_torch_counts(tiny: Model, sizes: WanVAEConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its two fast forms, which count otherwise, put back to convolutions."""
    side, config = sizes.stride.space, replace(tiny.dit.config, latent_channels=sizes.latent_channels)
    monkeypatch.setattr(layers.LastConv, "forward", layers.CausalConv3d.forward)
    monkeypatch.setattr(layers, "grow", lambda x, w, b: conv2d(interpolate(x, scale_factor=2), w, b, padding=1))
    with torch.device("meta"):
        vae, dit = WanVAE(sizes), CausalWan(config)
        first, later = (torch.empty(1, frames, sizes.latent_channels, 4, 6) for frames in (1, 3))
    memories = vae.decode_piece(first, vae.empty_memories(), first=True)[1]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vae.decode_piece(later, memories, first=False)
    model = replace(tiny, dit=dit, vae=vae, defaults=replace(tiny.defaults, frame_size=(4 * side, 6 * side), stride=sizes.stride))
    ((_, cost),) = decoder_stages(model, "float32")
    assert cost.flops == counter.get_total_flops()


def test_a_fused_pass_attends_the_distinct_rows_of_the_longest_prompt(tiny: Model) -> None:
    config = resolve(EngineConfig(), tiny.defaults, torch.device("cpu"))
    fused = replace(config, knobs=replace_knobs(config.knobs, fused_kernels=True))
    prompts = ["red circle", "red circle moving"]
    assert rows_of_text(tiny, prompts, config) is None
    rows = rows_of_text(tiny, prompts, fused)
    assert rows == 4 < tiny.dit.config.text_len
    one, whole = ({cost.span: cost for cost in stream_costs(tiny, config, number)} for number in (rows, None))
    share = rows / tiny.dit.config.text_len
    assert one["cross_attention_kernel"].flops == pytest.approx(share * whole["cross_attention_kernel"].flops)
    assert one["attention_kernel"] == whole["attention_kernel"]


PROMPTS = ("red circle moving", "blue square")


def profiled(tiny: Model, name: str, iterations: int, said: list[tuple[int, int, str]] | None = None) -> KernelProfile:
    heard = [] if said is None else said
    config = replace(preset(name), simulate=True)
    return profile_kernels(tiny, config, PROMPTS, device=CPU, iterations=iterations, progress=lambda *step: heard.append(step))


def test_a_model_in_shots_has_no_recache_and_no_fresh_noise(tiny: Model) -> None:
    defaults = replace(tiny.defaults, past="shots", sampler="unipc", positions="absolute", window=12, sink=3)
    found = profiled(replace(tiny, defaults=defaults), "balanced", 4)
    names = {each.name for each in (*found.step.operations, *found.decode.operations, *found.reference)}
    assert "kv_open" in names and not names & {"recache", "renoise"}


@pytest.mark.parametrize("name", ["ultra", "baseline"])
def test_the_budget_adds_up_to_the_measured_step(tiny: Model, name: str) -> None:
    said: list[tuple[int, int, str]] = []
    found = profiled(tiny, name, 8, said)
    step = found.step
    assert len(step.times_ns) == len(found.fine_ns) == 8 and min(step.times_ns) > 0
    assert sum((ns for _, ns in step.by_kind()), Fraction(0)) + step.difference_ns == Fraction(sum(step.times_ns), 8)
    assert sum(in_situ for *_, in_situ in found.by_region()) == step.mean_ns
    for at, fine in enumerate(found.fine_ns):
        assert 0 < sum(found.regions_ns[region][at] for region in REGIONS) < fine
    for each in (*step.operations, *found.decode.operations, *found.reference):
        assert len(each.times_ns) == 8 and min(each.times_ns) > 0, each.name
    blocks = 8 // (2 if name == "ultra" else 4)
    assert {stage: len(times) for stage, times in found.stages_ns.items()} == {
        "frame_block": blocks, "commit": blocks, "vae_decode": blocks, "recache": SWITCHES
    }  # fmt: skip
    assert found.decode.times_ns == found.stages_ns["vae_decode"]
    assert [done for done, _, _ in said] == list(range(len(said))) and {total for _, total, _ in said} == {len(said)}


def test_a_prompt_switch_is_timed_by_itself_and_as_it_runs(tiny: Model) -> None:
    found = profiled(tiny, "ultra", 30)
    recache = next(each for each in found.reference if each.name == "recache")
    assert len(recache.times_ns) == 20  # a long call: no more than that
    assert len(found.stages_ns["recache"]) == SWITCHES
    assert {each.name for each in found.reference} >= {"kv_local_window_read", "kv_sink_read", "kv_window_concat", "kv_open"}


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", ["ultra", "baseline"])
def test_the_budget_adds_up_on_a_gpu(tiny: Model, name: str) -> None:
    device = torch.device("cuda", 0)
    found = profile_kernels(tiny, preset(name), PROMPTS, device=device, iterations=8, cold=True, progress=lambda *step: None)
    assert sum((ns for _, ns in found.step.by_kind()), Fraction(0)) + found.step.difference_ns == found.step.mean_ns
    assert sum(in_situ for *_, in_situ in found.by_region()) == found.step.mean_ns
    for at, fine in enumerate(found.fine_ns):
        inside = sum(found.regions_ns[region][at] for region in REGIONS)
        assert inside == 0 if preset(name).knobs.cuda_graphs else 0 < inside < fine  # a graph is replayed without regions
    for each in (*found.step.operations, *found.decode.operations, *found.reference):
        assert min(each.times_ns) > 0 or each.name == "conditions", each.name  # tables are looked up without the device


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quality not measured")
        yield


def test_a_probe_tells_recall_and_time_of_every_layer() -> None:
    case = wan(1)
    dense, calls = case.run(), []

    def call() -> None:
        calls.append((case.run() - dense).abs().max() < tolerance("transformer", "float32"))

    with sparsify(case.model, sparsity=0.7, tile=(3, 2, 4), dense_layers=[1]) as handle:
        hooks = sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in case.model.modules())
        found = probe(handle, call, queries=210, rounds=2, device="cpu")
        assert sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in case.model.modules()) == hooks
    assert calls == [False, True, *[True, False, False, True] * 2]
    assert [each.layer for each in found.layers] == [f"blocks.{number}.attn1" for number in range(3)]
    assert [each.recall is None for each in found.layers] == [False, True, False]
    assert all(0 < each.sparse_ns < found.sparse_ns and 0 < each.dense_ns < found.dense_ns for each in found.layers)
    assert len(found.rows()) == 3 and "recall: " in str(found) and "<table>" in found._repr_html_()
    assert found.layers[0].recall == pytest.approx(_recall_of_the_first_layer(), abs=1e-4)
    assert found.layers[0].worst_recall <= found.layers[0].recall


def _recall_of_the_first_layer() -> float:
    """Mass of the dense softmax in the selected tiles, by the mask of pairs."""
    case, caught = wan(1), []
    hook = case.model.blocks[0].attn1.register_forward_pre_hook(lambda attn, args: caught.append((attn, args[0], args[3])))
    case.run()
    hook.remove()
    attn, hidden, (cos, sin) = caught[0]

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(2, (2, -1)).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos[..., 0::2], sin[..., 1::2])).flatten(-2)

    q, k = turned(attn.norm_q(attn.to_q(hidden))), turned(attn.norm_k(attn.to_k(hidden)))
    seen = selected_tokens(q, k, strobe.tile_layout(GRID, (3, 2, 4)), 0.7)
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights * seen).sum(-1).mean().item()


def test_a_probe_refuses_what_it_cannot_measure() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.7) as handle:
        with pytest.raises(ConfigError, match="got rounds=0 and queries=64, expected at least 1"):
            probe(handle, case.run, rounds=0)
        with pytest.raises(ConfigError, match=r"the call never reached blocks.0.attn1; give a call that runs every transformer"):
            probe(handle, lambda: None, rounds=1)
