"""Host time of a self-attention layer of Wan: diffusers' own processor, and ours dense and sparse.

`python host_of_a_layer.py cuda` on a GPU: a model of 30 layers with so few tokens that the GPU waits for the host; what a pass
takes for a layer, uncompiled, compiled, and in CUDA graphs. `python host_of_a_layer.py cpu` without a GPU, with Triton 3.6: the
processor alone, each launch of a kernel of ours done up to the call of the driver, which does nothing.
The sources under test are those on the path: `PYTHONPATH=OTHER_CHECKOUT/src` measures another commit.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from strobe.integrations.diffusers import sparsify
from tiny_pipelines import wan

KINDS = ("diffusers", "dense", "sparse")
LAYERS = 30
OURS: dict[str, Any] = {"dense": {"sparsity": 0.0}, "sparse": {"sparsity": 0.5}}


@contextmanager
def made(kind: str, model: Any) -> Iterator[None]:
    """Within it the layers of a model are of a kind."""
    if kind == "diffusers":
        yield
        return
    with sparsify(model, **OURS[kind]):
        yield


def microseconds(call: Callable[[], object], calls: int, clock: Callable[[], float], wait: Callable[[], None]) -> float:
    """The shortest of some rounds of calls, for one call: what else the machine does only makes a round longer."""
    found = []
    for _ in range(10):
        wait()
        start = clock()
        for _ in range(calls):
            call()
        wait()
        found.append((clock() - start) / calls * 1e6)
    return min(found)


def on_a_gpu() -> None:
    """Print what a pass takes for one layer, of every kind, uncompiled, compiled, and compiled into CUDA graphs."""
    frames, height, width = 4, 16, 16  # latents: 256 tokens
    case = wan(1, layers=LAYERS, heads=12, head_dim=128)
    case.model.to("cuda", torch.bfloat16)
    latents = torch.randn(1, 4, frames, height, width, device="cuda", dtype=torch.bfloat16)
    text = torch.randn(1, 7, 16, device="cuda", dtype=torch.bfloat16)
    times = torch.full((1,), 500, device="cuda")

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            case.model(hidden_states=latents, timestep=times, encoder_hidden_states=text, return_dict=False)

    def took(kind: str, mode: str) -> float:
        with made(kind, case.model):
            if mode != "uncompiled":
                options = {"mode": "reduce-overhead"} if mode == "CUDA graphs" else {}
                case.model.compile_repeated_blocks(fullgraph=True, dynamic=False, **options)
            for _ in range(5):
                step()
            found = microseconds(step, 10, time.perf_counter, torch.cuda.synchronize) / LAYERS
        for module in case.model.modules():
            module._compiled_call_impl = None
        return found

    for mode in ("uncompiled", "compiled", "CUDA graphs"):
        rounds = [{kind: took(kind, mode) for kind in KINDS} for _ in range(3)]  # in turns: code is kept for each kind
        say(mode, {kind: statistics.median(each[kind] for each in rounds) for kind in KINDS})
        torch._dynamo.reset()


def compiled(kernel: Any, key: str, signature: Any, device: int, constants: Any, *_: Any) -> Any:
    """Replace Triton's compile step by a kernel that Triton 3.6 launches as any other, but for the call of the driver."""
    from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
    from triton.compiler import ASTSource
    from triton.compiler.compiler import CompiledKernel

    def no_driver(*arguments: Any) -> None:
        described, enter, leave = arguments[10:13]  # after the grid, stream, function, two settings, two scratch areas, metadata
        for hook in (enter, leave):
            if hook is not None:
                hook(described)

    launcher = CudaLauncher.__new__(CudaLauncher)
    launcher.launch = wrap_handle_tensordesc(no_driver, signature, None)
    launcher.num_ctas, launcher.launch_cooperative_grid, launcher.launch_pdl = 1, False, False
    launcher.global_scratch_size = launcher.profile_scratch_size = 0
    launcher.global_scratch_align = launcher.profile_scratch_align = 1
    made = CompiledKernel.__new__(CompiledKernel)
    made.src, made.name, made.metadata, made.packed_metadata = ASTSource(kernel, signature, constants, {}), "", None, (4, 1, 0)
    made.module = made.function = 1
    made._run = launcher
    kernel.device_caches[device][0][key] = made
    return made


def on_a_cpu() -> None:
    """Print what one processor takes, and what of it are the projections and norms, which all kinds have in common."""
    import launches_without_a_gpu as launches
    from strobe.attention.sparse import tiled

    launches.driver.set_active(launches.Driver())
    launches.pretend(compiled)
    tiled.fuses = lambda *_: True  # type: ignore[assignment]
    case = wan(1, layers=1, heads=2, head_dim=32)
    attn, states = case.model.blocks[0].attn1, torch.zeros(1, 64, 64)
    angles = (torch.zeros(1, 64, 1, 32), torch.zeros(1, 64, 1, 32))

    def common() -> None:
        attn.norm_q(attn.to_q(states)), attn.norm_k(attn.to_k(states)), attn.to_v(states)
        attn.to_out[1](attn.to_out[0](states))

    def took(kind: str) -> float:
        with torch.no_grad(), made(kind if kind in OURS else "diffusers", case.model):
            if kind in OURS:
                attn.processor.forward.grid = (4, 4, 4)
            call = common if kind == "common" else partial(attn.processor, attn, states, None, None, angles)
            call()
            return microseconds(call, 200, time.thread_time, lambda: None)

    rounds = [{kind: took(kind) for kind in ("common", *KINDS)} for _ in range(5)]
    least = {kind: min(each[kind] for each in rounds) for kind in rounds[0]}
    say("without the projections", {kind: least[kind] - least["common"] for kind in KINDS})


def say(what: str, found: dict[str, float]) -> None:
    base = found["diffusers"]
    for kind, took in found.items():
        sys.stdout.write(f"{what}: {kind}: {took:.1f} us a layer, {took - base:+.1f} us\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="quality not measured")
    on_a_gpu() if sys.argv[1:] == ["cuda"] else on_a_cpu()
