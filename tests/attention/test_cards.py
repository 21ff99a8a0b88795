"""What runs on which card, decided on a CPU: a card is plain values, and so are the records of gates."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from strobe.attention import impls
from strobe.attention.dense.api import IMPLS as DENSE_IMPLS
from strobe.attention.dense.eight.api import IMPLS as EIGHTBIT_IMPLS
from strobe.attention.explain import plain_calls, survey
from strobe.attention.impls import Choice, GateRun, Impl, announce, hash_of, parse_gates, select
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impls import IMPLS as SPARSE_IMPLS
from strobe.attention.sparse.impls import choose
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionSpec
from strobe.core import device as device_module
from strobe.core.device import NO_GPU, Card, card_of
from strobe.core.errors import DataError, ImplUnavailableError

GPU = torch.device("cuda", 0)


def nvidia(name: str, major: int, minor: int, shared_kib: int) -> Card:
    return Card(
        vendor="nvidia",
        architecture=f"sm_{major}{minor}",
        capability=(major, minor),
        name=name,
        shared_bytes=shared_kib << 10,
    )


A100, RTX_4090, H200 = nvidia("A100", 8, 0, 163), nvidia("RTX 4090", 8, 9, 99), nvidia("H200", 9, 0, 227)
B200, RTX_5090, T4 = nvidia("B200", 10, 0, 227), nvidia("RTX 5090", 12, 0, 99), nvidia("T4", 7, 5, 64)
MI250, MI300 = (
    Card(vendor="amd", architecture=arch, name=name, shared_bytes=64 << 10)
    for arch, name in (("gfx90a", "MI250"), ("gfx942", "MI300X"))
)
NEW_CARDS = [A100, RTX_4090, B200, RTX_5090, MI250, MI300]


@pytest.fixture(autouse=True)
def _every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in impls.MISSING:
        monkeypatch.setitem(impls.MISSING, name, None)
    monkeypatch.setattr(impls, "_SAID", [])


def sparse_call(card: Card, **changes: object) -> SparseSpec:
    device = GPU if card.vendor else torch.device("cpu")
    spec = next(spec for impl, spec in plain_calls(device, card) if impl.operator == "sparse")
    assert isinstance(spec, SparseSpec)
    return replace(spec, **changes)  # type: ignore[arg-type]


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
        kernel=next(impl.kernel for impl in table if impl.name == name),
    )
    return replace(green, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("card", NEW_CARDS, ids=lambda card: card.name)
@pytest.mark.parametrize("changes", [{}, {"needs_grad": True, "return_lse": True}, {"dtype": torch.float32}, {"block": 128}])
def test_a_card_without_a_gate_runs_triton_and_is_told_so(card: Card, changes: dict[str, object]) -> None:
    choice = select(sparse_call(card, **changes), SPARSE_IMPLS, gates=())
    assert choice.impl.name == "triton"
    assert "its gate has not been run" in choice.note and card.name in choice.note and "strobe doctor --gate" in choice.note


@pytest.mark.parametrize("card", NEW_CARDS, ids=lambda card: card.name)
def test_a_green_gate_on_the_card_needs_no_word(card: Card) -> None:
    choice = select(sparse_call(card), SPARSE_IMPLS, gates=[gate("triton", card)])
    assert (choice.impl.name, choice.note) == ("triton", "")


@pytest.mark.parametrize("card", NEW_CARDS, ids=lambda card: card.name)
def test_a_red_gate_on_the_card_is_not_passed_over(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    red = gate("triton", card, failed="output, bfloat16: 3 % of the elements differ")
    monkeypatch.setattr(impls, "GATES", (red,))
    with pytest.raises(ImplUnavailableError, match=f"triton: untested: its gate failed on {card}, at output, bfloat16"):
        choose(sparse_call(card), "auto")
    assert choose(sparse_call(card), "triton").impl.name == "triton"  # by its name it runs
    assert select(sparse_call(card), SPARSE_IMPLS, gates=[red, gate("flex", card)]).impl.name == "flex"


def test_a_changed_kernel_asks_for_its_gate_again() -> None:
    old = gate("triton", A100, kernel="0123456789abcdef")
    assert "has not been run" in select(sparse_call(A100), SPARSE_IMPLS, gates=[old]).note
    assert select(sparse_call(A100), SPARSE_IMPLS, gates=[replace(old, kernel="")]).note == ""  # from before hashes were kept
    red = gate("triton", A100, kernel="0123456789abcdef", failed="case")
    assert "has not been run" in select(sparse_call(A100), SPARSE_IMPLS, gates=[red]).note


def test_what_the_kernel_s_hash_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impls, "files", lambda _: tmp_path)
    found = []
    for text in ("a = 1\n", "# a word\n\na = 1  \n", "a = 2\n", "a = 1\r\n"):
        (tmp_path / "kernel.py").write_text(text)
        found.append(hash_of("kernel.py"))
    assert found[0] == found[1] == found[3] != found[2]


def test_better_ones_that_passed_come_first_and_slow_ones_last() -> None:
    call = sparse_call(H200)
    assert select(call, SPARSE_IMPLS, gates=[gate("cudnn", H200), gate("triton", H200)]).impl.name == "cudnn"
    on_h200 = select(call, SPARSE_IMPLS, gates=[gate("fa4", H200), gate("flex", H200)])
    assert (on_h200.impl.name, on_h200.note) == ("fa4", "")
    assert dict(on_h200.passed_over)["cudnn"].startswith("untested: its gate has not been run on compute capability 9.0")
    assert select(call, SPARSE_IMPLS, gates=[gate("flex", H200)]).impl.name == "triton"
    assert select(call, SPARSE_IMPLS, "fa4", gates=()).impl.name == "fa4"  # by its name it runs, and nothing is said
    assert select(call, SPARSE_IMPLS, "triton", gates=()).note == ""


def test_a_record_of_another_card_or_operator_says_nothing() -> None:
    foreign = [gate("triton", H200), gate("cudnn", B200), gate("fa4", H200, "dense")]
    choice = select(sparse_call(RTX_4090), SPARSE_IMPLS, gates=foreign)
    assert choice.impl.name == "triton" and choice.note


def test_an_mi250_does_not_pass_as_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver reports capability (9, 0)."""
    found = SimpleNamespace(major=9, minor=0, gcnArchName="gfx90a:sramecc+:xnack-", name="MI250", shared_memory_per_block=65536)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    device_module._card.cache_clear()
    card = card_of(GPU)
    device_module._card.cache_clear()
    assert card == MI250
    call = sparse_call(card)
    states = {impl.name: impl.refuses(call) for impl in SPARSE_IMPLS}
    assert states["cudnn"] == states["fa4"] == "it runs on compute capability 9.x, cuda:0 has gfx90a"
    assert states["triton"] is states["flex"] is None
    assert select(call, SPARSE_IMPLS, gates=impls.GATES).note  # the record that ships is of an H200
    dense = next(spec for impl, spec in plain_calls(GPU, card) if impl.operator == "dense")
    assert [impl.name for impl in DENSE_IMPLS if impl.refuses(dense) is None] == ["sdpa", "triton", "reference"]


def test_the_plain_call_is_of_plain_multi_head_attention() -> None:
    calls = plain_calls(GPU, H200)
    assert {impl.operator for impl, _ in calls} == {"dense", "sparse", "eightbit"}
    assert {(spec.num_heads, spec.num_kv_heads, spec.q_len, spec.kv_len) for _, spec in calls} == {(4, 4, 1024, 1024)}


def test_an_nvidia_card_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(
        major=8, minor=9, name="RTX 4090", shared_memory_per_block_optin=99 << 10, shared_memory_per_block=48 << 10
    )
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    device_module._card.cache_clear()
    card = card_of(GPU)
    device_module._card.cache_clear()
    assert card == RTX_4090 and str(card) == "compute capability 8.9"
    assert card_of(torch.device("cpu")) is NO_GPU


def test_a_card_that_triton_does_not_compile_for() -> None:
    with pytest.raises(ImplUnavailableError, match=r"triton: it runs on compute capability 8\.x.*, cuda:0 has 7\.5"):
        choose(sparse_call(T4), "auto")


@pytest.mark.parametrize("card", [A100, RTX_4090, B200, RTX_5090], ids=lambda card: card.name)
def test_libraries_name_where_they_run(card: Card) -> None:
    states = {(state.operator, state.name): state for state in survey(GPU, card=card, gates=())}
    assert states["sparse", "cudnn"].state == states["sparse", "fa4"].state == states["dense", "fa3"].state == "missing"
    assert states["dense", "fa4"].state == states["sparse", "flex"].state == "untested"
    dense = next(spec for impl, spec in plain_calls(GPU, card) if impl.operator == "dense")
    fa4 = next(impl for impl in DENSE_IMPLS if impl.name == "fa4")
    assert (fa4.refuses(replace(dense, needs_grad=True)) is None) == (card.capability >= (9, 0))


def test_a_survey_tells_all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(impls.MISSING, "fa4", "it is not there")
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


def test_the_word_is_said_once_per_process() -> None:
    choice = select(sparse_call(A100), SPARSE_IMPLS, gates=())
    other = select(sparse_call(A100, block=128), SPARSE_IMPLS, gates=())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for each in (choice, choice, other):
            assert announce(each) is each
    assert [str(each.message) for each in seen] == [choice.note]
    (said,) = seen
    shown = warnings.formatwarning(said.message, said.category, said.filename, said.lineno)
    assert shown.count("\n") == 1 and choice.note in shown


def ungated(spec: AttentionSpec, *_: object) -> Choice[AttentionSpec]:
    cpu = next(impl for impl in SPARSE_IMPLS if impl.name == "cpu")
    return Choice(impl=cpu, passed_over=(), note="its gate has not been run")  # type: ignore[arg-type]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_says_it_when_it_runs(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.attention.sparse import api

    monkeypatch.setattr(api, "choose", ungated)
    monkeypatch.setattr(api, "_choose", ungated)
    q = torch.randn(1, 64, 1, 16)
    selection = BlockSelection.from_mask(torch.ones(1, 1, 1, 1, dtype=torch.bool), block=64)
    run = torch.compile(block_sparse_attention, fullgraph=True, backend="eager") if compiled else block_sparse_attention
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first, second = (run(q, q, q, selection).out for _ in range(2))
    assert torch.equal(first, second)
    assert [str(each.message) for each in seen].count("its gate has not been run") == 1


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


def read_with(monkeypatch: pytest.MonkeyPatch, folder: Path, data: bytes | None) -> tuple[tuple[GateRun, ...], list[str]]:
    """The gates of a user whose file holds this, and what was said."""
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    place = folder / "strobe" / "gates.json"
    place.parent.mkdir(exist_ok=True)
    if data is not None:
        place.write_bytes(data)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return impls._own_gates(), [str(each.message) for each in seen]


ENTRY = asdict(gate("triton", A100))


@pytest.mark.parametrize(
    ("data", "read", "words"),
    [
        (None, 0, []),
        (b"[]", 0, []),
        (msgspec.json.encode([ENTRY]), 1, []),
        (msgspec.json.encode([ENTRY | {"of a later version": 1}]), 1, []),
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, read: int, words: list[str]
) -> None:
    gates, said = read_with(monkeypatch, tmp_path, data)
    assert len(gates) == read and all(each == gate("triton", A100) for each in gates)
    assert len(said) == bool(words) and all(word in said[0] and "\n" not in said[0] for word in words)


def test_a_record_that_cannot_be_read_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strobe" / "gates.json").mkdir(parents=True)
    gates, (said,) = read_with(monkeypatch, tmp_path, None)
    assert not gates and "is ignored" in said
    with pytest.raises(DataError):
        parse_gates(b"no")


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
