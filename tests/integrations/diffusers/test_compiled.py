"""Compiled sparse layers: all layers of one kind share one graph, as those of the stock model do."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

from strobe.integrations.diffusers import sparsify
from tiny_pipelines import NEWER, Case, cosmos, gates, hunyuan, hunyuan15, ltx2, wan

LAYERS = 4
FAMILIES: dict[str, Callable[[], Case]] = {
    "wan": lambda: wan(layers=LAYERS),
    "ltx-2": lambda: ltx2(layers=LAYERS),
    "ltx-2.3": lambda: ltx2(layers=LAYERS, perturbed_attn=True, **NEWER),
    "hunyuan": lambda: hunyuan(layers=LAYERS),
    "hunyuan 1.5": lambda: hunyuan15(layers=LAYERS),
}
OPTIONS: dict[str, Any] = {"sparsity": 0.6, "tile": (3, 2, 4)}


def twin(case: Case) -> Case:
    """Modules of its own over the same weights."""
    shared = {id(value): value for value in (*case.model.parameters(), *case.model.buffers())}
    return Case(copy.deepcopy(case.model, shared), case.arguments, case.layers)


def counted(case: Case, counter: Any, **options: Any) -> Tensor:
    """Compile the blocks of a transformer and run it."""
    case.model.compile_repeated_blocks(fullgraph=True, backend=counter, **options)
    return case.run()


def counter_of(backend: str = "eager") -> Any:
    return torch._dynamo.testing.CompileCounterWithBackend(backend)


def stock_graphs(case: Case, **options: Any) -> int:
    """Graphs of the stock model."""
    counter = counter_of()
    counted(twin(case), counter, **options)
    torch._dynamo.reset()
    found: int = counter.frame_count
    return found


@pytest.mark.few("wan")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_forward_reads_no_name_of_a_layer(name: str) -> None:
    """Older compilers compile whatever is read into the graph: a name would give every layer a graph of its own."""
    case = FAMILIES[name]()
    with sparsify(case.model, **OPTIONS, gates=gates(LAYERS) if name == "wan" else None) as handle:
        wanted = case.run()
        processors: list[Any] = [layer.processor for layer in handle.layers.values()]
        names = [processor.name for processor in processors]
        assert len(set(names)) == case.layers
        for processor in processors:
            del processor.name
        assert torch.equal(case.run(), wanted)
        for processor, own in zip(processors, names, strict=True):
            processor.name = own


@pytest.mark.few("wan")
@pytest.mark.parametrize("name", FAMILIES)
def test_all_layers_share_the_graphs_of_the_stock_model(name: str) -> None:
    """Dense layers are one graph more."""
    case = FAMILIES[name]()
    stock = stock_graphs(case, dynamic=False)
    ways: list[dict[str, Any]] = [{}, {"dense_layers": [1, 3]}, *([{"gates": gates(LAYERS)}] if name == "wan" else [])]
    for options in ways:
        torch._dynamo.reset()
        counter = counter_of("aot_eager")
        with sparsify(case.model, **OPTIONS, **options):
            eager = case.run()
        own = twin(case)
        with sparsify(own.model, **OPTIONS, **options):
            assert (counted(own, counter, dynamic=False) - eager).abs().max() <= 1e-5
            assert counter.frame_count == stock + ("dense_layers" in options)
            own.run()
            assert counter.frame_count == stock + ("dense_layers" in options), "nothing is compiled again"


@pytest.mark.few("wan-False")
@pytest.mark.parametrize(("name", "dynamic"), [*((name, None) for name in FAMILIES), ("wan", False), ("wan", True)])
def test_two_sparsities_over_the_same_weights(name: str, dynamic: bool | None) -> None:
    """The second is compiled once more for each kind of block, whatever its number of layers; taking turns compiles nothing."""
    case, counter = FAMILIES[name](), counter_of()
    stock = stock_graphs(case, dynamic=dynamic)
    first, second = twin(case), twin(case)
    with sparsify(first.model, **OPTIONS), sparsify(second.model, **OPTIONS | {"sparsity": 0.3}):
        wanted = first.run(), second.run()
        assert (wanted[0] - wanted[1]).abs().max() > 1e-3
        assert (counted(first, counter, dynamic=dynamic) - wanted[0]).abs().max() <= 1e-5
        assert counter.frame_count == stock
        assert (counted(second, counter, dynamic=dynamic) - wanted[1]).abs().max() <= 1e-5
        both = counter.frame_count
        assert both <= stock + stock, "not one graph per layer"
        for _ in range(2):
            for turn, found in zip((first, second), wanted, strict=True):
                assert (turn.run() - found).abs().max() <= 1e-5
        assert counter.frame_count == both, "nothing is compiled again"


def test_recalls_are_measured_without_compiling() -> None:
    case, counter = wan(layers=LAYERS), counter_of()
    with sparsify(case.model, **OPTIONS) as handle:
        with handle.recalls(4) as found:
            case.run()
        counted(case, counter, dynamic=False)
        before = counter.frame_count
        with handle.recalls(4) as again:
            case.run()
            case.run()
        case.run()
    assert counter.frame_count == before
    assert {key: len(calls) for key, calls in again.items()} == dict.fromkeys(handle.layers, 2)
    assert all(torch.equal(again[key][0], found[key][0]) for key in handle.layers)


@pytest.mark.rest
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_whole_wan_is_one_graph(dynamic: bool | None) -> None:
    """Compiled before it was made sparse: what was compiled is not used for the other."""
    case = wan(1)
    dense = case.run()
    torch._dynamo.reset()
    compiled = torch.compile(case.model, fullgraph=True, backend="eager", dynamic=dynamic)

    def run() -> Tensor:
        with torch.no_grad():
            found: Tensor = compiled(**case.arguments, return_dict=False)[0]
        return found

    assert (run() - dense).abs().max() <= 1e-5
    with sparsify(compiled, sparsity=0.6, tile=(3, 2, 4)):
        eager = case.run()
        assert (run() - eager).abs().max() <= 1e-5
    assert (run() - dense).abs().max() <= 1e-5
    assert (eager - dense).abs().max() > 1e-3


@pytest.mark.rest
def test_the_measured_passes_of_a_layer_are_equal_compiled_and_not() -> None:
    script = Path(__file__).parents[3] / "tools" / "host_of_a_layer.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, "twin"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert [line.rpartition(": ")[0] for line in result.stdout.splitlines()] == [
        f"{way}: {kind}" for way in ("uncompiled", "compiled") for kind in ("diffusers", "dense", "sparse")
    ]


def test_a_cosmos_compiled_as_a_whole() -> None:
    """Its class names no repeated blocks."""
    case = cosmos(1, layers=LAYERS)
    with sparsify(case.model, **OPTIONS, dense_frames=(0, -1)):
        wanted = case.run()
        whole = torch.compile(case.model, fullgraph=True, backend="eager")
        with torch.no_grad():
            found = whole(**case.arguments).sample
    assert (found - wanted).abs().max() <= 1e-5
