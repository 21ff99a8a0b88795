"""`strobe.capture`: what lies in the file is what attention received, and the pipeline is as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import strobe
from strobe.core.errors import ConfigError
from strobe.engine.load import load
from strobe.integrations.diffusers import sparsify
from strobe.models.captured import CapturedCall, read_calls, read_video
from tiny_pipelines import GRID, NUM_TOKENS, Case, OwnLoop, cosmos, hunyuan, hunyuan15, ltx2, wan, wan_pipeline

CPU = torch.device("cpu")
TEXT = {"prompt_embeds": torch.zeros(1, 7, 16), "negative_prompt_embeds": torch.ones(1, 7, 16)}
CLIP = TEXT | {"height": 96, "width": 112, "num_frames": 17, "num_inference_steps": 3, "output_type": "latent"}


def generate(pipe: Any) -> Tensor:
    found: Tensor = pipe(**CLIP, generator=torch.Generator().manual_seed(0)).frames
    return found


def told(case: Case, step: int = 0) -> Tensor:
    return case.run(attention_kwargs={"denoise_step": step})


def operands(file: Path, number: int) -> list[Tensor]:
    """q, k and v of all tokens, text included."""
    with safe_open(file, framework="pt") as tensors:
        return [tensors.get_tensor(f"{number}.{name}") for name in "qkv"]


def hooks_of(model: torch.nn.Module) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


def own_run(make: Any, *arguments: Any) -> tuple[Any, Any]:
    case = make(*arguments)
    return case.model, partial(told, case)


def own_loop() -> tuple[Any, Any]:
    loop = OwnLoop(cosmos(1))
    return loop, loop


FAMILIES: dict[str, tuple[Any, str, int, int]] = {
    "wan": (partial(own_run, wan, 1), "blocks.1.attn1", 0, 0),
    "ltx-2": (partial(own_run, partial(ltx2, batch=1, rope_type="split")), "transformer_blocks.1.attn1", 0, 0),
    "hunyuan": (partial(own_run, hunyuan, 6, 3), "transformer_blocks.1.attn", 0, 3),
    "hunyuan 1.5": (partial(own_run, hunyuan15, 6, 3), "transformer_blocks.1.attn", 0, 3 + 1),
    "a loop over cosmos": (own_loop, "transformer.transformer_blocks.1.attn1", 2, 0),
}
"""What to capture of and how to run it; the layer, the step, and the text tokens of the last sample."""


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_numbers_through_dense_attention_are_the_layers_own_output(family: str, tmp_path: Path) -> None:
    """Of the last sample; text follows the video, without its padding."""
    make, name, step, text = FAMILIES[family]
    (pipe, run), file, seen = make(), tmp_path / "qkv.safetensors", list[Tensor]()
    model = getattr(pipe, "transformer", pipe)
    layer = model.get_submodule(name.removeprefix("transformer."))
    layer.to_out[0].register_forward_pre_hook(lambda _, args: seen.append(args[0][-1:]))
    with strobe.capture(pipe, file, steps=[step], layers=[1], dtype=torch.float32):
        run()
    ((call, sizes),) = read_calls(file)
    assert call == CapturedCall(model=type(model).__name__, layer=name, step=step, grid=GRID, text_tokens=text)
    q, k, v = operands(file, 0)
    assert q.shape[1] == NUM_TOKENS + text and sizes == q.shape[2:]
    out = strobe.dense_attention(q, k, v, impl="sdpa").out[:, :NUM_TOKENS].flatten(2)
    torch.testing.assert_close(out, seen[step])
    video = read_video(file, 0, call, torch.float64, CPU)
    assert all(torch.equal(each, whole[:, :NUM_TOKENS].double()) for each, whole in zip(video, (q, k, v), strict=True))


def test_a_pipeline_computes_the_same_and_is_as_it_was(tmp_path: Path) -> None:
    pipe, file = wan_pipeline(experts=2), tmp_path / "qkv.safetensors"
    expected, hooks = generate(pipe), hooks_of(pipe.transformer)
    processors = pipe.transformer.attn_processors
    with strobe.capture(pipe, file, steps=[0, 2], layers=2):
        assert torch.equal(generate(pipe), expected)
        generate(pipe)  # a second clip adds nothing
    found = [(call.layer, call.step) for call, _ in read_calls(file)]
    assert found == [
        ("transformer.blocks.0.attn1", 0), ("transformer.blocks.1.attn1", 0),
        ("transformer_2.blocks.0.attn1", 2), ("transformer_2.blocks.1.attn1", 2),
    ]  # fmt: skip
    assert operands(file, 0)[0].dtype == torch.bfloat16
    assert hooks_of(pipe.transformer) == hooks and pipe.transformer.attn_processors == processors
    assert torch.equal(generate(pipe), expected)


def test_the_prompts_own_forward_counts(tmp_path: Path) -> None:
    """Guidance calls Wan twice in a step, first with the prompt; the second call must not be what is kept."""
    files = [tmp_path / f"{name}.safetensors" for name in ("both", "prompt")]
    for file, changes in zip(files, ({}, {"guidance_scale": 1.0}), strict=True):
        pipe = wan_pipeline()
        with strobe.capture(pipe, file, steps=1, layers=[2]):
            pipe(**CLIP | changes, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(operands(files[0], 0), operands(files[1], 0), strict=True))


def test_an_exception_writes_nothing_and_leaves_the_pipeline(tmp_path: Path) -> None:
    case, file = wan(1), tmp_path / "qkv.safetensors"
    hooks = hooks_of(case.model)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    broken = case.model.blocks[0].attn1.to_out[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"), strobe.capture(case.model, file, steps=1, layers=3):
        told(case)
    broken.remove()
    assert not file.exists() and hooks_of(case.model) == hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_call_in_another_thread_is_not_recorded(tmp_path: Path) -> None:
    """It comes while a layer is recorded, of a transformer that has no step to tell, and computes what it did."""
    case, file, beside = wan(1), tmp_path / "qkv.safetensors", list[Tensor]()
    other = {"hidden_states": case.arguments["hidden_states"] * 2}
    with strobe.capture(case.model, file, steps=1, layers=3):
        told(case)
    wanted, wanted_calls, wanted_kept = case.run(**other), read_calls(file), operands(file, 1)

    def meanwhile(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as pool:
                beside.append(pool.submit(case.run, **other).result(timeout=60))

    hook = case.model.blocks[1].attn1.norm_q.register_forward_pre_hook(meanwhile)
    with hook, strobe.capture(case.model, file, steps=1, layers=3):
        told(case)
    assert torch.equal(beside[0], wanted) and read_calls(file) == wanted_calls
    assert all(torch.equal(one, other) for one, other in zip(operands(file, 1), wanted_kept, strict=True))


def test_captures_that_overlap_leave_what_is_compiled_compiled(tmp_path: Path) -> None:
    """The first to begin is the first to end; the layers are uncompiled until the second ends, and compiled after it."""
    case, compiled, files = wan(1), list[Any](), [tmp_path / f"{each}.safetensors" for each in range(2)]

    def compiling(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    case.model.compile_repeated_blocks(backend=compiling)
    first, second = (strobe.capture(case.model, file, steps=1, layers=1) for file in files)
    first.__enter__()
    with second:
        told(case)
        first.__exit__(None, None, None)
        told(case)
        assert not compiled
    told(case)
    assert compiled and [[call.layer for call, _ in read_calls(file)] for file in files] == [["blocks.0.attn1"]] * 2


def test_a_layer_that_gradients_compute_again_is_recorded_once(tmp_path: Path) -> None:
    case, file = wan(1), tmp_path / "qkv.safetensors"
    case.model.requires_grad_(True).train().enable_gradient_checkpointing()
    with strobe.capture(case.model, file, steps=1, layers=[1]):
        case.model(**case.arguments, attention_kwargs={"denoise_step": 0}, return_dict=False)[0].sum().backward()
    assert len(read_calls(file)) == 1


def test_what_cannot_be_said_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "qkv.safetensors"

    def refused(words: str, run: Any = told, model: Any = None, **options: Any) -> None:
        case = wan(1) if model is None else model
        asked: dict[str, Any] = {"steps": 1, "layers": 1} | options
        with pytest.raises(ConfigError, match=words) as said, strobe.capture(case.model, file, **asked):
            run(case)
        assert "\n" not in str(said.value) and not file.exists()

    refused("capture: steps 3 were not taken .taken: 0.", steps=[3])
    refused("layers: got 7, expected numbers below 3", layers=[7])
    refused("one call takes 30,240 bytes, and most_bytes leaves 1,000", most_bytes=1000)
    refused("got dtype=torch.int8", dtype=torch.int8)
    refused("capture: no pipeline of diffusers", run=lambda case: case.run())
    sparse = wan(1)
    with sparsify(sparse.model, sparsity=0.5, impl="cpu"):
        refused("is a WanProcessor that called torch's attention 0 times", model=sparse)
    with (
        pytest.raises(ConfigError, match="capture: found no transformer"),
        strobe.capture(torch.nn.Linear(1, 1), file, steps=1, layers=1),
    ):
        pass
    streamed = load("shapes")
    with strobe.Session(model=streamed, preset="quality", device="cpu") as session:
        for given in (session, streamed, streamed.dit):
            with (
                pytest.raises(ConfigError, match="whose frame blocks attend to a longer past; a call in the file has one grid"),
                strobe.capture(given, file, steps=1, layers=1),
            ):
                pass
    masked, mask = wan(1), torch.ones(1, 1, NUM_TOKENS, NUM_TOKENS, dtype=torch.bool)
    attn = masked.model.blocks[0].attn1
    attn.register_forward_pre_hook(lambda _, args: (args[0], args[1], mask, args[3]))
    refused("attn1 attends with a mask of pairs of tokens, which a file cannot say", model=masked)


def test_a_file_that_holds_no_calls_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "weights.safetensors"
    with pytest.raises(ConfigError, match=r"holds no captured q, k and v .*does not exist.*; make the file with strobe\.capture"):
        read_calls(file)
    save_file({"0.q": torch.ones(1, 2, 1, 8)}, file)
    with pytest.raises(ConfigError, match="holds no captured q, k and v"):
        read_calls(file)
    said = {"strobe.captured": '[{"model":"m","layer":"l","step":0,"grid":[2,2,2]}]'}
    save_file({f"0.{name}": torch.ones(1, 7, 1, 8) for name in "qkv"}, file, said)
    with pytest.raises(ConfigError, match="call 0 of l does not fit its grid"):
        read_calls(file)
