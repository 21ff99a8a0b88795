"""Whole pipelines of diffusers' own classes with tiny random components."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline

import strobe
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.fastwan import FastWanPipeline, FastWanScheduler
from strobe.integrations.diffusers.processors import SparseProcessor
from tiny_pipelines import gates, wan_pipeline


def call(pipe: Any, **changes: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    arguments = {
        "prompt_embeds": torch.randn(1, 7, 16, generator=generator),
        "negative_prompt_embeds": torch.randn(1, 7, 16, generator=generator),
        "height": 96,
        "width": 112,
        "num_frames": 17,
        "num_inference_steps": 4,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(6),
    }
    found: torch.Tensor = pipe(**arguments | changes, return_dict=False)[0]
    return found


@pytest.mark.parametrize("scheduler", [FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler])
def test_steps_are_counted_across_both_experts(scheduler: Any) -> None:
    """With classifier-free guidance the transformer is called twice in a step; the scheduler counts."""
    given = (
        {} if scheduler is FlowMatchEulerDiscreteScheduler else {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
    )
    pipe = wan_pipeline(experts=2, scheduler=scheduler(**given))
    dense = call(pipe)
    with sparsify(pipe, sparsity=0.6, dense_steps=4):
        assert (call(pipe) - dense).abs().max() <= 1e-5
    with sparsify(pipe, sparsity=0.6, dense_steps=[0, 2], dense_layers=[1]) as handle:
        seen: list[tuple[int, float]] = []
        watch = []
        for number, expert in enumerate((pipe.transformer, pipe.transformer_2)):
            for layer in (0, 1):
                attn = expert.blocks[layer].attn1
                watch.append(
                    attn.register_forward_pre_hook(
                        lambda a, args, number=number: seen.append((number, a.processor.sparsity_in(args[3])))
                    )
                )
        for _ in range(2):  # a second video begins at step 0 again
            seen.clear()
            call(pipe)
            assert [sparsity for _, sparsity in seen] == [0, 0] * 2 + [0.6, 0] * 2 + [0, 0] * 2 + [0.6, 0] * 2
        assert {number for number, _ in seen} == {0, 1}
        report = handle.report()
        assert [row.component for row in report.layers] == ["transformer"] * 3 + ["transformer_2"] * 3
        assert "dense in steps 0, 2" in str(report) and report.grid == (5, 6, 7)
        assert [row.runs for row in report.layers] == ["sparse", "dense", "sparse"] * 2
        assert len(report.rows()) == 6 and "<table>" in report._repr_html_()
        assert set(strobe.explain(pipe)) == {
            f"{expert}.blocks.{n}.attn1" for expert in ("transformer", "transformer_2") for n in range(3)
        }
        assert {row.impl for row in report.layers if row.runs == "sparse"} == {"cpu"}
        with pytest.raises(ConfigError, match="transformer is sparse already"):
            sparsify(pipe)
        for each in watch:
            each.remove()
    assert torch.equal(call(pipe), dense)


def test_gates_of_two_experts_are_told_apart() -> None:
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
    with sparsify(pipe, sparsity=0.5, gates={"transformer": gates()}) as handle:
        assert [row.gated for row in handle.report().layers] == [True] * 3 + [False] * 3


def test_the_quality_is_said_once() -> None:
    pipe = wan_pipeline(experts=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sparsify(pipe, sparsity=0.5) as handle:
            call(pipe)
            assert "not measured" in handle.report().quality
        with sparsify(pipe, sparsity=0.5, gates={"transformer": gates(), "transformer_2": gates()}) as handle:
            assert "trained gates" in handle.report().quality
        with sparsify(pipe, sparsity=0.0) as handle:
            assert "dense attention" in handle.report().quality
    assert [str(each.message) for each in caught if "quality" in str(each.message)] == [
        "quality not measured: sparse attention without trained gates; compare with the dense pipeline before you rely on it"
    ]


def test_tiling_of_the_vae_stays() -> None:
    pipe = wan_pipeline()
    sizes = {f"tile_sample_{kind}_{side}": size for side in ("height", "width") for kind, size in (("min", 64), ("stride", 48))}
    pipe.vae.enable_tiling(**sizes)
    tiled = call(pipe, output_type="pt")
    with sparsify(pipe, sparsity=0.0):
        assert pipe.vae.use_tiling
        assert (call(pipe, output_type="pt") - tiled).abs().max() <= 1e-4
    assert torch.equal(call(pipe, output_type="pt"), tiled)


def test_fastwan_samples_as_documented() -> None:
    """By hand, from the same draws: noise for the start, then for the second and third step."""
    pipe = FastWanPipeline.of(wan_pipeline())
    assert pipe.scheduler.timesteps.tolist() == [1000, 757, 522]
    given = {"num_inference_steps": None, "negative_prompt_embeds": None}
    with sparsify(pipe, sparsity=0.6, gates=gates()):
        found = call(pipe, **given)
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

    found = call(pipe, num_inference_steps=None, callback_on_step_end=callback)
    assert [each[:2] for each in told] == [(0, 1000), (1, 757), (2, 522)]
    assert not found.any(), "what the last step's callback returned"


def test_fastwan_refuses_other_steps() -> None:
    pipe = FastWanPipeline.of(wan_pipeline())
    with pytest.raises(ConfigError, match="num_inference_steps: got 4, FastWan was distilled for 3"):
        call(pipe)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler()
    with pytest.raises(ConfigError, match="expected its own; make the pipeline by FastWanPipeline.of"):
        call(pipe)
    assert FastWanScheduler.from_config(FastWanScheduler(steps=(1000, 500)).config).timesteps.tolist() == [1000, 500]


def test_a_fastwan_checkpoint_becomes_a_sparse_pipeline(tmp_path: Any) -> None:
    """From the folder alone: the gates that diffusers drops are found and used."""
    from safetensors.torch import load_file, save_file

    wan_pipeline().save_pretrained(tmp_path)
    file = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | gates(), file)
    pipe = FastWanPipeline.of(WanPipeline.from_pretrained(tmp_path, tokenizer=None, text_encoder=None))
    pipe.set_progress_bar_config(disable=True)
    with sparsify(pipe, sparsity=0.8) as handle:
        assert all(row.gated for row in handle.report().layers)
        found = call(pipe, num_inference_steps=None)
    other = FastWanPipeline.of(wan_pipeline())
    with sparsify(other, sparsity=0.8, gates=gates()):
        assert torch.equal(call(other, num_inference_steps=None), found)
