"""What the libraries' implementations refuse, on devices and installations that are made up, and how their lse is shaped."""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from strobe.attention import gates, libraries
from strobe.attention.dense import api as dense_api
from strobe.attention.dense.impl import fa4, sdpa
from strobe.attention.gates import Gate
from strobe.attention.impls import select
from strobe.attention.sparse import impls as sparse_impls
from strobe.attention.sparse.impl import fa4 as sparse_fa4
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.survey import survey
from strobe.attention.types import AttentionSpec
from strobe.core.errors import ImplUnavailableError

GPU = torch.device("cuda", 0)
DENSE = AttentionSpec(
    batch=1,
    q_len=128,
    kv_len=256,
    num_heads=4,
    num_kv_heads=4,
    head_dim=128,
    dtype=torch.bfloat16,
    device=GPU,
    softmax_scale=0.1,
    return_lse=False,
    needs_grad=False,
)
SPARSE = SparseSpec.of(DENSE, block=64, most_selected=3, ragged=True, uniform=False, deterministic=False)
VERSIONS = {"nvidia-cudnn-frontend": "1.32.0", "nvidia-cutlass-dsl": "4.8.1", "flash-attn-4": "4.0.0b36"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Hopper machine with every library and no gate."""
    found = SimpleNamespace(capability=(9, 0))
    for module in (libraries, gates, sdpa):
        monkeypatch.setattr(module, "capability", lambda device: found.capability if device.type == "cuda" else (0, 0))
    for name in libraries.MISSING:
        monkeypatch.setitem(libraries.MISSING, name, None)
    monkeypatch.setattr(gates, "GATES", ())
    return found


def gate(operator: str, impl: str, capability: tuple[int, int] = (9, 0)) -> Gate:
    return Gate(
        operator=operator,
        impl=impl,
        device="NVIDIA H200",
        capability=capability,
        versions={"torch": "2.11.0"},
        date="2026-01-31",
        tests=7,
    )


def refusals(spec: AttentionSpec, impls: tuple[object, ...]) -> dict[str, str | None]:
    return {impl.name: impl.refuses(spec) for impl in impls}  # type: ignore[attr-defined]


ACCEPTED = [
    ("cudnn", {}),
    ("cudnn", {"block": 128, "head_dim": 96, "num_kv_heads": 1, "dtype": torch.float16, "return_lse": True}),
    ("cudnn", {"needs_grad": True, "block": 128}),
    ("cudnn", {"deterministic": True}),
    ("fa4", {"head_dim": 64, "dtype": torch.float16, "num_kv_heads": 2}),
    ("fa4", {"needs_grad": True, "block": 128, "return_lse": True, "num_kv_heads": 2, "head_dim": 64}),
]
REFUSED = [
    ("cudnn", {"device": torch.device("cpu")}, "it runs on a GPU, the tensors are on cpu"),
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
]


@pytest.mark.parametrize(("name", "changes"), ACCEPTED)
def test_what_the_sparse_libraries_accept(machine: SimpleNamespace, name: str, changes: dict[str, object]) -> None:
    assert refusals(replace(SPARSE, **changes), sparse_impls.IMPLS)[name] is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_what_the_sparse_libraries_refuse(machine: SimpleNamespace, name: str, changes: dict[str, object], reason: str) -> None:
    found = refusals(replace(SPARSE, **changes), sparse_impls.IMPLS)[name]  # type: ignore[arg-type]
    assert found is not None and found.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "it computes bfloat16 and float16, not float32"),
        ({"head_dim": 256}, "it has head_dim 64, 96, 128, not 256"),
        ({"kv_len": 0}, "it takes at least one query and one key"),
        ({"softmax_scale": -1.0}, "it takes a positive softmax_scale, not -1.0"),
    ],
)
def test_what_the_dense_libraries_refuse(machine: SimpleNamespace, changes: dict[str, object], reason: str) -> None:
    assert refusals(DENSE, dense_api.IMPLS) == {"fa4": None, "fa3": None, "sdpa": None, "reference": None}
    found = refusals(replace(DENSE, **changes), dense_api.IMPLS)  # type: ignore[arg-type]
    assert found["fa4"] == found["fa3"] == reason


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "cudnn"),
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
        ({"device": torch.device("cpu"), "dtype": torch.float32}, "cpu"),
    ],
)
def test_auto_takes_what_was_measured_to_be_fastest(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], name: str
) -> None:
    monkeypatch.setattr(gates, "GATES", tuple(gate("sparse", impl) for impl in ("cudnn", "fa4", "triton")))
    spec = replace(SPARSE, **changes)  # type: ignore[arg-type]
    assert select(spec, sparse_impls.ranked(spec)).impl.name == name


def test_gradients_through_the_lse_in_the_dense_libraries(machine: SimpleNamespace) -> None:
    found = refusals(replace(DENSE, return_lse=True, needs_grad=True), dense_api.IMPLS)
    assert found["fa4"] is None and found["fa3"] == "it has no gradient through the lse" and "no gradient" in str(found["sdpa"])


@pytest.mark.parametrize(
    ("module", "versions", "reason"),
    [
        ("os", {}, None),
        ("no_such_module", {}, "nvidia-cudnn-frontend is not installed (strobe[hopper] installs it)"),
        (
            "os",
            {"nvidia-cudnn-frontend": None},
            "nvidia-cudnn-frontend is not installed (strobe[hopper] installs it); another package",
        ),
        ("os", {"nvidia-cudnn-frontend": "1.320.1"}, "it is written for nvidia-cudnn-frontend 1.32, 1.320.1 is installed"),
    ],
)
def test_a_library_is_found_by_its_module_and_its_version(
    monkeypatch: pytest.MonkeyPatch, module: str, versions: dict[str, str | None], reason: str | None
) -> None:
    def version(name: str) -> str:
        found = (VERSIONS | versions)[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = libraries.not_installed(module, "nvidia-cudnn-frontend", "1.32")
    assert found == reason or (found is not None and reason is not None and found.startswith(reason))


def test_another_machine_says_what_is_missing(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.MISSING, "cudnn", "it is not there")
    found = refusals(SPARSE, sparse_impls.IMPLS)
    assert found["cudnn"] == "it is not there" and found["fa4"] is None
    machine.capability = (8, 0)
    assert refusals(SPARSE, sparse_impls.IMPLS)["fa4"] == "it runs on compute capability 9.0, cuda:0 has 8.0"


def test_auto_takes_only_what_passed_its_gate_on_such_a_device(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*green: Gate) -> str:
        monkeypatch.setattr(gates, "GATES", green)
        return select(SPARSE, sparse_impls.IMPLS).impl.name

    assert chosen() == "reference"  # nothing was ever tested on this GPU
    others = (gate("sparse", "triton"), gate("sparse", "cudnn", (10, 0)), gate("dense", "fa4"))
    assert chosen(*others) == "triton"
    passed = dict(select(SPARSE, sparse_impls.IMPLS).passed_over)
    assert passed["cudnn"] == passed["fa4"] == "untested: no recorded green gate on compute capability 9.0"
    assert chosen(*others, gate("sparse", "cudnn")) == "cudnn"
    assert select(replace(SPARSE, needs_grad=True, deterministic=True), sparse_impls.IMPLS).impl.name == "triton"
    assert select(SPARSE, sparse_impls.IMPLS, "fa4").impl.name == "fa4"  # by its name it runs
    assert select(DENSE, dense_api.IMPLS).impl.name == "fa4"
    with pytest.raises(ImplUnavailableError, match="its backward computes bfloat16.*; would run here: .*triton"):
        select(replace(SPARSE, needs_grad=True, dtype=torch.float16), sparse_impls.IMPLS, "cudnn")


def test_a_survey_tells_the_four_states(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "GATES", (gate("sparse", "cudnn"),))
    monkeypatch.setitem(libraries.MISSING, "fa4", "it is not there")
    found = {(state.operator, state.name): state for state in survey(GPU)}
    record = "7 tests on NVIDIA H200, 2026-01-31, torch 2.11.0"
    assert found["sparse", "cudnn"].detail == f"{record}; not with what is here: torch {importlib.metadata.version('torch')}"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"torch": "2.11.0"}[name])
    assert next(each for each in survey(GPU) if (each.operator, each.name) == ("sparse", "cudnn")).detail == record
    states = {name: found["sparse", name].state for name in ("cudnn", "fa4", "triton", "cpu", "reference")}
    assert states == {"cudnn": "gated", "fa4": "missing", "triton": "untested", "cpu": "missing", "reference": "runs"}
    assert found["dense", "sdpa"].state == "runs" and found["dense", "fa4"].detail == "it is not there"


def test_the_record_that_ships_can_be_read() -> None:
    for each in gates.GATES:
        assert each.operator in ("dense", "sparse") and each.tests > 0 and each.versions["torch"] and len(each.capability) == 2


def test_choosing_is_traced_with_its_gates(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `torch.compile` the choice is part of the trace: nothing in it may read a file or look a package up."""
    monkeypatch.setattr(gates, "GATES", (gate("sparse", "fa4"),))
    name = {"cudnn": 1.0, "fa4": 2.0, "triton": 3.0}
    traced = torch.compile(lambda x: x * name[select(SPARSE, sparse_impls.IMPLS).impl.name], fullgraph=True, backend="eager")
    assert traced(torch.ones(1)).item() == 2.0


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
        ({"device": torch.device("cpu")}, ""),
        ({"device": torch.device("cpu"), "return_lse": True}, "cpu"),
    ],
)
def test_which_of_torch_s_kernels_runs(machine: SimpleNamespace, changes: dict[str, object], kernel: str) -> None:
    assert sdpa.kernel_of(replace(DENSE, **changes)) == kernel  # type: ignore[arg-type]


def test_torch_prefers_its_own_choice_before_hopper(machine: SimpleNamespace) -> None:
    machine.capability = (8, 0)
    assert sdpa.kernel_of(DENSE) == "" and sdpa.kernel_of(replace(DENSE, return_lse=True)) == "flash"


def test_few_queries_over_many_keys_do_not_go_to_fa4(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would leave most multiprocessors idle. With gradients and with grouped heads it is taken all the same."""
    monkeypatch.setattr(gates, "GATES", (gate("dense", "fa4"), gate("dense", "sdpa")))
    for q_len, impl in ((1, "sdpa"), (64, "sdpa"), (65, "fa4")):
        spec = replace(DENSE, q_len=q_len, kv_len=8192, head_dim=128)
        assert select(spec, dense_api._order(spec)).impl.name == impl
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


def test_the_operators_of_fa4_are_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels replaced by the textbook: schema, fakes and gradients are what is tested."""

    def forward(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, return_lse: bool) -> tuple[Tensor, Tensor, None]:
        scores = torch.einsum("bshd,bthd->bhst", q, k) * softmax_scale
        return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v).contiguous(), scores.logsumexp(-1).float(), None

    def backward(*tensors: Tensor, softmax_scale: float, dlse: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, d_out, lse = tensors
        weights = torch.exp(torch.einsum("bshd,bthd->bhst", q, k) * softmax_scale - lse.unsqueeze(-1))
        delta = (out * d_out).sum(-1).transpose(1, 2) - dlse
        d_scores = weights * (torch.einsum("bshd,bthd->bhst", d_out, v) - delta.unsqueeze(-1)) * softmax_scale
        dq, dk = torch.einsum("bhst,bthd->bshd", d_scores, k), torch.einsum("bhst,bshd->bthd", d_scores, q)
        return dq, dk, torch.einsum("bhst,bshd->bthd", weights, d_out)

    interface = SimpleNamespace(_flash_attn_fwd=forward, _flash_attn_bwd=backward)
    package = SimpleNamespace(interface=interface)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(cute=package))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", package)
    q, k, v = (torch.randn(2, length, 3, 8, requires_grad=True) for length in (5, 7, 7))
    torch.library.opcheck(fa4.fa4_forward, (q, k, v, 0.3))
    spec = replace(DENSE, softmax_scale=0.3, return_lse=True)
    compiled = torch.compile(lambda *each: fa4.run(*each, spec), fullgraph=True, backend="aot_eager")
    found, expected = compiled(q, k, v), forward(q, k, v, softmax_scale=0.3, return_lse=True)
    torch.testing.assert_close(found.out, expected[0])
    torch.testing.assert_close(found.lse, expected[1])
    for mine, theirs in zip(
        torch.autograd.grad(found.out.sin().sum() + found.lse.sin().sum(), (q, k, v)),
        torch.autograd.grad(expected[0].sin().sum() + expected[1].sin().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_gate_is_recorded_for_what_ran_and_did_not_fail(tmp_path: Path) -> None:
    """Of made-up tests one implementation's pass, one's fail, one's are skipped; the old record of the first two is replaced."""
    (tmp_path / "sparse").mkdir()
    (tmp_path / "sparse" / "test_made_up.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('impl', ['good', 'bad', 'absent'])\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(impl, number):\n"
        "    if impl == 'absent':\n"
        "        pytest.skip('refused')\n"
        "    assert impl == 'good' or number == 1\n"
    )
    script = Path(__file__).with_name("record_gate.py")
    code = (
        f"import sys; sys.path.insert(0, {str(script.parent)!r})\n"
        "import pytest, record_gate as it\n"
        "from strobe.attention.gates import Gate\n"
        "tally = it.Tally()\n"
        f"pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', {str(tmp_path)!r}, {str(tmp_path)!r}], plugins=[tally])\n"
        "def old(impl, minor):\n"
        "    rest = {'device': 'old', 'versions': {}, 'date': '', 'tests': 1}\n"
        "    return Gate(operator='sparse', impl=impl, capability=(9, minor), **rest)\n\n"
        "new = it.gates(tally, 'GPU', (9, 0), '2026-01-31')\n"
        "record = it.updated((old('good', 0), old('bad', 0), old('bad', 1), old('absent', 0)), new, tally, (9, 0))\n"
        "sys.stdout.write('|'.join(f'{gate.impl} {gate.device} {gate.capability[1]} {gate.tests}' for gate in record))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout.splitlines()[-1] == "absent old 0 1|bad old 1 1|good GPU 0 2"


OF_FA4 = (
    "Argument aux_data (position 17) cannot be converted to a JitArgument for function "
    "'cutlass___call___flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__Tensorgmemoi64i64i641_None_00883'. "
    "Its type `<class 'flash_attn.cute.utils.AuxData'>` is not supported. If the value is known at compile time, annotate it."
)


def test_one_warning_of_fa4_is_passed_over_and_no_other() -> None:
    others = [
        ("and " + OF_FA4, UserWarning),
        (OF_FA4.replace("aux_data", "softmax_scale"), UserWarning),
        (OF_FA4.replace("flash_attncute", "my_own"), UserWarning),
        (OF_FA4.replace("a JitArgument", "a tensor"), UserWarning),
        (OF_FA4, RuntimeWarning),
    ]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        libraries.silence_fa4()
        for text, category in ((OF_FA4, UserWarning), *others, (OF_FA4.replace("17", "9"), UserWarning)):
            warnings.warn(text, category, stacklevel=1)
    assert [(str(each.message), each.category) for each in seen] == others


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
