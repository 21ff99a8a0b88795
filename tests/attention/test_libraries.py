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

from strobe.attention import impls
from strobe.attention.dense import api as dense_api
from strobe.attention.dense.impl import fa4, sdpa
from strobe.attention.explain import survey
from strobe.attention.impls import GateRun, Impl, select
from strobe.attention.sparse import impls as sparse_impls
from strobe.attention.sparse.impl import fa4 as sparse_fa4
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput, AttentionSpec, check
from strobe.core import libraries
from strobe.core.device import NO_GPU, Card
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.libraries import install

GPU = torch.device("cuda", 0)
H200 = Card(vendor="nvidia", architecture="sm_90", capability=(9, 0), name="NVIDIA H200", shared_bytes=232448)
A100 = Card(vendor="nvidia", architecture="sm_80", capability=(8, 0), name="NVIDIA A100", shared_bytes=166912)
ON_CPU = {"device": torch.device("cpu"), "card": NO_GPU}
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
    card=H200,
)
SPARSE = SparseSpec.of(DENSE, block=64, most_selected=3, ragged=True, uniform=False, deterministic=False)
VERSIONS = {"nvidia-cudnn-frontend": "1.32.0", "nvidia-cutlass-dsl": "4.8.1", "flash-attn-4": "4.0.0b36"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with every library."""
    for name in impls.MISSING:
        monkeypatch.setitem(impls.MISSING, name, None)


def gate(operator: str, impl: str, card: Card = H200, **changes: str) -> GateRun:
    """A green gate of an implementation as it is now."""
    given = {"vendor": card.vendor, "architecture": card.architecture, "device": card.name, "date": "2026-01-31"} | changes
    return GateRun(operator=operator, impl=impl, versions={"torch": "2.11.0"}, tests=7, **given)  # type: ignore[arg-type]


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
]


@pytest.mark.parametrize(("name", "changes"), ACCEPTED)
def test_what_the_sparse_libraries_accept(machine: None, name: str, changes: dict[str, object]) -> None:
    assert refusals(replace(SPARSE, **changes), sparse_impls.IMPLS)[name] is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_what_the_sparse_libraries_refuse(machine: None, name: str, changes: dict[str, object], reason: str) -> None:
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
def test_what_the_dense_libraries_refuse(machine: None, changes: dict[str, object], reason: str) -> None:
    taken = [name for name, reason in refusals(DENSE, dense_api.IMPLS).items() if reason is None]
    assert taken == ["fa4", "fa3", "sdpa", "triton", "reference"]
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
        (ON_CPU | {"dtype": torch.float32}, "cpu"),
    ],
)
def test_auto_takes_what_was_measured_to_be_fastest(machine: None, changes: dict[str, object], name: str) -> None:
    green = [gate("sparse", impl) for impl in ("cudnn", "fa4", "triton")]
    spec = replace(SPARSE, **changes)  # type: ignore[arg-type]
    assert select(spec, sparse_impls.ranked(spec), gates=green).impl.name == name


def test_gradients_through_the_lse_in_the_dense_libraries(machine: None) -> None:
    found = refusals(replace(DENSE, return_lse=True, needs_grad=True), dense_api.IMPLS)
    assert found["fa4"] is None and found["fa3"] == "it has no gradient through the lse" and "no gradient" in str(found["sdpa"])
    for alone in ({"return_lse": True}, {"needs_grad": True}):
        assert refusals(replace(DENSE, **alone), dense_api.IMPLS)["fa3"] is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "versions", "reason"),
    [
        ("os", {}, None),
        ("no_such_module", {}, f"nvidia-cudnn-frontend is not installed; {install('hopper')} installs it"),
        (
            "os",
            {"nvidia-cudnn-frontend": None},
            f"nvidia-cudnn-frontend is not installed; {install('hopper')} installs it; another package",
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
    found = impls.not_installed(module, "nvidia-cudnn-frontend", "1.32")
    assert found == reason or (found is not None and reason is not None and found.startswith(reason))


def test_another_machine_says_what_is_missing(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(impls.MISSING, "cudnn", "it is not there")
    found = refusals(SPARSE, sparse_impls.IMPLS)
    assert found["cudnn"] == "it is not there" and found["fa4"] is None
    on_a100 = refusals(replace(SPARSE, card=A100), sparse_impls.IMPLS)
    assert on_a100["fa4"] == "it runs on compute capability 9.x, cuda:0 has 8.0"


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
    ],
)
def test_which_of_torch_s_kernels_runs(machine: None, changes: dict[str, object], kernel: str) -> None:
    assert sdpa.kernel_of(replace(DENSE, **changes)) == kernel  # type: ignore[arg-type]


def test_torch_prefers_its_own_choice_before_hopper(machine: None) -> None:
    on_a100 = replace(DENSE, card=A100)
    assert sdpa.kernel_of(on_a100) == "" and sdpa.kernel_of(replace(on_a100, return_lse=True)) == "flash"


def test_few_queries_over_many_keys_do_not_go_to_fa4(machine: None) -> None:
    """It would leave most multiprocessors idle. With gradients and with grouped heads it is taken all the same."""
    green = (gate("dense", "fa4"), gate("dense", "sdpa"))
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
        impls.silence_fa4()
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
    green = [gate(operator, impl) for operator in ("dense", "sparse") for impl in ("cudnn", "fa4", "triton", "sdpa")]
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
    monkeypatch.setattr("builtins.tried", 0, raising=False)
    import builtins

    for spec in (replace(DENSE, **ON_CPU), replace(DENSE, card=A100)):  # type: ignore[arg-type]
        refusals(spec, dense_api.IMPLS)
    assert [refusals(replace(SPARSE, **ON_CPU), sparse_impls.IMPLS)["cudnn"]] == ["it runs on a GPU, the tensors are on cpu"]  # type: ignore[arg-type]
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
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.stdout.splitlines() == ["None False True", "1 Words. False False", "False"], said.stderr


SPEC = check(*[torch.zeros(1, 2, 3, 4)] * 3, softmax_scale=None, return_lse=False)


def never_run(*_: object) -> AttentionOutput:
    raise AssertionError("choosing must not run anything")


def impl(name: str, reason: str | None = None) -> Impl:
    def refuses(spec: AttentionSpec) -> str | None:
        assert spec is SPEC
        return reason

    return Impl(name=name, refuses=refuses, run=never_run)


FAST, NEW, PLAIN = impl("fast", "needs a GPU"), impl("new"), impl("plain")


def test_auto_takes_the_first_that_accepts() -> None:
    choice = select(SPEC, (FAST, NEW, PLAIN))
    assert choice.impl is NEW
    assert choice.passed_over == (("fast", "needs a GPU"), ("plain", "new comes first"))
    assert str(choice) == "runs: new\n  not fast: needs a GPU\n  not plain: new comes first"


def test_a_name_is_obeyed() -> None:
    choice = select(SPEC, (FAST, NEW, PLAIN), "plain")
    assert choice.impl is PLAIN
    assert choice.passed_over == (("fast", "needs a GPU"), ("new", "plain was asked for by name"))


def test_a_named_one_that_refuses_says_why_and_what_would_run() -> None:
    with pytest.raises(ImplUnavailableError) as caught:
        select(SPEC, (FAST, NEW, PLAIN), "fast")
    assert (caught.value.name, caught.value.reason, caught.value.alternatives) == ("fast", "needs a GPU", ("new", "plain"))
    assert str(caught.value) == "impl 'fast' cannot run: needs a GPU; would run here: new, plain"


def test_when_all_refuse_every_reason_is_given() -> None:
    with pytest.raises(ImplUnavailableError, match="fast: needs a GPU; old: retired$"):
        select(SPEC, (FAST, impl("old", "retired")))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown impl 'plian' \(did you mean 'plain'\?\); allowed: auto, fast, new, plain"):
        select(SPEC, (FAST, NEW, PLAIN), "plian")
