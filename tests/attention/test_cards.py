"""What runs on which card with which libraries, decided on a CPU: a card is plain values, and so are the records of gates."""

from __future__ import annotations

import builtins
import importlib.metadata
import os
import runpy
import subprocess
import sys
import threading
import warnings
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest
import torch
from torch import Tensor

import flash_stand_in
from strobe.attention import impls
from strobe.attention.dense import api as dense_api
from strobe.attention.dense.api import IMPLS as DENSE_IMPLS
from strobe.attention.dense.eight.api import IMPLS as EIGHTBIT_IMPLS
from strobe.attention.dense.impl import fa4, sdpa
from strobe.attention.dense.impl.waves import Split
from strobe.attention.explain import plain_calls, survey
from strobe.attention.impls import Choice, GateRun, Impl, announce, hash_of, parse_gates, select
from strobe.attention.sparse import impls as sparse_impls
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impl import fa4 as sparse_fa4
from strobe.attention.sparse.impls import IMPLS as SPARSE_IMPLS
from strobe.attention.sparse.impls import choose
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionSpec
from strobe.core import device as device_module
from strobe.core import libraries
from strobe.core.device import NO_GPU, Card, card_of
from strobe.core.errors import ImplUnavailableError
from strobe.core.libraries import install

GPU = torch.device("cuda", 0)


def nvidia(name: str, major: int, minor: int, shared_kib: int) -> Card:
    shared_bytes, architecture = shared_kib << 10, f"sm_{major}{minor}"
    return Card(vendor="nvidia", architecture=architecture, capability=(major, minor), name=name, shared_bytes=shared_bytes)


A100, RTX_4090, H200 = nvidia("A100", 8, 0, 163), nvidia("RTX 4090", 8, 9, 99), nvidia("H200", 9, 0, 227)
B200, RTX_5090, T4 = nvidia("B200", 10, 0, 227), nvidia("RTX 5090", 12, 0, 99), nvidia("T4", 7, 5, 64)
MI250, MI300 = (
    Card(vendor="amd", architecture=arch, name=name, shared_bytes=64 << 10)
    for arch, name in (("gfx90a", "MI250"), ("gfx942", "MI300X"))
)
NEW_CARDS = [A100, RTX_4090, B200, RTX_5090, MI250, MI300]


@pytest.fixture(autouse=True)
def _every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in impls.LIBRARIES:
        monkeypatch.setitem(impls.MISSING.found, name, None)
    monkeypatch.setattr(impls, "_SAID", [])


def plain_call(operator: str, card: Card, **changes: object) -> Any:
    """The spec of a plain call on a card."""
    return replace(next(spec for impl, spec in plain_calls(GPU, card) if impl.operator == operator), **changes)


sparse_call = partial(plain_call, "sparse")


def gate(name: str, card: Card, operator: str = "sparse", **changes: object) -> GateRun:
    """A green gate on a card, of the sources as they are."""
    table: tuple[Impl, ...] = SPARSE_IMPLS if operator == "sparse" else DENSE_IMPLS
    green = GateRun(
        operator=operator,
        impl=name,
        vendor=card.vendor,
        architecture=card.architecture,
        device=card.name,
        versions={"driver": "570.1", "torch": "2.11.0", "triton": "3.6.0"},
        date="2026-01-31",
        tests=7,
        kernel=next((impl.kernel for impl in table if impl.name == name), ""),
    )
    return replace(green, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("card", NEW_CARDS, ids=lambda card: card.name)
@pytest.mark.parametrize("changes", [{}, {"needs_grad": True, "return_lse": True}, {"dtype": torch.float32}, {"block": 128}])
def test_a_card_without_a_gate_runs_triton_and_is_told_so(card: Card, changes: dict[str, object]) -> None:
    choice = select(sparse_call(card, **changes), SPARSE_IMPLS, gates=())
    assert choice.impl.name == "triton"
    assert "its gate has not been run" in choice.note and card.name in choice.note and "strobe doctor --gate" in choice.note


OTHER_SOURCES = {"kernel": "0123456789abcdef"}
CHOSEN: list[tuple[Card, list[GateRun], str, str, bool]] = [
    *((card, [gate("triton", card)], "auto", "triton", False) for card in NEW_CARDS),
    (A100, [gate("triton", A100, **OTHER_SOURCES)], "auto", "triton", True),
    (A100, [gate("triton", A100, kernel="")], "auto", "triton", False),  # from before hashes were kept
    (A100, [gate("triton", A100, failed="case", **OTHER_SOURCES)], "auto", "triton", True),
    (RTX_4090, [gate("triton", H200), gate("cudnn", B200), gate("fa4", H200, "dense")], "auto", "triton", True),
    (H200, [gate("cudnn", H200), gate("triton", H200)], "auto", "cudnn", False),
    (H200, [gate("fa4", H200), gate("flex", H200)], "auto", "fa4", False),
    (H200, [gate("flex", H200)], "auto", "triton", True),  # flex is slow
    (H200, [], "fa4", "fa4", False),  # by its name it runs, and nothing is said
    (H200, [], "triton", "triton", False),
]


@pytest.mark.parametrize(("card", "gates", "name", "impl", "told"), CHOSEN)
def test_better_ones_that_passed_on_the_card_come_first(
    card: Card, gates: list[GateRun], name: str, impl: str, told: bool
) -> None:
    """`told`: that its gate has not been run there with these kernels."""
    choice = select(sparse_call(card), SPARSE_IMPLS, name, gates=gates)
    assert choice.impl.name == impl and ("its gate has not been run" in choice.note) == told == bool(choice.note)
    if impl == "fa4" and name == "auto":
        assert dict(choice.passed_over)["cudnn"].startswith("untested: its gate has not been run on compute capability 9.0")


@pytest.mark.parametrize("card", NEW_CARDS, ids=lambda card: card.name)
def test_a_red_gate_on_the_card_is_not_passed_over(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    red = gate("triton", card, failed="output, bfloat16: 3 % of the elements differ")
    monkeypatch.setattr(impls, "GATES", (red,))
    with pytest.raises(ImplUnavailableError, match=f"triton: untested: its gate failed on {card}, at output, bfloat16"):
        choose(sparse_call(card), "auto")
    assert choose(sparse_call(card), "triton").impl.name == "triton"  # by its name it runs
    assert select(sparse_call(card), SPARSE_IMPLS, gates=[red, gate("flex", card)]).impl.name == "flex"


def test_what_the_kernel_s_hash_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impls, "files", lambda _: tmp_path)
    found = []
    for text in ("a = 1\n", "# a word\n\na = 1  \n", "a = 2\n", "a = 1\r\n"):
        (tmp_path / "kernel.py").write_text(text)
        found.append(hash_of("kernel.py"))
    assert found[0] == found[1] == found[3] != found[2]


def card_here(monkeypatch: pytest.MonkeyPatch, hip: str | None, **properties: object) -> Card:
    """The card of a machine whose driver reports these properties."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))
    device_module._card.cache_clear()
    card = card_of(GPU)
    device_module._card.cache_clear()
    return card


def test_an_mi250_does_not_pass_as_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver reports capability (9, 0)."""
    found = {"gcnArchName": "gfx90a:sramecc+:xnack-", "name": "MI250", "shared_memory_per_block": 65536}
    card = card_here(monkeypatch, "6.4", major=9, minor=0, **found)
    assert card == MI250
    call = sparse_call(card)
    states = {impl.name: impl.refuses(call) for impl in SPARSE_IMPLS}
    assert states["cudnn"] == states["fa4"] == "it runs on compute capability 9.x, cuda:0 has gfx90a"
    assert states["triton"] is states["flex"] is None
    assert select(call, SPARSE_IMPLS, gates=impls.GATES).note  # the record that ships is of an H200
    dense = plain_call("dense", card)
    assert [impl.name for impl in DENSE_IMPLS if impl.refuses(dense) is None] == ["sdpa", "triton", "reference"]


def test_the_plain_call_is_of_plain_multi_head_attention() -> None:
    calls = plain_calls(GPU, H200)
    assert {impl.operator for impl, _ in calls} == {"dense", "sparse", "eightbit"}
    assert {(spec.num_heads, spec.num_kv_heads, spec.q_len, spec.kv_len) for _, spec in calls} == {(4, 4, 1024, 1024)}


def test_an_nvidia_card_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"shared_memory_per_block_optin": 99 << 10, "shared_memory_per_block": 48 << 10}
    card = card_here(monkeypatch, None, major=8, minor=9, name="RTX 4090", **shared)
    assert card == RTX_4090 and str(card) == "compute capability 8.9"
    assert card_of(torch.device("cpu")) is NO_GPU


def test_a_survey_tells_all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(impls.MISSING.found, "fa4", "it is not there")
    known = (gate("cudnn", H200), gate("flex", H200, failed="packed sequences: RuntimeError: no"))
    found = {(state.operator, state.name): state for state in survey(GPU, card=H200, gates=known, versions={"torch": "2.12.0"})}
    words = "7 tests on H200, 2026-01-31, driver 570.1, torch 2.11.0, triton 3.6.0; not with what is here: torch 2.12.0"
    assert found["sparse", "cudnn"].detail == words
    states = {name: found["sparse", name].state for name in ("cudnn", "fa4", "triton", "cpu", "flex", "reference")}
    assert states == {
        "cudnn": "gated", "fa4": "missing", "triton": "untested", "cpu": "missing", "flex": "failed", "reference": "runs",
    }  # fmt: skip
    assert "failed at packed sequences: RuntimeError: no; 7 cases passed before it on H200" in found["sparse", "flex"].detail
    assert found["dense", "sdpa"].state == "runs" and found["dense", "fa4"].detail == "it is not there"


def test_the_word_is_said_once_per_process(recwarn: pytest.WarningsRecorder) -> None:
    choice = select(sparse_call(A100), SPARSE_IMPLS, gates=())
    other = select(sparse_call(A100, block=128), SPARSE_IMPLS, gates=())
    for each in (choice, choice, other):
        assert announce(each) is each
    (said,) = recwarn
    assert str(said.message) == choice.note
    shown = warnings.formatwarning(said.message, said.category, said.filename, said.lineno)
    assert shown.count("\n") == 1 and choice.note in shown


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_says_it_when_it_runs(
    compiled: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    cpu = next(impl for impl in SPARSE_IMPLS if impl.name == "cpu")
    ungated = Choice(impl=cpu, passed_over=(), note="its gate has not been run")
    for name in ("choose", "_choose"):
        monkeypatch.setattr(f"strobe.attention.sparse.api.{name}", lambda *_: ungated)
    q = torch.randn(1, 64, 1, 16)
    selection = BlockSelection.from_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool), block=64)
    run = torch.compile(block_sparse_attention, fullgraph=True, backend="eager") if compiled else block_sparse_attention
    first, second = (run(q, q, q, selection).out for _ in range(2))
    assert torch.equal(first, second)
    assert [str(each.message) for each in recwarn].count("its gate has not been run") == 1


def test_choosing_is_traced_with_its_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `torch.compile` the choice is part of the trace: nothing in it may read a file or look a package up."""
    monkeypatch.setattr(impls, "GATES", (gate("fa4", H200),))
    name, call = {"cudnn": 1.0, "fa4": 2.0, "triton": 3.0}, sparse_call(H200)
    traced = torch.compile(lambda x: x * name[select(call, SPARSE_IMPLS).impl.name], fullgraph=True, backend="eager")
    assert traced(torch.ones(1)).item() == 2.0


# ------------------------------------------------------------------------------------------------------------------ the record


def test_the_record_that_ships_is_of_these_kernels() -> None:
    gates, others = parse_gates(Path(impls.__file__).with_name(impls.FILE).read_bytes())
    known = {(impl.operator, impl.name): impl for impl in (*DENSE_IMPLS, *SPARSE_IMPLS, *EIGHTBIT_IMPLS)}
    assert gates and not others
    for each in gates:
        assert each.tests > 0 and not each.failed and each.versions["torch"] and each.vendor in ("nvidia", "amd")
        assert each.kernel in ("", known[each.operator, each.impl].kernel), f"{each.operator} {each.impl}: run its gate again"


ENTRY = asdict(gate("triton", A100))


@pytest.mark.parametrize(
    ("data", "read", "words"),
    [
        (None, 0, []),
        (b"[]", 0, []),
        (msgspec.json.encode([ENTRY]), 1, []),
        (msgspec.json.encode([ENTRY | {"of a later version": 1}]), 1, []),
        (b"a folder", 0, ["is ignored"]),
        (b"", 0, ["is ignored: not a list of gate records: ", "strobe doctor --gate"]),
        (b'{"a": 1}', 0, ["is ignored: not a list of gate records: "]),
        (b"\xff\xfe\x00", 0, ["is ignored"]),
        (b"[" * 100_000, 0, ["is ignored"]),
        (msgspec.json.encode([ENTRY])[:-9], 0, ["is ignored"]),
        (msgspec.json.encode([{"operator": "sparse", "capability": [9, 0]}, ENTRY]), 1, ["1 of 2 entries are no gate records"]),
        (msgspec.json.encode([ENTRY | {"tests": "many"}, 7, None, ENTRY]), 1, ["3 of 4 entries are no gate records"]),
    ],
)  # fmt: skip
def test_a_user_s_record_is_survived(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    data: bytes | None,
    read: int,
    words: list[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = tmp_path / "strobe" / "gates.json"
    place.parent.mkdir()
    if data == b"a folder":
        place.mkdir()
    elif data is not None:
        place.write_bytes(data)
    gates, said = impls._own_gates(), [str(each.message) for each in recwarn]
    assert len(gates) == read and all(each == gate("triton", A100) for each in gates)
    assert len(said) == bool(words) and all(word in said[0] and "\n" not in said[0] for word in words)


def test_where_the_record_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert impls.gate_file() == tmp_path / "strobe" / "gates.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative/folder"):
        monkeypatch.setenv("XDG_DATA_HOME", given)
        assert impls.gate_file() == tmp_path / ".local" / "share" / "strobe" / "gates.json"


# ------------------------------------------------------------------------------------------------------------------ the table

COLUMNS = {
    "A100": (A100,), "RTX 4090": (RTX_4090,), "H100, H200": (H200,), "B200": (B200,), "RTX 5090": (RTX_5090,),
    "MI250, MI300": (MI250, MI300), "T4": (T4,),
}  # fmt: skip
SHIPPED = parse_gates(Path(impls.__file__).with_name(impls.FILE).read_bytes())[0]


def cell(impl: Impl, spec: AttentionSpec) -> str:
    """What the table says of an implementation on a card."""
    if impl.refuses(spec):
        return ""
    standing = impl.standing(spec.card, SHIPPED)
    return "auto" if standing in ("free", "green") else "auto, says so" if impl.portable else "gate"


def test_the_table_of_cards_is_what_the_code_decides() -> None:
    rows = ["| impl | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for number, (impl, _) in enumerate(plain_calls(GPU, H200)):
        if impl.name in ("cpu", "reference"):
            continue
        found = []
        for cards in COLUMNS.values():
            (what,) = {cell(*plain_calls(GPU, card)[number]) for card in cards}
            found.append(f" {what} |" if what else " |")
        rows.append(f"| {impl.operator} `{impl.name}` |" + "".join(found))
    page = (Path(__file__).parents[2] / "docs" / "attention.md").read_text("utf-8")
    assert "\n".join(rows) in page, "docs/attention.md, Which card runs what:\n" + "\n".join(rows)


# ------------------------------------------------------------------------------------------------------------- the libraries

ON_CPU = {"device": torch.device("cpu"), "card": NO_GPU}
DENSE: AttentionSpec = plain_call("dense", H200, q_len=128, kv_len=256, softmax_scale=0.1)
SPARSE = SparseSpec.of(DENSE, block=64, most_selected=3, ragged=True, uniform=False, deterministic=False)


def refusals(spec: AttentionSpec, impls: tuple[object, ...]) -> dict[str, str | None]:
    return {impl.name: impl.refuses(spec) for impl in impls}  # type: ignore[attr-defined]


REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("cudnn", {}, None),
    ("cudnn", {"block": 128, "head_dim": 96, "num_kv_heads": 1, "dtype": torch.float16, "return_lse": True}, None),
    ("cudnn", {"needs_grad": True, "block": 128}, None),
    ("cudnn", {"deterministic": True}, None),
    ("fa4", {"head_dim": 64, "dtype": torch.float16, "num_kv_heads": 2}, None),
    ("fa4", {"needs_grad": True, "block": 128, "return_lse": True, "num_kv_heads": 2, "head_dim": 64}, None),
    ("cudnn", ON_CPU, "it runs on a GPU, the tensors are on cpu"),
    ("triton", ON_CPU, "it runs on a GPU, the tensors are on cpu"),
    ("cudnn", {"dtype": torch.float32}, "it computes bfloat16 and float16, not float32"),
    ("cudnn", {"block": 256}, "it has blocks of 64 and 128 tokens, not 256"),
    ("cudnn", {"head_dim": 32}, "it has head_dim 64, 96, 128, not 32"),
    ("cudnn", {"softmax_scale": 0.0}, "it takes a positive softmax_scale, not 0.0"),
    ("cudnn", {"needs_grad": True, "return_lse": True}, "its backward takes no gradient through the lse"),
    ("cudnn", {"needs_grad": True, "dtype": torch.float16}, "its backward computes bfloat16, not float16"),
    ("cudnn", {"needs_grad": True, "head_dim": 64}, "its backward has head_dim 128, not 64"),
    ("cudnn", {"needs_grad": True, "num_kv_heads": 2}, "its backward needs as many key heads as query heads, not 2 and 4"),
    ("cudnn", {"needs_grad": True, "deterministic": True}, "its gradients are added with atomics and differ from run to run"),
    ("fa4", {"head_dim": 96}, "it has head_dim 64, 128, not 96"),
    ("fa4", {"needs_grad": True}, "its backward has blocks of 128 tokens, not 64"),
    ("fa4", {"needs_grad": True, "block": 128, "deterministic": True}, "its gradients are added with atomics and differ"),
    ("flex", {"q_len": 1 << 24, "kv_len": 1 << 24}, "its kernels address tensors of fewer than 2^31 elements"),
    ("flex", {"most_selected": 0}, "it takes at least one query and one selected block"),
    ("flex", {"needs_grad": True}, "it has no gradients: FlexAttention has none on a CPU"),
    ("fa4", {"card": A100}, "it runs on compute capability 9.x, cuda:0 has 8.0"),
    ("triton", {"card": T4}, "it runs on compute capability 8.x"),
    ("dense fa4", {}, None),
    ("dense fa4", {"needs_grad": True, "return_lse": True}, None),
    ("dense fa4", {"needs_grad": True, "card": B200}, None),
    ("dense fa4", {"needs_grad": True, "card": A100}, "its backward runs on compute capability 9.0 and later, cuda:0"),
    ("dense fa4", {"dtype": torch.float32}, "it computes bfloat16 and float16, not float32"),
    ("dense fa4", {"head_dim": 256}, "it has head_dim 64, 96, 128, not 256"),
    ("dense fa4", {"kv_len": 0}, "it takes at least one query and one key"),
    ("dense fa4", {"softmax_scale": -1.0}, "it takes a positive softmax_scale, not -1.0"),
    ("dense sdpa", {"needs_grad": True, "return_lse": True}, "torch's flash kernel has no gradient through the lse"),
]


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_what_the_libraries_accept_and_refuse(name: str, changes: dict[str, Any], reason: str | None) -> None:
    dense = name.startswith("dense ")
    spec, table = (DENSE, dense_api.IMPLS) if dense else (SPARSE, sparse_impls.IMPLS)
    found = refusals(replace(spec, **changes), table)[name.removeprefix("dense ")]
    assert found is None if reason is None else found and found.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "cudnn"),
        ({"q_len": 1024, "num_heads": 12}, "triton"),  # the host takes longer than the GPU
        ({"q_len": 1088, "num_heads": 12}, "cudnn"),
        ({"q_len": 128, "block": 128, "ragged": False}, "fa4"),
        ({"q_len": 128, "needs_grad": True, "ragged": False}, "cudnn"),
        ({"ragged": False}, "cudnn"),
        ({"needs_grad": True}, "triton"),
        ({"needs_grad": True, "ragged": False}, "cudnn"),
        ({"block": 128}, "triton"),
        ({"block": 128, "ragged": False}, "fa4"),
        ({"block": 128, "uniform": True}, "cudnn"),
        ({"block": 128, "ragged": False, "uniform": True}, "fa4"),
        ({"block": 128, "needs_grad": True}, "cudnn"),
        ({"block": 256}, "triton"),
        ({"dtype": torch.float32}, "triton"),
        (ON_CPU | {"dtype": torch.float32}, "cpu"),
    ],
)
def test_auto_takes_what_was_measured_to_be_fastest(changes: dict[str, object], name: str) -> None:
    green = [gate(impl, H200) for impl in ("cudnn", "fa4", "triton")]
    spec = replace(SPARSE, **{"q_len": 8192, **changes})  # type: ignore[arg-type]
    assert select(spec, sparse_impls.ranked(spec), gates=green).impl.name == name


@pytest.mark.parametrize(
    ("module", "version", "reason"),
    [
        ("os", "1.32.0", None),
        ("no_such_module", "1.32.0", f"nvidia-cudnn-frontend is not installed; {install('hopper')} installs it"),
        ("os", None, f"nvidia-cudnn-frontend is not installed; {install('hopper')} installs it; another package provides os"),
        ("os", "1.320.1", "it is written for nvidia-cudnn-frontend 1.32, 1.320.1 is installed"),
    ],
)
def test_a_library_is_found_by_its_module_and_its_version(
    monkeypatch: pytest.MonkeyPatch, module: str, version: str | None, reason: str | None
) -> None:
    missing = importlib.metadata.PackageNotFoundError("nvidia-cudnn-frontend")
    monkeypatch.setattr(importlib.metadata, "version", Mock(side_effect=missing if version is None else [version]))
    found = impls.not_installed(module, "nvidia-cudnn-frontend", "1.32")
    assert found == reason


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "cudnn"),
        ({"return_lse": True}, "cudnn"),
        ({"num_kv_heads": 2}, ""),
        ({"num_kv_heads": 2, "return_lse": True}, "cudnn"),
        ({"q_len": 1}, ""),
        ({"q_len": 1, "return_lse": True}, "flash"),
        ({"q_len": 2}, "flash"),
        ({"q_len": 64, "return_lse": True}, "flash"),
        ({"q_len": 64, "num_kv_heads": 2}, ""),
        ({"q_len": 65}, "cudnn"),
        ({"head_dim": 256, "return_lse": True}, "flash"),
        ({"head_dim": 20, "return_lse": True}, "efficient"),
        ({"dtype": torch.float32, "return_lse": True}, "efficient"),
        ({"dtype": torch.float32}, ""),
        (ON_CPU, ""),
        (ON_CPU | {"return_lse": True}, "cpu"),
        ({"card": A100}, ""),  # torch prefers its own choice before Hopper
        ({"card": A100, "return_lse": True}, "flash"),
    ],
)
def test_which_of_torch_s_kernels_runs(changes: dict[str, object], kernel: str) -> None:
    assert sdpa.kernel_of(replace(DENSE, **changes)) == kernel  # type: ignore[arg-type]


def test_few_queries_over_many_keys_do_not_go_to_fa4() -> None:
    """It would leave most multiprocessors idle. With gradients and with grouped heads it is taken all the same."""
    green = (gate("fa4", H200, "dense"), gate("sdpa", H200, "dense"))
    for q_len, impl in ((1, "sdpa"), (64, "sdpa"), (65, "fa4")):
        spec = replace(DENSE, q_len=q_len, kv_len=8192, head_dim=128)
        assert select(spec, dense_api._order(spec), gates=green).impl.name == impl
    for change in ({"needs_grad": True}, {"num_kv_heads": 2}):
        spec = replace(DENSE, q_len=1, kv_len=8192, head_dim=128, **change)
        assert dense_api._order(spec) == dense_api.IMPLS


@pytest.mark.parametrize("shape", [(1, 4, 128), (1, 4, 128, 1), (1, 4, 160)])
def test_every_kernel_s_lse_becomes_rows(shape: tuple[int, ...]) -> None:
    rows = torch.randn(1, 4, 128, dtype=torch.float64)
    given = torch.full(shape, torch.nan, dtype=torch.float64)
    (given.squeeze(-1) if len(shape) == 4 else given)[..., :128] = rows
    found = sdpa.rows_of(given, DENSE)
    assert found.dtype == torch.float32 and torch.equal(found, rows.float())


@pytest.mark.parametrize("needs_grad", [False, True])
def test_fa4_splits_its_last_wave_compiled_as_it_does_uncompiled(monkeypatch: pytest.MonkeyPatch, needs_grad: bool) -> None:
    shapes: list[tuple[int, ...]] = []

    def forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor, None]:
        shapes.append(tuple(q.shape))
        return flash_stand_in.forward(q, k, v, **options)

    flash_stand_in.install(monkeypatch, forward)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(fa4, "split_last_wave", lambda *_: Split(first=4, parts=3))
    q, k, v = (torch.randn(1, length, 3, 128) for length in (5, 9, 9))
    spec = replace(DENSE, q_len=5, kv_len=9, num_heads=3, num_kv_heads=3, softmax_scale=0.3, return_lse=True)
    compare_compiled((q, k, v), replace(spec, needs_grad=needs_grad))
    assert shapes == ([(1, 5, 3, 128)] if needs_grad else [(1, 4, 3, 128), (3, 1, 3, 128)])


def compare_compiled(tensors: tuple[Tensor, Tensor, Tensor], spec: AttentionSpec) -> tuple[list[Tensor], list[Tensor]]:
    """Compare FA4 under a compiler with the textbook; return out and lse of both."""
    compiled = torch.compile(lambda *each: fa4.run(*each, spec), fullgraph=True, backend="aot_eager")
    found, expected = compiled(*tensors), flash_stand_in.forward(*tensors, softmax_scale=0.3)
    for mine, theirs in zip((found.out, found.lse), expected[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    return [found.out, found.lse], [*expected[:2]]


def test_the_operators_of_fa4_are_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels replaced by the textbook: schema, fakes and gradients are what is tested."""
    flash_stand_in.install(monkeypatch)
    q, k, v = (torch.randn(2, length, 3, 8, requires_grad=True) for length in (5, 7, 7))
    torch.library.opcheck(fa4.fa4_forward, (q, k, v, 0.3, True))
    both = compare_compiled((q, k, v), replace(DENSE, softmax_scale=0.3, return_lse=True))
    losses = (sum(each.sin().sum() for each in parts) for parts in both)
    for mine, theirs in zip(*(torch.autograd.grad(loss, (q, k, v)) for loss in losses), strict=True):
        torch.testing.assert_close(mine, theirs)


OF_FA4 = (
    "Argument aux_data (position 17) cannot be converted to a JitArgument for function "
    "'cutlass___call___flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__Tensorgmemoi64i64i641_None_00883'. "
    "Its type `<class 'flash_attn.cute.utils.AuxData'>` is not supported. If the value is known at compile time, annotate it."
)


def test_one_warning_of_fa4_is_passed_over_and_no_other(recwarn: pytest.WarningsRecorder) -> None:
    others = [
        ("and " + OF_FA4, UserWarning),
        (OF_FA4.replace("aux_data", "softmax_scale"), UserWarning),
        (OF_FA4.replace("flash_attncute", "my_own"), UserWarning),
        (OF_FA4.replace("a JitArgument", "a tensor"), UserWarning),
        (OF_FA4, RuntimeWarning),
    ]
    impls.silence_fa4()
    for text, category in ((OF_FA4, UserWarning), *others, (OF_FA4.replace("17", "9"), UserWarning)):
        warnings.warn(text, category, stacklevel=1)
    assert [(str(each.message), each.category) for each in recwarn] == others


@pytest.mark.parametrize("module", [fa4, sparse_fa4])
def test_it_is_passed_over_wherever_fa4_is_called(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each module for itself, when it is imported; operators are not registered a second time."""
    monkeypatch.setattr(torch.library, "custom_op", lambda *_, **__: lambda function: MagicMock())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            warnings.warn(OF_FA4, UserWarning, stacklevel=1)
        runpy.run_path(str(module.__file__))
        warnings.warn(OF_FA4, UserWarning, stacklevel=1)


PARTS = ("nvidia_cutlass_dsl-4.8.1", "flash_attn_4-4.0.0b36", "nvidia_cudnn_frontend-1.32.0")


def half_installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> None:
    """Libraries of the named versions whose files hold the given sources, `__` for a dot in a module's name; no others."""
    for part in PARTS:
        name, version = part.split("-")
        (folder / f"{part}.dist-info").mkdir()
        (folder / f"{part}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for module, source in sources.items():
        place = folder.joinpath(*module.split("__"))
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(source)
    for package in ("cutlass", "cudnn", "flash_attn"):
        for module in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(impls.MISSING, "found", {})
    monkeypatch.setattr(libraries, "_TRIED", {})


@pytest.mark.parametrize(
    ("dsl", "said"),
    [
        ({}, "cutlass.cute cannot be imported (ModuleNotFoundError: No module named 'cutlass.cute')"),
        ({"cutlass__cute": "import a_part_that_is_not_there"}, "No module named 'a_part_that_is_not_there'"),
        ({"cutlass__cute": "raise RuntimeError('driver\\ntoo old')"}, "(RuntimeError: driver too old)"),
    ],
)
def test_auto_goes_on_where_a_library_is_half_installed(
    dsl: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_installed(tmp_path, monkeypatch, cutlass="", flash_attn="", cudnn="", **dsl)
    green = [gate(impl, H200, operator) for operator in ("dense", "sparse") for impl in ("cudnn", "fa4", "triton", "sdpa")]
    dense, sparse = select(DENSE, dense_api.IMPLS, gates=green), select(SPARSE, sparse_impls.IMPLS, gates=green)
    assert (dense.impl.name, sparse.impl.name) == ("sdpa", "triton")
    for found in (dict(dense.passed_over)["fa4"], dict(sparse.passed_over)["fa4"], dict(sparse.passed_over)["cudnn"]):
        assert found.startswith("nvidia-cutlass-dsl is not complete: cutlass.cute cannot be imported") and said in found
    (state,) = (each for each in survey(GPU, card=H200, gates=()) if (each.operator, each.name) == ("sparse", "cudnn"))
    assert state.state == "missing" and said in state.detail
    with pytest.raises(ImplUnavailableError, match=r"cutlass.cute cannot be imported"):
        select(DENSE, dense_api.IMPLS, "fa4", gates=green)


def test_each_library_is_tried_once_and_where_it_has_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = "import builtins; builtins.tried = getattr(builtins, 'tried', 0) + 1; raise ImportError"
    half_installed(tmp_path, monkeypatch, cutlass="", cutlass__cute=count, flash_attn="", cudnn="")
    monkeypatch.setattr(builtins, "tried", 0, raising=False)
    for spec in (replace(DENSE, **ON_CPU), replace(DENSE, card=A100)):  # type: ignore[arg-type]
        refusals(spec, dense_api.IMPLS)
    for _ in range(3):
        refusals(SPARSE, sparse_impls.IMPLS)
    assert builtins.tried == 1  # type: ignore[attr-defined]


def test_a_library_that_marks_its_functions_does_not_import_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "marks.py").write_text(
        "import torch\n@torch.compiler.disable\ndef plain():\n    return 1\n"
        "@torch.compiler.disable(recursive=False)\n"
        "def named():\n    '''Words.'''\n    return torch.compiler.is_dynamo_compiling()\n"
    )
    program = (
        "import sys, torch\n"
        "from strobe.attention import impls\n"
        "own = torch.compiler.disable\n"
        "impls.LIBRARIES['fa4'] = (('marks', 'marks'),)\n"
        "impls.torch.cuda.get_device_capability = lambda: (9, 0)\n"
        "impls.torch.cuda.is_available = lambda: True\n"
        "impls.import_ahead()\n"
        "print(impls.MISSING['fa4'], 'torch._dynamo' in sys.modules, torch.compiler.disable is own)\n"
        "import marks\n"
        "print(marks.plain(), marks.named.__doc__, marks.named(), 'torch._dynamo' in sys.modules)\n"
        "impls.torch.cuda.is_available = lambda: False\n"
        "print(torch.compile(marks.named, backend='eager')())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert said.stdout.splitlines() == ["None False True", "1 Words. False False", "False"], said.stderr


def test_what_cannot_be_loaded_ahead_is_told_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without the GPU that it is told of, nothing is raised or printed; the key of Triton's cache is there."""
    keys, wrong = [], []
    monkeypatch.setattr(impls, "card_of", lambda _: H200)
    monkeypatch.setattr(impls, "import_module", lambda _: SimpleNamespace(triton_key=lambda: keys.append("made")))
    monkeypatch.setattr(threading, "excepthook", wrong.append)
    for _ in range(2):
        impls.load_ahead(torch.device("cuda", 9))()
    assert (keys, wrong) == (["made"], [])
