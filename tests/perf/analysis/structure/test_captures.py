"""Kernels of graph replays get the names that their capture gave them, by order; what cannot be joined is said, never guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from layouts import compact, write
from strobe.perf.analysis.structure.steps import layer_groups
from strobe.perf.report.study import TraceStudy, load_trace_study
from strobe.perf.report.trace_page.build import trace_banners
from synthetic import START, event, launch

LAYERS = 6


class Node(NamedTuple):
    """One kernel of a graph: what it is called, the path that its capture gives it, and its stream."""

    name: str
    path: str
    stream: int = 7


def layers(count: int = LAYERS, tile: int = 64, streams: Sequence[int] = (7, 7)) -> list[Node]:
    """A model of equal layers: norm, projection, attention, a memset and a pair of kernels in the second of two streams."""
    found = [Node(f"embed_{tile}", "Model.Embed.aten::embedding")]
    for i in range(count):
        above = f"Model.Layer_{i}"
        found += [
            Node("rms_norm", f"{above}.Norm.norm_op"),
            Node(f"Cijk_MT{tile}", f"{above}.Attention.aten::mm"),
            Node("attn_fwd", f"{above}.Attention.flash::fwd"),
            Node("Memset (Device)", f"{above}.Mlp.aten::zero_", streams[1]),
            Node(f"Cijk_MT{tile}", f"{above}.Mlp.aten::mm", streams[1]),
            Node("act_and_mul", f"{above}.Mlp.silu_op", streams[0]),
        ]
    return found


def capture(nodes: Sequence[Node], *, kernels: bool, first: int = START, label: str = "capture_8_FULL") -> list[dict[str, Any]]:
    """The host's side of a capture: ranges, modules and operators around launches that nothing answers to."""
    length = 10 * len(nodes) + 20
    found = [
        event("user_annotation", label, str(first - 5), str(length + 10)),
        launch(str(first), "1", first, "hipStreamBeginCapture"),
        launch(str(first + length - 5), "1", first + 1, "hipStreamEndCapture"),
    ]
    open_at: dict[str, int] = {}
    for i, node in enumerate(nodes):
        at, parts = first + 5 + 10 * i, node.path.split(".")
        call = "hipMemsetAsync" if node.name.startswith("Memset") else "hipLaunchKernel"
        said = {"kernel": node.name} if kernels and call == "hipLaunchKernel" else {}
        found.append(event("cpu_op", parts[-1], str(at), "5"))
        found.append(event("cuda_runtime", call, str(at + 2), "1", correlation=first + 10 + i, **said))
        for depth in range(1, len(parts)):
            open_at.setdefault(".".join(parts[:depth]), at - 3 + depth)
            if i + 1 == len(nodes) or not nodes[i + 1].path.startswith(".".join(parts[:depth]) + "."):
                begin = open_at.pop(".".join(parts[:depth]))
                found.append(event("python_function", f"nn.Module: {parts[depth - 1]}", str(begin), str(at + 8 - depth - begin)))
    return found


def replay(nodes: Sequence[Node], number: int, **labels: object) -> list[dict[str, Any]]:
    """One launch of the graph; nodes of other streams run beside those of the first."""
    first = START + 100_000 * (number + 1)
    found = [launch(str(first), "5", number + 1, "hipGraphLaunch")]
    for i, node in enumerate(nodes):
        cat = "gpu_memset" if node.name.startswith("Memset") else "kernel"
        args = {"device": 0, "stream": node.stream, "correlation": number + 1, **labels}
        found.append(event(cat, node.name, str(first + 20 + 10 * i), "9", **args) | {"pid": 0, "tid": node.stream})
    return found


def beside(folder: Path, replays: list[dict[str, Any]], **captures: list[dict[str, Any]]) -> Path:
    """Write a trace of replays, and captures in the folder where servers put them."""
    (folder / "capture_traces").mkdir(parents=True)
    for name, events in captures.items():
        write(folder / "capture_traces" / f"{name}.json", compact(events, {}))
    return write(folder / "replay.json", compact(replays, {}))


def only(study: TraceStudy) -> tuple[list[str], str]:
    """Path of each device event in order of launch and start, and the sentence, of a study of one trace."""
    (trace,), (said,) = study.traces, study.replays
    return [trace.module_paths.get(row, "") for row in range(len(trace.device_events))], said


def named(folder: Path, replays: list[dict[str, Any]], **captures: list[dict[str, Any]]) -> tuple[list[str], str]:
    return only(load_trace_study([beside(folder, replays, **captures)]))


@pytest.mark.parametrize("kernels", [True, False], ids=["HIP, which names kernels", "CUDA, which does not"])
def test_every_replay_gets_the_names_of_its_capture(kernels: bool, tmp_path: Path) -> None:
    nodes = layers()
    found, said = named(tmp_path, [*replay(nodes, 0), *replay(nodes, 1)], bs_8_rank0=capture(nodes, kernels=kernels))
    assert found == 2 * [node.path for node in nodes]
    assert said == "Graph replays: 74 of 74 events are named, 100.0 % of their time: 74 by capture_traces/bs_8_rank0.json."


def test_the_capture_whose_kernels_match_is_chosen_among_batch_sizes(tmp_path: Path) -> None:
    small, large = layers(tile=16), [node._replace(path=f"Large.{node.path}") for node in layers(tile=256)]
    captures = {"bs_1_rank0": capture(small, kernels=True), "bs_64_rank0": capture(large, kernels=True)}
    found, said = named(tmp_path, [*replay(large, 0), *replay(small, 1)], **captures)
    assert found == [node.path for node in (*large, *small)]
    assert "bs_1_rank0.json" in said and "bs_64_rank0.json" in said


def test_a_graph_that_begins_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    whole, begin = layers(), layers()[:13]
    found, said = named(tmp_path, replay(begin, 0), bs_8_rank0=capture(whole, kernels=False))
    assert not any(found)
    assert "100.0 % have no name: the captures do not name their kernels and none has 13 of the same kinds in that order." in said
    both = [*capture(whole, kernels=True), *capture(begin, kernels=True, first=START + 5000)]
    found, _ = only(load_trace_study([write(tmp_path / "replay.json", compact([*both, *replay(begin, 0)], {}))]))
    assert found == [node.path for node in begin]


def test_operators_called_like_their_kernels_tell_graphs_of_equal_length_apart(tmp_path: Path) -> None:
    one, other = (
        [Node("nvjet_tst", f"{top}.aten::mm"), Node(f"triton_poi_fused_{what}", f"{top}.Norm.triton_poi_fused_{what}")]
        for top, what in (("Target", "add_native_layer_norm_3"), ("Draft", "mul_silu_1"))
    )
    captured = [*capture(one, kernels=False), *capture(other, kernels=False, first=START + 5000)]
    found, _ = named(tmp_path, [*replay(other, 0), *replay(one, 1)], bs_8_rank0=captured)
    assert found == [node.path for node in (*other, *one)]


ONE, TWO = layers(), layers(streams=(7, 9))
LATE = sorted(TWO, key=lambda node: TWO.index(node) + 3 * (node.stream == 9))
ALIKE = [Node("norm", "Model.norm_q.op", 7), Node("norm", "Model.norm_k.op", 9), Node("attn_fwd", "Model.flash::fwd", 7)]
OTHER = [*ONE[:19], *(Node(f"other_{i}", "Draft.aten::mm") for i in range(19))]
NEAREST = "their graph of 38 kernels is in no capture in this order (capture_traces/bs_8_rank0.json is nearest, 50 % a"


@pytest.mark.parametrize(
    ("ran", "captured", "paths", "says"),
    [
        (LATE, TWO, [node.path for node in LATE], "37 of 37 events"),
        ([ALIKE[1], ALIKE[0], ALIKE[2]], ALIKE, ["Model", "Model", "Model.flash::fwd"], "3 of 3 events"),
        (ONE[::-1], ONE, [""] * 37, "is in no capture in this order"),
        (OTHER, ONE, [""] * 38, NEAREST),
        *((ONE[:lost] + ONE[lost + 1 :], ONE, None, "36 of 36 events") for lost in (5, 8, 20)),
    ],
    ids=[
        "two streams",
        "streams that do the same",
        "another order",
        "another graph",
        *(f"without {lost}" for lost in (5, 8, 20)),
    ],
)
def test_kernels_are_joined_in_the_order_of_each_stream(
    ran: list[Node], captured: list[Node], paths: list[str] | None, says: str, tmp_path: Path
) -> None:
    """A kernel that is missing in the replay shifts no name."""
    found, said = named(tmp_path, replay(ran, 0), bs_8_rank0=capture(captured, kernels=True))
    assert found == ([node.path for node in ran] if paths is None else paths) and says in said


def test_paths_with_a_number_are_layers_in_each_launch(tmp_path: Path) -> None:
    nodes = layers()
    path = beside(tmp_path, [*replay(nodes, 0), *replay(nodes, 1)], bs_8_rank0=capture(nodes, kernels=True))
    ((_, (group, *others)),) = layer_groups(load_trace_study([path]).traces[0])
    assert (group.name, group.path, group.sum_ns, others) == ("Layer", ("Model",), 2 * 36 * 9_000, [])
    assert {layer.calls for layer in group.layers} == {2}
    assert [layer.name for layer in group.layers] == [f"Layer_{i}" for i in range(LAYERS)]
    times = {(layer.device_p50_ns, layer.span_p50_ns, layer.kernels) for layer in group.layers}
    assert times == {(6 * 9_000, 59_000, 5)} and not group.by_kernels


def test_labels_with_a_number_between_dots_are_layers(tmp_path: Path) -> None:
    events = replay(layers(2), 0)
    for i, one in enumerate(events[1:]):
        one["args"]["module_fqn"] = f"model.layers.{i // 4}.mlp"
    ((_, (group,)),) = layer_groups(load_trace_study([write(tmp_path / "t.json", compact(events, {}))]).traces[0])
    assert (group.name, [layer.name for layer in group.layers]) == ("layers", [f"layers.{i}" for i in range(4)])


def test_where_the_capture_names_nothing_streams_that_mix_are_not_joined(tmp_path: Path) -> None:
    nodes = layers(streams=(7, 9))
    found, said = named(tmp_path, replay(nodes, 0), bs_8_rank0=capture(nodes, kernels=False))
    assert not any(found) and "these ran on several streams" in said


def test_a_layer_that_is_missing_leaves_no_layer_named_that_may_be_another(tmp_path: Path) -> None:
    nodes = layers(12)
    ran = [node for node in nodes if ".Layer_4." not in node.path]
    found, _ = named(tmp_path, replay(ran, 0), bs_8_rank0=capture(nodes, kernels=True))
    for name, node in zip(found, ran, strict=True):
        truth = (node.path, re.sub(r"Layer_\d+", "Layer", node.path))
        assert name and any(each == name or each.startswith(f"{name}.") for each in truth)
    assert found.count("Model.Layer.Attention.flash::fwd") == 11


def test_equal_graphs_of_several_layers_are_named_without_the_layer(tmp_path: Path) -> None:
    pieces = [[node for node in layers() if f"Layer_{i}." in node.path] for i in range(LAYERS)]
    captured = [one for i, piece in enumerate(pieces) for one in capture(piece, kernels=True, first=START + 1000 * i)]
    found, _ = named(tmp_path, replay(pieces[2], 0), graph_capture_rank_0=captured)
    assert found == [node.path.replace("Layer_2", "Layer") for node in pieces[2]]


def test_labels_of_torch_stay_and_only_the_others_are_joined(tmp_path: Path) -> None:
    nodes = layers()
    events = replay(nodes, 0)
    events[3]["args"]["str"] = "layers.0.attn"
    found, said = named(tmp_path, events, bs_8_rank0=capture(nodes, kernels=True))
    assert found == [*(node.path for node in nodes[:2]), "layers.0.attn", *(node.path for node in nodes[3:])]
    assert "1 by their own labels, 36 by capture_traces/bs_8_rank0.json" in said


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: [folder],
        lambda folder: [folder / "replay.json", folder / "elsewhere" / "one.json"],
        lambda folder: [folder / "replay.json", folder / "elsewhere" / "capture_traces"],
        lambda folder: [folder / "replay.json", folder / "elsewhere" / "capture_traces" / "two.json"],
    ],
    ids=["the folder", "the capture by hand", "a folder of captures", "one of a folder of captures"],
)
def test_a_capture_is_no_rank_of_the_job(given: Callable[[Path], list[Path]], tmp_path: Path) -> None:
    nodes = layers()
    (tmp_path / "elsewhere" / "capture_traces").mkdir(parents=True)
    (tmp_path / "capture_traces").mkdir()  # an empty one is none
    for name in ("one", "capture_traces/two"):
        write(tmp_path / "elsewhere" / f"{name}.json", compact(capture(nodes, kernels=True), {}))
    write(tmp_path / "replay.json", compact(replay(nodes, 0), {}))
    study = load_trace_study(given(tmp_path))
    assert [trace.path.name for trace in study.traces] == ["replay.json"]
    assert only(study)[0] == [node.path for node in nodes]


def test_a_trace_of_kernels_launched_one_by_one_in_the_folder_is_a_key_too(tmp_path: Path) -> None:
    nodes = layers(2)
    eager = capture(nodes, kernels=False)[3:]
    calls = [one for one in eager if one["cat"] == "cuda_runtime"]
    for call, node in zip(calls, nodes, strict=True):
        ran = replay([node], 0)[1] | {"ts": str(int(call["ts"]) + 20)}
        eager.append(ran | {"args": {**ran["args"], "correlation": call["args"]["correlation"]}})
    found, _ = named(tmp_path, replay(nodes, 3), warm_up=eager)
    assert found == [node.path for node in nodes]


def test_a_capture_alone_is_no_device_that_was_not_recorded(tmp_path: Path) -> None:
    study = load_trace_study([write(tmp_path / "one.json", compact(capture(layers(), kernels=True), {}))])
    (banner,) = trace_banners(study)
    assert banner.items == (
        "one: it shows captures of graphs, in which nothing runs; give the trace of their replays as one more file",
    )


def test_launches_of_a_capture_beside_its_replay_are_not_missed(tmp_path: Path) -> None:
    nodes, lost = layers(), launch(str(START + 99_000), "5", 99, "hipLaunchKernel")
    events = [*capture(nodes, kernels=True), *replay(nodes, 0)]
    study = load_trace_study([write(tmp_path / "one.json", compact(events, {}))])
    assert only(study)[1].endswith("37 by its own capture.") and not trace_banners(study)
    (banner,) = trace_banners(load_trace_study([write(tmp_path / "two.json", compact([*events, lost], {}))]))
    said = "two: no device event belongs to these launch calls: 1 of 32 hipLaunchKernel. Right only while a graph is captured"
    assert len(banner.items) == 1 and banner.items[0].startswith(said)


def test_a_broken_capture_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    nodes = layers()
    path = beside(tmp_path, replay(nodes, 0), bs_8_rank0=capture(nodes, kernels=True))
    (broken := tmp_path / "capture_traces" / "bs_1_rank0.json").write_text("no trace")
    study = load_trace_study([path])
    assert only(study)[0] == [node.path for node in nodes]
    assert len(study.skipped) == 1 and str(broken) in study.skipped[0]


def test_only_the_captures_of_its_own_rank_name_a_replay(tmp_path: Path) -> None:
    nodes = layers()
    other = [node._replace(path=f"Other.{node.path}") for node in nodes]
    path = beside(tmp_path, [], bs_8_rank0=capture(other, kernels=True), bs_8_rank1=capture(nodes, kernels=True))
    write(path, compact(replay(nodes, 0), {"distributedInfo": {"rank": 1, "world_size": 2}}))
    assert only(load_trace_study([path]))[0] == [node.path for node in nodes]


def test_a_replay_without_a_capture_says_what_would_name_it(tmp_path: Path) -> None:
    nodes = [Node("triton_poi_fused_add_native_layer_norm_3", ""), *layers()]
    found, said = only(load_trace_study([write(tmp_path / "replay.json", compact(replay(nodes, 0), {}))]))
    assert not any(found)
    assert said == (
        "Graph replays: 0 of 38 events are named, 0.0 % of their time; 1 of the others say their operators, as Inductor names "
        "them. 100.0 % have no name: no trace of their capture was given, or lies in capture_traces/ beside the file."
    )
