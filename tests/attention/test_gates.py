"""The gates of the package: their cases on a GPU, twins of them on a CPU, and what running and recording them does."""

from __future__ import annotations

import ast
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gates_of_tests as made_up
from strobe.attention.dense.api import IMPLS as DENSE_IMPLS
from strobe.attention.dense.eight.api import IMPLS as EIGHT_IMPLS
from strobe.attention.explain import plain_calls
from strobe.attention.gates import dense, eightbit, run, sparse
from strobe.attention.gates.case import CaseRefusedError, GateCase, GateError
from strobe.attention.gates.operands import outside
from strobe.attention.gates.run import find_cases, record, run_gate, run_gates, tell
from strobe.attention.impls import FILE, MISSING, GateRun, Impl, parse_gates
from strobe.attention.sparse import custom_ops, entries
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impl import cpu
from strobe.attention.sparse.impls import IMPLS as SPARSE_IMPLS
from strobe.core.device import NO_GPU, Card, card_of
from strobe.core.errors import ImplUnavailableError, ShapeError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GATED = [(operator, name) for operator, names in run.GATED.items() for name in names] + [("dense", "triton")]
SHIPPED = parse_gates(files("strobe.attention").joinpath(FILE).read_bytes())[0]
FEW = 4
"""Cases of a gate that run where its record holds."""


def moved(impl: Impl[Any], card: Card, gates: Sequence[GateRun]) -> bool:
    """Whether the package's record of a gate on such a card is missing, red, or of other sources or cases than these."""
    if not impl.kernel:
        return False  # it needs no gate
    held = [gate for gate in gates if gate.architecture == card.architecture] if card.vendor else gates  # here is no GPU: of any
    return not any(
        (gate.operator, gate.impl, gate.kernel, gate.cases, gate.failed)
        == (impl.operator, impl.name, impl.kernel, run.cases_hash(impl.operator), "")
        for gate in held
    )


def test_the_record_that_ships_is_of_these_kernels() -> None:
    """One that is not leaves `auto` without the kernel on every GPU: run its gate on one again."""
    kernels = {(each.operator, each.name): each.kernel for each in (*DENSE_IMPLS, *EIGHT_IMPLS, *SPARSE_IMPLS)}
    recorded = {(gate.operator, gate.impl): gate.kernel for gate in SHIPPED}
    assert recorded == {whose: kernels[whose] for whose in recorded} and len(recorded) > 5


def cases_on(card: Card, gates: Sequence[GateRun], *, everything: bool = False) -> list[tuple[str, str, GateCase]]:
    """Every case of the gates that have to be run again, or of all; of the others, and of what is not installed, a few."""
    again = {
        (impl.operator, impl.name) for impl, spec in plain_calls(GPU, card) if moved(impl, card, gates) and not impl.refuses(spec)
    }
    found = []
    for whose in GATED:
        cases = list(run.CASES[whose[0]](whose[1], GPU))
        step = 1 if everything or whose in again else -(-len(cases) // FEW)
        found += [(*whose, case) for case in cases[::step]]
    return found


HERE = card_of(GPU) if torch.cuda.is_available() else NO_GPU
ON_GPU = cases_on(HERE, SHIPPED, everything=os.environ.get("STROBE_TEST_GATES") == "all")


@pytest.mark.gpu
@pytest.mark.parametrize(("operator", "impl", "case"), ON_GPU, ids=lambda each: each.name if isinstance(each, GateCase) else each)
def test_an_implementation_on_a_gpu(operator: str, impl: str, case: GateCase) -> None:
    try:
        case.run()
    except CaseRefusedError as refused:
        pytest.skip(f"{impl}: {refused}")


@pytest.mark.gpu
@pytest.mark.parametrize("impl", sparse.IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_an_index_outside_is_refused_where_it_is_checked(impl: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operands, _ = outside(block, GPU)
    monkeypatch.setenv("STROBE_CHECK", "1")
    entries._everywhere.cache_clear()
    try:
        with pytest.raises((ShapeError, ImplUnavailableError), match="names key block [0-9]+, expected 0 to 6|cannot run"):
            block_sparse_attention(*operands, impl=impl)
    finally:
        monkeypatch.undo()
        entries._everywhere.cache_clear()


ON_CPU = {
    ("sparse", "cpu"): [
        case
        for case in find_cases("sparse", "cpu", CPU)
        if "128" not in case.name.split(",")[-1] and "256x" not in case.name and "block 128" not in case.name
    ][::2],
    ("dense", "sdpa"): [case for case in find_cases("dense", "sdpa", CPU) if "2000" not in case.name][::9],
    ("eightbit", "reference"): [
        case for case in find_cases("eightbit", "reference", CPU) if "4999" not in case.name and "2000x" not in case.name
    ],
    ("dense", "cpu"): [case for case in find_cases("dense", "cpu", CPU) if "2000" not in case.name][4::31],
}
TWINS = [
    pytest.param(*whose, case, marks=pytest.mark.rest if number % 2 else ())
    for whose, some in ON_CPU.items()
    for number, case in enumerate(some)
]


@pytest.mark.parametrize(("operator", "impl", "case"), TWINS, ids=lambda each: each.name if isinstance(each, GateCase) else each)
def test_an_implementation_on_a_cpu(operator: str, impl: str, case: GateCase) -> None:
    """The cases themselves hold for what runs here."""
    try:
        case.run()
    except CaseRefusedError as refused:
        assert (operator, impl) == ("dense", "sdpa") and "no gradient through the lse" in str(refused)


@pytest.mark.parametrize(
    ("operator", "impl"), [("sparse", "cudnn"), ("dense", "fa4"), *(("eightbit", name) for name in eightbit.IMPLS)]
)
def test_a_case_that_an_implementation_refuses_is_no_failure(operator: str, impl: str) -> None:
    for case in find_cases(operator, impl, CPU):
        with pytest.raises(CaseRefusedError, match="^it runs on .*, the tensors are on cpu$"):
            case.run()


def test_a_gate_whose_sources_moved_runs_whole() -> None:
    def counted(gates: Sequence[GateRun], **how: bool) -> dict[str, int]:
        found = Counter(f"{operator}:{impl}" for operator, impl, _ in cases_on(H100, gates, **how))
        return {name: found[name] for name in ("dense:sdpa", "sparse:triton")}

    held = next(gate for gate in SHIPPED if (gate.operator, gate.impl, gate.architecture) == ("sparse", "triton", "sm_90"))
    others = [gate for gate in SHIPPED if gate is not held]
    whole = [name.split(":") for name in counted(SHIPPED)]
    number = {f"{operator}:{impl}": len(list(run.CASES[operator](impl, GPU))) for operator, impl in whole}
    assert counted([*others, held]) == {"dense:sdpa": FEW, "sparse:triton": FEW}
    changes = {"kernel": "0" * 16, "cases": "1" * 16, "failed": "it is wrong", "architecture": "sm_80"}
    for worse in ([], *([replace(held, **{name: value})] for name, value in changes.items())):
        assert counted([*others, *worse]) == number | {"dense:sdpa": FEW}
    assert counted([*others, held], everything=True) == number


def test_every_gate_has_cases_of_its_own() -> None:
    for impl in ("cudnn", "fa4", "triton", "flex"):
        names = [case.name for case in sparse.cases(impl, GPU)]
        assert len(names) == len(set(names)) >= 79 and all("\n" not in name for name in names)
    assert len({case.name for case in eightbit.cases("triton", CPU)}) == len(list(eightbit.cases("triton", CPU))) > 30
    assert {impl.name for impl in SPARSE_IMPLS if impl.kernel} == set(sparse.IMPLS)
    assert len({case.name for case in dense.cases("fa4", GPU)}) == len(list(dense.cases("sdpa", GPU))) + 6
    assert not any(case.needs_gpu for case in find_cases("sparse", "triton", CPU))


def test_a_gate_holds_under_python_o() -> None:
    """An `assert` would be gone there, and every gate green."""
    for module in Path(run.__file__).parent.glob("*.py"):
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(module.read_text("utf-8")))), module.name


def wrong_by(forward: Callable[..., Any] = tuple, backward: Callable[..., Any] = tuple) -> SimpleNamespace:
    """The kernels of `cpu` with one thing wrong."""
    return SimpleNamespace(
        forward=lambda *given: forward(cpu.forward(*given)), backward=lambda *given: backward(cpu.backward(*given))
    )


def less_by(share: float, place: int) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    return lambda found: tuple(each * (1 - share * (place == number)) for number, each in enumerate(found))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (wrong_by(forward=less_by(0.1, 0)), "output and lse, bfloat16-64x128-4/4-5x7-ragged"),
        (wrong_by(forward=less_by(0.02, 1)), "output and lse, bfloat16-64x128-4/4-5x7-ragged"),
        (wrong_by(forward=lambda found: (found[0], found[1].clamp(min=-9.0))), "output and lse, bfloat16-64x128-4/4-5x7-ragged"),
        (wrong_by(backward=less_by(0.1, 1)), "gradients, bfloat16-64x128-4/4-5x7-ragged, through the lse: False"),
        (wrong_by(backward=less_by(0.1, 2)), "gradients, bfloat16-64x128-4/2-5x7-ragged, through the lse: True"),
        (wrong_by(forward=lambda found: (found[0].nan_to_num(0.0), found[1])), "a NaN in a valid token shows"),
        (wrong_by(forward=lambda found: (found[0] + torch.rand(()) * 1e-3, found[1])), "the same bits in every run, block 64"),
        (wrong_by(forward=less_by(0.1, 0)), "packed sequences, block 64"),
        (wrong_by(forward=less_by(0.1, 0)), "large scores do not overflow, block 64"),
        (wrong_by(forward=less_by(0.1, 0)), "one count that the host knows, block 64, ragged: True, 2"),
        (wrong_by(backward=less_by(0.1, 0)), "gradients for one count that the host knows, block 64"),
        (wrong_by(backward=less_by(0.1, 0)), "finite padding need not be cleared, block 64"),
        (wrong_by(forward=lambda found: (found[0] + 1.0, found[1])), "nothing selected and nothing selectable, block 64"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_is_found(wrong: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_kernels", lambda impl: wrong)
    (case,) = (case for case in find_cases("sparse", "cpu", CPU) if case.name == name)
    with pytest.raises((GateError, AssertionError)):
        case.run()


# ------------------------------------------------------------------------------------------------------------------- running


def told(*checks: Callable[[], None]) -> list[tuple[int, str, str, str]]:
    sent: list[Any] = []
    line: Any = SimpleNamespace(send=sent.append)
    tell(line, made_up.find(*checks))
    return [(said.done, said.name, said.last, said.failed) for said in sent]


ON_A_CPU = next(impl for impl in SPARSE_IMPLS if impl.name == "cpu")


def test_a_gate_ends_with_its_first_failure() -> None:
    assert told(made_up.fine, made_up.refuse) == [(0, "case 0", "", ""), (1, "case 1", "passed", ""), (2, "", "refused", "")]
    *_, last = told(made_up.fine, made_up.fail, made_up.fine)
    assert last == (1, "", "", "case 1: RuntimeError: CUDA error: an illegal memory access")


def test_a_process_that_dies_makes_its_gate_red(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[int, int, str]] = []
    found = run_gate(ON_A_CPU, CPU, lambda *each: said.append(each), made_up.dying)
    assert found == (1, 1, "case 2: the process ended with code 9")
    assert said == [(0, 4, "case 0"), (1, 4, "case 1"), (2, 4, "case 2")]
    assert capfd.readouterr().out == ""  # what a library prints does not get into a document


def test_a_case_that_never_ends_makes_its_gate_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(done: int, total: int, name: str) -> None:
        if name == "case 1":
            monkeypatch.setattr(run, "PATIENCE_S", 0.25)

    passed, _, failed = run_gate(ON_A_CPU, CPU, advance, made_up.hanging)
    assert passed == 1 and failed == "case 1: no answer in 0.25 s"


H100 = Card(vendor="nvidia", architecture="sm_90", capability=(9, 0), name="NVIDIA H100 80GB HBM3", shared_bytes=227 << 10)
B200 = Card(vendor="nvidia", architecture="sm_100", capability=(10, 0), name="NVIDIA B200", shared_bytes=227 << 10)


def test_gates_are_run_where_libraries_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MISSING.found, "triton", None)
    came = {"triton": (75, 4, ""), "sdpa": (12, 0, "views of a larger buffer: no")}
    monkeypatch.setattr(run, "card_of", lambda _: B200)
    monkeypatch.setattr(run, "run_gate", lambda impl, *_: came.get(impl.name, (0, 3, "")))
    found = {f"{each.operator}:{each.impl}": each for each in run_gates(GPU, "580.1", lambda *_: None)}
    kernels = {"dense": ("sdpa", "fa4"), "sparse": ("cudnn", "fa4", "triton", "flex"), "eightbit": ("gluon", "triton")}
    assert set(found) == {f"{operator}:{name}" for operator, names in kernels.items() for name in names}
    assert found["sparse:cudnn"].gate is None and found["sparse:cudnn"].refused.startswith("it runs on compute capability 9.x")
    assert found["sparse:flex"].gate is None and found["sparse:flex"].refused == "it takes none of the cases"
    gate, red = found["sparse:triton"].gate, found["dense:sdpa"].gate
    assert (gate.vendor, gate.architecture, gate.device, gate.tests) == ("nvidia", "sm_100", "NVIDIA B200", 75)
    assert gate.versions["driver"] == "580.1" and set(gate.versions) <= {"driver", "torch", "triton"}
    triton = next(impl for impl in SPARSE_IMPLS if impl.name == "triton")
    assert gate.kernel == triton.kernel and triton.standing(B200, [gate]) == "green"
    assert (red.tests, red.failed) == (12, "views of a larger buffer: no")
    assert [each.impl for each in run_gates(GPU, None, lambda *_: None, only=["dense:sdpa"])] == ["sdpa"]


# ------------------------------------------------------------------------------------------------------------------ recording

GREEN = GateRun(
    operator="sparse", impl="triton", vendor="nvidia", architecture="sm_80", device="A100", versions={"torch": "2.11.0"},
    date="2026-01-31", tests=7, kernel="0123",
)  # fmt: skip


def test_a_record_keeps_what_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "strobe" / "gates.json"
    other_card, other = replace(GREEN, architecture="sm_90"), replace(GREEN, impl="flex")
    record([GREEN, other_card, other], place)
    place.write_text(json.dumps([*json.loads(place.read_text()), {"of": "another version"}]))
    record([replace(GREEN, tests=8, failed="it is wrong")], place)
    gates, others = parse_gates(place.read_bytes())
    assert len(gates) == 3 and all(each in gates for each in (other_card, other, replace(GREEN, tests=8, failed="it is wrong")))
    assert [json.loads(bytes(each)) for each in others] == [{"of": "another version"}]
    assert [each.name for each in place.parent.iterdir()] == ["gates.json"]


def test_a_file_that_is_no_record_is_kept_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "gates.json"
    place.write_text("{ a torn fil")
    record([GREEN], place)
    assert parse_gates(place.read_bytes())[0] == (GREEN,)
    assert (tmp_path / "gates.json.unreadable").read_text() == "{ a torn fil"
