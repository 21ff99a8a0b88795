"""Reports of the implementation that an attention call would run, and of the state of every implementation on a device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from strobe.attention.dense.api import IMPLS as DENSE
from strobe.attention.dense.api import explain_dense
from strobe.attention.dense.eight.api import IMPLS as EIGHTBIT
from strobe.attention.impls import GATES, Choice, GateRun, Impl
from strobe.attention.sparse.api import spec_of
from strobe.attention.sparse.impls import IMPLS as SPARSE
from strobe.attention.sparse.impls import choose
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.video import explain_video
from strobe.attention.types import AttentionSpec
from strobe.core.device import Card, card_of
from strobe.core.errors import ConfigError


@overload
def explain(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection | None = None, **options: Any) -> Choice[Any]: ...


@overload
def explain(q: object, *, grid: tuple[int, int, int] | None = None) -> dict[str, Choice[Any]]: ...


def explain(
    q: Any,
    k: Tensor | None = None,
    v: Tensor | None = None,
    selection: BlockSelection | None = None,
    *,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
    **options: Any,
) -> Choice[Any] | dict[str, Choice[Any]]:
    """Say which implementation would run for these tensors, and why each other was passed over. Nothing runs.

    Given a pipeline, or a transformer, that was made sparse, it says that of every sparse layer by its name; printed, neighbours
    that say the same are one.

    Args:
        q: `[B, S_q, H, D]`; or a pipeline or transformer, alone or with the `grid=` of its tokens.
        k: `[B, S_kv, H_kv, D]`.
        v: like k.
        selection: of `block_sparse_attention`; without one, the call is `dense_attention`.
        softmax_scale: as it would be given.
        impl: the name that would be given.
        return_lse: whether the lse would be asked for.
        options: the other arguments of the operator: `deterministic=` of `block_sparse_attention`; `grid=`, which makes the call
            one of `video_sparse_attention`, and its arguments, such as `sparsity=0.9`.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: arguments of `video_sparse_attention` without a grid, or a selection beside it.
        ImplUnavailableError: the named impl cannot run this call.
    """
    if k is None and v is None and not isinstance(q, Tensor):
        return _layers(q, **options)
    if k is None or v is None:
        raise ConfigError("explain: got q without k and v; give all three, or a pipeline that was made sparse")
    given: dict[str, Any] = {"softmax_scale": softmax_scale, "impl": impl, "return_lse": return_lse}
    if "grid" in options:
        if selection is not None:
            raise ConfigError("selection: got one beside grid; video_sparse_attention makes its own")
        return explain_video(q, k, v, **given, **options)
    unknown = [name for name in options if name != "deterministic"]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: an argument of video_sparse_attention alone; give its grid=(T, H, W) too")
    if selection is None:
        return explain_dense(q, k, v, **given)
    return choose(spec_of(q, k, v, selection, softmax_scale, return_lse, options.get("deterministic", False)), impl)


class _ByLayer(dict[str, Choice[Any]]):
    """Choices by layer; as text, neighbours that say the same are one."""

    def __str__(self) -> str:
        told: list[tuple[str, list[str]]] = []
        for name, choice in self.items():
            text = str(choice)
            if told and told[-1][0] == text and _follows(told[-1][1][-1], name):
                told[-1][1].append(name)
            else:
                told.append((text, [name]))
        return "\n".join(f"{' to '.join(dict.fromkeys((n[0], n[-1])))} ({len(n)}) {text}" for text, n in told)


def _follows(before: str, name: str) -> bool:
    """Whether a layer is the next one of its transformer: none that explains nothing stands between them."""
    alike = re.sub(r"\d+", "", before) == re.sub(r"\d+", "", name)
    steps = [int(b) - int(a) for a, b in zip(re.findall(r"\d+", before), re.findall(r"\d+", name), strict=False)]
    return before.partition(".")[0] == name.partition(".")[0] and (not alike or sum(steps) == 1)


def components_of(pipe: Any) -> Mapping[str, Any]:
    """Return the components of a pipeline, or of an object with a transformer, by name; anything else has an empty name."""
    components = getattr(pipe, "components", None)
    if isinstance(components, Mapping):
        return components
    named = {name: getattr(pipe, name, None) for name in ("transformer", "transformer_2")}
    return {name: each for name, each in named.items() if isinstance(each, nn.Module)} or {"": pipe}


def _layers(pipe: Any, grid: tuple[int, int, int] | None = None) -> dict[str, Choice[Any]]:
    """Ask every layer of a pipeline or module that can explain itself which implementation it would run, by layer name."""
    found = _ByLayer()
    for component, part in components_of(pipe).items():
        for name, module in part.named_modules() if isinstance(part, nn.Module) else ():
            explains = getattr(getattr(module, "processor", None), "explain", None)  # a sparse layer explains itself
            if explains is not None:
                found[f"{component}.{name}" if component else name] = explains(module, grid)
    if not found:
        raise ConfigError(
            f"explain: {type(pipe).__name__} has no sparse layer; give tensors q, k, v, or make it sparse first with "
            "strobe.integrations.diffusers.sparsify"
        )
    return found


State = Literal["gated", "runs", "untested", "failed", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImplState:
    """The state of one implementation on one device.

    Args:
        operator: `dense`, `sparse` or `eightbit`.
        name: of the implementation.
        state: `gated`: it runs and passed its gate on such a card; `runs`: it runs and needs no gate; `untested`: it runs, its
            gate was not run; `failed`: it runs if named, its gate failed; `missing`: it does not run.
        detail: the record of the gate, with what is installed in another version than it ran with; or the reason; empty for
            `runs`.
    """

    operator: str
    name: str
    state: State
    detail: str


def survey(
    device: torch.device,
    *,
    card: Card | None = None,
    gates: tuple[GateRun, ...] | None = None,
    versions: Mapping[str, str] = MappingProxyType({}),
) -> tuple[ImplState, ...]:
    """Ask every implementation about a plain call on a device: bfloat16 on a GPU, head_dim 128, blocks of 64, no gradient.

    Args:
        card: what the device is, to ask about one that is not there.
        gates: records of gates; by default those of this machine and of the package.
        versions: what is installed, by name, to compare the records with.
    """
    card, known = card_of(device) if card is None else card, GATES if gates is None else gates
    return tuple(_state(impl, spec, known, versions) for impl, spec in plain_calls(device, card))


def plain_calls(device: torch.device, card: Card) -> list[tuple[Impl[Any], AttentionSpec]]:
    """List every implementation of dense, sparse and eight-bit attention with the plain call that `survey` asks it about."""
    dense = AttentionSpec(
        batch=1,
        q_len=1024,
        kv_len=1024,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        device=device,
        softmax_scale=128**-0.5,
        return_lse=False,
        needs_grad=False,
        card=card,
    )
    sparse = SparseSpec.of(dense, block=64, most_selected=4, ragged=False, uniform=False, deterministic=False)
    return [
        *((impl, dense) for impl in DENSE if impl.operator == "dense"),
        *((impl, sparse) for impl in SPARSE),
        *((impl, dense) for impl in EIGHTBIT),
    ]


def _state(impl: Impl[Any], spec: AttentionSpec, gates: tuple[GateRun, ...], versions: Mapping[str, str]) -> ImplState:
    gate = impl.gate(spec.card, gates) if spec.card.vendor else None
    state: State = "runs"
    detail = ""
    if reason := impl.refuses(spec):
        state, detail = "missing", reason
    elif gate is not None:
        drift = gate.drift(versions)
        state = "failed" if gate.failed else "gated"
        detail = str(gate) + (f"; not with what is here: {drift}" if drift else "")
    elif reason := impl.untested(spec.card, gates):
        state, detail = "untested", reason
    return ImplState(operator=impl.operator, name=impl.name, state=state, detail=detail)
