"""Host time of a self-attention layer of Wan: diffusers' own processor, and ours dense and sparse.

`python host_of_a_layer.py cuda` on a GPU: a model of 30 layers with so few tokens that the GPU waits for the host; what a pass
takes for a layer, uncompiled, compiled, in CUDA graphs of torch.compile, and recorded as one CUDA graph: its replay, and what of
that the host takes. The output of each is held to that of an uncompiled pass. Names of these ways after `cuda` choose some.
After the compiled passes it says where the host's time goes: the operator of a sparse layer alone, and the functions of a pass.
`python host_of_a_layer.py twin`: the first two on a CPU, with two layers and without code from the compiler.
`python host_of_a_layer.py cpu` without a GPU: the processor alone, and the operator alone, each launch of a kernel of ours done
up to the driver, which does nothing.
The sources under test are those on the path: `PYTHONPATH=OTHER_CHECKOUT/src` measures another commit.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from strobe.attention.sparse import video
from strobe.attention.sparse.video_plan import VideoOptions, filled, options_of, plan_of, written
from strobe.core.tolerances import tolerance
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.forward import Pass
from tiny_pipelines import wan

KINDS = ("diffusers", "dense", "sparse")
WAYS = ("uncompiled", "compiled", "CUDA graphs", "recorded")
OURS: dict[str, Any] = {"dense": {"sparsity": 0.0}, "sparse": {"sparsity": 0.5}}


@contextmanager
def made(kind: str, model: Any) -> Iterator[None]:
    """Within it the layers of a model are of a kind."""
    if kind == "diffusers":
        yield
        return
    with sparsify(model, **OURS[kind]):
        yield


def microseconds(
    call: Callable[[], object], calls: int, clock: Callable[[], float], wait: Callable[[], None], rounds: int = 10
) -> float:
    """The shortest of some rounds of calls, for one call: what else the machine does only makes a round longer."""
    found = []
    for _ in range(rounds):
        wait()
        start = clock()
        for _ in range(calls):
            call()
        wait()
        found.append((clock() - start) / calls * 1e6)
    return min(found)


class Passes:
    """Forward passes of one model, whose layers are made anew of each kind, in each of the `WAYS`."""

    def __init__(self, device: str, layers: int) -> None:
        dtype, tokens = (torch.bfloat16, 16) if device == "cuda" else (torch.float32, 8)
        heads, width = (12, 128) if device == "cuda" else (2, 12)
        case = wan(1, layers=layers, heads=heads, head_dim=width)
        self.model, self.layers, self.on_gpu = case.model.to(device, dtype), layers, device == "cuda"
        self.wait: Callable[[], None] = torch.cuda.synchronize if self.on_gpu else lambda: None
        self.inputs = {
            "hidden_states": torch.randn(1, 4, 4, tokens, tokens, device=device, dtype=dtype),
            "encoder_hidden_states": torch.randn(1, 7, 16, device=device, dtype=dtype),
            "timestep": torch.full((1,), 500, device=device),
        }

    def step(self) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            found: Tensor = self.model(**self.inputs, return_dict=False)[0]
        return found

    def took(self, kind: str, way: str, calls: int = 5, rounds: int = 4) -> dict[str, float]:
        """Microseconds for one layer, by what was measured; checks that compiled and recorded passes give what a pass gives."""
        with made(kind, self.model):
            plain = self.step().clone()
            if way in ("compiled", "CUDA graphs"):
                options: dict[str, Any] = {"mode": "reduce-overhead"} if way == "CUDA graphs" else {}
                options |= {} if self.on_gpu else {"backend": "eager"}
                self.model.compile_repeated_blocks(fullgraph=True, dynamic=False, **options)
            for _ in range(5 if self.on_gpu else 2):
                output = self.step()
            call: Callable[[], object] = self.step
            if way == "recorded":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    output = self.step()
                graph.replay()
                call = graph.replay
            self.wait()
            error = ((output - plain).double().norm() / plain.double().norm()).item()
            assert error <= tolerance("latents", plain.dtype), f"{kind}, {way}: the output is off by {error:.2g}"
            found = {way: microseconds(call, calls, time.perf_counter, self.wait, rounds) / self.layers}
            if way == "recorded":
                found["recorded, the host alone"] = microseconds(call, 1, time.perf_counter, lambda: None) / self.layers
            self.wait()
        for module in self.model.modules():
            module._compiled_call_impl = None
        return found

    def profile(self, passes: int = 10) -> None:
        """Print the functions of compiled sparse passes that take the most of the host's time themselves, by layer."""
        with made("sparse", self.model):
            self.model.compile_repeated_blocks(fullgraph=True, dynamic=False)
            for _ in range(5):
                self.step()
            self.wait()
            profiler = cProfile.Profile()
            profiler.enable()
            for _ in range(passes):
                self.step()
            profiler.disable()
            self.wait()
        for module in self.model.modules():
            module._compiled_call_impl = None
        rows: list[tuple[float, float, int, str]] = []
        for (file, line, name), (_, calls, own, whole, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
            rows.append((own, whole, calls, f"{Path(file).name}:{line} {name}"))
        number = passes * self.layers
        for own, whole, calls, name in sorted(rows, reverse=True)[:30]:
            times = f"{own / number * 1e6:6.1f} us itself, {whole / number * 1e6:6.1f} with what it calls"
            sys.stdout.write(f"profile of a compiled sparse layer: {times}, {calls / number:4.1f} calls: {name}\n")
        sys.stdout.flush()


def operator_alone(device: str, clock: Callable[[], float], wait: Callable[[], None], heads: int, width: int) -> None:
    """Print what the operator of compiled code takes, what of that its parts take, and what it stands beside."""
    dtype, side = torch.bfloat16, 16
    q, k, v = (torch.randn(1, side * side, heads, width, device=device, dtype=dtype) for _ in range(3))
    angles = torch.randn(side * side, width // 2, device=device)
    rope = angles.cos(), angles.sin()
    call = video._call_of(q, k, v, None, rope, VideoOptions(grid=(1, side, side), sparsity=0.5))
    text = written(filled(call.options, plan_of(call, keep=True)))
    arguments = (q, k, v, None, *rope, text)
    library = torch.library.Library("strobe_probe", "DEF")
    library.define(f"nothing{torch.library.infer_schema(video._video, mutates_args=())}")
    library.impl("nothing", lambda q, k, v, *_: (q, k, v), "CompositeExplicitAutograd")
    operator, nothing = torch.ops.strobe.video_sparse_attention.default, torch.ops.strobe_probe.nothing.default
    video._READY.clear()
    with torch.no_grad():
        first, again = (operator(*arguments) for _ in range(2))
        whole = video._attend(q, k, v, None, rope, options_of(text))
        if device == "cuda":
            assert all(map(torch.equal, first, again)), "the operator called again gives something else"
            assert torch.equal(again[0], whole.out), "the operator gives something else than the call"
        (((_, prepared, *_),),) = video._READY.values()
        calls: dict[str, Callable[[], object]] = {
            "the operator": lambda: operator(*arguments),
            "its Python": lambda: video._video(*arguments),
            "its prepared call": lambda: prepared(q, k, v, rope, None),
            "an operator that does nothing": lambda: nothing(*arguments),
            "the uncompiled call": lambda: video._attend(q, k, v, None, rope, options_of(text)),
            "attention of torch": lambda: scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)),
        }
        for what, each in calls.items():
            each()
            sys.stdout.write(f"alone: {what}: {microseconds(each, 100, clock, wait):.1f} us\n")
    sys.stdout.flush()


def in_turns(device: str, layers: int, ways: Sequence[str], rounds: int) -> None:
    """Print what a pass takes for one layer, of every kind, in each way."""
    passes = Passes(device, layers)
    for way in ways:
        found = [{kind: passes.took(kind, way) for kind in KINDS} for _ in range(rounds)]  # in turns: code is kept for each kind
        for what in found[0][KINDS[0]]:
            say(what, {kind: [each[kind][what] for each in found] for kind in KINDS})
        if way == "compiled" and passes.on_gpu:
            passes.profile()
            operator_alone("cuda", time.perf_counter, passes.wait, 12, 128)
        torch._dynamo.reset()


def on_a_cpu(folder: Path) -> None:
    """Print what one processor takes, and what of it are the projections and norms, which all kinds have in common.

    Args:
        folder: where the driver is built that does nothing.
    """
    import launches_without_a_gpu as launches
    from driver_on_cpu import Driver, compiled
    from strobe.attention.sparse import tiled

    driver, active = Driver(folder), launches.driver_of(launches.TARGET)
    active.utils = driver.utils
    launches.driver.set_active(active)
    launches.pretend(lambda *given: compiled(driver.function(), *given))
    tiled.fuses = lambda *_: True  # type: ignore[assignment]
    case = wan(1, layers=1, heads=2, head_dim=32)
    attn, states = case.model.blocks[0].attn1, torch.zeros(1, 64, 64)
    angles = (torch.zeros(1, 64, 1, 32), torch.zeros(1, 64, 1, 32))

    def common() -> None:
        attn.norm_q(attn.to_q(states)), attn.norm_k(attn.to_k(states)), attn.to_v(states)
        attn.to_out[1](attn.to_out[0](states))

    def took(kind: str) -> float:
        with torch.no_grad(), made(kind if kind in OURS else "diffusers", case.model):
            rotary: Any = angles
            if kind in OURS:
                rotary = Pass((4, 4, 4), (), dense=False, queries=0, recalls={})
                rotary.pair, rotary.rope = angles, attn.processor.rope_of(angles)
            call = common if kind == "common" else partial(attn.processor, attn, states, None, None, rotary)
            call()
            return microseconds(call, 200, time.thread_time, lambda: None)

    rounds = [{kind: took(kind) for kind in ("common", *KINDS)} for _ in range(5)]
    least = {kind: min(each[kind] for each in rounds) for kind in rounds[0]}
    operator_alone("cpu", time.thread_time, lambda: None, 2, 32)
    say("without the projections", {kind: [least[kind] - least["common"]] for kind in KINDS})


def say(what: str, found: dict[str, list[float]]) -> None:
    """Print medians, least and most of the rounds, and the same of what a layer takes more than diffusers' in its round."""
    for kind, took in found.items():
        more = [ours - theirs for ours, theirs in zip(took, found["diffusers"], strict=True)]
        spread = f" [{min(took):.0f}, {max(took):.0f}]" if len(took) > 1 else ""
        between = f" [{min(more):+.0f}, {max(more):+.0f}]" if len(took) > 1 else ""
        median, added = statistics.median(took), statistics.median(more)
        sys.stdout.write(f"{what}: {kind}: {median:.1f} us a layer{spread}, {added:+.1f} us{between}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="quality not measured")
    place, *chosen = sys.argv[1:]
    if place == "cuda":
        in_turns("cuda", 30, chosen or WAYS, 9)
    elif place == "twin":
        in_turns("cpu", 2, WAYS[:2], 1)
    else:
        with TemporaryDirectory() as built:
            on_a_cpu(Path(built))
