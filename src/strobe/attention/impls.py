"""The choice of an implementation, with the reason why each other was passed over: card, libraries and gate of each.

Every decision is a function of plain values: the call's spec, in which the card is, and the records of gates. An optional
library is imported when a call first asks for it on a card that it has kernels for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
import torch
from torch import Tensor

from strobe.attention.types import AttentionOutput, AttentionSpec, constant_when_traced, outside_graphs
from strobe.core.device import Card, card_of
from strobe.core.errors import DataError, ImplUnavailableError, unknown_choice
from strobe.core.libraries import ATTENTION, Plugin, broken, entries, install, open_plugin, plugins, tried
from strobe.core.settings import data_folder, keep_fa4_kernels

Spec = TypeVar("Spec", bound=AttentionSpec)
EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
"""What no kernel of dense and sparse attention computes."""
Standing = Literal["free", "green", "red", "none"]

# ---------------------------------------------------------------------------------------------- what is installed, what a card is


def not_installed(module: str, distribution: str, wanted: str = "") -> str | None:
    """Say why a library cannot be used, or None if it can: it is there, its version begins with `wanted`, `module` is imported.

    The module is imported last, and once in a process.
    """
    how = f"; {install('hopper')} installs it" if wanted else ""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return f"{distribution} is not installed{how}"
    if wanted:
        try:
            found = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return f"{distribution} is not installed{how}; another package provides {module.partition('.')[0]}"
        if not re.match(re.escape(wanted) + r"(?!\d)", found):
            return f"it is written for {distribution} {wanted}, {found} is installed"
    error = broken(module)
    return f"{distribution} is not complete: {error}{how}" if error else None


_DSL: Final = ("cutlass.cute", "nvidia-cutlass-dsl", "4.8")
_FA4: Final = ("flash-attn-4", "4.0.0b36")
_CUDNN: Final = ("nvidia-cudnn-frontend", "1.32")
LIBRARIES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "cudnn": (
        _DSL,
        ("cudnn.block_sparse_attention", *_CUDNN),
        ("cudnn.block_sparse_attention.csrc.fwd.sm90_blk128.bsa_fwd_sm90", *_CUDNN),
    ),
    "fa4": (_DSL, ("flash_attn.cute.interface", *_FA4), ("flash_attn.cute.block_sparsity", *_FA4)),
    "triton": (("triton.language", "triton"),),
    "gluon": (("triton.experimental.gluon", "triton", "3.6"), ("triton.experimental.gluon", "triton", "3.7")),
}
"""What an implementation uses of its libraries: module, distribution and version. Of gluon's either will do, of others all."""


class _Missing:
    """Why the library of each implementation cannot be used, or None if it can; it is imported when this is first asked."""

    def __init__(self) -> None:
        self.found: dict[str, str | None] = {}

    def __getitem__(self, impl: str) -> str | None:
        return _why_missing(impl)


MISSING: Final = _Missing()
_ONE_AT_A_TIME: Final = RLock()
"""Held while a library is imported: whoever asks for it meanwhile waits for the answer."""
if importlib.util.find_spec("flash_attn") is not None:
    keep_fa4_kernels()  # before anything imports it


@contextmanager
def _compiler_left_out() -> Iterator[None]:
    """While this is open, `torch.compiler.disable` imports nothing: a function is kept out of graphs when something compiles.

    quack, which flash-attn-4 imports, keeps its autotuner out, which flash-attn-4 does not use: 1.3 s in each process, for the
    import of torch's compiler. A thread that does the same meanwhile gets what it asked for.
    """
    at_once: Any = torch.compiler.disable

    def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
        if fn is None:
            return partial(disable, recursive=recursive, reason=reason)
        return outside_graphs(fn, reason or "")

    torch.compiler.disable = disable
    try:
        yield
    finally:
        torch.compiler.disable = at_once


def import_ahead() -> None:
    """Import, in a thread of its own, the library that dense attention on this card asks for first, while weights are read."""
    if torch.cuda.is_available():
        Thread(target=_import_for_card, name="strobe-imports").start()


@cache
def load_ahead(device: torch.device) -> Callable[[], None]:
    """Load, in a thread of its own, what the first pass on a GPU waits for: cuDNN's attention, and the key of Triton's cache.

    It is done once for a device. What fails fails again where it is needed, and is told there.

    Returns:
        what waits until all is loaded: no pass may be recorded meanwhile.
    """

    def some() -> list[Tensor]:
        return [torch.zeros(1, 1, 128, 64, dtype=torch.bfloat16, device=device)] * 3

    def load() -> None:
        tried(lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(*some(), None, False))
        tried(lambda: import_module("triton.runtime.cache").triton_key())

    if card_of(device).vendor != "nvidia":
        return lambda: None
    thread = Thread(target=load, name="strobe-loads", daemon=True)
    thread.start()
    return thread.join


def _import_for_card() -> None:
    major = torch.cuda.get_device_capability()[0]
    for (operator, impl), majors in CAPABILITIES.items():
        if operator == "dense" and major in majors and MISSING[impl] is None:
            break


@constant_when_traced
def _why_missing(impl: str) -> str | None:
    with _ONE_AT_A_TIME:
        if impl not in MISSING.found:
            with _compiler_left_out():
                reasons = [not_installed(*each) for each in LIBRARIES[impl]]
            said = [reason for reason in reasons if reason]
            enough = len(said) < len(reasons) if impl == "gluon" else not said
            MISSING.found[impl] = None if enough else said[0]
        return MISSING.found[impl]


CAPABILITIES: Final[Mapping[tuple[str, str], tuple[int, ...]]] = {
    ("dense", "fa4"): (8, 9, 10, 11, 12),
    ("sparse", "cudnn"): (9,),
    ("sparse", "fa4"): (9,),
    ("sparse", "triton"): (8, 9, 10, 11, 12),
    ("sparse", "flex"): (8, 9, 10, 11, 12),
    ("eightbit", "gluon"): (9,),
    ("eightbit", "triton"): (9,),
}
"""Compute capabilities, by their first number, for which the kernels of an operator's implementation are built: no gate is run
elsewhere. FA4 4.0.0b36 and cuDNN's frontend 1.32 name theirs; the sparse adapters to both are written for the kernels of 9.x, and
so are the kernels in eight bits: values stand in the order of its matrix units."""
ON_AMD: Final = frozenset({("sparse", "triton"), ("sparse", "flex")})
"""What runs on an AMD GPU: what Triton compiles."""


def no_card_for(spec: AttentionSpec, operator: str, impl: str) -> str | None:
    """Say that a call's tensors are on no GPU, or on one without kernels of this implementation; None if they can run."""
    if spec.device.type != "cuda":
        return f"it runs on a GPU, the tensors are on {spec.device}"
    card, majors = spec.card, CAPABILITIES[operator, impl]
    if (card.vendor == "nvidia" and card.capability[0] in majors) or (card.vendor == "amd" and (operator, impl) in ON_AMD):
        return None
    here = f"{card.capability[0]}.{card.capability[1]}" if card.vendor == "nvidia" else str(card)
    return f"it runs on compute capability {', '.join(f'{major}.x' for major in majors)}, {spec.device} has {here}"


def short(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def silence_fa4() -> None:
    """Ignore a warning that FA4's compiler gives with every kernel, of an argument whose type it does not know.

    FA4 itself passes that argument, its kernels pass their gates all the same, and the caller can do nothing about it.
    """
    message = r"Argument aux_data \(position \d+\) cannot be converted to a JitArgument for function '\w*flash_attn"
    warnings.filterwarnings("ignore", message=message, category=UserWarning)


# ------------------------------------------------------------------------------------------------------------ records of gates

FILE: Final = "gates.json"
"""Name of the record that ships with the package, and of the one in the user's data folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRun:
    """One run of the gate of one implementation: its cases against the reference, on one card.

    Args:
        operator: `dense`, `sparse` or `eightbit`.
        impl: its name.
        vendor: of the card, `nvidia` or `amd`.
        architecture: of the card, such as `sm_90`.
        device: name of the card.
        versions: of the driver, torch, Triton and the library, as far as they are known.
        date: of the run, `2026-01-31`.
        tests: cases that passed.
        kernel: hash of the implementation's sources; empty in a record from before it was kept, which stands for any.
        failed: the first case that failed and why; empty if none did.
        cases: hash of the sources of the cases; the tests run a gate again whose cases are others now.
    """

    operator: str
    impl: str
    vendor: str
    architecture: str
    device: str
    versions: dict[str, str]
    date: str
    tests: int
    kernel: str = ""
    failed: str = ""
    cases: str = ""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        what = f"failed at {self.failed}; {self.tests} cases passed before it" if self.failed else f"{self.tests} tests"
        return f"{what} on {self.device}, {self.date}, {versions}"

    def drift(self, here: Mapping[str, str]) -> str:
        """List what is `here` in another version than the gate ran with, such as `torch 2.12.0`; empty if nothing is.

        Args:
            here: versions by name; a name that is not in it is not compared.
        """
        changed = (name for name, version in self.versions.items() if here.get(name, version) != version)
        return ", ".join(f"{name} {here[name]}" for name in changed)


def parse_gates(data: bytes) -> tuple[tuple[GateRun, ...], tuple[msgspec.Raw, ...]]:
    """Read a record: a list with an entry for each operator, implementation and architecture.

    Returns:
        The gates, and the entries that are none, as they stand.

    Raises:
        DataError: it is no list at all.
    """
    try:
        entries = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"not a list of gate records: {error}") from error
    gates, others = [], []
    for entry in entries:
        try:
            gates.append(msgspec.json.decode(entry, type=GateRun))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            others.append(entry)
    return tuple(gates), tuple(others)


def gate_file() -> Path | None:
    """Return the path of the record of gates that were run on this machine; None without a data folder."""
    folder = data_folder()
    return None if folder is None else folder / "strobe" / FILE


def _own_gates() -> tuple[GateRun, ...]:
    """Read the gates that were run on this machine; a damaged file or entry is warned of and left out."""
    place = gate_file()
    try:
        if place is None or not place.exists():
            return ()
        gates, others = parse_gates(place.read_bytes())
    except (OSError, DataError) as error:
        _warn(f"{place} is ignored: {error}; `strobe doctor --gate` writes a new one")
        return ()
    if others:
        _warn(f"{place}: {len(others)} of {len(gates) + len(others)} entries are no gate records and are ignored")
    return gates


def _warn(text: str) -> None:
    warnings.warn_explicit(text, UserWarning, "strobe", 0)  # one line: there is no source to quote


GATES: Final = (*_own_gates(), *parse_gates(files("strobe.attention").joinpath(FILE).read_bytes())[0])
"""The record of this machine, then the one that ships; read once, because a compiler cannot trace a file."""


def hash_of(*sources: str) -> str:
    """Hash the lines of source files that are neither blank nor comments; a gate's record holds for this hash alone.

    Args:
        sources: paths from the folder of this room; those of `eightbit` begin with `../`.
    """
    found = hashlib.sha256()
    for source in sources:
        text = files("strobe.attention").joinpath(source).read_text("utf-8")
        lines = (line.rstrip() for line in text.splitlines())
        found.update("\n".join(line for line in lines if line and not line.lstrip().startswith("#")).encode())
    return found.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------------------ the choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Impl(Generic[Spec]):
    """One implementation of an operator.

    Args:
        name: what a user writes as `impl=`.
        refuses: why it cannot run this call on this machine, or None if it can. It imports a library to know, once.
        run: the implementation, called with the operator's tensors and the spec.
        operator: `dense`, `sparse` or `eightbit`: whose gate it has to pass.
        kernel: hash of the sources that its gate stands for; empty if `auto` may take it without one.
        portable: `auto` may take it on a card where its gate has not been run, and then says so.
        slow: `auto` takes it only where no other runs, a portable one included.
        prepare: of the operator's tensors and the spec, what later calls of the same shapes need not work out again; None where
            there is no such thing.
    """

    name: str
    refuses: Callable[[Spec], str | None]
    run: Callable[..., AttentionOutput]
    operator: str = ""
    kernel: str = ""
    portable: bool = False
    slow: bool = False
    prepare: Callable[..., object] | None = None

    def gate(self, card: Card, gates: Sequence[GateRun]) -> GateRun | None:
        """Return the first gate that was run on such a card with the present sources, or None."""
        for each in gates:  # a loop, because torch.compile traces it, and torch 2.11 no generator in a generator
            mine = each.operator == self.operator and each.impl == self.name and (not each.kernel or each.kernel == self.kernel)
            if mine and each.vendor == card.vendor and each.architecture == card.architecture:
                return each
        return None

    def standing(self, card: Card, gates: Sequence[GateRun]) -> Standing:
        """Return the gate's result on such a card: `green`, `red`, `none` if it was not run, `free` if none is needed."""
        if not self.kernel or not card.vendor:
            return "free"
        found = self.gate(card, gates)
        return "none" if found is None else "red" if found.failed else "green"

    def untested(self, card: Card, gates: Sequence[GateRun]) -> str:
        """Say why `auto` must not choose the implementation on a card although it could run; empty if it may."""
        said = str(card)  # torch.compile traces this, and follows no dataclass inside of an f-string
        match self.standing(card, gates):
            case "none":
                return f"its gate has not been run on {said} with these kernels; strobe doctor --gate runs it"
            case "red":
                found = self.gate(card, gates)
                assert found is not None
                return f"its gate failed on {said}, at {found.failed}"
            case _:
                return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Generic[Spec]):
    """The implementation that would run and the reason each other one was passed over.

    Args:
        note: what a user is to know of the one that runs: that its gate has not been run on this card; empty if nothing.
    """

    impl: Impl[Spec]
    passed_over: tuple[tuple[str, str], ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [f"runs: {self.impl.name}", *([f"  {self.note}"] if self.note else [])]
        lines += [f"  not {name}: {reason}" for name, reason in self.passed_over]
        return "\n".join(lines)


def select(spec: Spec, impls: Sequence[Impl[Spec]], name: str = "auto", gates: Sequence[GateRun] | None = None) -> Choice[Spec]:
    """Choose an implementation: the named one, or of `impls` (best first) the first that accepts the call and passed its gate.

    Where only slow ones passed, a portable one comes before them, though its gate was not run; not if it failed.

    Args:
        gates: records of gates; by default those of this machine and of the package.

    Raises:
        ConfigError: no implementation has that name.
        ImplUnavailableError: the named one cannot run this call, or none can.
    """
    if name != "auto" and name not in [impl.name for impl in impls]:
        raise unknown_choice("impl", name, ["auto", *(impl.name for impl in impls)])
    if spec.dtype in EIGHT_BITS and name in ("auto", "sdpa", "cpu", "flex"):  # the others refuse it themselves
        no_kernel = f'no kernel here computes {short(spec.dtype)}; convert q, k and v to bfloat16, or give impl="reference"'
        raise ImplUnavailableError(name, no_kernel)
    known = GATES if gates is None else gates
    refused = {impl.name: impl.refuses(spec) for impl in impls}
    able = [impl for impl in impls if refused[impl.name] is None]
    doubts = dict.fromkeys(refused, "")
    if name == "auto":
        doubts |= {impl.name: impl.untested(spec.card, known) for impl in able}
    passed = [impl for impl in able if not doubts[impl.name]]
    portable = [impl for impl in able if impl.portable and impl.standing(spec.card, known) == "none"]
    wanted = [impl for impl in able if impl.name == name]
    if name == "auto":
        wanted = [*[impl for impl in passed if not impl.slow], *portable, *passed]
    reasons = {each: why or (f"untested: {doubts[each]}" if doubts[each] else "") for each, why in refused.items()}
    if not wanted:
        reason = reasons.get(name) or "; ".join(f"{other}: {why}" for other, why in reasons.items())
        raise ImplUnavailableError(name, reason, [impl.name for impl in able])
    chosen = wanted[0]
    comes_first = f"{chosen.name} comes first" if name == "auto" else f"{name} was asked for by name"
    passed_over = tuple((each, why or comes_first) for each, why in reasons.items() if each != chosen.name)
    note = f"{chosen.name} runs on {spec.card.name}: {doubts[chosen.name]}" if doubts[chosen.name] else ""
    return Choice(impl=chosen, passed_over=passed_over, note=note)


_SAID: Final[list[str]] = []


def announce(choice: Choice[Spec]) -> Choice[Spec]:
    """Warn with the note of a choice that is about to run, once per process."""
    if choice.note:
        _say(choice.note)
    return choice


@constant_when_traced
def _say(note: str) -> bool:
    """Warn once per process; a compiler that traces the choice runs this while it traces."""
    if not _SAID:
        _SAID.append(note)
        _warn(note)
    return True


# ------------------------------------------------------------------------------------------------------------ of other packages

# A package adds one with an entry point of the group `strobe.attention.dense` or `strobe.attention.sparse`, which names an
# `Impl`: it is run with q, k, v and an `AttentionSpec`, or with q, k, v, a `BlockSelection` and a `SparseSpec`. The name of the
# entry point is what `impl=` takes. It comes after ours: `auto` takes it where none of ours runs.
_OPENED: Final[dict[tuple[str, str], Plugin]] = {}
"""Those that were asked about, by operator and name."""


def plugged(operator: str, ours: Sequence[Impl[Any]]) -> tuple[Impl[Any], ...]:
    """Implementations of an operator by other packages; none is imported. One that is broken refuses every call and says why.

    Each has a gate of its own, whatever it says of itself: until that was run on a card, `auto` does not take it there. One with
    a name of ours has its package before it.
    """
    taken = {impl.name for impl in ours}
    found: list[Impl[Any]] = []
    for entry in entries(ATTENTION[operator]):
        package = entry.dist.name if entry.dist else "unknown"
        name = f"{package}:{entry.name}" if entry.name in taken else entry.name
        taken.add(name)
        refuses, run = partial(_refuses, operator, entry), partial(_run, operator, entry)
        found.append(Impl(name=name, refuses=refuses, run=run, operator=operator, kernel=_hash(entry)))
    return tuple(found)


def registered() -> tuple[Plugin, ...]:
    """Import and return what other packages register, of both operators."""
    return tuple(plugin for operator, group in ATTENTION.items() for plugin in plugins(group, partial(_fault, operator)))


def _fault(operator: str, found: object) -> str:
    if not isinstance(found, Impl):
        return f"it is a {type(found).__name__}, not a strobe.attention.impls.Impl"
    return "" if found.operator == operator else f"its operator is {found.operator!r}, not {operator!r}"


def _opened(operator: str, entry: EntryPoint) -> Plugin:
    key = (operator, entry.value)
    if key not in _OPENED:
        _OPENED[key] = open_plugin(entry, partial(_fault, operator))
    return _OPENED[key]


def _refuses(operator: str, entry: EntryPoint, spec: object) -> str | None:
    plugin = _opened(operator, entry)
    if plugin.broken:
        return f"plug-in {plugin} is broken: {plugin.broken}; mend or uninstall {plugin.package}"
    why: str | None = plugin.found.refuses(spec)
    return why


def _run(operator: str, entry: EntryPoint, *arguments: Any) -> AttentionOutput:
    plugin = _opened(operator, entry)
    if plugin.broken:
        raise ImplUnavailableError(plugin.name, plugin.broken)
    found: AttentionOutput = plugin.found.run(*arguments)
    return found


def _hash(entry: EntryPoint) -> str:
    """Hash of the name, version and Python files of a package: what its gate's record stands for."""
    whole = hashlib.sha256(
        f"{entry.value} {entry.dist.name} {entry.dist.version}".encode() if entry.dist else entry.value.encode()
    )
    for file in sorted((entry.dist and entry.dist.files) or ()):
        path = Path(str(file.locate()))
        if file.suffix == ".py" and path.is_file():
            whole.update(str(file).encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
