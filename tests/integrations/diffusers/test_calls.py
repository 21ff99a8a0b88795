"""Facts of a call live in the call: two at once, two in one loss, computed again in backward, with a scheduler of its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
    WanVideoToVideoPipeline,
)
from PIL import Image
from torch import Tensor

from strobe.attention.sparse.coarse import Forced
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.fastwan import FastWanPipeline
from tiny_pipelines import Case, OwnLoop, clip, cosmos, gates, hunyuan, hunyuan15, ltx2, wan, wan_pipeline

STEP = "denoise_step"
unguided = partial(clip, guidance_scale=1.0)


Both = tuple[Case, dict[str, Any], dict[str, Any]]


def of_sizes(case: Case, *sizes: tuple[int, int, int]) -> Both:
    latents = (torch.randn(1, 4, *size, generator=torch.Generator().manual_seed(3)) for size in sizes)
    first, second = (case.arguments | {"hidden_states": each} for each in latents)
    return case, first, second


def of_changes(case: Case, first: dict[str, Any], second: dict[str, Any]) -> Both:
    return case, case.arguments | first, case.arguments | second


STEPS: Any = [{"attention_kwargs": {STEP: step}} for step in (0, 1)]
BOTH: dict[str, Callable[[], Both]] = {
    "wide and tall": lambda: of_sizes(wan(1, layers=1), (4, 12, 20), (4, 20, 12)),  # as many tokens and tiles both ways
    "two sizes": lambda: of_sizes(wan(1, layers=1), (4, 12, 20), (4, 12, 12)),
    "ltx-2, two grids": lambda: of_changes(ltx2(batch=1), {}, {"height": 7, "width": 6}),
    "hunyuan, two prompts": lambda: of_changes(hunyuan(6, layers=1), {}, hunyuan(2, layers=1).arguments),
    "hunyuan 1.5, two prompts": lambda: of_changes(hunyuan15(6), {}, hunyuan15(2).arguments),
    # the norm of Cosmos' other kind of embedding takes no float64
    "cosmos, two sizes": lambda: of_sizes(cosmos(1, layers=1, extra_pos_embed_type=None), (4, 12, 14), (5, 12, 10)),
    "a dense step": lambda: of_changes(wan(1, layers=1), *STEPS),
}


@pytest.mark.parametrize("place", ["rope", "its last layer"])
@pytest.mark.parametrize("name", BOTH)
def test_a_call_in_another_thread_changes_nothing(name: str, place: str) -> None:
    """The first call stands still before its rotary embedding, or in its last layer, until a second one is done."""
    case, first, second = BOTH[name]()
    with sparsify(case.model, sparsity=0.7, tile=(4, 3, 3), dense_steps=1 if name == "a dense step" else 0) as handle:
        wanted = case.run(**first), case.run(**second)
        beside: list[Tensor] = []

        def meanwhile(*_: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: beside.append(case.run(**second)))
                thread.start()
                thread.join()

        module = case.model.rope if place == "rope" else list(handle.layers.values())[-1]
        with module.register_forward_pre_hook(meanwhile):
            found = case.run(**first)
    assert torch.equal(found, wanted[0]) and torch.equal(beside[0], wanted[1])


def test_recalls_are_those_of_the_thread_and_of_the_innermost() -> None:
    """Another thread calls, and measures a call, while one measures; an inner measurement takes its own calls."""
    case, other = wan(1), {"hidden_states": wan(1).arguments["hidden_states"] * 3}
    layers, beside = [f"blocks.{number}.attn1" for number in range(3)], dict[str, list[Tensor]]()
    with sparsify(case.model, sparsity=0.7, tile=(4, 3, 3), gates=None) as handle:

        def aside() -> None:
            case.run(**other)
            with handle.recalls(5) as found:
                case.run(**other)
            beside.update(found)

        with handle.recalls(4) as outer:
            thread = threading.Thread(target=aside)
            thread.start()
            thread.join()
            case.run()
            with handle.recalls(5) as inner:
                case.run(**other)
            case.run()
    assert {name: len(calls) for name, calls in outer.items()} == dict.fromkeys(layers, 2)
    assert {name: len(calls) for name, calls in inner.items()} == dict.fromkeys(layers, 1)
    assert beside.keys() == inner.keys() and all(torch.equal(beside[each][0], inner[each][0]) for each in layers)


def gradients(name: str, how: str, **options: Any) -> dict[str, Tensor]:
    """Gradients of one loss over both calls, in float64."""
    case, *both = BOTH[name]()
    model = case.model.double().requires_grad_(True).train()
    if how == "reentrant":
        model.enable_gradient_checkpointing(partial(torch.utils.checkpoint.checkpoint, use_reentrant=True))
    elif how != "kept":
        model.enable_gradient_checkpointing()
    wide = [{k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in each.items()} for each in both]
    with sparsify(model, sparsity=0.5, tile=(4, 3, 3), **options):
        if how == "compiled":
            model.compile_repeated_blocks(fullgraph=True, backend="eager")
        loss = sum(model(**each, return_dict=False)[0].square().mean() for each in wide)
        if how == "another thread":
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
        return {key: value.grad for key, value in model.named_parameters() if value.grad is not None}


LOSSES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "wide and tall": ("wide and tall", {}, ["reentrant", "not reentrant", "another thread"]),
    "gates": ("wide and tall", {"gates": gates(1)}, ["reentrant", "not reentrant", "compiled"]),
    "two sizes": ("two sizes", {}, ["reentrant", "not reentrant"]),
    "ltx-2, two grids": ("ltx-2, two grids", {}, ["not reentrant"]),
    "hunyuan, two prompts": ("hunyuan, two prompts", {}, ["reentrant", "not reentrant"]),
    "cosmos, two sizes": ("cosmos, two sizes", {}, ["reentrant", "not reentrant"]),
    "dense frames": ("two sizes", {"dense_frames": [0, -1]}, ["reentrant", "not reentrant", "compiled"]),
    "a dense step": ("a dense step", {"dense_steps": 1}, ["reentrant", "not reentrant"]),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_checkpointing_two_calls_of_one_loss(loss: str) -> None:
    name, options, ways = LOSSES[loss]
    kept = gradients(name, "kept", **options)
    largest = max(each.norm() for each in kept.values())
    for way in ways:
        found = gradients(name, way, **options)
        assert found.keys() == kept.keys()
        for key, wanted in kept.items():
            assert (found[key] - wanted).norm() <= 1e-13 * largest, (way, key)


# Dense steps.


@pytest.fixture
def seen() -> list[bool]:
    """Whether each call of a watched transformer is dense."""
    return []


def watched(pipe: Any, seen: list[bool]) -> Any:
    pipe.transformer.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[3].dense))
    return pipe


def another(pipe: Any, scheduler: Any, kind: type = WanPipeline) -> Any:
    """A second pipeline over the same transformer."""
    made = kind(tokenizer=None, text_encoder=None, vae=pipe.vae, scheduler=scheduler, transformer=pipe.transformer)
    made.set_progress_bar_config(disable=True)
    return made


def copied(pipe: Any) -> Any:
    made = copy.copy(pipe)
    made.scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    return made


def to_video(pipe: Any) -> Any:
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    return another(pipe, scheduler, WanVideoToVideoPipeline)


PIPELINES: dict[str, tuple[Callable[[Any], Any], dict[str, Any], int, list[bool]]] = {
    "the same": (lambda pipe: pipe, {}, 2, [True, True, False, False]),
    "a copy with its own scheduler": (copied, {}, 2, [True, True, False, False]),
    "a second pipeline": (lambda pipe: another(pipe, FlowMatchEulerDiscreteScheduler()), {}, 2, [True, True, False, False]),
    "FastWan": (FastWanPipeline.of, {"num_inference_steps": None}, 2, [True, True, False]),
    "Heun, two evaluations a step": (lambda p: another(p, FlowMatchHeunDiscreteScheduler()), {}, 2, [True] * 4 + [False] * 3),
    "video to video": (to_video, {"video": [Image.new("RGB", (112, 96))] * 17, "strength": 0.5}, 1, [True, False]),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_the_scheduler_of_the_calling_pipeline_counts(name: str, seen: list[bool]) -> None:
    make, changes, dense, wanted = PIPELINES[name]
    pipe = watched(wan_pipeline(), seen)
    other = make(pipe)
    with sparsify(pipe, sparsity=0.5, dense_steps=dense) as handle:
        unguided(pipe, 3)
        seen.clear()
        for _ in range(2):
            unguided(other, **changes)
        assert seen == wanted * 2
        assert f"dense in steps {', '.join(map(str, range(dense)))}" in str(handle.report())


def test_a_loop_of_ones_own_tells_the_step_or_is_refused(seen: list[bool]) -> None:
    case = wan(1, layers=1)
    own = watched(OwnLoop(case), seen)
    with sparsify(case.model, sparsity=0.5, dense_steps=[1]):
        with pytest.raises(ConfigError, match=r"no pipeline .* is calling it, so the step is not known; tell it: attention_"):
            own()
        own(attention_kwargs={STEP: own.scheduler})
        for step in range(3):
            case.run(attention_kwargs={STEP: step})
        assert seen == [False, True, False] * 2
        for wrong in (-1, True, 1.0, "first", torch.ones(1)):
            with pytest.raises(ConfigError, match="dense_steps: got .*, expected the number of the step, from 0, or a scheduler"):
                case.run(attention_kwargs={STEP: wrong})
    seen.clear()
    with sparsify(own, sparsity=0.5, dense_steps=[1]):  # the class of what was made sparse is known to be a pipeline
        own()
        assert seen == [False, True, False]


def test_a_model_that_cannot_be_told_the_step_is_counted_by_its_pipeline(seen: list[bool]) -> None:
    """The forward of Cosmos takes no `attention_kwargs`."""
    case = cosmos(1)
    own = OwnLoop(case)
    case.model.transformer_blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[4].dense))
    with (
        sparsify(case.model, sparsity=0.5, dense_steps=[1]),
        pytest.raises(ConfigError, match="the step is not known; give your pipeline itself, an object with this transformer"),
    ):
        own()
    with sparsify(own, sparsity=0.5, dense_steps=[1]):
        own()
    assert seen == [False, True, False]


def test_a_transformer_that_a_pipeline_does_not_hold_is_not_counted_by_it() -> None:
    """A callback of another pipeline calls it."""
    case, pipe = wan(1, layers=1), wan_pipeline()

    def callback(*_: Any) -> dict[str, Any]:
        case.run()
        return {}

    with (
        sparsify(case.model, sparsity=0.5, dense_steps=1),
        pytest.raises(ConfigError, match="no pipeline of diffusers that holds"),
    ):
        unguided(pipe, 1, callback_on_step_end=callback)


def test_too_many_forced_tiles_are_refused_before_the_first_dense_step() -> None:
    pipe, passes = wan_pipeline(), []
    pipe.transformer.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    forced = Forced(own=True, first_frames=2)
    with (
        sparsify(pipe, sparsity=0.9, tile=(1, 2, 2), forced=forced, dense_steps=[0, 1]),
        pytest.raises(ConfigError, match=r"forced: .* key tiles are forced, .* select .*, by sparsity=0.58 or less"),
    ):
        clip(pipe)
    assert not passes


def test_dense_steps_of_a_model_compiled_as_a_whole() -> None:
    """In a pipeline its graph breaks where the step is asked for; told the step it is one graph."""
    pipe, case = wan_pipeline(), wan(1, layers=1)
    pipe.transformer = case.model
    with sparsify(pipe, sparsity=0.5, dense_steps=1):
        wanted = unguided(pipe, 2)
        both = [case.run(attention_kwargs={STEP: step}) for step in range(2)]
        assert (both[0] - both[1]).abs().max() > 1e-3
        whole = torch.compile(case.model, fullgraph=True, backend="eager")
        with torch.no_grad():
            found = [whole(**case.arguments, attention_kwargs={STEP: step}).sample for step in range(2)]
            with pytest.raises(torch._dynamo.exc.Unsupported, match="tell the step in attention_kwargs"):
                whole(**case.arguments)
        assert all((a - b).abs().max() <= 1e-5 for a, b in zip(found, both, strict=True))
        pipe.transformer = torch.compile(case.model, backend="eager")
        assert (unguided(pipe, 2) - wanted).abs().max() <= 1e-5
