from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from strobe.bench.operations import RunnableOperation, StepParts, cache_copies, decoder_operations, steady_pass, transformer_shape
from strobe.core.costs import total, transformer_pass
from strobe.core.tolerances import tolerance
from strobe.engine.denoise import correction, prediction
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS, preset
from strobe.engine.resolve import resolve
from strobe.perf.analysis.runs.breakdown import REGIONS, REST

CPU = torch.device("cpu")


def parts(tiny: Model, name: str) -> StepParts:
    with torch.inference_mode():
        return StepParts(tiny, resolve(replace(preset(name), simulate=True), tiny.defaults, CPU))


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
    with torch.inference_mode():
        operations = step.operations()
    flops = sum(each.operation.calls * counted(each) for each in operations if "conditions" not in each.operation.name)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        step.transformer.dit(
            step.latents,
            *step.transformer.conditions(step.latents, step.config.schedule.warped[0], step.text, step.step),
            step.step,
        )
    extra = counted(next(each for each in operations if each.operation.name == "conditions"))
    assert flops == counter.get_total_flops() - extra
    assert Counter(each.operation.inside for each in operations).keys() == {*REGIONS, REST}


def test_every_operation_costs_what_torch_counts(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    with torch.inference_mode():
        operations = step.operations()
    known = [each for each in operations if each.operation.cost is not None]
    for each in known:
        assert each.operation.cost is not None
        if "attention_kernel" not in each.operation.name:  # on a CPU torch does not count its fused attention
            assert each.operation.cost.flops == counted(each), each.operation.name
    whole = total(transformer_pass(transformer_shape(tiny), steady_pass(tiny, step.config)))
    assert sum(each.operation.cost.flops * each.operation.calls for each in known if each.operation.cost) == whole.flops


def test_each_call_takes_the_next_layers_weights(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    with torch.inference_mode():
        run = next(each.run for each in step.operations() if each.operation.name == "ffn_up")
        outs = [run() for _ in range(4)]
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3]) and not torch.equal(outs[0], outs[1])  # type: ignore[arg-type]


def test_the_calls_of_unipc_are_the_steps_of_the_schedule_in_turn(tiny: Model) -> None:
    """Each is to x0 and, but for the last, a correction and a prediction, as a frame block has them."""
    own = replace(tiny.defaults, past="shots", sampler="unipc", positions="absolute", window=12, sink=3)
    step = parts(replace(tiny, defaults=own), "balanced")
    (found,) = (each for each in step._edges() if each.operation.name == "unipc")
    outs, sigmas, latents = [found.run() for _ in range(5)], step.config.schedule.sigmas, step.latents
    for index, out in enumerate(outs[:3]):
        clean = [latents] * index + [latents - sigmas[index] * latents]
        here = latents if not index else sum(
            factor * each for factor, each in zip(correction(sigmas, index), (latents, *clean[-3:]), strict=True)
        )  # fmt: skip
        there = sum(factor * each for factor, each in zip(prediction(sigmas, index), (here, *clean[-2:]), strict=True))
        torch.testing.assert_close(out, (here, there), rtol=0, atol=tolerance("element", "float32"))
    torch.testing.assert_close(outs[3][-1], latents - sigmas[3] * latents)  # type: ignore[index]
    torch.testing.assert_close(outs[4], outs[0], rtol=0, atol=0)
    assert "renoise" not in {each.operation.name for each in step._edges()}


def test_writing_again_leaves_the_cache_as_it_is(tiny: Model) -> None:
    step = parts(tiny, "balanced")
    with torch.inference_mode():
        write = next(each.run for each in step.operations() if each.operation.name == "kv_write")
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
        assert (
            each.operation.cost is None
            if calls > 1
            else each.operation.cost is not None and each.operation.cost.flops == counted(each)
        )
